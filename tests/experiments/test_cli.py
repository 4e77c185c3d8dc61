"""The command line: what it makes, and one line for everything that cannot be done."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from experiments import cli
from privacy.ledger import Ledger
from privacy.plan import MechanismPlan
from privacy.records import SILO_ZERO_ADJACENCY, Release, RunOpened
from privacy.signing import SigningKey, fingerprint, read_public_key
from server_app.config import KEYS
from tests.experiments.tiny import SETTINGS, fcfl, released, silos, write_samples

ROOT = Path(__file__).resolve().parents[2]
HEADER = "Date,Open,High,Low,Close,Volume\n"
Run = Callable[..., int]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    return lambda *arguments, **settings: fcfl(monkeypatch, *arguments, **settings)


@pytest.fixture
def refused(run: Run, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must fail; return its one line."""

    def check(*arguments: object, **settings: object) -> str:
        capsys.readouterr()
        assert run(*arguments, **settings) == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.startswith("fcfl: ")
        assert shown.err.count("\n") == 1
        assert "Traceback" not in shown.err
        return shown.err.removeprefix("fcfl: ").strip()

    return check


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_samples(tmp_path_factory.mktemp("cli") / "samples")


@pytest.fixture(scope="module")
def finished(samples: Path) -> Path:
    """A run that has ended."""
    with pytest.MonkeyPatch.context() as patch:
        assert fcfl(patch, "run", "start", samples, "--out", samples.parent / "done", "--engine=local", **SETTINGS) == 0
    return samples.parent / "done"


def prices(folder: Path, *names: str, text: str = HEADER + "2020-01-02,1,2,0.5,1.5,100\n") -> Path:
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def long_history(start: float) -> str:
    """Four years of a ticker whose price wanders a little."""
    import numpy as np

    days = np.arange(np.datetime64("2019-01-01"), np.datetime64("2023-01-01"))
    days = days[np.is_busday(days)]
    close = start * np.exp(0.01 * np.cumsum(np.sin(np.arange(len(days)) * start)))
    rows = (f"{day},{c:.4f},{c * 1.01:.4f},{c * 0.99:.4f},{c:.4f},1000" for day, c in zip(days, close, strict=True))
    return HEADER + "\n".join(rows) + "\n"


# --- price files ------------------------------------------------------------------------------------


def test_a_missing_folder(refused: Run, tmp_path: Path) -> None:
    line = refused("data", "prepare", tmp_path / "nowhere", "--out", tmp_path / "out")
    assert line.startswith(f"{tmp_path / 'nowhere'}: no such folder")
    assert not (tmp_path / "out").exists()


def test_an_empty_folder(refused: Run, tmp_path: Path) -> None:
    line = refused("data", "prepare", prices(tmp_path / "empty"), "--out", tmp_path / "out")
    assert line.startswith(f"{tmp_path / 'empty'}: no .csv or .txt file in it")
    assert not (tmp_path / "out").exists()


