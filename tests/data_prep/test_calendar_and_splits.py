"""Prices are filled forward only and for a limited time; samples stay inside their split."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import date

import exchange_calendars
import numpy as np
import pytest
from pandas.tseries.holiday import AbstractHolidayCalendar

from data_prep.bars import Bars
from data_prep.calendar import align, common_days, exchange_days
from data_prep.errors import DataError
from data_prep.features.table import MEMORY_ROWS
from data_prep.splits import Splits, sample_rows, split_days


def without(bars: Bars, rows: list[int]) -> Bars:
    keep = np.setdiff1d(np.arange(len(bars.dates)), rows)
    columns = ("dates", "open", "high", "low", "close", "volume")
    return replace(bars, **{name: getattr(bars, name)[keep] for name in columns})


def test_a_short_gap_is_filled_with_the_last_close_and_no_volume(make_bars: Callable[..., Bars]) -> None:
    bars = make_bars(1, 20)
    aligned = align(without(bars, [5, 6]), bars.dates, limit=3)
    assert aligned is not None
    assert list(np.flatnonzero(~aligned.observed)) == [5, 6]
    assert aligned.filled == 2
    for name in ("open", "high", "low", "close"):
        np.testing.assert_array_equal(getattr(aligned.bars, name)[5:7], bars.close[4])
    np.testing.assert_array_equal(aligned.bars.volume[5:7], 0.0)
    assert (aligned.segment == 0).all()


def test_a_gap_beyond_the_limit_breaks_the_series(make_bars: Callable[..., Bars]) -> None:
    bars = make_bars(1, 20)
    aligned = align(without(bars, [5, 6, 7, 8]), bars.dates, limit=3)
    assert aligned is not None
    np.testing.assert_array_equal(aligned.segment, [0] * 8 + [-1] + [1] * 11)
    assert aligned.filled == 3


def test_nothing_is_filled_before_the_first_or_after_the_last_bar(make_bars: Callable[..., Bars]) -> None:
    bars = make_bars(1, 20)
    aligned = align(without(bars, [0, 1, 19]), bars.dates, limit=3)
    assert aligned is not None
    assert aligned.observed.all()
    np.testing.assert_array_equal(aligned.bars.dates, bars.dates[2:19])


def test_bars_on_days_without_trading_are_left_out_and_counted(make_bars: Callable[..., Bars]) -> None:
    bars = make_bars(1, 20)
    aligned = align(bars, np.delete(bars.dates, 7), limit=3)
    assert aligned is not None
    assert aligned.off_calendar == 1
    assert len(aligned.bars.dates) == 19
    assert align(bars, bars.dates[:0], limit=3) is None


def test_without_an_exchange_trading_days_are_those_of_a_fifth_of_the_listed_files() -> None:
    days = np.array(["2020-01-02", "2020-01-03", "2020-01-06", "2020-01-07"], dtype="datetime64[D]")
    early, saturday = np.datetime64("2019-12-30"), np.datetime64("2020-01-04")
    six = [days] * 4 + [np.sort(np.r_[days, saturday]), np.r_[early, days, np.datetime64("2021-01-04")]]
    found = common_days(six, first=date(2019, 1, 1), last=date(2020, 12, 31))
    np.testing.assert_array_equal(found, np.r_[early, days])
    np.testing.assert_array_equal(common_days(six, first=date(2020, 1, 3), last=date(2020, 1, 6)), days[1:3])
    five = common_days(six[:5], first=date(2019, 1, 1), last=date(2020, 12, 31))
    assert saturday in five, "one of five listed files is a fifth"
    assert len(common_days([], first=date(2020, 1, 3), last=date(2020, 1, 6))) == 0


def test_an_exchange_has_its_own_trading_days() -> None:
    days = exchange_days("XPAR", first=date(2019, 12, 20), last=date(2019, 12, 31))
    assert np.datetime64("2019-12-24") in days
    assert np.datetime64("2019-12-25") not in days
    with pytest.raises(DataError, match="'XXXX'"):
        exchange_days("XXXX", first=date(2019, 12, 20), last=date(2019, 12, 31))


@pytest.mark.parametrize("market", ["XNYS", "XPAR", "XMAD", "XTKS"])
def test_sessions_are_those_of_the_library_in_its_own_way(market: str) -> None:
    """Holidays are asked of pandas for fewer years than the library does by default; nothing else may change."""
    first, last = date(2012, 3, 1), date(2021, 6, 30)
    before = AbstractHolidayCalendar.start_date, AbstractHolidayCalendar.end_date
    ours = exchange_days(market, first=first, last=last)
    assert before == (AbstractHolidayCalendar.start_date, AbstractHolidayCalendar.end_date)
    theirs = exchange_calendars.get_calendar(market, start="2012-02-29", end="2021-07-01").sessions
    days = theirs.to_numpy().astype("datetime64[D]")
    inside = (days >= np.datetime64(first)) & (days <= np.datetime64(last))
    np.testing.assert_array_equal(ours, days[inside])


SPLITS = Splits(train=(2020, 2020), validation=(2021, 2021), test=(2022, 2022))


def test_no_target_reaches_into_another_split_and_boundaries_are_embargoed(make_bars: Callable[..., Bars]) -> None:
    days = make_bars(1, 900).dates
    label = split_days(days, SPLITS, embargo_days=5)
    years = days.astype("datetime64[Y]").astype(int) + 1970
    for number, year in enumerate((2020, 2021, 2022)):
        rows = np.flatnonzero(label == number)
        assert (years[rows] == year).all()
        assert (years[rows + 1] == year).all()
    first_2021 = int(np.argmax(years == 2021))
    np.testing.assert_array_equal(label[first_2021 - 2 : first_2021 + 6], [0, -1, -2, -2, -2, -2, -2, 1])
    targets_apart = np.flatnonzero(label == 1)[0] - np.flatnonzero(label == 0)[-1] - 1
    assert targets_apart >= 6


def test_splits_must_follow_each_other() -> None:
    with pytest.raises(DataError, match="split validation: found years 2021-2021"):
        Splits(train=(2015, 2021), validation=(2021, 2021), test=(2022, 2022))
    with pytest.raises(DataError, match="split train"):
        Splits(train=(2021, 2015))


def test_samples_with_a_filled_close_at_either_end_are_dropped_and_counted(make_bars: Callable[..., Bars]) -> None:
    bars = make_bars(1, 900)
    days = bars.dates
    missing = 200
    aligned = align(without(bars, [missing]), days, limit=3)
    assert aligned is not None
    samples = sample_rows(aligned, days, split_days(days, SPLITS, embargo_days=5))
    kept = set(samples.rows["train"].tolist())
    assert missing - 1 not in kept
    assert missing not in kept
    assert {missing - 2, missing + 1} <= kept
    assert samples.counts["filled_close"] == 1
    assert samples.counts["filled_or_missing_next_close"] == 1
    assert samples.rows["train"][0] == MEMORY_ROWS - 1
    assert samples.counts["warm_up"] == MEMORY_ROWS - 1
    assert samples.counts["embargo"] == 10


def test_every_row_is_a_sample_or_counted_under_one_reason(make_bars: Callable[..., Bars]) -> None:
    bars = make_bars(2, 900)
    days = bars.dates
    aligned = align(without(bars, [200, 300, 301, 302, 303, 304, 305]), days, limit=3)
    assert aligned is not None
    samples = sample_rows(aligned, days, split_days(days, SPLITS, embargo_days=5))
    assert sum(len(rows) for rows in samples.rows.values()) + sum(samples.counts.values()) == len(days)
