"""A history in other tools' formats is the history."""

import builtins
import csv
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from server_app.export import write_csv, write_tensorboard
from server_app.report.data import ReportError, load_history
from tests.server_app.report.conftest import epoch, history, metrics

ROWS = [*history(), epoch(16, 14, purpose="evaluate", test=metrics(1.5e-4, 99))]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return folder


def test_tensorboard_reads_back_every_value_at_its_epoch(run: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert write_tensorboard(run, tmp_path / "events") == len(ROWS)
    events = EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    read = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    assert read["validation/mse"] == [
        (row["epoch"], pytest.approx(row["validation"]["mse"], rel=1e-6)) for row in ROWS if row["validation"]
    ]
    assert read["test/mse"] == [(16, pytest.approx(1.5e-4, rel=1e-6))]
    assert read["privacy/epsilon"] == [(row["epoch"], pytest.approx(row["epsilon"], rel=1e-6)) for row in ROWS]
    assert read["run/survivors"] == [(row["epoch"], row["survivors"]) for row in ROWS]
    times = [event.wall_time for event in events.Scalars("run/epoch")]
    for (before, after), row in zip(itertools.pairwise(times), ROWS[1:], strict=True):
        assert after - before == pytest.approx(row["seconds"], abs=1e-3)


def test_events_are_not_mixed_with_those_of_another_export(run: Path, tmp_path: Path) -> None:
    write_tensorboard(run, tmp_path / "events")
    with pytest.raises(ReportError, match="holds TensorBoard events already"):
        write_tensorboard(run, tmp_path / "events")


def test_without_tensorboard_it_says_what_to_install(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def absent(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("torch.utils.tensorboard"):
            raise ModuleNotFoundError("No module named 'tensorboard'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(ReportError, match=r"pip install 'fcfl\[tensorboard\]'"):
        write_tensorboard(run, tmp_path / "events")
    assert not (tmp_path / "events").exists()


def test_the_csv_has_one_line_an_epoch_with_the_very_numbers(run: Path, tmp_path: Path) -> None:
    assert write_csv(run, tmp_path / "history.csv") == len(ROWS)
    with (tmp_path / "history.csv").open(newline="") as file:
        read = list(csv.DictReader(file))
    assert [line["epoch"] for line in read] == [str(row["epoch"]) for row in ROWS]
    for line, row, loaded in zip(read, ROWS, load_history(run), strict=True):
        assert (line["purpose"], line["status"], line["round"]) == (row["purpose"], row["status"], str(row["round"]))
        assert float(line["privacy_epsilon"]) == loaded.epsilon
        assert line["contributors"] == ("" if row["contributors"] is None else str(row["contributors"]))
        assert line["validation_mse"] == (repr(row["validation"]["mse"]) if row["validation"] else "")
        assert line["received_bytes"] == str(row["bytes_up"])


@pytest.mark.parametrize("broken", [None, "torn {"])
def test_a_history_that_cannot_be_read_is_named_and_nothing_is_written(
    run: Path, tmp_path: Path, broken: str | None
) -> None:
    (run / "history.jsonl").unlink()
    if broken is not None:
        (run / "history.jsonl").write_text(broken)
    for write in (write_csv, write_tensorboard):
        with pytest.raises(ReportError, match=r"history\.jsonl"):
            write(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()
