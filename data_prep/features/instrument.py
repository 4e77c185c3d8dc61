"""Features of one instrument from its own bars: groups price, technical and volume."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_prep.bars import Floats
from data_prep.features.rolling import (
    correlation,
    divide,
    ema,
    lag,
    mean,
    mean_deviation,
    root_mean_square,
    wilder,
)

__all__ = ["Stretch", "price_features", "technical_features", "volume_features"]

# Smallest daily volatility that returns are divided by: a tenth of a typical one-tick move of a large stock.
_VOLATILITY_FLOOR = 1e-4
# A range below this fraction of the price is a flat price seen through rounding.
_FLAT = 1e-9
# A spread below this fraction of the price is rounding.
_NOTHING = 1e-12
_VOLUME_WINDOW = 60
_VOLUME_MEMORY = 80


@dataclass(frozen=True)
class Stretch:
    """A gap-free stretch of bars of one instrument with what several features share.

    Prices stay in their currency, since dividing by the first close would let that bar into every later row; thresholds
    are fractions of the day's close. Of the technical analysis library only functions without running sums are used.
    """

    open: Floats
    high: Floats
    low: Floats
    close: Floats
    volume: Floats
    r: Floats
    s: Floats
    location: Floats

    @staticmethod
    def of(open_: Floats, high: Floats, low: Floats, close: Floats, volume: Floats) -> Stretch:
        """Build from raw prices and volumes, shape (n,) each; volume may be NaN."""
        o, h, lo, c = open_, high, low, close
        log_close = np.log(c)
        r = log_close - lag(log_close, 1)
        s = np.maximum(root_mean_square(r, 60), _VOLATILITY_FLOOR)
        location = divide(2.0 * c - h - lo, h - lo, smallest=0.0)
        return Stretch(o, h, lo, c, volume, r, s, np.where(h - lo > _FLAT * c, location, 0.0))


def price_features(x: Stretch) -> dict[str, Floats]:
    """Return the features of group price, each of shape (n,), not yet clipped; NaN where the window is not full."""
    import talib  # slow, as it imports pandas

    log_close = np.log(x.close)

    def ret(days: int) -> Floats:
        return np.asarray((log_close - lag(log_close, days)) / (x.s * np.sqrt(days)))

    span = np.log(x.high / x.low)
    mean_span = mean(span, 20)
    rms_20 = root_mean_square(x.r, 20)
    high_63 = np.asarray(talib.MAX(x.high, 63))
    return {
        "ret_1": x.r / x.s,
        "ret_1_lag_1": lag(x.r, 1) / x.s,
        "ret_1_lag_2": lag(x.r, 2) / x.s,
        "ret_5": ret(5),
        "ret_21": ret(21),
        "ret_63": ret(63),
        "mom_126_21": (lag(log_close, 21) - lag(log_close, 126)) / (x.s * np.sqrt(105.0)),
        "gap": 2.0 * np.log(x.open / lag(x.close, 1)) / x.s,
        "intraday": 1.2 * np.log(x.close / x.open) / x.s,
        "close_location": 1.7 * x.location,
        "close_location_5": 3.0 * mean(x.location, 5),
        "range": np.where(mean_span > _FLAT, 2.0 * np.log(divide(span, mean_span, smallest=_FLAT) + 0.1), 0.0),
        "volatility_ratio": 2.0 * np.log((root_mean_square(x.r, 5) + 1e-4) / x.s),
        "volatility_level": 2.0 * np.log((rms_20 + 1e-4) / 0.013),
        "autocorrelation_20": 4.0 * mean(x.r * lag(x.r, 1), 20) / (rms_20**2 + 1e-8),
        "high_distance_63": 2.0 * np.log(x.close / high_63) / (x.s * np.sqrt(63.0)) + 1.5,
    }


def technical_features(x: Stretch) -> dict[str, Floats]:
    """Return the features of group technical, each of shape (n,), not yet clipped; 0 where 42 days were flat."""
    import talib  # slow, as it imports pandas

    h, lo, c = x.high, x.low, x.close
    gains = mean(np.maximum(x.r, 0.0), 14)
    losses = mean(np.maximum(-x.r, 0.0), 14)
    rsi = 100.0 * divide(gains, gains + losses, smallest=_FLAT) + 50.0 * (gains + losses <= _FLAT)
    macd = (ema(c, 12, 48) - ema(c, 26, 104)) / (c * x.s)
    true_range = np.maximum(h, lag(c, 1)) - np.minimum(lo, lag(c, 1))
    atr = mean(true_range / lag(c, 1), 14)
    up, down = h - lag(h, 1), lag(lo, 1) - lo
    plus = wilder(np.where((up > down) & (up > 0), up, 0.0)[1:], 14, 42)
    minus = wilder(np.where((down > up) & (down > 0), down, 0.0)[1:], 14, 42)
    plus, minus = np.r_[np.nan, plus], np.r_[np.nan, minus]
    direction = np.where(np.isnan(plus), np.nan, divide(plus - minus, plus + minus, smallest=_FLAT * c))
    adx = wilder(100.0 * np.abs(direction), 14, 42)
    lowest = np.asarray(talib.MIN(lo, 14))
    highest = np.asarray(talib.MAX(h, 14))
    # %D - 50, so that days without a range are neutral by themselves.
    percent_d = mean(50.0 * divide(2.0 * c - lowest - highest, highest - lowest, smallest=0.0), 3)
    typical = (h + lo + c) / 3.0
    cci = divide(typical - mean(typical, 20), 0.015 * mean_deviation(typical, 20, 1), smallest=_NOTHING * c)
    pressure = c - np.minimum(lo, lag(c, 1))
    ultimate = sum(
        weight * divide(mean(pressure, days), mean(true_range, days), smallest=_NOTHING * c)
        for weight, days in ((400.0 / 7.0, 7), (200.0 / 7.0, 14), (100.0 / 7.0, 28))
    )
    deviation = np.sqrt(mean_deviation(c, 20, 2))
    sma = mean(c, 20)
    flat = np.asarray(talib.MAX(h, 20)) - np.asarray(talib.MIN(lo, 20)) <= _FLAT * c
    features = {
        "rsi_14": (rsi - 50.0) / 18.0,
        "macd": macd / 1.5,
        "macd_histogram": 2.0 * (macd - ema(macd, 9, 27)),
        "atr_14": 3.0 * np.log(np.maximum(atr, _VOLATILITY_FLOOR) / x.s) - 0.5,
        "adx_14": (adx - 23.0) / 9.0,
        "di_14": 3.0 * direction,
        "stochastic_14_3": percent_d / 28.0,
        "cci_20": cci / 100.0,
        "williams_42": (talib.WILLR(h, lo, c, 42) + 50.0) / 29.0,
        "bollinger_b_20": divide(c - sma, 1.2 * deviation, smallest=_NOTHING * c),
        "bollinger_width_20": 2.0 * np.log(deviation / (c * x.s) + 0.1) - 1.0,
        "aroon_25": talib.AROONOSC(h, lo, 25) / 60.0,
        "ultimate_7_14_28": (ultimate - 50.0) / 11.0,
    }
    return {name: np.where(flat, 0.0, values) for name, values in features.items()}


def volume_features(x: Stretch) -> dict[str, Floats]:
    """Return the features of group volume, each of shape (n,), not yet clipped.

    They are 0, the neutral value, on days whose window has a day without a stated volume or no trade at all.
    """
    n = len(x.close)
    unknown = np.isnan(x.volume)
    raw = np.where(unknown, 0.0, x.volume)
    average = mean(raw, _VOLUME_WINDOW)
    gaps = np.cumsum(unknown)
    recent_gaps = gaps - np.r_[np.zeros(min(_VOLUME_MEMORY, n), dtype=gaps.dtype), gaps[: max(n - _VOLUME_MEMORY, 0)]]
    trades = np.cumsum(raw > 0.0)
    recent_trades = trades - np.r_[np.zeros(min(14, n), dtype=trades.dtype), trades[: max(n - 14, 0)]]
    neutral = (recent_gaps > 0) | (recent_trades == 0)
    v = divide(raw, average, smallest=0.0)
    v_known = np.where(np.isnan(average), 0.0, v)
    traded = mean(raw, 20)
    typical = (x.high + x.low + x.close) / 3.0
    step = np.r_[0.0, np.diff(typical)]
    inflow = mean(np.where(step > 0.0, typical * raw, 0.0), 14)
    outflow = mean(np.where(step < 0.0, typical * raw, 0.0), 14)
    balance = divide(inflow - outflow, inflow + outflow, smallest=0.0)
    sign = np.sign(np.where(np.isnan(x.r), 0.0, x.r))
    moves = np.abs(np.where(np.isnan(x.r), 0.0, x.r))
    features = {
        "volume_shock": 2.0 * np.log(v_known + 0.05),
        "volume_trend": 3.5 * np.log(np.maximum(mean(v_known, 5), 0.0) + 0.05),
        "mfi_14": 50.0 * balance / 17.0,
        "obv_20": 4.0 * divide(mean(sign * raw, 20), traded, smallest=0.0),
        "chaikin_20": 7.0 * divide(mean(x.location * raw, 20), traded, smallest=0.0),
        "volume_correlation_20": 3.5 * (correlation(moves * 100.0, v_known, 20) - 0.35),
    }
    return {name: np.where(neutral, 0.0, values) for name, values in features.items()}
