"""What watches a run sees its progress, and nothing about any one silo."""

import json
import math
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from fcfl_strategy.errors import RunError
from server_app.config import RunConfig
from server_app.metrics import FILE, MEASURES, exposition, serve
from server_app.observer import RunObserver
from server_app.report.data import load_history
from server_app.run_folder import RunFolder
from tests.fcfl_strategy.made import make_settings
from tests.server_app.report.conftest import epoch, metrics

MADE = make_settings()


def samples(text: str) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


def values(text: str) -> dict[str, float]:
    return {name: found[0].value for name, found in samples(text).items() if len(found) == 1}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", RunConfig.from_mapping({}), MADE.terms.to_bytes())


def text_of(folder: RunFolder, *rows: Mapping[str, Any], written: float = 1.7e9) -> str:
    for row in rows:
        folder.add_row(row)
    return exposition(load_history(folder.path), "run", written).decode()


def test_every_measure_of_the_last_epoch_is_there_with_its_unit_in_its_name(folder: RunFolder) -> None:
    row = epoch(3, 2, validation=metrics(1.25e-4), test=metrics(1.5e-4, 99), seconds=7.5, contributors=9, survivors=17)
    found = values(text_of(folder, row))
    assert {f"fcfl_{measure.name}" for measure in MEASURES if not measure.sums} < found.keys()
    assert found["fcfl_epoch"] == 3
    assert found["fcfl_round"] == 2
    assert found["fcfl_epoch_seconds"] == 7.5
    assert (found["fcfl_contributors"], found["fcfl_survivors"], found["fcfl_enrolled"]) == (9, 17, 20)
    assert found["fcfl_privacy_epsilon"] == row["epsilon"]
    assert found["fcfl_privacy_budget_ratio"] == row["budget_fraction"]
    assert found["fcfl_validation_mse"] == 1.25e-4
    assert (found["fcfl_test_mse"], found["fcfl_test_records"]) == (1.5e-4, 99)
    assert found["fcfl_last_epoch_timestamp_seconds"] == 1.7e9


def test_what_an_epoch_does_not_measure_stays_at_the_last_known_value(folder: RunFolder) -> None:
    done = epoch(1, 1, contributors=8, sigma=1.5, validation=metrics(1.25e-4))
    found = values(text_of(folder, done, epoch(2, 2, "abandoned", survivors=3)))
    assert (found["fcfl_contributors"], found["fcfl_noise_multiplier"]) == (8, 1.5)
    assert found["fcfl_validation_mse"] == 1.25e-4
    assert found["fcfl_survivors"] == 3
    assert "fcfl_test_mse" not in found


def test_traffic_and_epochs_are_counted_over_the_run(folder: RunFolder) -> None:
    rows = [
        epoch(1, 0, purpose="scale", validation=None, bytes_up=1, bytes_down=10),
        epoch(2, 1, bytes_up=2, bytes_down=20),
        epoch(3, 2, "abandoned", bytes_up=4, bytes_down=40),
        epoch(4, 2, bytes_up=8, bytes_down=80),
    ]
    text = text_of(folder, *rows)
    assert values(text)["fcfl_received_bytes_total"] == 15
    assert values(text)["fcfl_sent_bytes_total"] == 150
    ends = {(s.labels["purpose"], s.labels["status"]): s.value for s in samples(text)["fcfl_epochs_total"]}
    assert ends == {("scale", "completed"): 1, ("train", "completed"): 2, ("train", "abandoned"): 1}


def test_an_epsilon_that_nothing_bounds_is_infinite(folder: RunFolder) -> None:
    assert values(text_of(folder, epoch(1, 1, epsilon=None)))["fcfl_privacy_epsilon"] == math.inf


def test_a_run_without_an_epoch_has_counts_of_zero_and_no_values() -> None:
    found = values(exposition((), "run", 0.0).decode())
    assert found == {"fcfl_received_bytes_total": 0, "fcfl_sent_bytes_total": 0}


def test_the_name_of_a_run_cannot_break_the_format() -> None:
    name = 'a"b\\c\nd'
    found = samples(exposition((), name, 0.0).decode())
    assert {sample.labels["run"] for group in found.values() for sample in group} == {name}


