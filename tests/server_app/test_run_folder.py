"""Files of a run: old or new but never half, also on a full disk."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fcfl_strategy import checkpoint
from fcfl_strategy.errors import RunError
from server_app.config import ConfigError, RunConfig
from server_app.run_folder import FileJournal, RunFolder, stored_config, write_atomic
from tests.fcfl_strategy.made import make_settings, make_state

CONFIG = RunConfig.from_mapping({"rounds": 3})


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", CONFIG, b"terms")


def row(epoch: int, **changes: Any) -> dict[str, Any]:
    return {"epoch": epoch, "round": epoch, "status": "completed", **changes}


# --- writing ----------------------------------------------------------------------------------------


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    write_atomic(tmp_path / "file", [b"one", b"two"])
    assert (tmp_path / "file").read_bytes() == b"onetwo"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def broken_chunks() -> Iterator[bytes]:
    yield b"new, but only"
    raise OSError(28, "No space left on device")


def test_a_write_that_fails_leaves_the_old_file_whole_and_names_it(tmp_path: Path) -> None:
    target = tmp_path / "file"
    write_atomic(target, [b"old"])
    with pytest.raises(RunError) as caught:
        write_atomic(target, broken_chunks())
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert str(caught.value).startswith(f"{target}: ")
    assert "No space left on device" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failing_fsync_or_rename_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    target = tmp_path / "file"
    write_atomic(target, [b"old"])

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os if call == "fsync" else Path, call, fail)
    with pytest.raises(RunError, match=r"Input/output error"):
        write_atomic(target, [b"new"])
    monkeypatch.undo()
    assert target.read_bytes() == b"old"


def test_the_file_is_on_the_disk_before_its_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fsync of the data, rename, fsync of the folder: in any other order a power cut can lose both versions."""
    calls: list[str] = []
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (calls.append("fsync"), fsync(handle))[1])
    monkeypatch.setattr(Path, "replace", lambda self, to: (calls.append("replace"), replace(self, to))[1])
    write_atomic(tmp_path / "file", [b"new"])
    assert calls == ["fsync", "replace", "fsync"]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"nowhere/file: cannot be written \(No such file"):
        write_atomic(tmp_path / "nowhere" / "file", [b""])


def test_a_file_in_place_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(RunError, match=r"cannot be written \(Not a directory"):
        write_atomic(tmp_path / "file" / "below", [b""])
    with pytest.raises(RunError, match=r"cannot be made"):
        RunFolder.create(tmp_path / "file" / "run", CONFIG, b"terms")


def test_a_killed_writer_leaves_the_old_file(tmp_path: Path) -> None:
    """The process dies in the middle of the chunks: no exception handler runs."""
    target = tmp_path / "file"
    write_atomic(target, [b"old"])
    code = (
        "import os, sys; from pathlib import Path; from server_app.run_folder import write_atomic\n"
        "def chunks():\n    yield b'x' * 100000\n    os._exit(9)\n"
        "write_atomic(Path(sys.argv[1]), chunks())"
    )
    root = Path(__file__).resolve().parents[2]
    assert subprocess.run([sys.executable, "-c", code, str(target)], cwd=root, check=False).returncode == 9
    assert target.read_bytes() == b"old"
    write_atomic(target, [b"new"])
    assert target.read_bytes() == b"new"


# --- the journal ------------------------------------------------------------------------------------


def test_the_journal_keeps_blobs_by_name(run: RunFolder) -> None:
    journal = run.journal
    assert journal.get("checkpoint") is None
    journal.put("checkpoint", b"one")
    journal.put("checkpoint", b"two")
    assert journal.get("checkpoint") == b"two"


def test_names_leave_out_interrupted_writes(run: RunFolder) -> None:
    for name in ("00000001.masked.00002", "00000001.masked.00000", "00000002.masked.00000", "00000001.bundle.00000"):
        run.journal.put(name, b"x")
    (run.path / "journal" / "00000001.masked.00001.tmp").write_bytes(b"half")
    assert run.journal.names("00000001.masked.") == ["00000001.masked.00000", "00000001.masked.00002"]
    assert len(run.journal.names("")) == 4


def test_erase_takes_the_prefix_and_nothing_else(run: RunFolder) -> None:
    for name in ("00000001.masked.00000", "00000001.bundle.00000", "00000011.masked.00000", "checkpoint"):
        run.journal.put(name, b"x")
    run.journal.erase("00000001.masked")
    assert run.journal.names("") == ["00000001.bundle.00000", "00000011.masked.00000", "checkpoint"]
    run.journal.erase("00000001.masked")


# --- a run's folder ---------------------------------------------------------------------------------


def test_a_new_run_can_be_taken_up_again(run: RunFolder) -> None:
    run.journal.put("checkpoint", b"state")
    again, terms = RunFolder.reopen(run.path, RunConfig.from_mapping({"rounds": 3, "resume": True}))
    assert terms == b"terms"
    assert again.journal.get("checkpoint") == b"state"


def test_moving_or_resuming_a_run_does_not_change_its_configuration(run: RunFolder, tmp_path: Path) -> None:
    moved = run.path.rename(tmp_path / "moved")
    config = RunConfig.from_mapping({"rounds": 3, "resume": True, "run-dir": str(moved), "simulation-root": "else"})
    assert RunFolder.reopen(moved, config)[1] == b"terms"


