"""Which layout a price file has: the one that reads every cell of it, or an error that names the candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from data_prep.bars import Dates, Floats
from data_prep.errors import DataError, NoRowsError, bad_cell
from data_prep.readers.layouts import LAYOUTS, PRICES, Layout, layout_named, layouts_for
from data_prep.readers.notation import POINT, blank_cells
from data_prep.readers.source import Source

__all__ = ["Columns", "read_columns", "source_of"]

_HINT = "correct the cell, or name the file in exclude"


@dataclass(frozen=True)
class Columns:
    """The columns of a file in one layout.

    Attributes
    ----------
    source : Source
        Text of the file.
    layout : Layout
        The one that reads it.
    fields : tuple of str
        Meaning of each column.
    dates : ndarray, shape (n,), datetime64[D]
        In the order of the file.
    numbers : dict of int to ndarray, shape (n,), float64
        Per column that holds numbers; NaN where the file says that the value is missing.
    table : DataFrame
        Cells as text, at least those of the columns that hold no numbers.
    """

    source: Source
    layout: Layout
    fields: tuple[str, ...]
    dates: Dates
    numbers: dict[int, Floats]
    table: pd.DataFrame


def source_of(name: str, text: str, layout: Layout | None = None) -> tuple[Source, list[Layout]]:
    """Split a file at the separator with which its header is known.

    Returns
    -------
    Source, list of Layout
        The layouts with these column names; `layout` alone where it is given.

    Raises
    ------
    DataError
        If no layout has this header. Nothing is guessed from similar headers.
    """
    for source in Source.candidates(name, text):
        found = list(layouts_for(source.header, source.separator))
        if layout is not None:
            found = [x for x in found if x.name == layout.name]
        if found:
            return source, found
    shown = text.split("\n", 1)[0].strip()[:80]
    if layout is not None:
        wanted = _spelled(layout)
        raise DataError(
            f"{name}, line 1: found header {shown!r}, expected columns {wanted} of layout {layout.name}; "
            "name another layout, or name the file in exclude"
        )
    families = {x.family.name: _spelled(x) for x in LAYOUTS[::-1]}
    known = " | ".join(f"{family}: {columns}" for family, columns in sorted(families.items()))
    raise DataError(
        f"{name}, line 1: found header {shown!r}, expected one of {known}; "
        "convert the file to one of these layouts or name it in exclude"
    )


def _spelled(layout: Layout) -> str:
    first: dict[str, str] = {}
    for column, meaning in layout.family.columns.items():
        if meaning in layout.family.required or meaning == "volume":
            first.setdefault(meaning, column)
    return ",".join(first.values())


def read_columns(name: str, text: str, layout: str | None = None) -> Columns:
    """Read the columns of a text file in the one layout that fits.

    Parameters
    ----------
    name : str
        File as the user knows it.
    text : str
        Its content.
    layout : str, optional
        Name of a layout to use instead of detecting one.

    Raises
    ------
    DataError
        Unknown header, no rows, a cell that no candidate reads, or candidates that read the file differently.
    """
    source, candidates = source_of(name, text, None if layout is None else layout_named(layout))
    cache: dict[object, Any] = {}
    table = _pointed(source, candidates, cache) if source.separator == "," else None
    if table is not None:
        # Where commas separate the cells, a decimal comma has to be quoted: without one the point is the decimal sign.
        candidates = [candidate for candidate in candidates if candidate.numbers is POINT]
    else:
        table = source.table()
    if table.empty:
        raise NoRowsError(
            f"{name}, line {source.header_lines + 1}: no rows after the header, expected daily rows; "
            "download it again or name it in exclude"
        )
    # One look at the first days spares most candidates the rest: they are not written in its convention.
    sample: dict[int, list[str]] = {}
    possible = [candidate for candidate in candidates if _days_occur(source, table, candidate, sample)]
    whole = [reading for x in possible if not (reading := _read(source, table, x, cache)).bad]
    if not whole:
        readings = [_read(source, table, candidate, cache) for candidate in candidates]
        raise _bad(min(readings, key=lambda reading: sum(reading.bad.values())))
    for other in whole[1:]:
        _same_or_ambiguous(whole[0], other, [reading.layout for reading in whole])
    first = whole[0]
    return Columns(source, first.layout, first.fields, first.dates, first.numbers, table)


def _pointed(source: Source, candidates: Sequence[Layout], cache: dict[object, Any]) -> pd.DataFrame | None:
    """Read a file with decimal points at once, its numbers into the cache; None if it is not one."""
    layout = next((candidate for candidate in candidates if candidate.numbers is POINT), None)
    if layout is None or layout.family.suffixes:
        return None
    fields = layout.family.meanings(source.header) or ()
    columns = [column for column, meaning in enumerate(fields) if meaning in (*PRICES, "volume")]
    found = source.numbers_and_text(columns, layout.family.missing)
    if found is None:
        return None
    numbers, text = found
    for column, values in numbers.items():
        cache[(column, POINT, False)] = values, np.isnan(values)
    return text


@dataclass(frozen=True)
class _Reading:
    """One candidate applied to a file; `bad` counts the cells of each column that it cannot read."""

    source: Source
    table: pd.DataFrame
    layout: Layout
    fields: tuple[str, ...]
    dates: Dates
    numbers: dict[int, Floats]
    bad: dict[int, int]
    blank: dict[int, NDArray[np.bool_]]


def _days_occur(source: Source, table: pd.DataFrame, layout: Layout, sample: dict[int, list[str]]) -> bool:
    day = (layout.family.meanings(source.header) or ()).index("date")
    if day not in sample:
        sample[day] = table[day].iloc[:20].to_list()
    return layout.dates.occurs_in(sample[day])


def _read(source: Source, table: pd.DataFrame, layout: Layout, cache: dict[object, Any]) -> _Reading:
    family = layout.family
    fields = family.meanings(source.header) or ()
    day = fields.index("date")
    if layout.dates not in cache:
        cache[layout.dates] = layout.dates.parse(table[day])
    dates: Dates = cache[layout.dates]
    bad = {day: int(np.count_nonzero(np.isnat(dates)))}
    numbers: dict[int, Floats] = {}
    blank: dict[int, NDArray[np.bool_]] = {}
    for column, meaning in enumerate(fields):
        if meaning not in (*PRICES, "volume"):
            continue
        key = (column, layout.numbers, family.suffixes)
        if key not in cache:
            cells = table[column]
            values = layout.numbers.parse(cells, suffixes=family.suffixes and meaning == "volume")
            empty = np.zeros(len(values), dtype=bool)
            unread = np.isnan(values)
            if unread.any():
                empty[unread] = blank_cells(cells[unread], family.missing)
            cache[key] = values, empty
        numbers[column], blank[column] = cache[key]
        bad[column] = int(np.count_nonzero(np.isnan(numbers[column]) & ~blank[column]))
    return _Reading(source, table, layout, fields, dates, numbers, {k: n for k, n in bad.items() if n}, blank)


def _bad(reading: _Reading) -> DataError:
    """Name the first cell of a file that its best candidate cannot read."""
    first: tuple[int, int] | None = None
    for column in reading.bad:
        if column in reading.numbers:
            unread = np.isnan(reading.numbers[column]) & ~reading.blank[column]
        else:
            unread = np.isnat(reading.dates)
        row = int(np.argmax(unread))
        if first is None or row < first[0]:
            first = row, column
    assert first is not None
    row, column = first
    source, layout = reading.source, reading.layout
    if column in reading.numbers:
        grouped = "" if layout.numbers is POINT else f" in the convention {layout.numbers.shown}"
        expected = f"a number with a decimal {'comma' if layout.numbers.decimal == ',' else 'point'}{grouped}"
    else:
        expected = f"a day written as {layout.dates.shown}"
    cell = source.cell(row, column).strip()
    return bad_cell(source.name, source.line(row), source.header[column], cell, expected, _HINT)


def _same_or_ambiguous(first: _Reading, other: _Reading, layouts: Sequence[Layout]) -> None:
    """Refuse a file that two candidates read differently, showing a cell and both meanings."""
    found: tuple[int, int, str, str] | None = None
    unequal = first.dates != other.dates
    if unequal.any():
        row = int(np.argmax(unequal))
        found = row, first.fields.index("date"), str(first.dates[row]), str(other.dates[row])
    for column, values in first.numbers.items():
        unequal = (values != other.numbers[column]) & ~(np.isnan(values) & np.isnan(other.numbers[column]))
        if found is None and unequal.any():
            row = int(np.argmax(unequal))
            found = row, column, f"{values[row]:g}", f"{other.numbers[column][row]:g}"
    if found is None:
        return
    row, column, one, two = found
    source = first.source
    names = ", ".join(layout.name for layout in layouts)
    raise bad_cell(
        source.name,
        source.line(row),
        source.header[column],
        source.cell(row, column),
        f"a cell with one meaning, but it may be {one} ({first.layout.name}) or {two} ({other.layout.name}) and no "
        "other cell decides",
        f"say which with --layout, one of {names}",
    )
