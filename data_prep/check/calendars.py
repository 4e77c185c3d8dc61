"""Which exchange a folder's days belong to, and rows on days on which it was closed."""

from __future__ import annotations

from datetime import date

import numpy as np
from numpy.typing import NDArray

from data_prep.bars import Bars, Dates
from data_prep.calendar import exchange_days
from data_prep.workers import Workers

__all__ = [
    "CALENDAR_FROM",
    "SUFFIXES",
    "best_market",
    "fit",
    "forget_sessions",
    "load_sessions",
    "market_of",
    "on_sessions",
    "phantom_rows",
    "sessions_between",
]

SUFFIXES = {
    ".AS": "XAMS",
    ".BR": "XBRU",
    ".CO": "XCSE",
    ".DE": "XETR",
    ".HE": "XHEL",
    ".HK": "XHKG",
    ".L": "XLON",
    ".LS": "XLIS",
    ".MC": "XMAD",
    ".MI": "XMIL",
    ".OL": "XOSL",
    ".PA": "XPAR",
    ".ST": "XSTO",
    ".SW": "XSWX",
    ".T": "XTKS",
    ".TO": "XTSE",
    ".US": "XNYS",
    ".WA": "XWAR",
}
"""Endings of tickers and the exchange they stand for."""

CALENDAR_FROM = np.datetime64("2000-01-01")
"""Days before this are not compared with a calendar."""

_CANDIDATES = ("XNYS", "XPAR", "XETR", "XMAD", "XLON", "XTKS", "XWAR")
_FIT_DAYS = np.timedelta64(3653, "D")
_LEAST_FIT = 0.985
_SURE_FIT = 0.998


_known: dict[tuple[str, int], Dates] = {}


def load_sessions(days: Dates, workers: Workers) -> None:
    """Make the calendars that `best_market` will ask for, side by side, unless the first candidate fits some days."""
    if len(days) and fit(days, _CANDIDATES[0]) < _SURE_FIT:
        year = _last_year(days[-1])
        missing = [(market, year) for market in _CANDIDATES if (market, year) not in _known]
        _known.update(zip(missing, workers.map(_make_sessions, missing, chunk=1), strict=True))


def forget_sessions() -> None:
    """Make every calendar anew when it is asked for, as in a fresh process."""
    _known.clear()


def _make_sessions(key: tuple[str, int]) -> Dates:
    market, last_year = key
    return exchange_days(market, first=CALENDAR_FROM.astype(date), last=date(last_year, 12, 31))


def _last_year(day: np.datetime64) -> int:
    return int(max(day.astype(object).year, date.today().year))


def sessions_between(market: str, first: np.datetime64, last: np.datetime64) -> Dates:
    """Return the sessions of an exchange in [first, last], from `CALENDAR_FROM` on."""
    first = max(first, CALENDAR_FROM)
    if last < first:
        return np.array([], dtype="datetime64[D]")
    # One calendar per exchange, since making one takes a third of a second.
    key = market, _last_year(last)
    if key not in _known:
        _known[key] = _make_sessions(key)
    sessions = _known[key]
    return sessions[(sessions >= first) & (sessions <= last)]


def market_of(ticker: str) -> str | None:
    """Return the exchange that the ending of a ticker stands for."""
    stem, dot, ending = ticker.rpartition(".")
    return SUFFIXES.get(dot + ending.upper()) if stem else None


def best_market(days: Dates) -> str | None:
    """Return the exchange whose sessions agree best with some days.

    Parameters
    ----------
    days : ndarray, datetime64[D]
        Sorted days on which a market seems to have been open; the last ten years are compared.

    Returns
    -------
    str or None
        None where less than 98.5 % of the days of both are common to both, or days are few.
    """
    days = days[days >= CALENDAR_FROM]
    days = days[days > days[-1] - _FIT_DAYS] if len(days) else days
    if len(days) < 200:
        return None
    best = (0.0, "")
    for market in _CANDIDATES:
        best = max(best, (fit(days, market), market))
        if best[0] >= _SURE_FIT:
            break
    return best[1] if best[0] >= _LEAST_FIT else None


def fit(days: Dates, market: str) -> float:
    """Return the share of days that an exchange and some days have in common among the days of both."""
    days = days[days >= CALENDAR_FROM]
    if not len(days):
        return 0.0
    sessions = sessions_between(market, days[0], days[-1])
    if not len(sessions):
        return 0.0
    common = int(np.count_nonzero(on_sessions(days, sessions)))
    return common / (len(days) + len(sessions) - common)


def on_sessions(days: Dates, sessions: Dates) -> NDArray[np.bool_]:
    """Tell which days are among the sorted, not empty sessions."""
    place = np.minimum(np.searchsorted(sessions, days), len(sessions) - 1)
    return np.asarray(sessions[place] == days)


def phantom_rows(bars: Bars, sessions: Dates) -> tuple[NDArray[np.bool_], int]:
    """Find rows on days without a session that only repeat the row before: a holiday that somebody filled.

    Returns
    -------
    ndarray of bool, int
        Those rows, and the number of other rows on days without a session, which were traded somewhere.
    """
    if not len(sessions):
        return np.zeros(len(bars.dates), dtype=bool), 0
    inside = (bars.dates >= sessions[0]) & (bars.dates <= sessions[-1])
    off = inside & ~on_sessions(bars.dates, sessions)
    silent = np.isnan(bars.volume) | (bars.volume == 0.0)
    repeats = np.r_[False, np.abs(np.diff(np.log(bars.close))) < 1e-6] & (bars.high == bars.low)
    phantom = off & silent & repeats
    return phantom, int(np.count_nonzero(off & ~phantom))
