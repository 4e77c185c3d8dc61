"""One file of daily prices -> `Bars`."""

from __future__ import annotations

import csv
import io
import math
from datetime import datetime
from pathlib import Path

import numpy as np
import pandas as pd

from data_prep.bars import Bars, Dates, Floats
from data_prep.errors import DataError, bad_cell
from data_prep.readers.layouts import Layout, detect_layout

__all__ = ["read_bars"]

_PRICES = ("open", "high", "low", "close", "adjusted")
_HINT = "correct the cell, or name the file in exclude"
# Vendors round each column on its own, so the day's range may miss open or close by the last printed digit.
_RANGE_TOLERANCE = 1e-3


def read_bars(path: Path, *, region: str, shown: str | None = None) -> Bars:
    """Read one file of daily prices in any known layout.

    Rows may come in any order and are returned sorted. Where the file has an adjusted close, open, high, low and close
    are all scaled by adjusted / close, so that every return is on one basis. High and low are widened to contain open
    and close where those miss by no more than a thousandth, as rounded columns do.

    Parameters
    ----------
    path : Path
        CSV or text file.
    region : str
        Region bucket to write into the result.
    shown : str, optional
        Name of the file in messages, by default `path`.

    Returns
    -------
    Bars
        With volume NaN where the file gives none.

    Raises
    ------
    DataError
        Empty file, unknown header, no rows, cell that is not a number, date that cannot be parsed, duplicate date,
        price that is not positive, open or close outside low to high, more than one ticker, period other than daily.
    """
    name = shown or str(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}: not UTF-8 text ({error.reason} at byte {error.start}), expected a CSV or text file; "
            "convert it or name it in exclude"
        ) from None
    if not text.strip():
        raise DataError(f"{name}: the file is empty, expected a header and daily rows; download it again or exclude it")
    layout = detect_layout(name, text.split("\n", 1)[0].rstrip("\r"))
    table = _parse(name, text, layout)
    if table.empty:
        raise DataError(
            f"{name}, line 2: no rows after the header, expected daily rows; download it again or name it in exclude"
        )
    dates = _dates(name, text, layout, table)
    columns = {field: table[field].to_numpy(np.float64) for field in layout.fields if field in (*_PRICES, "volume")}
    _check_prices(name, text, layout, columns)
    ticker = _ticker(name, text, layout, table) or path.stem
    order = np.argsort(dates, kind="stable")
    dates = dates[order]
    repeated = np.flatnonzero(dates[1:] == dates[:-1])
    if repeated.size:
        row = int(order[repeated[0] + 1])
        first = _line_of_row(text, int(order[repeated[0]]))
        raise bad_cell(
            name,
            _line_of_row(text, row),
            _header_of(layout, "date"),
            str(table["date"].iloc[row]),
            f"each date once (line {first} has it already)",
            "remove one of the two rows, or name the file in exclude",
        )
    columns = {field: values[order] for field, values in columns.items()}
    close = columns["close"]
    scale: Floats | float = 1.0
    basis = "as published"
    if "adjusted" in columns:
        scale = columns["adjusted"] / close
        basis = "adjusted"
    open_, high, low = (columns[field] * scale for field in ("open", "high", "low"))
    close = columns.get("adjusted", close)
    volume = columns.get("volume", np.full(len(dates), np.nan))
    return Bars(
        ticker=ticker,
        region=region,
        sector=None,
        dates=dates,
        open=open_,
        high=np.maximum(high, np.maximum(open_, close)),
        low=np.minimum(low, np.minimum(open_, close)),
        close=close,
        volume=volume,
        basis=basis,
    )


def _parse(name: str, text: str, layout: Layout) -> pd.DataFrame:
    names = [field or f"unused{i}" for i, field in enumerate(layout.fields)]
    kinds = {n: np.float64 if n in (*_PRICES, "volume") else str for n in names}
    try:
        return pd.read_csv(
            io.StringIO(text),
            header=None,
            skiprows=1,
            names=names,
            index_col=False,
            dtype=kinds,
            keep_default_na=False,
            na_values=[""],
            skip_blank_lines=True,
            on_bad_lines="error",
        )
    except (ValueError, pd.errors.ParserError):
        raise _first_bad_row(name, text, layout) from None


