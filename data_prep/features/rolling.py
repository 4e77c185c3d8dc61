"""Rolling statistics of one gap-free series. Each looks back a fixed number of rows and never forward.

Rows without a full window are NaN. Inputs must be finite.
"""

from __future__ import annotations

import numpy as np
import talib

from data_prep.bars import Floats

__all__ = ["divide", "ema", "lag", "mean", "root_mean_square", "smooth", "wilder"]


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


def mean(x: Floats, days: int) -> Floats:
    """Return the mean of the last `days` rows; leading NaNs stay NaN."""
    return np.asarray(talib.SMA(x, days))


def root_mean_square(x: Floats, days: int) -> Floats:
    """Return the root of the mean square of the last `days` rows.

    The maximum with zero removes the rounding of a running sum.
    """
    return np.sqrt(np.maximum(mean(x * x, days), 0.0))


def divide(numerator: Floats, denominator: Floats, *, smallest: float) -> Floats:
    """Return numerator / denominator, and 0, the neutral value, where the denominator is not above `smallest`."""
    usable = denominator > smallest
    return np.where(usable, numerator / np.where(usable, denominator, 1.0), 0.0)
