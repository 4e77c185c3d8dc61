"""The silo's privacy ledger: append-only, hash-chained, fsynced before anything leaves, anchored in a second file."""

import fcntl
import json
import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from privacy.chain import GENESIS, Entry, check_anchor, read, read_anchor, seal
from privacy.errors import LedgerError

if TYPE_CHECKING:
    from privacy.audit import LedgerSummary

__all__ = ["Entry", "Ledger", "verify"]

_LOG = logging.getLogger(__name__)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_all(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def _write_anchor(path: Path, count: int, digest: str) -> None:
    """Replace the anchor atomically: it is either the old one or the new one, never torn."""
    fresh = path.with_name(path.name + ".new")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        _write_all(handle, json.dumps({"count": count, "hash": digest}).encode("ascii") + b"\n")
        os.fsync(handle)
    finally:
        os.close(handle)
    fresh.replace(path)
    _sync_folder(path.parent)


class Ledger:
    """An open ledger; open it with `Ledger.create` or `Ledger.open`, close it when done.

    Guarantee: an entry is on stable storage, chained to all earlier ones and anchored, before `append` returns; so a
    spend recorded before a release survives any crash, and a ledger that was cut, altered or lost is refused at open
    as long as its anchor (or the head another party remembers) is newer. Assumptions: fsync is honest; ledger and
    anchor are not both rolled back (the heads signed into replies catch that); SHA-256 is collision resistant.
    Adjacency is what the entries state. One process at a time holds it (flock).
    """

    def __init__(self, path: Path, anchor: Path, handle: int) -> None:
        """Take over an open, locked handle. Use `create` or `open`."""
        self._path = path
        self._anchor = anchor
        self._handle = handle
        self._entries: list[Entry] = []
        self._broken = False
        self._mutex = threading.Lock()
        self.notice: str | None = None

    @classmethod
    def create(cls, path: str | Path, anchor: str | Path) -> Self:
        """Start an empty ledger. Never done implicitly: an empty ledger claims that nothing was ever spent.

        Guarantee and adjacency: see the class. Assumption: the data set has no earlier ledger.

        Raises
        ------
        LedgerError
            If a ledger with content, or an anchor, exists.
        """
        path, anchor = Path(path), Path(anchor)
        if path.resolve() == anchor.resolve():
            raise LedgerError(f"{path}: ledger and anchor are the same file; expected two")
        if anchor.exists():
            raise LedgerError(
                f"{anchor}: an anchor exists, so a ledger was used here; open it, or restore it if it is lost"
            )
        if path.exists() and path.stat().st_size > 0:
            raise LedgerError(f"{path}: a ledger exists; open it instead of starting from zero")
        try:
            handle = cls._lock(path, os.O_CREAT)
        except OSError as error:
            raise LedgerError(
                f"{path}: cannot be created ({error.strerror}); check the folder and its rights"
            ) from None
        try:
            os.fsync(handle)
            _sync_folder(path.parent)
            _write_anchor(anchor, 0, GENESIS)
        except OSError as error:
            os.close(handle)
            raise LedgerError(
                f"{anchor}: cannot be written ({error.strerror}); check the folder and its rights"
            ) from None
        return cls(path, anchor, handle)

    @classmethod
    def open(cls, path: str | Path, anchor: str | Path) -> Self:
        """Open an existing ledger, verify its chain and anchor, and discard a torn last line with a notice.

        Guarantee and adjacency: see the class. A ledger behind its anchor, missing or altered is refused; nothing is
        written then.

        Raises
        ------
        LedgerError
            Naming the file and, where there is one, the line.
        """
        path, anchor = Path(path), Path(anchor)
        try:
            handle = cls._lock(path, 0)
        except FileNotFoundError:
            told = (
                "its anchor exists: restore the ledger from a copy"
                if anchor.exists()
                else "start one with Ledger.create"
            )
            raise LedgerError(f"{path}: the ledger is missing; {told}") from None
        except OSError as error:
            raise LedgerError(f"{path}: cannot be opened ({error.strerror}); check its rights") from None
        ledger = cls(path, anchor, handle)
        try:
            ledger._load()
        except OSError as error:
            ledger.close()
            raise LedgerError(f"{path}: cannot be read or repaired ({error.strerror}); check the disk") from None
        except LedgerError:
            ledger.close()
            raise
        return ledger

    @staticmethod
    def _lock(path: Path, extra: int) -> int:
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | extra, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise LedgerError(f"{path}: held by another process; stop it, or wait until it has finished") from None
        return handle

    def _load(self) -> None:
        data = self._path.read_bytes()
        entries, torn = read(self._path, data)
        anchored = read_anchor(self._anchor)
        check_anchor(self._path, entries, anchored)
        if torn:
            self.notice = (
                f"{self._path}, line {len(entries) + 1}: discarded {torn} bytes of an entry whose write never finished"
            )
            _LOG.warning(self.notice)
            os.ftruncate(self._handle, len(data) - torn)
        os.fsync(self._handle)  # a line read back may still be only in the page cache if its append was cut short
        self._entries = entries
        if anchored != self.head:
            _write_anchor(self._anchor, *self.head)

    def append(self, kind: str, body: Mapping[str, Any]) -> Entry:
        """Append one entry; it is on stable storage and anchored when this returns.

        Guarantee and adjacency: see the class (hash chain over SHA-256). After a failed write the ledger refuses
        further appends until it is opened again, because the state of the disk is unknown; a line that did reach the
        disk counts as spent.

        Parameters
        ----------
        kind : str
            Kind of the entry, such as `Release.KIND`.
        body : mapping
            Plain JSON content, such as `Release.body()`.

        Raises
        ------
        LedgerError
            If the content is not plain JSON, the ledger is closed, or the disk fails: then nothing may be released.
        """
        if not isinstance(kind, str) or not kind:
            raise LedgerError(f"kind = {kind!r}: expected non-empty text")
        with self._mutex:
            if self._broken or self._handle < 0:
                raise LedgerError(f"{self._path}: closed, or an earlier write failed; open the ledger again")
            count, previous = self.head
            entry = seal(count + 1, previous, kind, body)
            try:
                _write_all(self._handle, entry.line())
                os.fsync(self._handle)
                _write_anchor(self._anchor, entry.count, entry.hash)
            except OSError as error:
                self._broken = True
                raise LedgerError(
                    f"{self._path}, line {entry.count}: not written ({error.strerror}); "
                    "free the disk and open the ledger again"
                ) from None
            self._entries.append(entry)
            return entry

    @property
    def head(self) -> tuple[int, str]:
        """Count and hash of the last entry, (0, 64 zeros) if empty; commits to all entries (SHA-256 chain)."""
        return (self._entries[-1].count, self._entries[-1].hash) if self._entries else (0, GENESIS)

    def entries(self) -> tuple[Entry, ...]:
        """Return all entries in order, verified when they were read."""
        return tuple(self._entries)

    def close(self) -> None:
        """Release the lock; further appends are refused."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def verify(path: str | Path, anchor: str | Path | None = None) -> "LedgerSummary":
    """Check a ledger without changing it, and recompute what every run spent.

    Guarantee, adjacency, assumptions and theorem: see `privacy.audit.verify`.
    """
    from privacy.audit import verify as audit

    return audit(Path(path), None if anchor is None else Path(anchor))
