"""The silo's privacy ledger: append-only, chained, signed, anchored, and on disk before anything leaves."""

import fcntl
import logging
import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from privacy.anchor import Anchor, check_anchor, check_anchor_signature, read_anchor
from privacy.chain import OPENING, Entry, check_signatures, key_of, opening, read, seal
from privacy.errors import IdentityError, LedgerError
from privacy.files import sync_folder, write_all
from privacy.signing import Signer, fingerprint

if TYPE_CHECKING:
    from privacy.audit import LedgerSummary

__all__ = ["Entry", "Ledger", "verify"]

_LOG = logging.getLogger(__name__)


class Ledger:
    """An open ledger; open it with `Ledger.create` or `Ledger.open`, close it when done.

    Guarantee: an entry is on stable storage, chained to all earlier ones, signed and anchored, before `append` returns;
    so a spend recorded before a release survives any crash, and a ledger that was cut, altered or lost is refused at
    open as long as its anchor (or the head another party remembers) is newer. Who does not hold the key can write
    neither an entry nor an anchor. Assumptions: fsync is honest; ledger and anchor are not both rolled back to a pair
    that once was (the heads shown in replies catch that); SHA-256 is collision resistant and Ed25519 unforgeable.
    Adjacency is what the entries state. One process at a time holds it (flock). There are no unsigned ledgers.
    """

    def __init__(self, path: Path, anchor: Path, handle: int, signer: Signer) -> None:
        """Take over an open, locked handle. Use `create` or `open`."""
        self._path = path
        self._anchor = anchor
        self._handle = handle
        self._signer = signer
        self._entries: list[Entry] = []
        self._broken = False
        self._mutex = threading.Lock()
        self.notice: str | None = None

    @classmethod
    def create(cls, path: str | Path, anchor: str | Path, *, signer: Signer) -> Self:
        """Start a ledger whose one entry states its key. Never done implicitly: it claims that nothing was ever spent.

        Guarantee and adjacency: see the class. Assumption: the data set has no earlier ledger.

        Parameters
        ----------
        path, anchor : str or Path
            The two files.
        signer : Signer
            Signs every entry; the ledger cannot be continued without it.

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
        first = opening(signer)
        anchored = Anchor.of(first, signer)
        try:
            handle = cls._lock(path, os.O_CREAT)
        except OSError as error:
            raise LedgerError(
                f"{path}: cannot be created ({error.strerror}); check the folder and its rights"
            ) from None
        try:
            write_all(handle, first.line())
            os.fsync(handle)
            sync_folder(path.parent)
            anchored.write(anchor)
        except OSError as error:
            os.close(handle)
            raise LedgerError(
                f"{anchor}: cannot be written ({error.strerror}); check the folder and its rights"
            ) from None
        ledger = cls(path, anchor, handle, signer)
        ledger._entries = [first]
        return ledger

    @classmethod
    def open(cls, path: str | Path, anchor: str | Path, *, signer: Signer) -> Self:
        """Open an existing ledger, check chain, key, signature and anchor, and discard a torn last line with a notice.

        Guarantee and adjacency: see the class. A ledger behind its anchor, missing or altered is refused; nothing is
        written then. Two signatures are checked however long the ledger is, those of the last entry and of the anchor:
        the last entry's hash covers every entry and signature before it, so its signature vouches for them all.

        Parameters
        ----------
        path, anchor : str or Path
            The two files.
        signer : Signer
            With the key that the ledger was created with.

        Raises
        ------
        LedgerError
            Naming the file and, where there is one, the line.
        IdentityError
            If the signer's key is not the ledger's.
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
        ledger = cls(path, anchor, handle, signer)
        try:
            ledger._load()
        except OSError as error:
            ledger.close()
            raise LedgerError(f"{path}: cannot be read or repaired ({error.strerror}); check the disk") from None
        except (LedgerError, IdentityError):
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
        self._check_key(entries)
        check_anchor_signature(self._anchor, anchored, self._signer.public_key)
        check_anchor(self._path, entries, anchored)
        check_signatures(self._path, entries[-1:], self._signer.public_key)
        if torn:
            self.notice = (
                f"{self._path}, line {len(entries) + 1}: discarded {torn} bytes of an entry whose write never finished"
            )
            _LOG.warning(self.notice)
            os.ftruncate(self._handle, len(data) - torn)
        os.fsync(self._handle)  # a line read back may still be only in the page cache if its append was cut short
        self._entries = entries
        if (anchored.count, anchored.hash) != self.head:
            Anchor.of(entries[-1], self._signer).write(self._anchor)

    def _check_key(self, entries: list[Entry]) -> None:
        if entries and key_of(entries) != self._signer.public_key:
            raise IdentityError(
                f"{self._path}, line 1: the ledger is of key {fingerprint(key_of(entries))}, but {self._signer.where} "
                f"holds key {fingerprint(self._signer.public_key)}; restore the one that belongs to the other"
            )

    def append(self, kind: str, body: Mapping[str, Any]) -> Entry:
        """Append one entry; it is on stable storage and anchored when this returns.

        Guarantee and adjacency: see the class (SHA-256 chain, Ed25519). After a failed write the ledger refuses
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
        if not isinstance(kind, str) or not kind or kind == OPENING:
            raise LedgerError(f"kind = {kind!r}: expected non-empty text other than {OPENING}")
        with self._mutex:
            if self._broken or self._handle < 0:
                raise LedgerError(f"{self._path}: closed, or an earlier write failed; open the ledger again")
            entry = seal(self._entries[-1], kind, body).signed(self._signer)
            anchored = Anchor.of(entry, self._signer)
            try:
                write_all(self._handle, entry.line())
                os.fsync(self._handle)
                anchored.write(self._anchor)
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
        """Count and hash of the last entry, at least the one that states the key; commits to all (SHA-256 chain)."""
        return self._entries[-1].count, self._entries[-1].hash

    def head_after(self, coming: Iterable[tuple[str, Mapping[str, Any]]]) -> tuple[int, str]:
        """Return the head that appending these entries, kind and body, would give; nothing is written.

        Guarantee: see `head`; signatures of Ed25519 are deterministic, so appending gives the same. Adjacency does not
        enter.
        """
        last = self._entries[-1]
        for kind, body in coming:
            last = seal(last, kind, body).signed(self._signer)
        return last.count, last.hash

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


def verify(path: str | Path, anchor: str | Path | None = None, public_key: bytes | None = None) -> "LedgerSummary":
    """Check a ledger and who signed it without changing it, and recompute what every run spent.

    Guarantee, adjacency, assumptions and theorem: see `privacy.audit.verify`.
    """
    from privacy.audit import verify as audit

    return audit(Path(path), None if anchor is None else Path(anchor), public_key)
