"""How daily bars are written: the inverse of the readers' layouts.

A form is one of the layouts that can be read, with the columns, the order of the rows and the quotes that the vendor's
own files have. Column meanings, separators, numbers and days come from the readers' tables.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from data_prep.bars import Bars, Floats
from data_prep.errors import DataError
from data_prep.readers.layouts import Layout, layout_named, normal_name
from data_prep.readers.notation import BASIC, COMMA, DMY, ISO, MONTH, POINT, Numbers

__all__ = ["FORMS", "PARQUET_COLUMNS", "PRICE_DIGITS", "Form", "form_named", "render"]

PRICE_DIGITS = 6
"""Decimal places of written prices."""
PARQUET_COLUMNS = ("date", "open", "high", "low", "close", "volume")

_YAHOO = "Date,Open,High,Low,Close,Adj Close,Volume"
_OHLCV = "Date,Open,High,Low,Close,Volume"
_HEADERS = {
    "yahoo": _YAHOO,
    "ohlcv": _OHLCV,
    "long": f"Ticker,{_OHLCV}",
    "stooq-bulk": "<TICKER>,<PER>,<DATE>,<TIME>,<OPEN>,<HIGH>,<LOW>,<CLOSE>,<VOL>,<OPENINT>",
    "stooq-polish": "Data,Otwarcie,Najwyzszy,Najnizszy,Zamkniecie,Wolumen",
    "investing-en": "Date,Price,Open,High,Low,Vol.,Change %",
    "investing-fr": "Date,Dernier,Ouv.,Plus Haut,Plus Bas,Vol.,Variation %",
    "investing-de": "Datum,Zuletzt,Eröffn.,Hoch,Tief,Vol.,+/- %",
    "german": "Datum,Erster,Hoch,Tief,Schlusskurs,Stuecke",
    "french": "Date,Ouverture,Plus haut,Plus bas,Clôture,Volume",
}
_NEWEST_FIRST = ("investing-en", "investing-fr", "investing-de", "german")
_GERMAN = ("investing-de", "german")
_FILLED = {"<time>": "000000", "<openint>": "0"}


@dataclass(frozen=True)
class Form:
    """One way of writing price files.

    Attributes
    ----------
    name : str
        Name of the layout, or of a form that the readers know under another layout.
    layout : Layout or None
        None for Parquet.
    header : tuple of str
        Column names.
    newest_first : bool
        Whether the rows go back in time.
    stacked : bool
        Whether the header has three rows, as yfinance writes it.
    """

    name: str
    layout: Layout | None
    header: tuple[str, ...]
    newest_first: bool = False
    stacked: bool = False

    @property
    def one_file(self) -> bool:
        """Whether all tickers of a region go into one file."""
        return self.layout is not None and self.layout.family.name == "long"

    @property
    def suffix(self) -> str:
        """File ending."""
        if self.layout is None:
            return ".parquet"
        return ".txt" if self.layout.family.name == "stooq-bulk" else ".csv"


def _split(header: str) -> tuple[str, ...]:
    return tuple(cell.strip() for cell in header.split(","))


FORMS = {
    "stooq": Form("stooq", layout_named("ohlcv"), _split(_OHLCV)),
    "yahoo-old": Form(
        "yahoo-old", layout_named("yahoo"), _split("Date,Open,High,Low,Close,Volume,Adj Close"), newest_first=True
    ),
    "yfinance": Form(
        "yfinance", layout_named("yahoo"), _split("Price,Adj Close,Close,High,Low,Open,Volume"), stacked=True
    ),
    "parquet": Form("parquet", None, PARQUET_COLUMNS),
}
"""Forms that are not named as the layout that reads them."""


def form_named(name: str) -> Form:
    """Return a form by its name: one of `FORMS`, or any layout of days that the readers know.

    Raises
    ------
    DataError
        If there is none.
    """
    if name in FORMS:
        return FORMS[name]
    try:
        layout = layout_named(name)
    except DataError as error:
        raise DataError(f"{error}; {', '.join(FORMS)} can be written too") from None
    if layout.dates is MONTH:
        raise DataError(f"layout: found {name!r}, which has months, expected a layout of days; choose another")
    family = layout.family.name
    return Form(name, layout, _split(_HEADERS[family]), newest_first=family in _NEWEST_FIRST)


def render(form: Form, bars: Sequence[Bars]) -> str:
    """Return the text of one file.

    Parameters
    ----------
    form : Form
        Of text.
    bars : sequence of Bars
        One instrument, or all of a region where `form.one_file`.
    """
    layout = form.layout
    assert layout is not None
    stream = io.StringIO()
    vendor = layout.family.name.startswith("investing")
    writer = csv.writer(
        stream,
        delimiter=layout.separator,
        quoting=csv.QUOTE_ALL if vendor else csv.QUOTE_MINIMAL,
        lineterminator="\n",
    )
    writer.writerow(form.header)
    if form.stacked:
        writer.writerow(("Ticker", *[bars[0].ticker] * (len(form.header) - 1)))
        writer.writerow(("Date", *[""] * (len(form.header) - 1)))
    for item in bars:
        columns = _columns(form, layout, item)
        rows = list(zip(*columns, strict=True))
        writer.writerows(reversed(rows) if form.newest_first else rows)
    return stream.getvalue()


def _columns(form: Form, layout: Layout, bars: Bars) -> list[list[str]]:
    header = ("Date", *form.header[1:]) if form.stacked else form.header
    fields = layout.family.meanings(header) or ()
    result = []
    for name, field in zip(header, fields, strict=True):
        if field == "date":
            result.append(_days(layout, bars))
        elif field == "volume":
            result.append([_volume(value, layout) for value in bars.volume.tolist()])
        elif field == "ticker":
            result.append([bars.ticker] * len(bars.dates))
        elif field == "period":
            result.append(["D"] * len(bars.dates))
        elif field:
            values: Floats = bars.close if field == "adjusted" else getattr(bars, field)
            result.append([_number(value, PRICE_DIGITS, layout.numbers) for value in values.tolist()])
        elif normal_name(name) in _FILLED:
            result.append([_FILLED[normal_name(name)]] * len(bars.dates))
        else:
            change = 100.0 * np.r_[0.0, bars.close[1:] / bars.close[:-1] - 1.0]
            result.append([f"{_number(value, 2, layout.numbers)}%" for value in change])
    return result


def _number(value: float, digits: int, numbers: Numbers) -> str:
    if numbers is POINT:
        return f"{value:.{digits}f}"
    text = f"{value:,.{digits}f}"
    return text.translate(str.maketrans(",.", ".,")) if numbers is COMMA else text


def _volume(value: float, layout: Layout) -> str:
    if not layout.family.suffixes:
        return _number(value, 0, layout.numbers)
    for factor, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if value >= factor:
            return _number(value / factor, 2, layout.numbers) + suffix
    return _number(value, 0, layout.numbers)


def _days(layout: Layout, bars: Bars) -> list[str]:
    if layout.dates in (ISO, BASIC):
        days: list[str] = np.datetime_as_string(bars.dates).tolist()
        return days if layout.dates is ISO else [day.replace("-", "") for day in days]
    style = layout.dates.format
    if layout.dates is DMY and layout.family.name in _GERMAN:
        style = style.replace("/", ".")
    return list(pd.DatetimeIndex(bars.dates).strftime(style))
