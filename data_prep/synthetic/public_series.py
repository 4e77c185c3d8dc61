"""Macro series and factor returns that belong to a synthetic market.

The factor returns are those of portfolios of the market's own instruments: the market is their equal-weighted mean, the
others are long and short thirds by a fixed random characteristic each. The macro series are slow random walks. Neither
foretells a return: the planted signal is in the bars alone, so a model that finds something here has overfitted.

All values are rounded to the digits with which the sources publish them, so that files lose nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from data_prep.bars import Bars, Floats
from data_prep.readers.factors import FACTORS, DailyFactors
from data_prep.readers.macro import MonthlySeries
from data_prep.synthetic.spec import MarketSpec

__all__ = ["MACRO_DIGITS", "PublicSeries", "public_series"]

# Stream of the market's seed.
_STREAM = 3
# Months before the first day, for growth rates of a year and publication lags.
_HISTORY_MONTHS = 24
MACRO_DIGITS: Mapping[str, int] = {"FEDFUNDS": 2, "INDPRO": 4, "UNRATE": 1, "CPIAUCSL": 3}
_PERCENT_DIGITS = 2


@dataclass(frozen=True)
class PublicSeries:
    """What all silos share.

    Attributes
    ----------
    macro : Mapping of str to MonthlySeries
        The four series of `data_prep.readers.macro`.
    factors : DailyFactors
        On every day on which an instrument has a bar, the first excepted.
    """

    macro: Mapping[str, MonthlySeries]
    factors: DailyFactors


def public_series(spec: MarketSpec, bars: Sequence[Bars]) -> PublicSeries:
    """Make the public series of a market.

    Parameters
    ----------
    spec : MarketSpec
        Settings of the market.
    bars : sequence of Bars
        As `simulate(spec)` returns them.
    """
    rng = np.random.default_rng([spec.seed, _STREAM])
    return PublicSeries(_macro(rng, spec), _factors(rng, bars))


def _macro(rng: np.random.Generator, spec: MarketSpec) -> dict[str, MonthlySeries]:
    first = np.datetime64(spec.first, "M") - _HISTORY_MONTHS
    months = np.arange(first, np.datetime64(spec.last, "M") + 1)
    steps = rng.standard_normal((4, len(months)))
    values = {
        "FEDFUNDS": _reverting(steps[0], mean=2.0, keep=0.99, spread=1.2),
        "INDPRO": 100.0 * np.exp(np.cumsum(0.001 + 0.006 * steps[1])),
        "UNRATE": _reverting(steps[2], mean=5.0, keep=0.98, spread=1.0),
        "CPIAUCSL": 235.0 * np.exp(np.cumsum(0.0021 + 0.0025 * steps[3])),
    }
    return {
        name: MonthlySeries(name, months, np.round(np.maximum(series, 0.05), MACRO_DIGITS[name]))
        for name, series in values.items()
    }


def _reverting(steps: Floats, *, mean: float, keep: float, spread: float) -> Floats:
    result = np.empty(len(steps))
    state = 0.0
    for t, step in enumerate(steps):
        state = keep * state + spread * np.sqrt(1.0 - keep**2) * step
        result[t] = mean + state
    return result


def _factors(rng: np.random.Generator, bars: Sequence[Bars]) -> DailyFactors:
    days = np.unique(np.concatenate([item.dates for item in bars]))
    returns = np.full((len(days), len(bars)), np.nan)
    for number, item in enumerate(bars):
        returns[np.searchsorted(days, item.dates)[1:], number] = item.close[1:] / item.close[:-1] - 1.0
    third = max(1, len(bars) // 3)
    percent: dict[str, Floats] = {}
    for name in FACTORS:
        order = rng.permutation(len(bars))
        if name == FACTORS[0]:
            series = _mean(returns)
        else:
            series = _mean(returns[:, order[:third]]) - _mean(returns[:, order[-third:]])
        percent[name] = np.round(100.0 * series[1:], _PERCENT_DIGITS)
    return DailyFactors(days[1:], {name: series / 100.0 for name, series in percent.items()})


def _mean(returns: Floats) -> Floats:
    """Return the mean over instruments with a return on the day, 0 where none has one."""
    known = np.isfinite(returns)
    return np.asarray(np.where(known, returns, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1))