def _first_bad_row(name: str, text: str, layout: Layout) -> DataError:
    for line, row in _rows(text):
        if len(row) > len(layout.fields):
            return DataError(
                f"{name}, line {line}: found {len(row)} cells ({','.join(row)[:60]!r}), expected at most "
                f"{len(layout.fields)} as in the header; correct the row, or name the file in exclude"
            )
        for field, header, cell in zip(layout.fields, layout.header, row, strict=False):
            if field in (*_PRICES, "volume") and cell.strip() and not _is_number(cell):
                return bad_cell(name, line, header, cell, "a number with a decimal point", _HINT)
    return DataError(f"{name}: not a readable CSV file, expected layout {layout.name}; name it in exclude")


def _rows(text: str) -> list[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(text))
    next(reader)
    return [(reader.line_num, row) for row in reader if row]


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def _line_of_row(text: str, row: int) -> int:
    return _rows(text)[row][0]


def _cell(text: str, layout: Layout, row: int, field: str) -> str:
    cells = _rows(text)[row][1]
    position = layout.fields.index(field)
    return cells[position] if position < len(cells) else ""


def _header_of(layout: Layout, field: str) -> str:
    return layout.header[layout.fields.index(field)]


def _dates(name: str, text: str, layout: Layout, table: pd.DataFrame) -> Dates:
    raw = table["date"].fillna("").str.strip()
    width = len(datetime(2000, 1, 1).strftime(layout.date_format))
    parsed = pd.to_datetime(raw, format=layout.date_format, errors="coerce")
    bad = (parsed.isna() | (raw.str.len() != width)).to_numpy()
    if bad.any():
        row = int(np.argmax(bad))
        pattern = layout.date_format.replace("%Y", "YYYY").replace("%m", "MM").replace("%d", "DD")
        raise bad_cell(
            name,
            _line_of_row(text, row),
            _header_of(layout, "date"),
            str(raw.iloc[row]),
            f"a day written as {pattern}",
            _HINT,
        )
    return parsed.to_numpy().astype("datetime64[D]")


def _check_prices(name: str, text: str, layout: Layout, columns: dict[str, Floats]) -> None:
    for field, values in columns.items():
        bad = np.isinf(values) | (values < 0) if field == "volume" else ~np.isfinite(values) | (values <= 0)
        if bad.any():
            row = int(np.argmax(bad))
            expected = "a volume of zero or more" if field == "volume" else "a positive price"
            line, cell = _line_of_row(text, row), _cell(text, layout, row, field)
            raise bad_cell(name, line, _header_of(layout, field), cell, expected, _HINT)
    for field, other, expected in (
        ("high", "low", "at least the low"),
        ("high", "open", "at least the open"),
        ("high", "close", "at least the close"),
        ("low", "open", "at most the open"),
        ("low", "close", "at most the close"),
    ):
        larger, smaller = (field, other) if field == "high" else (other, field)
        crossed = columns[larger] < columns[smaller] * (1.0 - _RANGE_TOLERANCE)
        if crossed.any():
            row = int(np.argmax(crossed))
            line, cell = _line_of_row(text, row), _cell(text, layout, row, field)
            bound = f"a {field} of {expected} {_cell(text, layout, row, other)}"
            raise bad_cell(name, line, _header_of(layout, field), cell, bound, _HINT)


def _ticker(name: str, text: str, layout: Layout, table: pd.DataFrame) -> str | None:
    if "ticker" not in layout.fields:
        return None
    for field, wanted, expected in (
        ("period", "D", "period D (daily)"),
        ("ticker", str(table["ticker"].iloc[0]), "one ticker per file"),
    ):
        other = (table[field] != wanted).to_numpy()
        if other.any():
            row = int(np.argmax(other))
            cell = str(table[field].iloc[row])
            raise bad_cell(name, _line_of_row(text, row), _header_of(layout, field), cell, expected, _HINT)
    return str(table["ticker"].iloc[0])
