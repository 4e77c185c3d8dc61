"""Ken French's daily five-factor and momentum files, as his data library publishes them.

A prose header of varying length, then a row of column names that starts with a comma, rows `YYYYMMDD, percent, ...`,
and at times a block of yearly returns and a copyright footer. Percent become fractions here and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_prep.bars import Dates, Floats
from data_prep.errors import DataError, bad_cell

__all__ = [
    "FACTORS",
    "PUBLICATION_LAG_DAYS",
    "DailyFactors",
    "factor_files",
    "is_factor_folder",
    "read_factor_file",
    "read_factors",
]

FACTORS: tuple[str, ...] = ("Mkt-RF", "SMB", "HML", "RMW", "CMA", "Mom")
# The library is updated about once a month and its daily files end with a month, so a return can stay unpublished for
# two months. The lag is in calendar days from the day of the return.
PUBLICATION_LAG_DAYS = 63
_MISSING = (-99.99, -999.0)
_HINT = "download the file again from Ken French's data library"
_PROLOGUE = 40


@dataclass(frozen=True)
class DailyFactors:
    """Daily factor returns.

    Attributes
    ----------
    dates : ndarray, shape (n,), datetime64[D]
        Strictly increasing trading days that all factors share.
    returns : Mapping of str to ndarray, shape (n,), float64
        Simple daily returns as fractions, NaN where missing, one entry per name in `FACTORS`.
    """

    dates: Dates
    returns: Mapping[str, Floats]


def _columns(path: Path) -> tuple[int, tuple[str, ...]] | None:
    with path.open(encoding="utf-8-sig", errors="replace") as stream:
        for number, line in enumerate(stream, start=1):
            cells = tuple(cell.strip() for cell in line.split(","))
            if len(cells) > 1 and cells[0] == "" and any(cell in FACTORS for cell in cells):
                return number, cells
            if number >= _PROLOGUE:
                break
    return None


def factor_files(folder: Path) -> list[Path]:
    """Find the factor files directly in a folder, by their row of column names."""
    return [path for path in sorted(folder.iterdir()) if path.suffix.lower() == ".csv" and _columns(path) is not None]


def is_factor_folder(folder: Path) -> bool:
    """Tell whether a folder directly holds daily factor files."""
    return folder.is_dir() and bool(factor_files(folder))


def read_factors(folder: Path) -> DailyFactors:
    """Read the daily five factors and momentum from a folder.

    Parameters
    ----------
    folder : Path
        With the unzipped five-factor and momentum CSV files.

    Returns
    -------
    DailyFactors
        On the days both files have.

    Raises
    ------
    DataError
        Missing folder or factor, a factor in two files, cell that is not a number, dates out of order.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder, expected Ken French's daily factor files; check the path")
    found: dict[str, tuple[Path, Dates, Floats]] = {}
    for path in factor_files(folder):
        dates, columns = read_factor_file(path)
        for name, values in columns.items():
            if name in found:
                raise DataError(
                    f"{path}: holds {name}, which {found[name][0].name} has already, expected each factor once; "
                    "remove one of the two files"
                )
            found[name] = (path, dates, values)
    missing = [name for name in FACTORS if name not in found]
    if missing:
        raise DataError(f"{folder}: no file with column {missing[0]!r}, expected all of {', '.join(FACTORS)}; {_HINT}")
    common = found[FACTORS[0]][1]
    for name in FACTORS[1:]:
        common = np.intersect1d(common, found[name][1], assume_unique=True)
    returns = {name: values[np.isin(dates, common)] for name, (_, dates, values) in found.items()}
    return DailyFactors(common, returns)


def read_factor_file(path: Path) -> tuple[Dates, dict[str, Floats]]:
    """Read the days of one file, and its factors as fractions.

    Raises
    ------
    DataError
        No row of column names, no daily row, cell that is not a number, dates out of order.
    """
    head = _columns(path)
    if head is None:
        raise DataError(f"{path}: no row of column names such as ',Mkt-RF,SMB', expected a daily factor file; {_HINT}")
    start, names = head
    days: list[np.datetime64] = []
    rows: list[list[float]] = []
    ended = False
    with path.open(encoding="utf-8-sig", errors="replace") as stream:
        for line, text in enumerate(stream, start=1):
            cells = [cell.strip() for cell in text.split(",")]
            if line <= start:
                continue
            if not cells[0].isdigit():
                ended = bool(rows)
                continue
            if ended and len(cells[0]) < len("YYYYMMDD"):
                continue  # the block of yearly returns below the daily ones
            if ended:
                raise bad_cell(path, line, "date", cells[0], "no daily row below the end of the daily rows", _HINT)
            day = _day(cells[0])
            if day is None or (days and day <= days[-1]):
                raise bad_cell(path, line, "date", cells[0], "a later day than the row above, as YYYYMMDD", _HINT)
            if len(cells) != len(names):
                raise DataError(
                    f"{path}, line {line}: found {len(cells)} cells, expected {len(names)} as in line {start}; {_HINT}"
                )
            days.append(day)
            rows.append([_fraction(path, line, name, cell) for name, cell in zip(names[1:], cells[1:], strict=True)])
    if not rows:
        raise DataError(f"{path}: no daily row after line {start}, expected rows 'YYYYMMDD, percent'; {_HINT}")
    table = np.array(rows, dtype=np.float64)
    kept = {name: table[:, i] for i, name in enumerate(names[1:]) if name in FACTORS}
    return np.array(days, dtype="datetime64[D]"), kept


def _day(text: str) -> np.datetime64 | None:
    if len(text) != 8:
        return None
    try:
        return np.datetime64(f"{text[:4]}-{text[4:6]}-{text[6:]}", "D")
    except ValueError:
        return None


def _fraction(path: Path, line: int, name: str, cell: str) -> float:
    try:
        percent = float(cell)
    except ValueError:
        percent = math.inf
    if not math.isfinite(percent):
        raise bad_cell(path, line, name, cell, "a return in per cent", _HINT)
    return math.nan if percent in _MISSING else percent / 100.0
