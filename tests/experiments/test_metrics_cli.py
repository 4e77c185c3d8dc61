"""``fcfl run metrics`` and ``fcfl run export`` as they are typed."""

import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from server_app.config import RunConfig
from server_app.run_folder import RunFolder
from tests.experiments.tiny import fcfl as here
from tests.server_app.report.conftest import epoch

ROOT = Path(__file__).resolve().parents[2]


def fcfl(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "experiments.cli", *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = RunFolder.create(tmp_path / "run", RunConfig.from_mapping({}), b"terms")
    folder.add_row(epoch(1, 1))
    return folder.path


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_scraper_is_served_on_the_loopback_address_until_the_command_is_stopped(
    run: Path, how: signal.Signals
) -> None:
    with fcfl("run", "metrics", run, "--port", 0) as serving:
        assert serving.stdout is not None
        address = serving.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address, timeout=30) as answer:
            assert b'fcfl_round{run="run"} 1.0' in answer.read()
        serving.send_signal(how)
        _, error = serving.communicate(timeout=60)
    assert (serving.returncode, error) == (0, "")
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address, timeout=30)


def test_a_port_in_use_and_a_folder_without_a_run_are_one_line(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for arguments, said in (
            (("run", "metrics", run, "--port", taken.getsockname()[1]), "cannot be used"),
            (("run", "metrics", tmp_path / "nowhere"), "holds no run"),
            (("run", "export", run), "nothing to write"),
            (("run", "export", tmp_path / "nowhere", "--csv", tmp_path / "a.csv"), "history.jsonl: missing"),
            (("run", "export", run, "--csv", tmp_path / "no" / "a.csv"), "cannot be written"),
        ):
            assert here(monkeypatch, *arguments) == 2
            error = capfd.readouterr().err
            assert said in error
            assert "Traceback" not in error


def test_both_formats_are_written_at_once(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    given = ("--csv", tmp_path / "a.csv", "--tensorboard", tmp_path / "events")
    assert here(monkeypatch, "run", "export", run, *given) == 0
    assert capfd.readouterr().out.count("1 epochs in") == 2
    assert (tmp_path / "a.csv").read_text().count("\n") == 2
    assert len(list((tmp_path / "events").iterdir())) == 1
