"""The coordinator's files of one run: configuration, journal, ledger, history, summary, final model.

Everything is written to a temporary name, fsynced and renamed. A full disk is an error that names the
file; what was there before stays whole.

Layout::

    config.json      configuration and its hash
    terms            terms of the run (canonical CBOR)
    identity.key, identity.pub   made for the run, sign the ledger
    ledger.jsonl, ledger.anchor
    journal/         checkpoint, run, and per epoch: announcement, masked vectors, bundles, survivors
    history.jsonl    one line an epoch
    metrics.prom     the same in figures, for Prometheus
    summary.json, model.npz, report.html   at the end
    failure.json     why the run could not go on
"""

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fcfl_strategy.errors import RunError
from server_app.config import ConfigError, RunConfig


def write_atomic(path: Path, chunks: Iterable[bytes]) -> None:
    """Write a file so that ``path`` is the old or the new whole, also after a power cut.

    Raises
    ------
    RunError
        If the disk is full or fails.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise RunError(
            f"{path}: cannot be written ({error.strerror}); free the disk or correct the rights, then resume the run"
        ) from None


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def stored_config(path: Path) -> dict[str, Any]:
    """Return the content of a run's ``config.json``: its settings under ``config``, their ``hash``.

    Raises
    ------
    ConfigError
        If the folder holds no run, or the file is damaged.
    """
    file = path / "config.json"
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"run-dir: {path} holds no run to resume") from None
    except ValueError:
        stored = None
    if not isinstance(stored, dict) or not isinstance(stored.get("config"), dict) or "hash" not in stored:
        raise ConfigError(f"{file}: damaged; restore it from a copy")
    return stored


@dataclass(frozen=True)
class FileJournal:
    """A `fcfl_strategy.journal.Journal` of one file a name."""

    folder: Path

    def put(self, name: str, data: bytes) -> None:
        """Store durably."""
        write_atomic(self.folder / name, [data])

    def get(self, name: str) -> bytes | None:
        """Return what is stored, or None."""
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def names(self, prefix: str) -> list[str]:
        """Names with a prefix, sorted; files of interrupted writes are left out."""
        found = (entry.name for entry in os.scandir(self.folder))
        return sorted(name for name in found if name.startswith(prefix) and not name.endswith(".tmp"))

    def erase(self, prefix: str) -> None:
        """Delete the blobs with a prefix."""
        for name in self.names(prefix):
            (self.folder / name).unlink()


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run."""

    path: Path

    @property
    def journal(self) -> FileJournal:
        """The journal."""
        return FileJournal(self.path / "journal")

    @classmethod
    def create(cls, path: Path, config: RunConfig, terms: bytes) -> "RunFolder":
        """Make the folder of a new run.

        Raises
        ------
        ConfigError
            If the folder already holds a run.
        RunError
            If it cannot be written.
        """
        if (path / "config.json").exists():
            raise ConfigError(f"run-dir: {path} already holds a run; resume it, or choose another folder")
        try:
            (path / "journal").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"{path}: cannot be made ({error.strerror}); choose another run-dir") from None
        folder = cls(path)
        # config.json last: with it the folder holds a run.
        write_atomic(path / "terms", [terms])
        folder.write_json("config.json", {"config": dict(config.values), "hash": config.hash})
        return folder

    @classmethod
    def reopen(cls, path: Path, config: RunConfig) -> tuple["RunFolder", bytes]:
        """Take up an interrupted run.

        Raises
        ------
        ConfigError
            If there is no run, or it was started with another configuration.
        """
        folder = cls(path)
        try:
            terms = (path / "terms").read_bytes()
        except FileNotFoundError:
            raise ConfigError(f"run-dir: {path} holds no run to resume") from None
        if stored_config(path)["hash"] != config.hash:
            raise ConfigError(f"resume: the run in {path} was started with another configuration")
        (path / "failure.json").unlink(missing_ok=True)
        return folder, terms

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write one JSON file."""
        write_atomic(self.path / name, [json.dumps(content, indent=1, sort_keys=True).encode() + b"\n"])

    def history(self) -> list[dict[str, Any]]:
        """Rows written so far."""
        path = self.path / "history.jsonl"
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    def add_row(self, row: Mapping[str, Any]) -> None:
        """Add an epoch's row; a row of the same or a later epoch is one that a crash made void."""
        rows = [old for old in self.history() if old["epoch"] < row["epoch"]]
        lines = [json.dumps(line, sort_keys=True).encode() + b"\n" for line in [*rows, dict(row)]]
        write_atomic(self.path / "history.jsonl", lines)