def test_nothing_tells_silos_apart(folder: RunFolder) -> None:
    """Labels are the run, and for the count of epochs purpose and status; a row's unknown keys go nowhere."""
    text = text_of(folder, epoch(1, 1, silos={"bank-a": 17.0}))
    labels = {key for group in samples(text).values() for sample in group for key in sample.labels}
    assert labels == {"run", "purpose", "status"}
    assert "bank-a" not in text


def test_the_observer_leaves_a_whole_file_after_each_epoch(folder: RunFolder) -> None:
    path = folder.path / FILE
    with RunObserver.open(folder, MADE) as observer:
        observer.finished(epoch(1, 1))
        first = path.stat().st_ino
        assert values(path.read_text())["fcfl_epoch"] == 1
        observer.finished(epoch(2, 2))
    assert values(path.read_text())["fcfl_epoch"] == 2
    # Another file under the name: a scraper that had opened the first one reads it to its end.
    assert path.stat().st_ino != first
    assert not list(folder.path.glob("*.tmp"))


def test_figures_that_cannot_be_written_do_not_stop_a_run(folder: RunFolder, caplog: pytest.LogCaptureFixture) -> None:
    with RunObserver.open(folder, MADE) as observer, caplog.at_level("WARNING", "fcfl.coordinator"):
        observer.finished(epoch(1, 1))
        before = (folder.path / FILE).read_bytes()
        observer.finished(epoch(2, 2, update_norm=math.nan))
    assert len(folder.history()) == 2
    assert (folder.path / FILE).read_bytes() == before
    assert "metrics.prom is not written: history.jsonl, line 2: update_norm: expected a finite number" in caplog.text


def test_a_full_disk_is_named(folder: RunFolder) -> None:
    with RunObserver.open(folder, MADE) as observer:
        (folder.path / f"{FILE}.tmp").mkdir()
        with pytest.raises(RunError, match=r"metrics\.prom: cannot be written"):
            observer.finished(epoch(1, 1))


def test_a_scrape_sees_what_the_history_says_at_that_moment(folder: RunFolder) -> None:
    server = serve(folder.path, "127.0.0.1", 0)
    try:

        def scrape() -> dict[str, float]:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=30) as answer:
                assert answer.headers["Content-Type"].startswith("text/plain; version=")
                return values(answer.read().decode())

        assert scrape()["fcfl_history_readable"] == 1
        folder.add_row(epoch(1, 1))
        assert scrape()["fcfl_epoch"] == 1
        folder.add_row(epoch(2, 2))
        found = scrape()
        assert found["fcfl_epoch"] == 2
        assert found["fcfl_last_epoch_timestamp_seconds"] == (folder.path / "history.jsonl").stat().st_mtime
        assert not [name for name in found if name.startswith(("process_", "python_"))]
        (folder.path / "history.jsonl").write_text("torn {")
        assert scrape() == {"fcfl_history_readable": 0}
    finally:
        server.shutdown()
        server.server_close()
    assert not [thread for thread in threading.enumerate() if "serve_forever" in thread.name]


def test_starting_a_server_app_loads_no_plotting_library() -> None:
    code = "import sys, server_app.app; sys.exit('matplotlib' in sys.modules)"
    root = Path(__file__).resolve().parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


def test_the_file_and_a_scrape_say_the_same(folder: RunFolder) -> None:
    with RunObserver.open(folder, MADE) as observer:
        observer.finished(epoch(1, 1))
    file = values((folder.path / FILE).read_text())
    server = serve(folder.path, "127.0.0.1", 0)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=30) as answer:
            scraped = values(answer.read().decode())
    finally:
        server.shutdown()
        server.server_close()
    for found in (file, scraped):
        del found["fcfl_last_epoch_timestamp_seconds"]
    assert scraped == {**file, "fcfl_history_readable": 1}


def test_the_history_of_a_run_with_a_private_scale_is_read(folder: RunFolder) -> None:
    folder.add_row(json.loads(json.dumps(epoch(1, 0, purpose="scale", validation=None, sigma=None))))
    folder.add_row(epoch(2, 1))
    assert [row.purpose for row in load_history(folder.path)] == ["scale", "train"]
