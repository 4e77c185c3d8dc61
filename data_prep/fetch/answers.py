"""What an answer says: the file asked for, or which of the refusals the sources are known to give.

The texts are those of 2026. Stooq sends most of its refusals with status 200; unknown addresses and programs it does
not want get the same page with status 404.
"""

from __future__ import annotations

import re

from data_prep.fetch.errors import (
    FetchError,
    LimitReachedError,
    NothingThereError,
    SourceRefusesError,
    UnexpectedAnswerError,
    UnreachableError,
)
from data_prep.fetch.sources import Kind, Target, shown_host

__all__ = ["HEAD_BYTES", "fault_in_head", "fault_of_status"]

HEAD_BYTES = 8192
"""How much of an answer is enough to recognise it."""

_ON_HAND = "download the file with a browser and put it there under the name {name}"
_KEY = (
    "open https://stooq.com/q/d/?s={what}&get_apikey in a browser, enter the code, copy the apikey from the link at "
    "the foot of the page into the environment variable FCFL_STOOQ_APIKEY and run the command again"
)
_ARCHIVE = (
    "download the market's archive in a browser from https://stooq.com/db/h/ and unpack it with "
    "'fcfl data fetch stooq --archive FILE'"
)
_LATER = "run the command again tomorrow: files that are there are not fetched again"
# Text in lower case -> class, what it means, what to do.
_STOOQ_TEXTS: tuple[tuple[str, type[FetchError], str, str], ...] = (
    ("exceeded the daily hits limit", LimitReachedError, "the daily limit of requests is reached", _LATER),
    ("przekroczony dzienny limit", LimitReachedError, "the daily limit of requests is reached", _LATER),
    ("get your apikey", SourceRefusesError, "a personal key is asked for", _KEY),
    ("www@stooq.", SourceRefusesError, "the publisher wants to be written to first", f"write to them, or {_ARCHIVE}"),
    ("requires javascript to verify", SourceRefusesError, "a browser is asked for", _ARCHIVE),
    ("/__verify", SourceRefusesError, "a browser is asked for", _ARCHIVE),
    ("captcha", SourceRefusesError, "a code that a person has to read is asked for", _ARCHIVE),
    ("unauthorized", SourceRefusesError, "access is refused", _ARCHIVE),
    ("access denied", SourceRefusesError, "access from this network is refused", _ARCHIVE),
    (
        "does not exist or has been moved",
        SourceRefusesError,
        "programs are turned away as if nothing were there",
        _ARCHIVE,
    ),
    ("no data", NothingThereError, "there are no prices under this symbol", "check the symbol at https://stooq.com"),
    (
        "brak danych",
        NothingThereError,
        "there are no prices under this symbol",
        "check the symbol at https://stooq.com",
    ),
)
_STOOQ_HEADERS = ("Date,Open,High,Low,Close", "Data,Otwarcie,Najwyzszy,Najnizszy,Zamkniecie")
_HTML = re.compile(r"\s*(?:<!--.*?-->\s*)*<(?:!doctype\s+html|html|head|body|\?xml)", re.IGNORECASE | re.DOTALL)


def fault_in_head(target: Target, head: bytes) -> FetchError | None:
    """Recognise an answer by its beginning.

    Parameters
    ----------
    target : Target
        What was asked for.
    head : bytes
        First `HEAD_BYTES` of the answer, or all of it.

    Returns
    -------
    FetchError or None
        None if it begins as the file should.
    """
    if not head.strip():
        return _error(UnexpectedAnswerError, target, "the answer is empty", f"try again later, or {_ON_HAND}")
    text = head.decode("utf-8-sig", errors="replace")
    if _begins_well(target, head, text):
        return None
    known = _known_text(target, text)
    if known is not None:
        return known
    found = "a web page (HTML)" if _HTML.match(text) else _first_line(text)
    told = f"found {found}, expected {_expected(target)}"
    return _error(UnexpectedAnswerError, target, told, f"look at {target.url} in a browser, or {_ON_HAND}")


def fault_of_status(target: Target, status: int, head: bytes) -> FetchError:
    """Name the fault of an answer whose status says that it is not the file.

    Parameters
    ----------
    target : Target
        What was asked for.
    status : int
        HTTP status other than 2xx.
    head : bytes
        Beginning of the answer.
    """
    known = _known_text(target, head.decode("utf-8", errors="replace"))
    if known is not None:
        return known
    told = f"the server answers with status {status}"
    stooq = target.kind in (Kind.STOOQ_CSV, Kind.STOOQ_ARCHIVE)
    by_hand = _ARCHIVE if stooq else _ON_HAND
    if status == 429:
        return _error(LimitReachedError, target, f"{told}: too many requests", "wait an hour and run the command again")
    if status in (401, 403, 407, 451) or (stooq and status == 404):
        return _error(SourceRefusesError, target, f"{told}: access is refused", by_hand)
    if status in (404, 410):
        return _error(NothingThereError, target, told, f"look at {target.url} in a browser; the file may have moved")
    if status >= 500 or status == 408:
        return _error(UnreachableError, target, told, "run the command again later")
    return _error(UnexpectedAnswerError, target, told, f"look at {target.url} in a browser, or {by_hand}")


def _error(kind: type[FetchError], target: Target, told: str, hint: str) -> FetchError:
    return kind(f"{shown_host(target)}, {target.what}: {told}; {hint.format(what=target.what, name=target.name)}")


def _begins_well(target: Target, head: bytes, text: str) -> bool:
    if target.kind in (Kind.STOOQ_ARCHIVE, Kind.FRENCH_ZIP):
        return head.startswith(b"PK\x03\x04")
    line = text.split("\n", 1)[0].rstrip("\r")
    if target.kind is Kind.FRED_CSV:
        return line in (f"observation_date,{target.what}", f"DATE,{target.what}")
    return line.removesuffix(",Volume").removesuffix(",Wolumen") in _STOOQ_HEADERS


def _expected(target: Target) -> str:
    if target.kind in (Kind.STOOQ_ARCHIVE, Kind.FRENCH_ZIP):
        return "a zip archive"
    if target.kind is Kind.FRED_CSV:
        return f"a CSV file with header 'observation_date,{target.what}'"
    return f"a CSV file with header '{_STOOQ_HEADERS[0]},Volume'"


def _known_text(target: Target, text: str) -> FetchError | None:
    if target.kind not in (Kind.STOOQ_CSV, Kind.STOOQ_ARCHIVE):
        return None
    lower = text.lower()
    for marker, kind, meaning, hint in _STOOQ_TEXTS:
        if marker in lower:
            return _error(kind, target, f"Stooq answers {marker!r}: {meaning}", hint)
    return None


def _first_line(text: str) -> str:
    line = text.strip().splitlines()[0] if text.strip() else ""
    return repr(line[:60])
