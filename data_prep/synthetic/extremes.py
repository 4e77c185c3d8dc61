"""What an ordinary market does not have every day: jumps of single prices, and a window of stress for all.

Both draw from generators of their own, so the ordinary days of a market are the same, draw for draw, with and without
them. Neither is foreseeable: a jump has mean zero whatever came before, and the window changes how large shocks are and
how they move together, not what they are expected to be.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from data_prep.bars import Dates, Floats
from data_prep.errors import DataError
from data_prep.synthetic.spec import Stress

__all__ = ["JUMP_VARIANCE", "draw_jumps", "raise_correlation", "stress_rows"]

_YEAR = 252.0
_SMALLEST, _LARGEST = 2.0, 6.0
# Mean square of a jump in units of the day's conditional variance: uniform between smallest and largest, either sign.
JUMP_VARIANCE = (_LARGEST**3 - _SMALLEST**3) / (3.0 * (_LARGEST - _SMALLEST))


def draw_jumps(rng: np.random.Generator, days: int, tickers: int, per_year: float) -> Floats:
    """Draw overnight jumps in units of the day's conditional volatility, shape (days, tickers), mostly 0.

    A jump has two to six daily volatilities in size: seen from the outside an outlier, but never a move of 40 %, which
    would look like a split.
    """
    hit = rng.random((days, tickers)) < per_year / _YEAR
    size = rng.uniform(_SMALLEST, _LARGEST, (days, tickers)) * rng.choice((-1.0, 1.0), (days, tickers))
    return np.asarray(np.where(hit, size, 0.0))


def stress_rows(days: Dates, stress: Stress | None) -> NDArray[np.bool_]:
    """Return which days lie in the window, shape (days,).

    Raises
    ------
    DataError
        If the window begins before the first or ends after the last day.
    """
    inside = np.zeros(len(days), dtype=bool)
    if stress is not None:
        begin = int(np.searchsorted(days, np.datetime64(stress.start)))
        if np.datetime64(stress.start) < days[0] or begin + stress.days > len(days):
            raise DataError(
                f"stress window: found {stress.days} days from {stress.start}, expected them inside the simulated "
                f"{days[0]} to {days[-1]}; correct the start"
            )
        inside[begin : begin + stress.days] = True
    return inside


def raise_correlation(rng: np.random.Generator, shock: Floats, usual: Floats, wanted: float) -> Floats:
    """Mix a common factor into shocks of unit variance.

    Parameters
    ----------
    rng : numpy Generator
        Source of the factor.
    shock : ndarray, shape (days, tickers)
        Independent over days.
    usual : ndarray, shape (tickers, tickers)
        Correlation of the shocks.
    wanted : float
        Average over pairs afterwards; the instruments keep their differences.

    Returns
    -------
    ndarray, shape (days, tickers)
        Again of unit variance.
    """
    n = len(usual)
    average = float((usual.sum() - n) / (n * (n - 1))) if n > 1 else 0.0
    share = (wanted - average) / (1.0 - average)
    common = rng.standard_normal((len(shock), 1))
    return np.asarray(math.sqrt(max(share, 0.0)) * common + math.sqrt(min(1.0 - share, 1.0)) * shock)