def test_a_folder_with_a_run_is_never_started_over(run: RunFolder) -> None:
    with pytest.raises(ConfigError, match=r"already holds a run; resume it"):
        RunFolder.create(run.path, CONFIG, b"other")
    assert (run.path / "terms").read_bytes() == b"terms"


def test_a_start_that_died_before_its_configuration_was_there_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """config.json is what makes a folder a run, so it comes last."""
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write_json", lambda *_: None)
        RunFolder.create(tmp_path / "run", CONFIG, b"first")
    assert (tmp_path / "run" / "terms").exists()
    with pytest.raises(ConfigError, match=r"holds no run to resume"):
        RunFolder.reopen(tmp_path / "run", CONFIG)
    RunFolder.create(tmp_path / "run", CONFIG, b"second")
    assert RunFolder.reopen(tmp_path / "run", CONFIG)[1] == b"second"


def test_another_configuration_is_refused(run: RunFolder) -> None:
    with pytest.raises(ConfigError, match=r"started with another configuration"):
        RunFolder.reopen(run.path, RunConfig.from_mapping({"rounds": 4}))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '"text"', "{}", '{"config": 3, "hash": ""}', '{"config": {}}', "\udce9"]
)
def test_a_damaged_configuration_is_named(run: RunFolder, text: str) -> None:
    (run.path / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    for reopen in (lambda: RunFolder.reopen(run.path, CONFIG), lambda: stored_config(run.path)):
        with pytest.raises(ConfigError, match=r"config\.json: damaged; restore it from a copy"):
            reopen()


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    for missing in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ConfigError, match=r"holds no run to resume"):
            RunFolder.reopen(missing, CONFIG)
        with pytest.raises(ConfigError, match=r"holds no run to resume"):
            stored_config(missing)


def test_taking_up_a_run_clears_the_reason_of_its_failure(run: RunFolder) -> None:
    (run.path / "failure.json").write_text("{}", encoding="utf-8")
    RunFolder.reopen(run.path, CONFIG)
    assert not (run.path / "failure.json").exists()


# --- the history ------------------------------------------------------------------------------------


def test_rows_are_kept_in_order(run: RunFolder) -> None:
    assert run.history() == []
    for epoch in (1, 2, 3):
        run.add_row(row(epoch))
    assert [line["epoch"] for line in run.history()] == [1, 2, 3]


def test_a_row_repeated_after_a_crash_replaces_the_one_before(run: RunFolder) -> None:
    run.add_row(row(1))
    run.add_row(row(2, seconds=9.0))
    run.add_row(row(2, seconds=1.0))
    assert [(line["epoch"], line.get("seconds")) for line in run.history()] == [(1, None), (2, 1.0)]


@settings(deadline=None, max_examples=30)
@given(repeats=st.lists(st.integers(1, 3), min_size=1, max_size=6))
def test_however_often_an_epoch_is_repeated_it_has_one_row(
    repeats: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    for epoch, times in enumerate(repeats, start=1):
        for attempt in range(times):
            folder.add_row(row(epoch, attempt=attempt))
    rows = folder.history()
    assert [line["epoch"] for line in rows] == list(range(1, len(repeats) + 1))
    assert [line["attempt"] for line in rows] == [times - 1 for times in repeats]


def test_json_is_readable_and_sorted(run: RunFolder) -> None:
    run.write_json("summary.json", {"b": 1, "a": [1.5, None]})
    text = (run.path / "summary.json").read_text(encoding="utf-8")
    assert text.endswith("}\n")
    assert list(json.loads(text)) == ["a", "b"]


# --- a disk that is really full ---------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root on Linux")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_full_disk_ends_in_one_line_and_a_folder_that_can_be_resumed(small_disk: Path) -> None:
    run = RunFolder.create(small_disk / "run", CONFIG, b"terms")
    state = make_state(make_settings(), control_total=np.arange(20_000.0))
    run.add_row(row(1))

    def fill_the_journal() -> None:
        for number in range(100):
            run.journal.put("checkpoint", checkpoint.dump(state))
            run.journal.put(f"{number:08d}.masked.00000", bytes(60_000))

    with pytest.raises(RunError, match=r"No space left on device") as caught:
        fill_the_journal()
    assert run.journal.get("checkpoint") is not None
    assert str(run.path / "journal") in str(caught.value)
    assert "free the disk" in str(caught.value)
    # A row and a summary do not fit either, and the old ones stay.
    with (run.path / "filler").open("wb", buffering=0) as filler, suppress(OSError):
        while True:
            filler.write(bytes(4096))
    with pytest.raises(RunError, match=r"history\.jsonl: cannot be written \(No space left on device\)"):
        run.add_row(row(2))
    assert [line["epoch"] for line in run.history()] == [1]
    # What was there is whole, nothing half-written is left, and it goes on once there is room.
    again, terms = RunFolder.reopen(run.path, CONFIG)
    assert terms == b"terms"
    assert not list(run.path.rglob("*.tmp"))
    stored = again.journal.get("checkpoint")
    assert stored is not None
    np.testing.assert_array_equal(checkpoint.load(stored).control_total, state.control_total)
    (run.path / "filler").unlink()
    again.journal.erase("000000")
    again.journal.put("checkpoint", checkpoint.dump(state))
    again.add_row(row(2))
    assert [line["epoch"] for line in again.history()] == [1, 2]


def test_a_journal_is_a_plain_folder(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path)
    journal.put("run", b"bytes")
    assert (tmp_path / "run").read_bytes() == b"bytes"