BAD_FILES = {
    "an empty file": ("", "bad/B.csv: the file is empty"),
    "a header without rows": (HEADER, "bad/B.csv, line 2: no rows"),
    "a cell that is no number": (
        HEADER + "2020-01-02,1,2,0.5,1.5,100\n2020-01-03,1,2,n/a,1.5,100\n",
        "bad/B.csv, line 3, column Low: found 'n/a', expected a number",
    ),
    "a date twice": (
        HEADER + "2020-01-02,1,2,0.5,1.5,100\n2020-01-03,1,2,0.5,1.5,100\n2020-01-02,1,2,0.5,1.5,100\n",
        "bad/B.csv, line 4, column Date: found '2020-01-02', expected each date once (line 2 has it already)",
    ),
    "an unknown header": ("a,b,c\n1,2,3\n", "bad/B.csv"),
    "no text": ("\x00\x01\x02\x03", "bad/B.csv"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_bad_file_is_named_with_its_line_and_nothing_is_written(refused: Run, tmp_path: Path, kind: str) -> None:
    text, expected = BAD_FILES[kind]
    folder = prices(tmp_path / "bad", "A.csv")
    (folder / "B.csv").write_text(text, encoding="utf-8")
    assert expected in refused("data", "prepare", folder, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_more_silos_than_tickers(refused: Run, tmp_path: Path) -> None:
    folder = prices(tmp_path / "few", "A.csv", text=long_history(20.0))
    (folder / "B.csv").write_text(long_history(31.0), encoding="utf-8")
    line = refused("data", "prepare", folder, "--out", tmp_path / "out", "--silos", 3)
    assert "found 2 instruments for 3 silos" in line
    assert not list((tmp_path / "out").glob("*"))


def test_more_silos_than_synthetic_tickers(refused: Run, tmp_path: Path) -> None:
    line = refused("data", "synth", "--out", tmp_path / "out", "--tickers", 3, "--silos", 4)
    assert "3 instruments for 4 silos" in line
    assert not list((tmp_path / "out").glob("*"))


@pytest.mark.parametrize(
    ("option", "value", "name"),
    [("--alpha", "nan", "alpha"), ("--alpha", "-1", "alpha"), ("--silos", "0", "silos"), ("--seed", "-1", "seed")],
)
def test_an_option_out_of_range(refused: Run, tmp_path: Path, option: str, value: str, name: str) -> None:
    assert name in refused("data", "synth", "--out", tmp_path / "out", option, value)
    assert not (tmp_path / "out").exists()


def test_a_check_of_sound_files_ends_with_0_and_says_how_they_were_read(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = prices(tmp_path / "good", "A.csv", text=long_history(20.0))
    assert run("data", "check", folder) == 0
    shown = capsys.readouterr().out
    assert "layouts: ohlcv (1)" in shown
    assert "clean: 1 of 1 tickers" in shown


def test_a_check_ends_with_1_for_what_is_left_out_and_2_where_that_is_not_wanted(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = prices(tmp_path / "mixed", "A.csv", text=long_history(20.0))
    (folder / "B.csv").write_text("", encoding="utf-8")
    page, stored = tmp_path / "check.html", tmp_path / "check.json"
    assert run("data", "check", folder, "--html", page, "--json", stored) == 1
    assert "ticker left out: mixed/B.csv: the file is empty" in capsys.readouterr().out
    assert json.loads(stored.read_text(encoding="utf-8"))["exit_code"] == 1
    assert "mixed/B.csv: the file is empty" in page.read_text(encoding="utf-8")
    assert run("data", "check", folder, "--strict") == 2
    assert run("data", "check", folder, "--exclude", "B.csv", "--strict") == 0


def test_a_check_ends_with_2_for_a_file_that_cannot_be_read_and_still_shows_the_others(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = prices(tmp_path / "bad", "A.csv", text=long_history(20.0))
    (folder / "B.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    assert run("data", "check", folder) == 2
    shown = capsys.readouterr()
    assert "refused: bad/B.csv, line 1: found header 'a,b'" in shown.out
    assert "refused: 1 of 1 tickers in 2 files usable" in shown.out
    assert shown.err == ""


def test_a_layout_is_fixed_by_name_in_check_and_preparation(
    run: Run, refused: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = long_history(20.0).replace("2019-01-01", "2019-01-02").splitlines()
    rows = [line.split(",") for line in text[1:] if int(line[8:10]) <= 12]
    days = [[f"{row[0][5:7]}/{row[0][8:10]}/{row[0][:4]}", *row[1:]] for row in rows]
    content = HEADER + "".join(",".join(row) + "\n" for row in days)
    folder = prices(tmp_path / "us", "A.csv", text=content)
    assert run("data", "check", folder) == 2
    assert "--layout, one of ohlcv-dmy, ohlcv-mdy" in capsys.readouterr().out
    run("data", "check", folder, "--layout", "ohlcv-mdy")
    assert "layouts: ohlcv-mdy (1)" in capsys.readouterr().out
    out = tmp_path / "out"
    assert "layout: found 'x'" in refused("data", "prepare", folder, "--out", out, "--layout", "x")
    assert "us/A.csv, line 2" in refused("data", "prepare", folder, "--out", out)


@pytest.mark.parametrize(
    ("option", "expected"),
    [("us", "expected folder=code"), ("asia=XTKS", "names 'asia'"), ("us=XXXX", "market 'XXXX'")],
)
def test_a_market_that_is_none_is_refused(refused: Run, tmp_path: Path, option: str, expected: str) -> None:
    folder = prices(tmp_path / "us", "A.csv", text=long_history(20.0))
    assert expected in refused("data", "check", folder, "--market", option)


def test_a_preparation_says_how_files_were_read_and_what_was_left_out(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = prices(tmp_path / "mixed", "A.csv", text=long_history(20.0))
    lines = long_history(31.0).splitlines()
    lines[50] = lines[50].rsplit(",", 5)[0] + ",,,,,"
    (folder / "B.csv").write_text("\n".join(lines), encoding="utf-8")
    (folder / "C.csv").write_text("", encoding="utf-8")
    assert run("data", "prepare", folder, "--out", tmp_path / "out", "--silos", 1) == 0
    shown = capsys.readouterr().out
    assert "layouts: ohlcv (2)" in shown
    assert "rows left out or repaired: no prices (1)" in shown
    assert "ticker left out: mixed/C.csv: the file is empty" in shown


def test_a_second_preparation_of_the_same_files_changes_nothing(run: Run, tmp_path: Path) -> None:
    folder = prices(tmp_path / "tickers")
    for number in range(4):
        (folder / f"T{number}.csv").write_text(long_history(20.0 + 3 * number), encoding="utf-8")
    command = "data", "prepare", folder, "--out", tmp_path / "out", "--silos", 2

    def state() -> dict[str, tuple[int, int]]:
        files = (path for path in (tmp_path / "out").rglob("*") if path.is_file())
        return {str(path): (path.stat().st_mtime_ns, path.stat().st_ino) for path in files}

    assert run(*command) == 0
    first = state()
    assert sum("manifest.json" in name for name in first) == 2
    assert run(*command) == 0
    assert state() == first


# --- settings ---------------------------------------------------------------------------------------


BAD_SETTINGS = [
    ("dp.epsilo=1", "dp.epsilo: unknown setting"),
    ("dp.epsilon", "dp.epsilon: unknown setting; 'fcfl settings' lists them, and --set wants key=value"),
    ("dp.epsilon=NaN", "dp.epsilon: expected a finite number"),
    ("dp.epsilon=nan", "dp.epsilon: expected a number"),
    ("dp.epsilon=Infinity", "dp.epsilon: expected a finite number"),
    ("dp.delta=-Infinity", "dp.delta: expected a finite number"),
    ("dp.epsilon=1e999", "dp.epsilon: expected a finite number"),
    ("dp.epsilon=-1", "dp.epsilon: expected above 0"),
    ("dp.epsilon=", "dp.epsilon: expected a number"),
    ("dp.epsilon=true", "dp.epsilon: expected a number"),
    ("dp.epsilon=" + "9" * 5000, "dp.epsilon: expected a number"),
    ("dp.epsilon=1" + "0" * 400, "dp.epsilon: expected a finite number"),
    ("rounds=-3", "rounds: expected at least 1"),
    ("rounds=2.5", "rounds: expected a whole number"),
    ("silos=2", "silos: expected at least 3"),
    ("dp.schedule=linear", "dp.schedule: expected one of constant, divergence"),
    ("server.jitter=0", "server.jitter: expected above 0"),
    ("dp.epsilon=0.0001", "epsilon 0.0001 is too small for one round"),
]


@pytest.mark.parametrize(("setting", "expected"), BAD_SETTINGS, ids=[s[:24] for s, _ in BAD_SETTINGS])
def test_a_bad_setting_is_named_before_anything_is_made(
    refused: Run, samples: Path, tmp_path: Path, setting: str, expected: str
) -> None:
    rest = [f"--set={name}={value}" for name, value in SETTINGS.items() if not setting.startswith(name)]
    start = "run", "start", samples, "--out", tmp_path / "run", "--engine=local", *rest, f"--set={setting}"
    assert refused(*start).startswith(expected)
    assert not (tmp_path / "run").exists()


def test_a_demo_checks_its_settings_before_it_makes_samples(refused: Run, tmp_path: Path) -> None:
    demo = "demo", "--out", tmp_path / "runs", "--engine=local", "--silos=4"
    assert refused(*demo, "--set=dp.epsilo=1").startswith("dp.epsilo: unknown setting")
    assert refused(*demo, "--set=dp.epsilon=0.0001").startswith("epsilon 0.0001 is too small")
    assert refused(*demo, "--preset=papers") == "--preset: expected one of paper, got 'papers'"
    # The paper's raw step stands on its trust region, so that taking this away alone must be refused.
    assert refused(*demo, "--preset=paper", "--set=server.trust-region=0.0").startswith("server.trust-region: must be")
    assert refused("demo", "--out", tmp_path / "runs", "--silos=2").startswith("silos: expected at least 3")
    assert not (tmp_path / "runs").exists()


def test_an_engine_that_does_not_exist(refused: Run, samples: Path, finished: Path, tmp_path: Path) -> None:
    for command in (
        ("run", "start", samples, "--out", tmp_path / "run"),
        ("run", "resume", finished),
        ("demo", "--out", tmp_path / "run"),
    ):
        line = refused(*command, "--engine=simulated")
        assert "--engine" in line
        assert "'simulated' is not one of 'simulation', 'local'" in line
    assert not (tmp_path / "run").exists()


def test_settings_are_listed(run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run("settings") == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in KEYS)


# --- runs -------------------------------------------------------------------------------------------


def test_a_run_leaves_its_model_its_summary_and_its_report(finished: Path) -> None:
    summary = json.loads((finished / "summary.json").read_text(encoding="utf-8"))
    assert summary["outcome"] == "completed"
    assert summary["epsilon"] <= 1.0
    assert summary["seeded"] is True
    assert summary["evaluation"]["test"]["count"] == 4 * 40
    for name in ("model.npz", "report.html", "history.jsonl", "config.json"):
        assert (finished / name).stat().st_size > 0
    assert released(finished) == [1, 2, 3]
    assert len(silos(finished)) == 4
    assert not list(finished.rglob("*.tmp"))


def test_samples_that_are_not_there(refused: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "nowhere"):
        line = refused("run", "start", folder, "--out", tmp_path / "run", "--engine=local")
        assert line.startswith(f"{folder}: no silo-00")
    assert not (tmp_path / "run").exists()


def test_a_folder_with_a_run_is_not_started_over(refused: Run, samples: Path, finished: Path) -> None:
    before = (finished / "silos" / "silo-00" / "ledger.jsonl").read_bytes()
    line = refused("run", "start", samples, "--out", finished, "--engine=local", **SETTINGS)
    assert "already holds a silo" in line
    assert (finished / "silos" / "silo-00" / "ledger.jsonl").read_bytes() == before


def test_there_is_nothing_to_resume(refused: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("", encoding="utf-8")
    for folder in ("nowhere", "empty", "file"):
        assert refused("run", "resume", tmp_path / folder, "--engine=local").endswith("holds no run to resume")
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "empty" / "config.json").write_text("[]", encoding="utf-8")
    line = refused("run", "resume", tmp_path / "empty", "--engine=local")
    assert line.endswith("config.json: damaged; restore it from a copy")


def test_a_run_that_has_ended_is_not_resumed(refused: Run, finished: Path) -> None:
    before = (finished / "history.jsonl").read_bytes()
    assert "the run has ended" in refused("run", "resume", finished, "--engine=local")
    assert (finished / "history.jsonl").read_bytes() == before


def test_a_report_can_be_written_again(run: Run, refused: Run, finished: Path, tmp_path: Path) -> None:
    (finished / "report.html").unlink()
    assert run("report", finished) == 0
    assert (finished / "report.html").stat().st_size > 10_000
    assert str(tmp_path / "nowhere") in refused("report", tmp_path / "nowhere")


# --- silos and ledgers ------------------------------------------------------------------------------


def test_a_silo_is_made_once(run: Run, refused: Run, tmp_path: Path) -> None:
    command = "silo", "init", tmp_path / "silo", "--name=bank", "--data", tmp_path
    assert run(*command) == 0
    assert (tmp_path / "silo" / "silo.toml").exists()
    kept = (tmp_path / "silo" / "identity.key").read_bytes()
    assert "already holds a silo" in refused(*command)
    (tmp_path / "silo" / "silo.toml").unlink()
    assert "identity.key" in refused(*command)
    assert (tmp_path / "silo" / "identity.key").read_bytes() == kept


def test_making_a_silo_tells_its_fingerprint_and_keeps_its_key(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "silo"
    assert run("silo", "init", folder, "--name=bank", "--data", tmp_path) == 0
    shown = capsys.readouterr()
    assert fingerprint(read_public_key(folder / "identity.pub")) in shown.out
    assert str(folder / "identity.pub") in shown.out
    for line in (folder / "identity.key").read_text(encoding="utf-8").splitlines():
        assert line not in shown.out + shown.err


def test_ledgers_of_a_run_verify(run: Run, finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in (finished, *silos(finished)):
        assert run("ledger", "verify", folder / "ledger.jsonl", "--anchor", folder / "ledger.anchor") == 0
    shown = capsys.readouterr().out
    assert shown.count("not private: seeded") + shown.count("seeded") >= 5
    assert "head " in shown
    assert shown.count("as the file claims, checked against no key") == len(silos(finished)) + 1
    assert "no anchor given" not in shown


def test_a_ledger_of_unlike_budgets_says_so(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One run's two budgets are told apart, and what protects silos is not added to what protects records."""
    monkeypatch.setattr("experiments.cli.console", Console(width=200))
    names = ("0123456789abcdef" * 2, "0123456789abcdef" * 2 + ".evaluation")
    other = RunOpened("ff" * 16, 1.0, 1e-5, 17.0, 0.5, "1", unit="silo", adjacency=SILO_ZERO_ADJACENCY)
    opened = [*(RunOpened(name, 1.0, 1e-5, 17.0, 0.5, "1") for name in names), other]
    with Ledger.create(tmp_path / "l", tmp_path / "a", signer=SigningKey.generate()) as ledger:
        for number, each in enumerate(opened, start=1):
            ledger.append(each.KIND, each.body())
            release, _ = Release.charge(each.run, 1, MechanismPlan(1.0, 1.0, 9.0, 1, 1), each.budget())
            ledger.append(release.KIND, release.body())
            assert run("ledger", "verify", tmp_path / "l") == 0
            shown = capsys.readouterr().out
            assert ("do not add up" in shown) == (number == 3)
    assert shown.count("0123456789ab.evaluation") == 1
    assert shown.count(" record ") == 2
    assert shown.count(" silo ") == 1


def test_a_ledger_is_checked_against_the_silos_key(
    run: Run, refused: Run, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = silos(finished)[:2]
    ledger, anchor = first / "ledger.jsonl", ("--anchor", first / "ledger.anchor")
    assert run("ledger", "verify", ledger, *anchor, "--key", first / "identity.pub") == 0
    shown = capsys.readouterr().out
    assert f"signed by {fingerprint(read_public_key(first / 'identity.pub'))}, the given key" in shown
    assert run("ledger", "verify", ledger) == 0
    assert "no anchor given" in capsys.readouterr().out
    line = refused("ledger", "verify", ledger, *anchor, "--key", second / "identity.pub")
    assert line.startswith(f"{ledger}, line 1: the ledger is of key ")
    line = refused("ledger", "verify", ledger, "--anchor", second / "ledger.anchor")
    assert line.startswith(f"{second / 'ledger.anchor'}: the anchor is not signed by the ledger's key")
    line = refused("ledger", "verify", ledger, "--key", first / "identity.key")
    assert line.startswith(f"{first / 'identity.key'}: not an Ed25519 public key")
    assert str(tmp_path / "none.pub") in refused("ledger", "verify", ledger, "--key", tmp_path / "none.pub")
    *lines, last = ledger.read_text(encoding="utf-8").splitlines(keepends=True)
    position = last.index('"signature":"') + len('"signature":"')
    changed = tmp_path / "ledger.jsonl"
    for text, words in (
        (last[:position] + ("1" if last[position] != "1" else "2") + last[position + 1 :], "the signature is not by"),
        (last[:position] + last[position + 128 :], "not signed"),
    ):
        changed.write_text("".join([*lines, text]), encoding="utf-8")
        line = refused("ledger", "verify", changed, "--key", first / "identity.pub")
        assert line.startswith(f"{changed}, line {len(lines) + 1}: {words}")


def test_an_edited_ledger_is_refused_with_its_line(refused: Run, finished: Path, tmp_path: Path) -> None:
    text = (finished / "ledger.jsonl").read_text(encoding="utf-8")
    edited = tmp_path / "ledger.jsonl"
    edited.write_text(text.replace('"epoch":2', '"epoch":9'), encoding="utf-8")
    assert edited.read_text(encoding="utf-8") != text
    assert refused("ledger", "verify", edited).startswith(f"{edited}, line 4")
    lines = text.splitlines(keepends=True)
    edited.write_text("".join([*lines[:2], *lines[3:]]), encoding="utf-8")
    assert refused("ledger", "verify", edited).startswith(f"{edited}, line 3")
    edited.write_text("".join(lines[:-1]), encoding="utf-8")
    line = refused("ledger", "verify", edited, "--anchor", finished / "ledger.anchor")
    assert str(edited) in line
    assert str(tmp_path / "none") in refused("ledger", "verify", tmp_path / "none")


# --- the process ------------------------------------------------------------------------------------


def test_an_interrupt_is_one_line_and_130(
    run: Run, samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_train", interrupt)
    assert run("run", "start", samples, "--out", tmp_path / "run") == 130
    assert capsys.readouterr().err == "fcfl: stopped\n"


def test_a_file_that_cannot_be_opened_is_one_line(
    refused: Run, samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", str(tmp_path / "run" / "x"))

    monkeypatch.setattr(cli, "_train", full)
    line = refused("run", "start", samples, "--out", tmp_path / "run")
    assert line == f"{tmp_path / 'run' / 'x'}: No space left on device; check the path, its rights and the disk"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["data", "prepare", "nowhere", "--out=out"], "nowhere: no such folder"),
        (["run", "resume", "nowhere", "--engine=locla"], "'locla' is not one of 'simulation', 'local'"),
        (
            ["run", "start", "SAMPLES", "--out=out", "--set=participation.cohort=2", "--set=dp.epsilon=1e-6"],
            "too small",
        ),
    ],
    ids=["missing folder", "engine", "epsilon"],
)
def test_a_real_process_ends_with_one_line_and_code_2(
    samples: Path, tmp_path: Path, arguments: list[str], expected: str
) -> None:
    given = [str(samples) if argument == "SAMPLES" else argument for argument in arguments]
    ended = subprocess.run(
        [sys.executable, "-m", "experiments.cli", *given],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith("fcfl: ")
    assert ended.stderr.count("\n") == 1
    assert expected in ended.stderr
    assert not list(tmp_path.iterdir())


def test_a_demo_from_nothing_to_its_report(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demo = "demo", "--engine=local", "--silos=4", "--tickers=16", "--rounds=2", "--out", tmp_path
    assert run(*demo, "--set=deadline.poll=0.01") == 0
    shown = capsys.readouterr().out
    (folder,) = tmp_path.glob("synthetic-*")
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert summary["outcome"] == "completed"
    assert summary["rounds"] == 2
    assert 0 < summary["epsilon"] <= 1.0
    assert summary["seeded"] is False
    assert (folder / "report.html").stat().st_size > 10_000
    for text in ("zero forecast", "FCFL", "optimum", "epsilon", "1.000 of 1.000"):
        assert text in shown
    assert "4 silos, samples in" in shown
    assert len(list((tmp_path / "samples").glob("*/silo-*"))) == 4
    assert released(folder) == [1, 2]
    assert all(released(silo) in ([], [1], [2], [1, 2]) for silo in silos(folder))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--silos", 1000), ("30", "17", "950")),
        (("--silos", 1000, "--dropout", 0.05, "--corruption", 0.05, "--active"), ("138", "112", "950")),
        (("--silos", 20, "--dropout", 0.3, "--corruption", 0.3), ("19 (complete",)),
    ],
)
def test_parameters_of_a_regular_graph_are_printed(
    run: Run, capsys: pytest.CaptureFixture[str], arguments: tuple[object, ...], expected: tuple[str, ...]
) -> None:
    assert run("secagg", "parameters", *arguments) == 0
    printed = capsys.readouterr().out
    assert all(value in printed for value in expected)
