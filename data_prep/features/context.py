"""Features of a day that all instruments of a market share: groups macro, factors and calendar."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from data_prep.bars import Dates, Floats
from data_prep.readers.factors import PUBLICATION_LAG_DAYS as FACTOR_LAG_DAYS
from data_prep.readers.factors import DailyFactors
from data_prep.readers.macro import MonthlySeries

__all__ = ["calendar_features", "factor_features", "macro_features"]

# A published value is carried for so long when no newer one appears, then the feature becomes neutral.
_MACRO_STALE_DAYS = 100
_FACTOR_STALE_DAYS = 14
_FACTOR_WINDOW = 21
_FACTOR_COLUMNS: Mapping[str, tuple[str, float]] = {
    "factor_market": ("Mkt-RF", 0.011),
    "factor_smb": ("SMB", 0.006),
    "factor_hml": ("HML", 0.008),
    "factor_rmw": ("RMW", 0.0045),
    "factor_cma": ("CMA", 0.004),
    "factor_momentum": ("Mom", 0.010),
}


def _as_of(days: Dates, known_from: Dates, values: Floats, stale_after: int) -> Floats:
    """Return the newest finite value known on each day, NaN before the first and when the newest is too old."""
    usable = np.isfinite(values)
    known_from, values = known_from[usable], values[usable]
    if not len(values):
        return np.full(len(days), np.nan)
    newest = np.searchsorted(known_from, days, side="right") - 1
    found = values[np.maximum(newest, 0)]
    age = (days - known_from[np.maximum(newest, 0)]).astype(np.int64)
    return np.where((newest >= 0) & (age <= stale_after), found, np.nan)


def _a_year_before(series: MonthlySeries) -> Floats:
    before = series.months - np.timedelta64(12, "M")
    place = np.minimum(np.searchsorted(series.months, before), len(series.months) - 1)
    return np.where(series.months[place] == before, series.values[place], np.nan)


def macro_features(days: Dates, series: Mapping[str, MonthlySeries]) -> dict[str, Floats]:
    """Return the features of group macro on each day, shape (n,) each; NaN where nothing usable is known.

    Parameters
    ----------
    days : ndarray, shape (n,), datetime64[D]
        Trading days.
    series : Mapping
        FEDFUNDS, INDPRO, UNRATE, CPIAUCSL.
    """

    def as_of(name: str, values: Floats) -> Floats:
        return _as_of(days, series[name].available, values, _MACRO_STALE_DAYS)

    def change(name: str) -> Floats:
        return as_of(name, series[name].values - _a_year_before(series[name]))

    def growth(name: str) -> Floats:
        return as_of(name, np.log(series[name].values / _a_year_before(series[name])))

    return {
        "fedfunds_level": (as_of("FEDFUNDS", series["FEDFUNDS"].values) - 2.0) / 2.0,
        "fedfunds_change": change("FEDFUNDS") / 1.5,
        "indpro_growth": growth("INDPRO") / 0.04,
        "unrate_change": change("UNRATE") / 1.5,
        "cpi_inflation": (growth("CPIAUCSL") - 0.025) / 0.02,
    }


def factor_features(days: Dates, factors: DailyFactors) -> dict[str, Floats]:
    """Return the features of group factors on each day, shape (n,) each; NaN where nothing usable is known."""
    known_from = factors.dates + np.timedelta64(FACTOR_LAG_DAYS, "D")
    features = {}
    for name, (factor, scale) in _FACTOR_COLUMNS.items():
        returns = factors.returns[factor]
        total = np.full(len(returns), np.nan)
        if len(returns) >= _FACTOR_WINDOW:
            windows = np.lib.stride_tricks.sliding_window_view(returns, _FACTOR_WINDOW)
            total[_FACTOR_WINDOW - 1 :] = windows.sum(axis=1)
        features[name] = _as_of(days, known_from, total, _FACTOR_STALE_DAYS) / (scale * np.sqrt(_FACTOR_WINDOW))
    return features


def calendar_features(days: Dates) -> dict[str, Floats]:
    """Return the features of group calendar on each day, shape (n,) each."""
    months = days.astype("datetime64[M]")
    first = months.astype("datetime64[D]")
    length = ((months + 1).astype("datetime64[D]") - first).astype(np.float64)
    phases = {
        # 1970-01-01 was a Thursday.
        "weekday": ((days.astype(np.int64) + 3) % 7) / 5.0,
        "month_phase": (days - first).astype(np.float64) / length,
        "year_phase": (days - days.astype("datetime64[Y]").astype("datetime64[D]")).astype(np.float64) / 366.0,
    }
    features: dict[str, Floats] = {}
    for name, phase in phases.items():
        features[f"{name}_sin"] = 1.4 * np.sin(2.0 * np.pi * phase)
        features[f"{name}_cos"] = 1.4 * np.cos(2.0 * np.pi * phase)
    return features
