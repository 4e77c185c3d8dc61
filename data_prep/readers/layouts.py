"""The layouts of daily price files that can be read, told apart by their header line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from data_prep.errors import DataError

__all__ = ["LAYOUTS", "Layout", "detect_layout"]


@dataclass(frozen=True)
class Layout:
    """How one vendor writes a daily bar.

    Attributes
    ----------
    name : str
        For messages and the manifest.
    header : tuple of str
        Header cells exactly as written.
    fields : tuple of str
        Meaning of each cell: date, open, high, low, close, adjusted, volume, ticker, period, or "" for unused.
    date_format : str
        `strptime` format of the date column.
    """

    name: str
    header: tuple[str, ...]
    fields: tuple[str, ...]
    date_format: str


_YAHOO = ("Date", "Open", "High", "Low", "Close")
_OHLC = ("date", "open", "high", "low", "close")
_ISO = "%Y-%m-%d"

LAYOUTS: tuple[Layout, ...] = (
    Layout("yahoo", (*_YAHOO, "Adj Close", "Volume"), (*_OHLC, "adjusted", "volume"), _ISO),
    Layout("yahoo (old)", (*_YAHOO, "Volume", "Adj Close"), (*_OHLC, "volume", "adjusted"), _ISO),
    Layout("yahoo or stooq symbol", (*_YAHOO, "Volume"), (*_OHLC, "volume"), _ISO),
    Layout("stooq symbol without volume", _YAHOO, _OHLC, _ISO),
    Layout(
        "stooq symbol (Polish)",
        ("Data", "Otwarcie", "Najwyzszy", "Najnizszy", "Zamkniecie", "Wolumen"),
        (*_OHLC, "volume"),
        _ISO,
    ),
    Layout(
        "stooq symbol (Polish) without volume",
        ("Data", "Otwarcie", "Najwyzszy", "Najnizszy", "Zamkniecie"),
        _OHLC,
        _ISO,
    ),
    Layout(
        "stooq bulk",
        ("<TICKER>", "<PER>", "<DATE>", "<TIME>", "<OPEN>", "<HIGH>", "<LOW>", "<CLOSE>", "<VOL>", "<OPENINT>"),
        ("ticker", "period", "date", "", "open", "high", "low", "close", "volume", ""),
        "%Y%m%d",
    ),
)


def detect_layout(file: Path | str, header_line: str) -> Layout:
    """Return the layout whose header equals the given line.

    Parameters
    ----------
    file : Path or str
        Named in the error.
    header_line : str
        First line of the file, without its end.

    Returns
    -------
    Layout
        The one match.

    Raises
    ------
    DataError
        If no layout has this header. Nothing is guessed from similar headers.
    """
    cells = tuple(cell.strip() for cell in header_line.lstrip("\ufeff").split(","))
    for layout in LAYOUTS:
        if cells == layout.header:
            return layout
    known = " | ".join(",".join(layout.header) for layout in LAYOUTS)
    shown = header_line.strip()[:80]
    raise DataError(
        f"{file}, line 1: found header {shown!r}, expected one of {known}; "
        "convert the file to one of these layouts or name it in exclude"
    )
