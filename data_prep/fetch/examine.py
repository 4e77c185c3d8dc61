"""Whether what arrived is the file asked for: recognised by its beginning, then read whole by our own readers."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from data_prep.errors import DataError
from data_prep.fetch.answers import HEAD_BYTES, fault_in_head
from data_prep.fetch.archive import members, unpack
from data_prep.fetch.errors import NothingThereError, UnexpectedAnswerError
from data_prep.fetch.sources import FRENCH_FILES, Kind, Target
from data_prep.readers.factors import read_factor_file
from data_prep.readers.macro import read_macro_file
from data_prep.readers.series import read_series

__all__ = ["examine", "unpack_factors", "unpack_prices"]

_FACTOR_LIMIT = 64 * 2**20
_ARCHIVE_LIMIT = 16 * 2**30
_BULK_HEADERS = (b"<TICKER>,<PER>,<DATE>,", b"<DATE>,<OPEN>,", b"<DTYYYYMMDD>,<OPEN>,")


def examine(target: Target, path: Path) -> None:
    """Judge an answer; of an archive only the beginning, since it is read when it is unpacked.

    Raises
    ------
    FetchError
        For everything that is not the file asked for.
    """
    with path.open("rb") as stream:
        fault = fault_in_head(target, stream.read(HEAD_BYTES))
    if fault is not None:
        raise fault
    try:
        if target.kind is Kind.FRED_CSV:
            read_macro_file(path, target.what)
        elif target.kind is Kind.STOOQ_CSV:
            found = read_series(path, target.name)
            if any(len(series.dates) > 1 and np.diff(series.dates).min() > np.timedelta64(4, "D") for series in found):
                raise UnexpectedAnswerError(f"{target.name}: the rows are not daily; fetch it again")
    except DataError as error:
        raise _unreadable(target, path, error) from None


def unpack_factors(target: Target, path: Path, out: Path) -> None:
    """Take the one text file out of an archive of factors, and read it.

    Raises
    ------
    UnexpectedAnswerError
        For a damaged archive, several files in it or none, a file without the expected columns, an unreadable file.
    """
    found = members(path, target.name, suffix=".csv", limit=_FACTOR_LIMIT)
    if len(found) != 1:
        raise UnexpectedAnswerError(
            f"{target.name}: found {len(found)} CSV files in the archive, expected one; look at {target.url} in a "
            "browser"
        )
    unpack(path, target.name, {found[0]: out})
    try:
        _, columns = read_factor_file(out)
    except DataError as error:
        raise _unreadable(target, out, error) from None
    missing = [name for name in FRENCH_FILES[target.what] if name not in columns]
    if missing:
        raise UnexpectedAnswerError(
            f"{target.name}: no column {missing[0]!r} in it, expected a daily file with "
            f"{', '.join(FRENCH_FILES[target.what])}; look at {target.url} in a browser"
        )


def unpack_prices(path: Path, name: str, folder: Path, symbols: frozenset[str] = frozenset()) -> int:
    """Unpack Stooq's archive of a market below a folder, with the archive's own sub-folders.

    Parameters
    ----------
    path : Path
        Archive.
    name : str
        As the user knows it.
    folder : Path
        Empty folder.
    symbols : frozenset of str
        In lower case; only their files are unpacked, all if it is empty.

    Returns
    -------
    int
        Number of files. Some are empty in Stooq's own archives; they are unpacked and left to `fcfl data check`.

    Raises
    ------
    NothingThereError
        For symbols that are not in the archive; nothing is unpacked then.
    UnexpectedAnswerError
        For a damaged archive, or one with a file that is not in Stooq's bulk layout.
    """
    found = members(path, name, suffix=".txt", limit=_ARCHIVE_LIMIT)
    if symbols:
        found = [member for member in found if Path(member).stem.lower() in symbols]
        missing = sorted(symbols - {Path(member).stem.lower() for member in found})
        if missing:
            raise NothingThereError(
                f"{name}: no file of {', '.join(missing[:8])} in it, expected <symbol>.txt; correct the symbols"
            )
    if not found:
        raise UnexpectedAnswerError(f"{name}: no .txt file in it, expected Stooq's daily files; download it again")
    wanted = {member: folder / member for member in found}
    for out in wanted.values():
        out.parent.mkdir(parents=True, exist_ok=True)
    unpack(path, name, wanted)
    for member, out in wanted.items():
        with out.open("rb") as stream:
            head = stream.read(64).removeprefix(b"\xef\xbb\xbf").upper()
        if head and not head.startswith(_BULK_HEADERS):
            raise UnexpectedAnswerError(
                f"{name}: {member!r} begins with {head[:24]!r}, expected {_BULK_HEADERS[0].decode()}...; download the "
                "daily ASCII archive"
            )
    return len(found)


def _unreadable(target: Target, path: Path, error: DataError) -> UnexpectedAnswerError:
    if isinstance(error, UnexpectedAnswerError):
        return error
    told = str(error).replace(str(path), target.name).rpartition("; ")[0]  # without the hint, which is for own files
    return UnexpectedAnswerError(f"the answer cannot be read: {told}; look at {target.url} in a browser")
