"""Trading days, and bars brought onto them.

Prices are filled forward only, for a limited number of days, and every filled day is marked; nothing is filled
backward. A longer gap breaks an instrument into segments that each need their own warm-up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, timedelta

import numpy as np

from data_prep.bars import Bars, Dates, Floats
from data_prep.errors import DataError

__all__ = ["Aligned", "align", "common_days", "exchange_days"]


def common_days(dates: Iterable[Dates], *, first: date, last: date) -> Dates:
    """Return the days in [first, last] on which at least a fifth of the instruments that are listed then have a bar.

    What stands in for a calendar where no exchange is known: a row that one file has on a Saturday makes no trading
    day of it for the others.

    Parameters
    ----------
    dates : iterable of ndarray, datetime64[D]
        Sorted days of each instrument, looked at one after the other; it counts as listed from its first to its last.
    first, last : date
        Bounds, both included.
    """
    origin = np.datetime64(first, "D")
    length = max((last - first).days + 1, 0)
    bars, changes = np.zeros(length, dtype=np.int64), np.zeros(length + 1, dtype=np.int64)
    for days in dates:
        places = (days - origin).astype(np.int64)
        places = places[(places >= 0) & (places < length)]
        if len(places):
            bars[places] += 1
            changes[places[0]] += 1
            changes[places[-1] + 1] -= 1
    listed = np.cumsum(changes[:-1])
    found: Dates = origin + np.flatnonzero((bars > 0) & (5 * bars >= listed))
    return found


def exchange_days(market: str, *, first: date, last: date) -> Dates:
    """Return the sessions of an exchange in [first, last], datetime64[D].

    Parameters
    ----------
    market : str
        Market identifier code known to `exchange_calendars`, for example XNYS or XPAR.
    first, last : date
        Bounds, both included.

    Raises
    ------
    DataError
        If the code is unknown.
    """
    # Commands that need no calendar do not wait for this import.
    import exchange_calendars

    try:
        with _holidays_between(first, last):
            calendar = exchange_calendars.get_calendar(market, start=first.isoformat(), end=last.isoformat())
    except exchange_calendars.errors.InvalidCalendarName:
        raise DataError(
            f"market {market!r} is not a known exchange, expected a code such as XNYS or XPAR; "
            "correct it, or leave the market out to use the days of the files"
        ) from None
    except ValueError as error:
        reason = str(error).split(", although", 1)[0]
        raise DataError(f"market {market!r}: {reason}; leave the market out to use the days of the files") from None
    sessions: Dates = calendar.sessions.to_numpy().astype("datetime64[D]")
    return sessions


@contextmanager
def _holidays_between(first: date, last: date) -> Iterator[None]:
    """Have pandas' rules give the holidays of these years only, instead of 1970 to 2200: a quarter of the time."""
    from pandas import Timestamp
    from pandas.tseries.holiday import AbstractHolidayCalendar

    before = AbstractHolidayCalendar.start_date, AbstractHolidayCalendar.end_date
    margin = timedelta(days=400)
    AbstractHolidayCalendar.start_date = Timestamp(first - margin)
    AbstractHolidayCalendar.end_date = Timestamp(last + margin)
    try:
        yield
    finally:
        AbstractHolidayCalendar.start_date, AbstractHolidayCalendar.end_date = before


@dataclass(frozen=True)
class Aligned:
    """Bars of one instrument on consecutive trading days, from its first to its last bar.

    Attributes
    ----------
    bars : Bars
        One row per trading day; a filled row repeats the last close as open, high, low and close, with volume 0 (NaN
        where the instrument has no volume).
    observed : ndarray, shape (n,), bool
        True where the row is a bar of the source, False where it was filled.
    segment : ndarray, shape (n,), int64
        Number of the gap-free stretch the row belongs to; -1 inside a gap longer than the limit.
    off_calendar : int
        Bars left out because their day is not a trading day.
    """

    bars: Bars
    observed: np.ndarray
    segment: np.ndarray
    off_calendar: int

    @property
    def filled(self) -> int:
        """Number of rows filled forward, gaps beyond the limit not counted."""
        return int(np.count_nonzero(~self.observed & (self.segment >= 0)))


def align(bars: Bars, days: Dates, *, limit: int) -> Aligned | None:
    """Bring bars onto trading days, filling forward at most `limit` days in a row.

    Parameters
    ----------
    bars : Bars
        As read.
    days : ndarray, datetime64[D]
        Sorted trading days; bars outside their range are left out.
    limit : int
        Longest run of missing days that is filled. A longer run is not filled at all beyond the limit: it ends the
        segment.

    Returns
    -------
    Aligned or None
        None if no bar falls on a trading day.
    """
    inside = (bars.dates >= days[0]) & (bars.dates <= days[-1]) if len(days) else np.zeros(len(bars.dates), bool)
    position = np.searchsorted(days, bars.dates[inside])
    on_calendar = days[position] == bars.dates[inside]
    source = np.flatnonzero(inside)[on_calendar]
    position = position[on_calendar]
    if not len(position):
        return None
    start, stop = int(position[0]), int(position[-1]) + 1
    row = np.zeros(stop - start, dtype=np.int64)
    observed = np.zeros(stop - start, dtype=bool)
    observed[position - start] = True
    row[position - start] = np.arange(len(position))
    row = np.maximum.accumulate(row)
    age = np.arange(stop - start) - (position - start)[row]
    usable = age <= limit
    breaks = np.r_[False, usable[1:] & ~usable[:-1]]
    cut = np.searchsorted(days[start:stop], bars.breaks)
    breaks[cut[(cut > 0) & (cut < len(breaks))]] = True
    segment = np.where(usable, np.cumsum(breaks), -1)
    take = source[row]
    close = bars.close[take]

    def filled(values: Floats) -> Floats:
        return np.asarray(np.where(observed, values[take], close))

    volume = bars.volume[take]
    return Aligned(
        bars=Bars(
            ticker=bars.ticker,
            region=bars.region,
            sector=bars.sector,
            dates=days[start:stop],
            open=filled(bars.open),
            high=filled(bars.high),
            low=filled(bars.low),
            close=close,
            volume=np.where(observed | np.isnan(volume), volume, 0.0),
            basis=bars.basis,
            breaks=bars.breaks,
            truth=None if bars.truth is None else bars.truth[take],
        ),
        observed=observed,
        segment=segment,
        off_calendar=int(np.count_nonzero(~on_calendar)),
    )
