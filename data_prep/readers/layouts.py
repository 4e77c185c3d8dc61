"""The layouts of daily price files that can be read.

A family says which column names a vendor uses and what they mean; a layout is a family with one separator, one way of
writing numbers and one way of writing days. Column names are compared without regard to case and order. A new vendor is
a new row of `_FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from data_prep.errors import DataError
from data_prep.readers.notation import COMMA, DATES, DMY, GROUPED, ISO, MDY, NAMED, POINT, DateStyle, Numbers

__all__ = ["LAYOUTS", "PRICES", "Family", "Layout", "layout_named", "layouts_for", "normal_name"]

PRICES = ("open", "high", "low", "close", "adjusted")
_OHLC = ("date", "open", "high", "low", "close")
_MISSING = ("", "-", "null", "NULL", "NA", "N/A", "#N/A", "NaN", "nan")
_SEPARATOR_NAMES = {",": "", ";": "semicolon", "\t": "tab"}


@dataclass(frozen=True)
class Family:
    """The column names of one vendor.

    Attributes
    ----------
    name : str
        First part of its layouts' names.
    columns : Mapping of str to str
        Column name in lower case -> date, open, high, low, close, adjusted, volume, ticker, period, or "" for unused.
    required : tuple of str
        Meanings that must be there; others are optional.
    notations : tuple of (str, Numbers)
        Possible separators and number conventions, the usual one first.
    dates : tuple of DateStyle
        Possible ways of writing the day, the usual one first.
    missing : tuple of str
        Cells that say that a value is missing.
    suffixes : bool
        Whether volumes may end with K, M or B.
    """

    name: str
    columns: Mapping[str, str]
    required: tuple[str, ...]
    notations: tuple[tuple[str, Numbers], ...]
    dates: tuple[DateStyle, ...] = DATES
    missing: tuple[str, ...] = _MISSING
    suffixes: bool = False

    def meanings(self, header: tuple[str, ...]) -> tuple[str, ...] | None:
        """Return what each column of a header means, None if the header is not of this family."""
        names = [normal_name(cell) for cell in header]
        if names and names[0] == "":
            names[0] = "\0"  # a column of row numbers has no name
        columns = {**self.columns, "\0": ""}
        if any(name not in columns for name in names):
            return None
        fields = tuple(columns[name] for name in names)
        used = [field for field in fields if field]
        return fields if len(set(used)) == len(used) and set(self.required) <= set(used) else None


@dataclass(frozen=True)
class Layout:
    """A family with one separator and one way of writing numbers and days.

    Attributes
    ----------
    name : str
        For `--layout`, messages and the manifest.
    family : Family
        Column names and missing markers.
    separator : str
        Between cells.
    numbers : Numbers
        Decimal and grouping signs.
    dates : DateStyle
        Of the date column.
    """

    name: str
    family: Family
    separator: str
    numbers: Numbers
    dates: DateStyle


def normal_name(cell: str) -> str:
    """Return a column name as the tables spell it: lower case, single blanks, none around it."""
    return " ".join(cell.lower().split())


def _columns(names: str) -> dict[str, str]:
    pairs = (part.split("=") for part in names.split(","))
    return {name.strip(): field.strip() for name, field in pairs}


_ENGLISH = _columns(
    "date=date, datetime=date, open=open, high=high, low=low, close=close, volume=volume, vol=volume, "
    "dividends=, stock splits=, capital gains=, openint=, adj close=adjusted, adjclose=adjusted, adj_close=adjusted, "
    "adjusted=adjusted, adjusted close=adjusted"
)
_TICKER = _columns("ticker=ticker, symbol=ticker, name=ticker")
_POINTED = ((",", POINT), ("\t", POINT))
_EITHER = (*_POINTED, (";", POINT), (";", COMMA), ("\t", COMMA), (",", GROUPED), (",", COMMA))
_QUOTED = ((",", COMMA), (";", COMMA), ("\t", COMMA))

_FAMILIES: tuple[Family, ...] = (
    Family("yahoo", _ENGLISH, (*_OHLC, "adjusted"), _EITHER),
    Family("ohlcv", {k: v for k, v in _ENGLISH.items() if v != "adjusted"}, _OHLC, _EITHER),
    Family("long", {**_ENGLISH, **_TICKER}, (*_OHLC, "ticker"), _EITHER),
    Family(
        "stooq-bulk",
        _columns(
            "<ticker>=ticker, <per>=period, <date>=date, <dtyyyymmdd>=date, <time>=, <open>=open, <high>=high, "
            "<low>=low, <close>=close, <vol>=volume, <openint>="
        ),
        _OHLC,
        _POINTED,
        DATES[1::-1],
    ),
    Family(
        "stooq-polish",
        _columns(
            "data=date, otwarcie=open, najwyzszy=high, najwyższy=high, najnizszy=low, najniższy=low, "
            "zamkniecie=close, zamknięcie=close, wolumen=volume"
        ),
        _OHLC,
        _EITHER,
        (ISO,),
    ),
    Family(
        "investing-en",
        _columns("date=date, price=close, open=open, high=high, low=low, vol.=volume, change %="),
        _OHLC,
        ((",", GROUPED), (";", GROUPED), ("\t", GROUPED)),
        (MDY, DMY, NAMED),
        suffixes=True,
    ),
    Family(
        "investing-fr",
        _columns("date=date, dernier=close, ouv.=open, plus haut=high, plus bas=low, vol.=volume, variation %="),
        _OHLC,
        _QUOTED,
        (DMY, ISO),
        suffixes=True,
    ),
    Family(
        "investing-de",
        _columns("datum=date, zuletzt=close, eröffn.=open, hoch=high, tief=low, vol.=volume, +/- %="),
        _OHLC,
        _QUOTED,
        (DMY, ISO),
        suffixes=True,
    ),
    Family(
        "german",
        _columns(
            "datum=date, erster=open, eröffnung=open, eroeffnung=open, hoch=high, tief=low, schlusskurs=close, "
            "schluss=close, stuecke=volume, stücke=volume, volumen="
        ),
        _OHLC,
        ((";", COMMA), (";", POINT), (",", COMMA), ("\t", COMMA)),
        (ISO, DMY),
    ),
    Family(
        "french",
        _columns(
            "date=date, ouverture=open, ouv=open, plus haut=high, haut=high, plus bas=low, bas=low, clôture=close, "
            "cloture=close, clot=close, dernier=close, volume=volume, volumes=volume"
        ),
        _OHLC,
        ((";", COMMA), (";", POINT), (",", COMMA), ("\t", COMMA)),
        (DMY, ISO),
    ),
)


def _variants(family: Family) -> list[Layout]:
    result = []
    for separator, numbers in family.notations:
        for dates in family.dates:
            usual = separator == family.notations[0][0]
            parts = (
                "" if usual else _SEPARATOR_NAMES[separator] or "commas",
                "" if numbers is family.notations[0][1] else numbers.name or "decimal-point",
                "" if dates is family.dates[0] else dates.name or "iso",
            )
            result.append(Layout("-".join([family.name, *filter(None, parts)]), family, separator, numbers, dates))
    return result


LAYOUTS: tuple[Layout, ...] = tuple(layout for family in _FAMILIES for layout in _variants(family))
assert len({layout.name for layout in LAYOUTS}) == len(LAYOUTS)


def layout_named(name: str) -> Layout:
    """Return a layout by its name.

    Raises
    ------
    DataError
        If there is none, naming those with the same beginning.
    """
    for layout in LAYOUTS:
        if layout.name == name:
            return layout
    near = [layout.name for layout in LAYOUTS if layout.name.split("-")[0] == name.split("-")[0]]
    shown = ", ".join(near or [family.name for family in _FAMILIES])
    raise DataError(f"layout: found {name!r}, expected a known layout such as {shown}; docs/data.md lists them")


@lru_cache(maxsize=256)
def layouts_for(header: tuple[str, ...], separator: str) -> tuple[Layout, ...]:
    """Return the layouts whose columns are those of a header; the files of a folder mostly share one."""
    return tuple(x for x in LAYOUTS if x.separator == separator and x.family.meanings(header) is not None)
