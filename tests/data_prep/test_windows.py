"""No raw bar reaches past its windows, not even in the last bit, and the own formulas are those of the library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import talib
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from data_prep.bars import Bars
from data_prep.calendar import align
from data_prep.features.compute import _own_features, build_context, compute_features
from data_prep.features.rolling import correlation, mean, mean_deviation, root_mean_square
from data_prep.features.table import FEATURES, MEMORY_ROWS

PRICES = ("open", "high", "low", "close")
CHECK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def computed(bars: Bars) -> NDArray[np.float32]:
    aligned = align(bars, bars.dates, limit=3)
    assert aligned is not None
    return compute_features(aligned, build_context(bars.dates))


def wild(bars: Bars, day: int, price: float, volume: float) -> Bars:
    columns = {name: getattr(bars, name).copy() for name in (*PRICES, "volume")}
    for name in PRICES:
        columns[name][day] *= price
    columns["volume"][day] *= volume
    return replace(bars, **columns)


@CHECK
@given(day=st.integers(0, 399), price=st.floats(-300, 300), volume=st.floats(-300, 300))
def test_a_wild_bar_moves_no_sample_outside_its_windows(
    make_bars: Callable[..., Bars], day: int, price: float, volume: float
) -> None:
    bars = make_bars(3)
    before, after = computed(bars), computed(wild(bars, day, 10.0**price, 10.0**volume))
    outside = np.r_[0:day, min(day + MEMORY_ROWS, 400) : 400]
    np.testing.assert_array_equal(before[outside], after[outside])
    kept = after[MEMORY_ROWS - 1 :]
    assert np.isfinite(kept).all()
    assert (np.abs(kept) <= np.array([feature.clip for feature in FEATURES], dtype=np.float32)).all()


def test_a_bar_without_a_volume_moves_no_sample_outside_its_windows(make_bars: Callable[..., Bars]) -> None:
    bars = make_bars(3)
    before, after = computed(bars), computed(wild(bars, 200, 1.0, np.nan))
    moved = np.flatnonzero((before != after)[MEMORY_ROWS - 1 :].any(axis=1)) + MEMORY_ROWS - 1
    assert moved[0] == 200
    assert moved[-1] < 200 + MEMORY_ROWS


@pytest.mark.parametrize("first", [1e-300, 1e-6, 1e6, 1e300])
def test_the_first_bar_of_a_stretch_is_no_scale_of_the_others(make_bars: Callable[..., Bars], first: float) -> None:
    bars = make_bars(4)
    moved = computed(wild(bars, 0, first, 1.0))
    np.testing.assert_array_equal(moved[MEMORY_ROWS:], computed(bars)[MEMORY_ROWS:])


def test_a_running_sum_would_carry_a_wild_bar_into_every_later_row(make_bars: Callable[..., Bars]) -> None:
    volume = make_bars(5).volume
    hostile = volume.copy()
    hostile[100] *= 1e30
    running = np.abs(talib.SMA(hostile, 60) - talib.SMA(volume, 60))[200:] / mean(volume, 60)[200:]
    assert running.min() > 0.5
    np.testing.assert_array_equal(mean(hostile, 60)[160:], mean(volume, 60)[160:])


@pytest.mark.parametrize("seed", range(4))
def test_windowed_formulas_agree_with_the_technical_library(make_bars: Callable[..., Bars], seed: int) -> None:
    bars = make_bars(seed)
    h, lo, c, volume = bars.high, bars.low, bars.close, bars.volume
    x = _own_features(bars.open, h, lo, c, volume)
    warm = slice(MEMORY_ROWS, None)
    expected = {
        "cci_20": talib.CCI(h, lo, c, 20) / 100,
        "ultimate_7_14_28": (talib.ULTOSC(h, lo, c, 7, 14, 28) - 50) / 11,
        "stochastic_14_3": (talib.STOCHF(h, lo, c, 14, 3)[1] - 50) / 28,
        "mfi_14": (talib.MFI(h, lo, c, volume, 14) - 50) / 17,
        "bollinger_b_20": (c - talib.SMA(c, 20)) / (1.2 * talib.STDDEV(c, 20)),
    }
    for name, values in expected.items():
        np.testing.assert_allclose(x[name][warm], values[warm], rtol=0, atol=1e-8, err_msg=name)
    np.testing.assert_allclose(mean(c, 60)[60:], talib.SMA(c, 60)[60:], rtol=1e-12)
    np.testing.assert_allclose(mean_deviation(c, 20, 2)[20:], talib.VAR(c, 20)[20:], rtol=1e-6)
    np.testing.assert_allclose(correlation(c, volume, 20)[20:], talib.CORREL(c, volume, 20)[20:], rtol=0, atol=1e-6)
    np.testing.assert_allclose(root_mean_square(c, 5)[5:], np.sqrt(talib.SMA(c * c, 5)[5:]), rtol=1e-12)


def test_no_value_of_an_ordinary_warm_row_is_missing(make_bars: Callable[..., Bars]) -> None:
    bars = make_bars(6)
    for name, values in _own_features(bars.open, bars.high, bars.low, bars.close, bars.volume).items():
        assert np.isfinite(values[MEMORY_ROWS - 1 :]).all(), name
    constant = np.full(60, 3.3)
    assert (correlation(constant, bars.volume[:60], 20)[19:] == 0).all()
