"""The text of one price file: its encoding, its header, its cells, and where each row stands."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from data_prep.bars import Floats
from data_prep.errors import DataError

__all__ = ["Source", "read_text"]

_SEPARATORS = (",", ";", "\t")
_UTF_16 = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}


def read_text(path: Path, name: str) -> tuple[str, str]:
    """Return a file's text and encoding: UTF-8, UTF-16 where its mark says so, Windows-1252 where it cannot be UTF-8.

    Raises
    ------
    DataError
        For bytes that are no text, or that are UTF-8 in one place and something else in another.
    """
    text, encoding = _decoded(path.read_bytes(), name)
    # Of all line ends one is left, so that every line number is the one an editor shows.
    return re.sub(r"\r*\n|\r", "\n", text) if "\r" in text else text, encoding


def _decoded(data: bytes, name: str) -> tuple[str, str]:
    for mark, encoding in _UTF_16.items():
        # Two zero bytes after the mark would be UTF-32, or no text.
        if data.startswith(mark) and not data.startswith(mark + b"\0\0"):
            return _utf_16(data[len(mark) :], encoding, name), f"{encoding} with BOM"
    try:
        if b"\0" in data:
            raise DataError(
                f"{name}: not UTF-8 text (a zero byte at byte {data.index(0)}), expected CSV or text in UTF-8, or in "
                "UTF-16 with its byte order mark; convert it or name it in exclude"
            )
        return data.decode("utf-8-sig"), "utf-8 with BOM" if data.startswith(b"\xef\xbb\xbf") else "utf-8"
    except UnicodeDecodeError as error:
        kept = data.decode("utf-8", errors="ignore")
        try:
            text = data.decode("cp1252")
        except UnicodeDecodeError:
            text = ""
        if not text or not kept.isascii():
            mixed = "mixed encodings, " if text else ""
            raise DataError(
                f"{name}: not UTF-8 text ({mixed}{error.reason} at byte {error.start}), expected a CSV or text file in "
                "one encoding; convert it or name it in exclude"
            ) from None
        return text, "windows-1252"


def _utf_16(data: bytes, encoding: str, name: str) -> str:
    reason = "a zero character"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        text, reason = "\0", f"{error.reason} at byte {error.start + 2}"
    if "\0" in text:
        raise DataError(
            f"{name}: not {encoding.upper()} text although its byte order mark says so ({reason}), expected a CSV or "
            "text file; convert it to UTF-8 or name it in exclude"
        )
    return text


@dataclass
class Source:
    """Cells of one text file.

    Attributes
    ----------
    name : str
        As the user knows the file.
    text : str
        Whole content.
    separator : str
        Between cells.
    header : tuple of str
        Column names as written.
    header_lines : int
        Lines before the first row.
    wide : tuple of (str, str)
        Per column of the file after the first its name and ticker, where the header has a row of tickers; such a file
        is read as one long table with a column `Ticker`.
    """

    name: str
    text: str
    separator: str
    header: tuple[str, ...]
    header_lines: int = 1
    wide: tuple[tuple[str, str], ...] = field(default=())

    @classmethod
    def candidates(cls, name: str, text: str) -> list[Source]:
        """Return the file split at each separator that its first line has."""
        first = text[: 1 << 16].split("\n", 3)[:3]
        result = []
        for separator in _SEPARATORS:
            rows = [_cells(line, separator) for line in first]
            if len(rows[0]) < 2:
                continue
            if len(rows) > 1 and rows[1][0].lower() == "ticker" and rows[0][0].lower() in ("price", "attributes"):
                # yfinance: prices by name, then tickers, then perhaps a line that only names the date.
                lines = 3 if len(rows) > 2 and rows[2][0].lower() == "date" and not any(rows[2][1:]) else 2
                wide = tuple(zip(rows[0][1:], rows[1][1:], strict=False))
                header = ("Date", *dict.fromkeys(column for column, _ in wide), "Ticker")
                result.append(cls(name, text, separator, header, lines, wide))
            else:
                result.append(cls(name, text, separator, rows[0]))
        return result

    @cached_property
    def rows(self) -> list[tuple[int, list[str]]]:
        """Line number and cells of each row; only made for messages."""
        reader = csv.reader(io.StringIO(self.text), delimiter=self.separator)
        try:
            for _ in range(self.header_lines):
                next(reader)
            return [(reader.line_num, row) for row in reader if row and (len(row) > 1 or row[0].strip())]
        except csv.Error as error:
            raise DataError(f"{self.name}: not a readable CSV file ({error}); name it in exclude") from None

    def line(self, row: int) -> int:
        """Return the line of a row of `table`, counted from 1."""
        return self.rows[row % len(self.rows)][0]

    def cell(self, row: int, column: int) -> str:
        """Return a cell of `table` as written, empty where the row is too short."""
        cells = self.rows[row % len(self.rows)][1]
        if self.wide and column > 0:
            ticker = list(dict.fromkeys(name for _, name in self.wide))[row // len(self.rows)]
            if column == len(self.header) - 1:
                return ticker
            wanted = (self.header[column], ticker)
            column = 1 + self.wide.index(wanted) if wanted in self.wide else len(cells)
        return cells[column] if column < len(cells) else ""

    def numbers_and_text(
        self, columns: Sequence[int], missing: Sequence[str]
    ) -> tuple[dict[int, Floats], pd.DataFrame] | None:
        """Return some columns as numbers with a decimal point and the others as text, None if any cell is not so.

        The same as `table` followed by a conversion, in a tenth of the time.
        """
        if self.wide:
            return None
        names = [str(i) for i in range(len(self.header))]
        try:
            read = arrow_csv.read_csv(
                pa.BufferReader(self.text.encode()),
                arrow_csv.ReadOptions(use_threads=False, skip_rows=self.header_lines, column_names=names),
                arrow_csv.ParseOptions(delimiter=self.separator, newlines_in_values=True),
                arrow_csv.ConvertOptions(
                    column_types={name: pa.float64() if int(name) in columns else pa.string() for name in names},
                    null_values=list(missing),
                    strings_can_be_null=False,
                ),
            )
        except (pa.ArrowInvalid, pa.ArrowKeyError):
            return None
        numbers = {i: read.column(i).to_numpy() for i in columns}
        text = {i: pc.utf8_trim_whitespace(read.column(i)).to_pandas() for i in range(len(names)) if i not in columns}
        return numbers, pd.DataFrame(text)

    def table(self) -> pd.DataFrame:
        """Return all cells as text without blanks around them, columns numbered from 0.

        Raises
        ------
        DataError
            For a row with more cells than the header.
        """
        try:
            table = pd.read_csv(
                io.StringIO(self.text),
                sep=self.separator,
                header=None,
                skiprows=self.header_lines,
                names=range(1 + len(self.wide) if self.wide else len(self.header)),
                index_col=False,
                dtype=str,
                keep_default_na=False,
                na_values=[],
                skip_blank_lines=True,
                on_bad_lines="error",
            )
        except pd.errors.EmptyDataError:
            return pd.DataFrame()
        except (ValueError, pd.errors.ParserError):
            raise self._unreadable() from None
        table = pd.DataFrame({column: table[column].fillna("").str.strip() for column in table})
        return self._long(table) if self.wide and not table.empty else table

    def _long(self, table: pd.DataFrame) -> pd.DataFrame:
        blank = pd.Series("", index=table.index, dtype=table.dtypes[0])
        parts = []
        for ticker in dict.fromkeys(name for _, name in self.wide):
            place = {column: 1 + i for i, (column, name) in enumerate(self.wide) if name == ticker}
            columns = [table[place[column]] if column in place else blank for column in self.header[1:-1]]
            parts.append(pd.concat([table[0], *columns, blank.replace("", ticker)], axis=1, ignore_index=True))
        long: pd.DataFrame = pd.concat(parts, ignore_index=True)
        return long

    def _unreadable(self) -> DataError:
        width = 1 + len(self.wide) if self.wide else len(self.header)
        for line, row in self.rows:
            if len(row) > width:
                return DataError(
                    f"{self.name}, line {line}: found {len(row)} cells ({self.separator.join(row)[:60]!r}), expected "
                    f"at most {width} as in the header; correct the row, or name the file in exclude"
                )
        return DataError(
            f"{self.name}: not a readable CSV file, expected rows of {len(self.header)} cells; name it in exclude"
        )


def _cells(line: str, separator: str) -> tuple[str, ...]:
    try:
        found: Sequence[str] = next(csv.reader([line], delimiter=separator), [""])
    except csv.Error:  # a cell of more than 128 KiB
        found = [line[:80]]
    return tuple(cell.strip() for cell in found) or ("",)
