"""How numbers and days are written: the conventions a layout can declare, and their strict parsing.

A convention parses a cell completely or not at all; there is no fallback from one to another. So a column that two
conventions read differently is noticed by trying both (`data_prep.readers.detect`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from data_prep.bars import Dates, Floats

if TYPE_CHECKING:
    # Commands that read no table do not wait for these imports.
    import pandas as pd

__all__ = [
    "COMMA",
    "DATES",
    "DMY",
    "GROUPED",
    "ISO",
    "MDY",
    "MONTH",
    "NAMED",
    "POINT",
    "DateStyle",
    "Numbers",
    "blank_cells",
]

Mask = NDArray[np.bool_]
_FACTORS = {"K": 1e3, "M": 1e6, "B": 1e9}


@dataclass(frozen=True)
class Numbers:
    """A convention for decimal and grouping signs.

    Attributes
    ----------
    name : str
        Suffix in layout names.
    shown : str
        Example, for messages.
    decimal : str
        Decimal sign.
    grouping : str
        Signs that may stand between groups of three digits; empty for none.
    """

    name: str
    shown: str
    decimal: str
    grouping: str

    def parse(self, cells: pd.Series[str], *, suffixes: bool = False) -> Floats:
        """Return the numbers, shape (n,), NaN where a cell is not completely a number in this convention.

        Parameters
        ----------
        cells : Series of str
            Without surrounding blanks.
        suffixes : bool
            Whether an ending K, M or B multiplies by a thousand, a million or a milliard, as in volumes.
        """
        import pandas as pd

        factor: Any = 1.0
        if suffixes:
            last = cells.str[-1:].str.upper()
            factor = last.map(_FACTORS).fillna(1.0).to_numpy(np.float64)
            cells = cells.where(~last.isin(list(_FACTORS)), cells.str[:-1])
        if self.grouping:
            group = f"[{self.grouping}]"
            pattern = rf"[+-]?(?:\d+|\d{{1,3}}(?:{group}\d{{3}})+)(?:\{self.decimal}\d+)?|[+-]?\{self.decimal}\d+"
            whole = cells.str.fullmatch(pattern)
            plain = cells.str.replace(group, "", regex=True).str.replace(self.decimal, ".", regex=False)
            cells = plain.where(whole, "")
        values: Floats = np.asarray(pd.to_numeric(cells, errors="coerce"), dtype=np.float64) * factor
        return values


POINT = Numbers("", "1234.5", ".", "")
GROUPED = Numbers("grouped", "1,234.5", ".", ",")
COMMA = Numbers("decimal-comma", "1.234,5", ",", ".\u00a0\u202f '")


@dataclass(frozen=True)
class DateStyle:
    """A way of writing a day.

    Attributes
    ----------
    name : str
        Suffix in layout names, empty for ISO.
    shown : str
        Pattern, for messages.
    format : str
        `strptime` format after `separators` were replaced by `/`.
    pattern : str
        What a whole cell looks like.
    separators : str
        Signs that are equivalent in this style.
    """

    name: str
    shown: str
    format: str
    pattern: str
    separators: str = ""

    def occurs_in(self, cells: Iterable[str]) -> bool:
        """Tell whether one of some cells looks like a day in this style, a stamp of midnight included."""
        return any(re.fullmatch(self.pattern, cell[:10] if self is ISO else cell) for cell in cells)

    def parse(self, cells: pd.Series[str]) -> Dates:
        """Return the days, shape (n,), datetime64[D], NaT where a cell is not a day in this style."""
        import pandas as pd

        if self.name == "" and (days := _iso_days(cells)) is not None:
            return days
        if self.name == "" and len(cells) and len(cells.iloc[0]) > 10:
            # Exports of midnight stamps, with or without time zone; another time of day is not a daily bar's.
            midnight = cells.str.fullmatch(r"\d{4}-\d\d-\d\d[ T]00:00:00(?:\.0+)?(?:[+-]\d\d:?\d\d|Z)?")
            cells = cells.str[:10].where(midnight, "")
        whole = cells.str.fullmatch(self.pattern)
        if self.separators:
            cells = cells.str.replace(f"[{self.separators}]", "/", regex=True)
        parsed = pd.to_datetime(cells.where(whole, ""), format=self.format, errors="coerce")
        return np.asarray(parsed.to_numpy(), dtype="datetime64[D]")


def _iso_days(cells: pd.Series[str]) -> Dates | None:
    """Read days written as YYYY-MM-DD at once, None if a cell is anything else."""
    import pyarrow as pa

    try:
        days = pa.array(cells, pa.string()).cast(pa.date32())
    except pa.ArrowInvalid:
        return None
    found: Dates = days.to_numpy(zero_copy_only=False).astype("datetime64[D]")
    return found


ISO = DateStyle("", "YYYY-MM-DD", "%Y-%m-%d", r"\d{4}-\d\d-\d\d")
BASIC = DateStyle("basic", "YYYYMMDD", "%Y%m%d", r"\d{8}")
DMY = DateStyle("dmy", "DD/MM/YYYY", "%d/%m/%Y", r"\d\d?[./-]\d\d?[./-]\d{4}", "./-")
MDY = DateStyle("mdy", "MM/DD/YYYY", "%m/%d/%Y", r"\d\d?[/-]\d\d?[/-]\d{4}", "/-")
NAMED = DateStyle("named", "Mon DD, YYYY", "%b %d, %Y", r"[A-Z][a-z]{2} \d\d?, \d{4}")
MONTH = DateStyle("monthly", "YYYY-MM", "%Y-%m", r"\d{4}-\d\d")
DATES: tuple[DateStyle, ...] = (ISO, BASIC, DMY, MDY, NAMED, MONTH)


def blank_cells(cells: pd.Series[str], markers: tuple[str, ...]) -> Mask:
    """Tell which cells say that a value is missing."""
    found: Any = cells.isin(markers)
    return np.asarray(found, dtype=bool)
