"""FRED's CSV files of monthly macroeconomic series.

What a reader of the news knew on a day is approximated by a publication lag per series, counted in calendar days from
the observation date FRED prints (the first day of the month observed). The lags are conservative: the agencies publish
earlier in ordinary months. The *values* are those of the file's vintage, revisions included; a real-time study needs a
vintage per day (ALFRED).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.bars import Dates, Floats
from data_prep.errors import DataError, bad_cell

__all__ = [
    "PUBLICATION_LAG_DAYS",
    "SERIES",
    "MonthlySeries",
    "is_macro_folder",
    "macro_files",
    "read_macro",
    "read_macro_file",
]

# Days from the first day of the observed month to the day the value may be used.
# FEDFUNDS: the month's average is known on the first business day after it. UNRATE: Employment Situation, first Friday
# of the next month, at times the second. CPIAUCSL: about the 10th to 15th. INDPRO: about the 15th to 18th.
PUBLICATION_LAG_DAYS: Mapping[str, int] = {"FEDFUNDS": 36, "INDPRO": 52, "UNRATE": 45, "CPIAUCSL": 50}
SERIES: tuple[str, ...] = tuple(PUBLICATION_LAG_DAYS)
_DATE_HEADERS = ("DATE", "observation_date")
_MISSING = ("", ".")
_HINT = "download the series again from https://fred.stlouisfed.org"


@dataclass(frozen=True)
class MonthlySeries:
    """One series with its missing months left out.

    Attributes
    ----------
    name : str
        FRED's identifier.
    months : ndarray, shape (n,), datetime64[M]
        Strictly increasing months observed.
    values : ndarray, shape (n,), float64
        In the series' own unit (per cent for FEDFUNDS and UNRATE, index points otherwise).
    """

    name: str
    months: Dates
    values: Floats

    @property
    def available(self) -> Dates:
        """First calendar day on which each value may be used, shape (n,), datetime64[D]."""
        days: Dates = self.months.astype("datetime64[D]")
        return days + np.int64(PUBLICATION_LAG_DAYS[self.name])


def _series_in(path: Path) -> str | None:
    with path.open(encoding="utf-8-sig", errors="replace") as stream:
        cells = stream.readline().strip().split(",")
    if len(cells) == 2 and cells[0] in _DATE_HEADERS and cells[1] in SERIES:
        return cells[1]
    return None


def macro_files(folder: Path) -> dict[str, Path]:
    """Find the FRED files directly in a folder, by their header; at most one per series.

    Raises
    ------
    DataError
        If two files hold the same series.
    """
    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*.csv")):
        series = _series_in(path)
        if series in found:
            raise DataError(
                f"{path}: holds {series}, which {found[series].name} has already, expected one file per series; "
                "remove one of the two"
            )
        if series is not None:
            found[series] = path
    return found


def is_macro_folder(folder: Path) -> bool:
    """Tell whether a folder directly holds FRED files of the four series."""
    return folder.is_dir() and bool(macro_files(folder))


def read_macro(folder: Path) -> dict[str, MonthlySeries]:
    """Read FEDFUNDS, INDPRO, UNRATE and CPIAUCSL from a folder of FRED files.

    Parameters
    ----------
    folder : Path
        With one CSV per series, header `DATE,<id>` or `observation_date,<id>`, missing months written `.` or blank.

    Returns
    -------
    dict of str to MonthlySeries
        All four series.

    Raises
    ------
    DataError
        Missing folder or series, cell that is not a number, date that is not the first day of a later month.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder, expected FRED files of {', '.join(SERIES)}; check the path")
    files = macro_files(folder)
    missing = [name for name in SERIES if name not in files]
    if missing:
        raise DataError(
            f"{folder}: no file with header 'observation_date,{missing[0]}', expected all of {', '.join(SERIES)}; "
            f"{_HINT}"
        )
    return {name: read_macro_file(files[name], name) for name in SERIES}


def read_macro_file(path: Path, name: str) -> MonthlySeries:
    """Read one FRED file whose header names a series.

    Raises
    ------
    DataError
        No value, cell that is not a number, date that is not the first day of a later month, text that is no CSV.
    """
    months: list[np.datetime64] = []
    values: list[float] = []
    previous: np.datetime64 | None = None
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as stream:
        reader = csv.reader(stream)
        rows = _rows(path, reader)
        date_header = next(rows, [""])[0]
        for row in rows:
            if not row:
                continue
            line = reader.line_num
            day = row[0].strip()
            month = _month(day)
            if month is None or (previous is not None and month <= previous):
                expected = "the first day of a month after the row above, written as YYYY-MM-01"
                raise bad_cell(path, line, date_header, day, expected, _HINT)
            previous = month
            cell = row[1].strip() if len(row) > 1 else ""
            if cell in _MISSING:
                continue
            months.append(month)
            values.append(_number(path, line, name, cell))
    if not values:
        raise DataError(f"{path}: no value of {name} in it, expected monthly rows; {_HINT}")
    return MonthlySeries(name, np.array(months, dtype="datetime64[M]"), np.array(values, dtype=np.float64))


def _rows(path: Path, reader: Any) -> Iterator[list[str]]:
    try:
        yield from reader
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: no CSV text ({error}); {_HINT}") from None


def _month(day: str) -> np.datetime64 | None:
    if len(day) != 10 or not day.endswith("-01"):
        return None
    try:
        return np.datetime64(day, "M")
    except ValueError:
        return None


def _number(path: Path, line: int, name: str, cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise bad_cell(path, line, name, cell, "a number, '.' or a blank", _HINT)
    return value
