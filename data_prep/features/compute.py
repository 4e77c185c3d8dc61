"""From aligned bars and public series to the feature matrix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_prep.bars import Dates, Floats
from data_prep.calendar import Aligned
from data_prep.features.context import calendar_features, factor_features, macro_features
from data_prep.features.instrument import Stretch, price_features, technical_features, volume_features
from data_prep.features.table import FEATURES, MEMORY_ROWS, N_FEATURES
from data_prep.readers.factors import DailyFactors
from data_prep.readers.macro import MonthlySeries

__all__ = ["Context", "build_context", "compute_features", "warm_rows"]

_OWN = np.array([i for i, f in enumerate(FEATURES) if f.window > 0])
_OWN_LIMITS = np.array([[FEATURES[i].clip] for i in _OWN])
_SHARED = np.array([i for i, f in enumerate(FEATURES) if f.window == 0])


@dataclass(frozen=True)
class Context:
    """Features that all instruments of a market share.

    Attributes
    ----------
    days : ndarray, shape (n,), datetime64[D]
        Trading days.
    values : ndarray, shape (n, number of shared features), float32
        Clipped, in the order of the table.
    neutral_groups : tuple of str
        Groups that are 0 throughout because no file was given.
    neutral_days : Mapping of str to int
        Per group, days on which at least one of its features had nothing usable and was set to 0.
    """

    days: Dates
    values: NDArray[np.float32]
    neutral_groups: tuple[str, ...]
    neutral_days: Mapping[str, int]


def build_context(
    days: Dates,
    *,
    macro: Mapping[str, MonthlySeries] | None = None,
    factors: DailyFactors | None = None,
) -> Context:
    """Compute the macro, factor and calendar features of each trading day.

    Parameters
    ----------
    days : ndarray, shape (n,), datetime64[D]
        Trading days.
    macro, factors : optional
        Public series; without them their features are the neutral value 0.

    Returns
    -------
    Context
        A value on day t uses only what was published by t under the lags of the readers.
    """
    columns = calendar_features(days)
    if macro is not None:
        columns |= macro_features(days, macro)
    if factors is not None:
        columns |= factor_features(days, factors)
    absent = tuple(name for name, given in (("macro", macro), ("factors", factors)) if given is None)
    values = np.zeros((len(days), len(_SHARED)), dtype=np.float32)
    lost = {group: np.zeros(len(days), dtype=bool) for group in ("macro", "factors")}
    for column, number in enumerate(_SHARED):
        feature = FEATURES[number]
        if feature.group in absent:
            continue
        raw = columns[feature.name]
        if feature.group in lost:
            lost[feature.group] |= np.isnan(raw)
        values[:, column] = _clip(np.where(np.isnan(raw), 0.0, raw), feature.clip)
    return Context(days, values, absent, {group: int(np.count_nonzero(days_)) for group, days_ in lost.items()})


def warm_rows(aligned: Aligned) -> NDArray[np.bool_]:
    """Return the rows with `MEMORY_ROWS` gap-free rows up to and including themselves, shape (n,)."""
    segment = aligned.segment
    new = np.r_[True, segment[1:] != segment[:-1]]
    index = np.arange(len(segment))
    start = np.maximum.accumulate(np.where(new, index, 0))
    return np.asarray((segment >= 0) & (index - start + 1 >= MEMORY_ROWS))


def compute_features(aligned: Aligned, context: Context) -> NDArray[np.float32]:
    """Compute the feature matrix of one instrument.

    Parameters
    ----------
    aligned : Aligned
        Bars on consecutive trading days of `context.days`.
    context : Context
        Shared features of the same market.

    Returns
    -------
    ndarray, shape (n, 52), float32
        Row t uses nothing after the close of day t. NaN in the instrument's own features on rows that `warm_rows`
        leaves out; all other values are finite and within the table's ranges.

    Notes
    -----
    Nothing is fitted: every constant is public and in the code, so a sample depends on its own window only.
    """
    bars = aligned.bars
    n = len(bars.dates)
    out = np.full((N_FEATURES, n), np.nan, dtype=np.float32)
    first = int(np.searchsorted(context.days, bars.dates[0]))
    out[_SHARED] = context.values[first : first + n].T
    warm = warm_rows(aligned)
    for number in np.unique(aligned.segment[warm]):
        rows = np.flatnonzero(aligned.segment == number)
        part = slice(int(rows[0]), int(rows[-1]) + 1)
        columns = _own_features(bars.open[part], bars.high[part], bars.low[part], bars.close[part], bars.volume[part])
        values = np.array([columns[FEATURES[i].name] for i in _OWN])
        # Prices near the end of float64 overflow in squares and sums: such a value is neutral.
        values[np.isnan(values)] = 0.0
        np.clip(values, -_OWN_LIMITS, _OWN_LIMITS, out=values)
        out[_OWN, part] = values
    out[np.ix_(_OWN, ~warm)] = np.nan
    return np.ascontiguousarray(out.T)


def _own_features(open_: Floats, high: Floats, low: Floats, close: Floats, volume: Floats) -> dict[str, Floats]:
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        stretch = Stretch.of(open_, high, low, close, volume)
        return price_features(stretch) | technical_features(stretch) | volume_features(stretch)


def _clip(values: Floats, limit: float) -> Floats:
    return np.clip(values, -limit, limit)
