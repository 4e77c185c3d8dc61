"""A folder of fetched files: what is there is kept, what is new gets its name only once it is good and on the disk."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from data_prep.errors import DataError
from data_prep.fetch.checksums import CHECKSUM_FILE, read_sums, write_sums
from data_prep.fetch.errors import FetchError, UnexpectedAnswerError
from data_prep.fetch.examine import examine, unpack_factors, unpack_prices
from data_prep.fetch.partial import Partial
from data_prep.fetch.sources import Kind, Target
from data_prep.fetch.transport import Downloader
from data_prep.files import fingerprint, scratch_directory

__all__ = ["Outcome", "Status", "fetch_all", "unpack_archive"]


_UNEXPECTED_IN_A_ROW = 3
"""Answers that are something else, after which a source is taken to have changed, or a gateway to be in between."""


class Status(StrEnum):
    """What became of a file."""

    KEPT = "there already, its checksum is right"
    FETCHED = "fetched"
    REPAIRED = "fetched again, since the one there had another checksum"
    FAILED = "not fetched"
    SKIPPED = "not asked for after that"


@dataclass(frozen=True)
class Outcome:
    """What became of one file, and why.

    Attributes
    ----------
    target : Target
        What was asked for.
    status : Status
        Result.
    fault : FetchError or None
        Of a file that failed.
    """

    target: Target
    status: Status
    fault: FetchError | None = None


def fetch_all(
    targets: Sequence[Target],
    out: Path,
    downloader: Downloader,
    *,
    refresh: bool = False,
    report: Callable[[Outcome], None] = lambda _outcome: None,
) -> list[Outcome]:
    """Fetch files into a folder, one after the other.

    Parameters
    ----------
    targets : sequence of Target
        Of one source.
    out : Path
        Folder, made where it is missing.
    downloader : Downloader
        Asks the server.
    refresh : bool
        Fetch also what is there; a file is replaced only by a good answer.
    report : callable
        Called after each file.

    Returns
    -------
    list of Outcome
        One per target. After a fault that stops, or three unexpected answers in a row, the rest are skipped, except
        those that are there.

    Raises
    ------
    DataError
        If another process writes to the folder, or its checksum file cannot be read.
    """
    outcomes: list[Outcome] = []
    refused, unexpected = False, 0
    with _locked(out):
        for target in targets:
            try:
                status = _found(target, out, refresh=refresh)
                if status is not Status.KEPT and refused:
                    status = Status.SKIPPED
                elif status is not Status.KEPT:
                    _fetch(target, out, downloader)
                    unexpected = 0
                outcome = Outcome(target, status)
            except FetchError as fault:
                unexpected += isinstance(fault, UnexpectedAnswerError)
                refused = refused or fault.stops or unexpected >= _UNEXPECTED_IN_A_ROW
                outcome = Outcome(target, Status.FAILED, fault)
            outcomes.append(outcome)
            report(outcome)
    return outcomes


def unpack_archive(archive: Path, out: Path, symbols: Sequence[str] = (), *, refresh: bool = False) -> tuple[Path, int]:
    """Unpack Stooq's archive that a person downloaded.

    Parameters
    ----------
    archive : Path
        `d_us_txt.zip` or another market's.
    out : Path
        Folder; the files go below `out/<archive's name without ending>`.
    symbols : sequence of str
        Only these, all if empty.
    refresh : bool
        Replace that folder if it is there.

    Returns
    -------
    Path, int
        Folder and number of files.

    Raises
    ------
    DataError
        If there is no such archive, or the folder is there and `refresh` is not given.
    FetchError
        As for `unpack_prices`.
    """
    if not archive.is_file():
        raise DataError(f"{archive}: no such file, expected an archive of https://stooq.com/db/h/; check the path")
    folder = out / archive.stem
    with _locked(out):
        if folder.exists() and not refresh:
            raise DataError(f"{folder}: is there already; move it away, or add --refresh to replace it")
        return folder, _unpack_folder(archive, str(archive), folder, frozenset(name.lower() for name in symbols))


def _found(target: Target, out: Path, *, refresh: bool) -> Status:
    """Tell what a target needs; a kept archive is unpacked again where its content is missing."""
    path, recorded = out / target.name, read_sums(out).get(target.name)
    if not path.exists():
        return Status.FETCHED
    if recorded is None and not refresh:
        raise FetchError(
            f"{path}: is there, but not in {CHECKSUM_FILE}, so this command did not fetch it; move it away, or add "
            "--refresh to replace it"
        )
    if refresh:
        return Status.FETCHED
    if recorded != fingerprint(path):
        return Status.REPAIRED
    if target.unpacked and not _content_is_there(target, out):
        _store(target, out, path)
    return Status.KEPT


def _content_is_there(target: Target, out: Path) -> bool:
    content = out / target.unpacked
    if target.kind is Kind.STOOQ_ARCHIVE:
        return content.is_dir()
    return content.is_file() and read_sums(out).get(target.unpacked) == fingerprint(content)


def _fetch(target: Target, out: Path, downloader: Downloader) -> None:
    part = out / f".{target.name}.part"
    while True:
        resumed = downloader.download(target, part)
        try:
            examine(target, part)
            _store(target, out, part)
            return
        except FetchError:
            Partial.discard(part)
            if not resumed:
                raise
            # Put together from two answers and bad: the whole in one answer decides.


def _store(target: Target, out: Path, part: Path) -> None:
    """Give a good answer, and what is packed in it, their names.

    The checksums are on the disk first: a crash in between leaves a file that does not agree with its checksum and is
    fetched again, never one that is taken for somebody else's.
    """
    sums = {target.name: fingerprint(part)}
    ready = {part: out / target.name}
    if target.kind is Kind.FRENCH_ZIP:
        content = out / f".{target.unpacked}.part"
        try:
            unpack_factors(target, part, content)
        except FetchError:
            content.unlink(missing_ok=True)
            raise
        sums[target.unpacked] = fingerprint(content)
        ready[content] = out / target.unpacked
    elif target.kind is Kind.STOOQ_ARCHIVE:
        _unpack_folder(part, target.name, out / target.unpacked)
    for path in ready:
        _sync(path)
    write_sums(out, {**read_sums(out), **sums})
    _sync(out)
    for path, final in ready.items():
        path.replace(final)
    _sync(out)


def _unpack_folder(archive: Path, name: str, folder: Path, symbols: frozenset[str] = frozenset()) -> int:
    with scratch_directory(folder.parent) as scratch:
        fresh = scratch / "new"
        fresh.mkdir()
        count = unpack_prices(archive, name, fresh, symbols)
        for path in [*fresh.rglob("*"), fresh]:
            _sync(path)
        if folder.exists():
            folder.rename(scratch / "old")
        fresh.rename(folder)
    _sync(folder.parent)
    return count


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Keep other processes from writing to the folder; the lock ends with the process, however it ends."""
    out.mkdir(parents=True, exist_ok=True)
    handle = os.open(out / ".fetch.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DataError(f"{out}: another 'fcfl data fetch' is writing there; wait until it has ended") from None
        yield
    finally:
        os.close(handle)
