"""One file of daily prices -> the rows of each ticker in it, read but not yet judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from data_prep.bars import Dates, Floats
from data_prep.errors import DataError, NoRowsError, bad_cell
from data_prep.readers.detect import Columns, read_columns
from data_prep.readers.layouts import LAYOUTS, PRICES
from data_prep.readers.notation import MONTH
from data_prep.readers.source import read_text

__all__ = ["EMPTY", "RawSeries", "read_series"]

EMPTY = "the file is empty"
_HINT = "correct the cell, or name the file in exclude"


@dataclass(frozen=True)
class RawSeries:
    """The rows of one ticker in the order of the file, in the file's own unit.

    Attributes
    ----------
    file : str
        File as the user knows it.
    ticker : str
        From the file's ticker column, else its name without ending.
    layout : str
        Name of the layout that reads the file.
    encoding : str
        Of the text; "parquet" where there is none.
    dates : ndarray, shape (n,), datetime64[D]
        As in the file, in any order.
    columns : Mapping of str to ndarray, shape (n,), float64
        open, high, low, close, and adjusted and volume where the file has them; NaN where a value is missing.
    headers : Mapping of str to str
        Column name per meaning, `date` included.
    monthly : bool
        Whether the file names months where days are expected.
    line : callable
        Row number -> line in the file, counted from 1.
    cell : callable
        Row number, meaning -> text of the cell.
    """

    file: str
    ticker: str
    layout: str
    encoding: str
    dates: Dates
    columns: Mapping[str, Floats]
    headers: Mapping[str, str]
    monthly: bool
    line: Callable[[int], int]
    cell: Callable[[int, str], str]

    def bad(self, row: int, field: str, expected: str, hint: str = _HINT) -> DataError:
        """Build the error for one cell."""
        return bad_cell(self.file, self.line(row), self.headers[field], self.cell(row, field), expected, hint)

    def take(self, rows: np.ndarray, ticker: str) -> RawSeries:
        """Return some of the rows under a ticker of their own."""
        numbers = [int(row) for row in rows]
        return replace(
            self,
            ticker=ticker,
            dates=self.dates[rows],
            columns={field: values[rows] for field, values in self.columns.items()},
            line=lambda row: self.line(numbers[row]),
            cell=lambda row, field: self.cell(numbers[row], field),
        )


def read_series(path: Path, name: str, *, layout: str | None = None) -> list[RawSeries]:
    """Read a file of daily prices in the layout that fits it.

    Parameters
    ----------
    path : Path
        Text or Parquet.
    name : str
        File as the user knows it.
    layout : str, optional
        Name of the layout to use for text instead of the detected one.

    Returns
    -------
    list of RawSeries
        One per ticker, in the order of their first rows.

    Raises
    ------
    DataError
        Empty file, unknown header, no rows, cell that cannot be read, several layouts that read it differently, period
        other than daily.
    """
    if path.suffix.lower() in (".parquet", ".pq"):
        return _split(*_parquet(path, name))
    text, encoding = read_text(path, name)
    if not text.strip():
        raise NoRowsError(f"{name}: {EMPTY}, expected a header and daily rows; download it again or exclude it")
    columns = read_columns(name, text, layout)
    return _split(*_from_text(path, encoding, columns))


def _from_text(path: Path, encoding: str, columns: Columns) -> tuple[RawSeries, pd.Series[str] | None]:
    source, fields = columns.source, columns.fields
    place = {field: number for number, field in enumerate(fields) if field}
    series = RawSeries(
        file=source.name,
        ticker=path.stem,
        layout=columns.layout.name,
        encoding=encoding,
        dates=columns.dates,
        columns={fields[number]: values for number, values in columns.numbers.items()},
        headers={field: source.header[number] for field, number in place.items()},
        monthly=columns.layout.dates is MONTH,
        line=source.line,
        cell=lambda row, field: source.cell(row, place[field]),
    )
    if "period" in place:
        other = (columns.table[place["period"]] != "D").to_numpy()
        if other.any():
            raise series.bad(int(np.argmax(other)), "period", "period D (daily)")
    return series, columns.table[place["ticker"]] if "ticker" in place else None


def _split(series: RawSeries, tickers: pd.Series[str] | None) -> list[RawSeries]:
    if tickers is None:
        return [series]
    codes, names = pd.factorize(tickers)
    blank = [number for number, ticker in enumerate(names) if not str(ticker).strip()]
    if blank:
        raise series.bad(int(np.argmax(codes == blank[0])), "ticker", "the name of a ticker")
    if len(names) == 1:
        return [replace(series, ticker=str(names[0]))]
    order = np.argsort(codes, kind="stable")
    bounds = np.searchsorted(codes[order], np.arange(len(names) + 1))
    return [series.take(order[bounds[i] : bounds[i + 1]], str(ticker)) for i, ticker in enumerate(names)]


def _parquet(path: Path, name: str) -> tuple[RawSeries, pd.Series[str] | None]:
    """Read a table with the column names of the English layouts; days may be the index."""
    try:
        table = pd.read_parquet(path)
    except (OSError, ValueError) as error:  # pyarrow's errors are of these kinds
        if path.stat().st_size == 0:
            raise NoRowsError(f"{name}: {EMPTY}, expected a Parquet table; download it again or exclude it") from None
        reason = str(error).split("\n", 1)[0]
        raise DataError(f"{name}: not a readable Parquet file ({reason}); write it again or exclude it") from None
    if table.index.name is not None or not isinstance(table.index, pd.RangeIndex):
        table = table.reset_index()
    header = tuple(map(str, table.columns))
    families = {x.family.name: x.family for x in LAYOUTS if x.family.name in ("yahoo", "ohlcv", "long")}
    for family in families.values():
        fields = family.meanings(tuple("" if cell == "index" else cell for cell in header))
        if fields is not None:
            break
    else:
        raise DataError(
            f"{name}: found columns {','.join(header)[:80]!r}, expected date,open,high,low,close and, where known, adj "
            "close, volume, ticker; rename the columns or name the file in exclude"
        )
    if table.empty:
        raise NoRowsError(f"{name}: no rows, expected daily rows; write it again or name it in exclude")
    place = {field: number for number, field in enumerate(fields) if field}

    def cell(row: int, field: str) -> str:
        return str(table.iat[row, place[field]])

    numbers: dict[str, Floats] = {}
    for field, number in place.items():
        if field in (*PRICES, "volume"):
            column = table.iloc[:, number]
            if not pd.api.types.is_numeric_dtype(column):
                raise DataError(
                    f"{name}, column {header[number]}: found type {column.dtype}, expected numbers; convert the column"
                )
            numbers[field] = column.to_numpy(np.float64, na_value=np.nan)
    stamps = pd.to_datetime(table.iloc[:, place["date"]].astype(str).str[:10], format="%Y-%m-%d", errors="coerce")
    series = RawSeries(
        file=name,
        ticker=path.stem,
        layout=f"{family.name} (parquet)",
        encoding="parquet",
        dates=np.asarray(stamps.to_numpy(), dtype="datetime64[D]"),
        columns=numbers,
        headers={field: header[number] for field, number in place.items()},
        monthly=False,
        line=lambda row: row + 1,
        cell=cell,
    )
    missing = np.isnat(series.dates)
    if missing.any():
        raise series.bad(int(np.argmax(missing)), "date", "a day")
    return series, table.iloc[:, place["ticker"]].astype(str) if "ticker" in place else None
