"""The one error of this room: bad input, named."""

from __future__ import annotations

from pathlib import Path

__all__ = ["DataError", "NoRowsError", "bad_cell"]


class DataError(ValueError):
    """Input that cannot be used.

    The message is a single line that names the file and, where they exist, the line, the column and the value, says
    what was expected, and ends with what to do next.
    """


class NoRowsError(DataError):
    """A file without a single row: nothing in it can be misread, its ticker is missing."""


def bad_cell(file: Path | str, line: int, column: str, value: str, expected: str, hint: str) -> DataError:
    """Build the error for one cell of a text file.

    Parameters
    ----------
    file : Path or str
        File as the user knows it.
    line : int
        Line number in the file, counted from 1 with the header.
    column : str
        Column name as written in the header.
    value : str
        Offending text.
    expected : str
        What should have stood there.
    hint : str
        What to do next.

    Returns
    -------
    DataError
        Ready to be raised.
    """
    shown = value if len(value) <= 40 else value[:37] + "..."
    return DataError(f"{file}, line {line}, column {column}: found {shown!r}, expected {expected}; {hint}")
