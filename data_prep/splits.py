"""Which samples of an instrument belong to training, validation and test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date

import numpy as np
from numpy.typing import NDArray

from data_prep.bars import Dates
from data_prep.calendar import Aligned
from data_prep.errors import DataError
from data_prep.features.compute import warm_rows
from data_prep.shards import SPLIT_NAMES

__all__ = ["SampleRows", "Splits", "sample_rows", "split_days"]


@dataclass(frozen=True)
class Splits:
    """Calendar years of the three splits, first and last year included.

    Raises
    ------
    DataError
        If a split ends before it begins, or does not end before the next begins.
    """

    train: tuple[int, int] = (2015, 2021)
    validation: tuple[int, int] = (2022, 2022)
    test: tuple[int, int] = (2023, 2024)

    def __post_init__(self) -> None:
        previous = None
        for name, (first, last) in self.items():
            if first > last or (previous is not None and first <= previous):
                raise DataError(
                    f"split {name}: found years {first}-{last}, expected first <= last and a start after the split "
                    "before it; correct the years"
                )
            previous = last

    def items(self) -> tuple[tuple[str, tuple[int, int]], ...]:
        """Return (name, years) in order of time."""
        return (("train", self.train), ("validation", self.validation), ("test", self.test))

    @property
    def first_day(self) -> date:
        """First day of training."""
        return date(self.train[0], 1, 1)

    @property
    def last_day(self) -> date:
        """Last day of the test."""
        return date(self.test[1], 12, 31)


def split_days(days: Dates, splits: Splits, *, embargo_days: int) -> NDArray[np.int64]:
    """Assign each trading day to a split as the day a sample's features are taken.

    Parameters
    ----------
    days : ndarray, shape (n,), datetime64[D]
        All trading days of a market.
    splits : Splits
        Years.
    embargo_days : int
        Trading days left out at the start of validation and of test.

    Returns
    -------
    ndarray, shape (n,), int64
        0, 1, 2 for train, validation, test; -1 for days outside every split or without a next trading day in the
        same split; -2 for days under the embargo.

    Notes
    -----
    What this ensures: a sample taken on day t has its target's both closes, t and the next trading day, inside its own
    split; so no target is shared by, or reaches into, two splits. The embargo keeps `embargo_days` more trading days
    after each boundary empty, so the nearest targets of two splits lie at least embargo_days + 1 trading days apart.
    What it does not ensure: the *feature windows* of the first samples after the embargo still look back, up to
    `MEMORY_ROWS` days, into the split before. That is no leak into training, since windows look backward only, but it
    makes neighbouring samples similar; an embargo of `MEMORY_ROWS` days removes it too.
    """
    years = days.astype("datetime64[Y]").astype(np.int64) + 1970
    label = np.full(len(days), -1, dtype=np.int64)
    for number, (_, (first, last)) in enumerate(splits.items()):
        label[(years >= first) & (years <= last)] = number
    result = label.copy()
    if len(days):
        result[-1] = -1
        result[:-1][label[1:] != label[:-1]] = -1
    for number in (1, 2):
        inside = np.flatnonzero(label == number)[:embargo_days]
        result[inside[result[inside] >= 0]] = -2
    return result


@dataclass(frozen=True)
class SampleRows:
    """Rows of one instrument that become samples.

    Attributes
    ----------
    rows : Mapping of str to ndarray of int64
        Per split, increasing row numbers into the aligned bars; the target of row t uses rows t and t + 1.
    counts : Mapping of str to int
        Rows left out, by reason. Each row is counted once, under the first reason that applies, in the order of the
        keys.
    """

    rows: Mapping[str, NDArray[np.int64]]
    counts: Mapping[str, int]


def sample_rows(aligned: Aligned, days: Dates, day_split: NDArray[np.int64]) -> SampleRows:
    """Choose the samples of one instrument.

    Parameters
    ----------
    aligned : Aligned
        Bars on consecutive days of `days`.
    days : ndarray, datetime64[D]
        Trading days of the market.
    day_split : ndarray
        As returned by `split_days` for `days`.

    Returns
    -------
    SampleRows
        A row is a sample if its day is in a split, it is warmed up, and both closes of its target are observed on
        consecutive trading days, not filled forward.
    """
    n = len(aligned.bars.dates)
    first = int(np.searchsorted(days, aligned.bars.dates[0]))
    split = day_split[first : first + n]
    next_observed = np.r_[aligned.observed[1:], False]
    next_observed[:-1] &= aligned.segment[1:] == aligned.segment[:-1]
    left = np.ones(n, dtype=bool)
    counts: dict[str, int] = {}
    for reason, out in (
        ("outside_splits", split == -1),
        ("gap", aligned.segment < 0),
        ("warm_up", ~warm_rows(aligned)),
        ("embargo", split == -2),
        ("filled_close", ~aligned.observed),
        ("filled_or_missing_next_close", ~next_observed),
    ):
        counts[reason] = int(np.count_nonzero(left & out))
        left &= ~out
    rows = {name: np.flatnonzero(left & (split == number)) for number, name in enumerate(SPLIT_NAMES)}
    return SampleRows(rows, counts)
