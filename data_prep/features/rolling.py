"""Rolling statistics of one gap-free series. Each looks back a fixed number of rows and never forward.

Rows without a full window are NaN. Inputs must be finite, or NaN at the start.

Nothing is kept from row to row: a running sum, as libraries use it, carries the rounding of its largest value to all
later rows, and one wild bar would move every sample after it. Here a row is a function of its own window to the last
bit.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from data_prep.bars import Floats

__all__ = ["correlation", "divide", "ema", "lag", "mean", "mean_deviation", "root_mean_square", "smooth", "wilder"]

# A product of standard deviations below this is rounding.
_CONSTANT = 1e-9


def lag(x: Floats, days: int) -> Floats:
    """Return x shifted `days` rows later."""
    out = np.full(len(x), np.nan)
    out[days:] = x[: len(x) - days]
    return out


def smooth(x: Floats, weights: Floats) -> Floats:
    """Return the weighted mean of the last len(weights) rows, `weights[0]` on the newest; leading NaNs stay NaN."""
    out = np.full(len(x), np.nan)
    first = int(np.argmax(np.isfinite(x))) if len(x) else 0
    taps = len(weights)
    if len(x) - first >= taps and np.isfinite(x[first]):
        out[first + taps - 1 :] = np.convolve(x[first:], weights, mode="valid")
    return out


def _decay(keep: float, taps: int) -> Floats:
    weights = keep ** np.arange(taps)
    return np.asarray(weights / weights.sum())


def ema(x: Floats, span: int, taps: int) -> Floats:
    """Return the exponential moving average of the usual span, cut after `taps` rows so that its memory ends."""
    return smooth(x, _decay(1.0 - 2.0 / (span + 1.0), taps))


def wilder(x: Floats, period: int, taps: int) -> Floats:
    """Return Wilder's smoothing (keep 1 - 1/period), cut after `taps` rows so that its memory ends."""
    return smooth(x, _decay(1.0 - 1.0 / period, taps))


def _window_sum(rows: int, days: int, term: Callable[[slice], Floats]) -> Floats:
    """Sum `term` over the last `days` rows, oldest first; `term` gets the slice of the rows that are k days old."""
    out = np.full(rows, np.nan)
    if rows >= days:
        total = np.zeros(rows - days + 1)
        for first in range(days):
            total += term(slice(first, first + len(total)))
        out[days - 1 :] = total
    return out


def mean(x: Floats, days: int) -> Floats:
    """Return the mean of the last `days` rows; leading NaNs stay NaN.

    The sum of a window is put together from sums of 1, 2, 4, ... rows: in the same order for every row, so that rows
    with equal windows are equal to the last bit, and in a tenth of the additions.
    """
    out = np.full(len(x), np.nan)
    rows = len(x) - days + 1
    if rows <= 0:
        return out
    total, start, size, part = np.zeros(rows), 0, 1, x
    while True:
        if days & size:
            total += part[start : start + rows]
            start += size
        if 2 * size > days:
            break
        part = part[:-size] + part[size:]
        size *= 2
    out[days - 1 :] = total / days
    return out


def root_mean_square(x: Floats, days: int) -> Floats:
    """Return the root of the mean square of the last `days` rows."""
    return np.sqrt(mean(x * x, days))


def mean_deviation(x: Floats, days: int, power: int) -> Floats:
    """Return the mean of |x - mean|^power over the last `days` rows: 2 is the variance, 1 the mean deviation."""
    centre = mean(x, days)[days - 1 :]
    return _window_sum(len(x), days, lambda rows: np.abs(x[rows] - centre) ** power) / days


def correlation(x: Floats, y: Floats, days: int) -> Floats:
    """Return the correlation of the last `days` rows, 0 where one of the two does not vary."""
    mean_x, mean_y = mean(x, days)[days - 1 :], mean(y, days)[days - 1 :]
    both = _window_sum(len(x), days, lambda rows: (x[rows] - mean_x) * (y[rows] - mean_y))
    spread = mean_deviation(x, days, 2) * mean_deviation(y, days, 2)
    return divide(both / days, np.sqrt(spread), smallest=_CONSTANT)


def divide(numerator: Floats, denominator: Floats, *, smallest: Floats | float) -> Floats:
    """Return numerator / denominator, and 0, the neutral value, where the denominator is not above `smallest`."""
    usable = denominator > smallest
    return np.where(usable, numerator / np.where(usable, denominator, 1.0), 0.0)
