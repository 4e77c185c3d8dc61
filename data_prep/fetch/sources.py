"""What can be fetched, from which address, under which file name, and how large it may be."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import ip_address
from urllib.parse import quote, urlencode, urlsplit

from data_prep.errors import DataError
from data_prep.readers.macro import SERIES

__all__ = [
    "BASE_URLS",
    "FRENCH_FILES",
    "Kind",
    "Target",
    "fred_targets",
    "french_targets",
    "request_url",
    "shown_host",
    "stooq_archive",
    "stooq_targets",
]

BASE_URLS = {
    "stooq": "https://stooq.com",
    "fred": "https://fred.stlouisfed.org",
    "french": "https://mba.tuck.dartmouth.edu/pages/faculty/ken.french/ftp",
}
# File of the data library without its ending -> columns it has to bring.
FRENCH_FILES = {
    "F-F_Research_Data_5_Factors_2x3_daily": ("Mkt-RF", "SMB", "HML", "RMW", "CMA"),
    "F-F_Momentum_Factor_daily": ("Mom",),
}
_MIB = 2**20
_SYMBOL = re.compile(r"\^?[a-z0-9][a-z0-9._-]{0,31}")
_MARKET = re.compile(r"[a-z]{2,10}")
_KEY = re.compile(r"[A-Za-z0-9]{8,128}")


class Kind(StrEnum):
    """What an answer has to be."""

    STOOQ_CSV = "Stooq's daily prices"
    STOOQ_ARCHIVE = "Stooq's archive"
    FRED_CSV = "FRED's monthly series"
    FRENCH_ZIP = "Ken French's daily factors"


@dataclass(frozen=True)
class Target:
    """One file to fetch.

    Attributes
    ----------
    kind : Kind
        What the answer has to be.
    what : str
        Symbol, series or file at the source.
    url : str
        Address without a key: the one that is shown and kept.
    name : str
        File name in the output folder.
    limit : int
        Most bytes the answer may have.
    unpacked : str
        Name of the file or folder its content goes to; "" for a file that is not packed.
    key : str
        Personal key that the request carries, never shown.
    """

    kind: Kind
    what: str
    url: str
    name: str
    limit: int
    unpacked: str = ""
    key: str = field(default="", repr=False)


def request_url(target: Target) -> str:
    """Return the address to ask, key included."""
    return f"{target.url}&{urlencode({'apikey': target.key})}" if target.key else target.url


def shown_host(target: Target) -> str:
    """Return the name and port of the server, for messages."""
    return urlsplit(target.url).netloc


def stooq_targets(symbols: Iterable[str], *, base_url: str = BASE_URLS["stooq"], key: str = "") -> list[Target]:
    """List Stooq's daily files of some symbols, each once.

    Parameters
    ----------
    symbols : iterable of str
        As Stooq writes them, such as `aapl.us` or `^spx`, in any case.
    base_url : str
        Scheme and host, and a path where a mirror has one.
    key : str
        Stooq's `apikey`, "" for none.

    Raises
    ------
    DataError
        For something that is no symbol, address or key; for a key that would travel unencrypted.
    """
    base = _base(base_url)
    if key and not _KEY.fullmatch(key):
        raise DataError("the key for Stooq: expected letters and digits only; copy it again from the link it stands in")
    if key and not _is_private(base):
        raise DataError(
            f"{base}: a key would travel unencrypted, expected an https address; change it or unset the key"
        )
    targets: dict[str, Target] = {}
    for given in symbols:
        symbol = given.strip().lower()
        if not _SYMBOL.fullmatch(symbol):
            raise DataError(f"symbol {given!r}: expected one such as aapl.us or ^spx; correct it")
        url = f"{base}/q/d/l/?s={quote(symbol, safe='')}&i=d"
        targets[symbol] = Target(Kind.STOOQ_CSV, symbol, url, f"{symbol}.csv", 32 * _MIB, key=key)
    return list(targets.values())


def stooq_archive(market: str, *, base_url: str = BASE_URLS["stooq"]) -> Target:
    """Describe Stooq's archive of all daily files of a market, such as `us`.

    Raises
    ------
    DataError
        For something that is no market or address.
    """
    if not _MARKET.fullmatch(market):
        raise DataError(f"market {market!r}: expected one of Stooq's, such as us, uk, jp, hk, hu or world; correct it")
    name = f"d_{market}_txt"
    return Target(
        Kind.STOOQ_ARCHIVE, name, f"{_base(base_url)}/db/d/?b={name}", f"{name}.zip", 4096 * _MIB, unpacked=name
    )


def fred_targets(*, base_url: str = BASE_URLS["fred"]) -> list[Target]:
    """List the four series of the features."""
    base = _base(base_url)
    return [
        Target(Kind.FRED_CSV, series, f"{base}/graph/fredgraph.csv?id={series}", f"{series}.csv", 4 * _MIB)
        for series in SERIES
    ]


def french_targets(*, base_url: str = BASE_URLS["french"]) -> list[Target]:
    """List the daily five factors and momentum."""
    base = _base(base_url)
    return [
        Target(Kind.FRENCH_ZIP, stem, f"{base}/{stem}_CSV.zip", f"{stem}_CSV.zip", 16 * _MIB, unpacked=f"{stem}.CSV")
        for stem in FRENCH_FILES
    ]


def _base(url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable or parts.username or parts.password or parts.query or parts.fragment or not url.isprintable():
        raise DataError(
            "base address: expected one such as https://mirror.example/stooq without user, ? or #; correct it"
        )
    return url.rstrip("/")


def _is_private(base: str) -> bool:
    parts = urlsplit(base)
    if parts.scheme == "https" or parts.hostname == "localhost":
        return True
    try:
        return ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False
