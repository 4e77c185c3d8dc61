"""The synthetic market has the figures it is calibrated to, and a plain pooled regression finds most of its signal."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import pytest

from data_prep.bars import Bars
from data_prep.calendar import align
from data_prep.errors import DataError
from data_prep.features.compute import build_context, compute_features
from data_prep.splits import Splits, sample_rows, split_days
from data_prep.synthetic import SECTORS, MarketSpec, sector_loadings, simulate

SEEDS = (2025, 2026, 2027)


class Samples(NamedTuple):
    features: np.ndarray
    returns: np.ndarray
    truth: np.ndarray
    sector: np.ndarray


@cache
def market(seed: int) -> list[Bars]:
    return simulate(MarketSpec(seed=seed))


def samples(bars: list[Bars], split: str, *, with_features: bool = True) -> Samples:
    days = np.unique(np.concatenate([item.dates for item in bars]))
    label = split_days(days, Splits(), embargo_days=5)
    context = build_context(days)
    parts: list[Samples] = []
    for item in bars:
        aligned = align(item, days, limit=3)
        assert aligned is not None
        assert aligned.bars.truth is not None
        rows = sample_rows(aligned, days, label).rows[split]
        close = np.log(aligned.bars.close)
        x = compute_features(aligned, context)[rows] if with_features else np.empty((len(rows), 0))
        sector = np.full(len(rows), SECTORS.index(str(item.sector)))
        parts.append(Samples(x, close[rows + 1] - close[rows], aligned.bars.truth[rows], sector))
    return Samples(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_best_forecast_has_the_calibrated_figures_on_the_test_split(seed: int) -> None:
    test = samples(market(seed), "test", with_features=False)
    mse = float(np.mean((test.returns - test.truth) ** 2))
    r_squared = 1.0 - mse / float(np.mean(test.returns**2))
    accuracy = float(np.mean(np.sign(test.returns) == np.sign(test.truth)))
    print(f"seed {seed}: MSE {mse:.4e}, R^2 {100 * r_squared:.2f} %, directional accuracy {100 * accuracy:.2f} %")
    assert mse == pytest.approx(1.20e-4, rel=0.05)
    assert r_squared == pytest.approx(0.052, abs=0.004)
    assert accuracy == pytest.approx(0.573, abs=0.005)


def test_pooled_ridge_on_the_features_reaches_most_of_the_best_r_squared() -> None:
    train, test = samples(market(2025)[::3], "train"), samples(market(2025)[::3], "test")
    x = np.c_[train.features, np.ones(len(train.features))].astype(np.float64)
    weights = np.linalg.solve(x.T @ x + 10.0 * np.eye(x.shape[1]), x.T @ train.returns)
    forecast = np.c_[test.features, np.ones(len(test.features))] @ weights
    zero = float(np.mean(test.returns**2))
    ridge = 1.0 - float(np.mean((test.returns - forecast) ** 2)) / zero
    best = 1.0 - float(np.mean((test.returns - test.truth) ** 2)) / zero
    print(f"ridge R^2 {100 * ridge:.2f} %, best {100 * best:.2f} %, share {ridge / best:.2f}")
    assert ridge > 0.6 * best


def test_sectors_share_most_of_the_signal_and_differ_in_the_rest() -> None:
    loadings = sector_loadings(np.random.default_rng(0))
    np.testing.assert_allclose((loadings.linear**2).sum(axis=1) + loadings.product**2, 1.0)
    common = loadings.linear.mean(axis=0)
    assert 0.6 < float(common @ common) < 0.9
    own = loadings.linear - common
    np.testing.assert_allclose(own.sum(axis=0), 0.0, atol=1e-12)
    assert (np.linalg.norm(own, axis=1) > 0.3).all()


def test_the_conditional_mean_is_known_the_day_before_and_has_no_bias() -> None:
    train = samples(market(2025), "train", with_features=False)
    slope = float(train.truth @ train.returns / (train.truth @ train.truth))
    assert slope == pytest.approx(1.0, abs=0.05)
    noise = train.returns - train.truth
    for sector in range(len(SECTORS)):
        inside = train.sector == sector
        assert float(np.corrcoef(noise[inside], train.truth[inside])[0, 1]) == pytest.approx(0.0, abs=0.02)


def test_the_market_has_regions_sectors_delistings_gaps_and_changing_volatility() -> None:
    bars = market(2025)
    assert len(bars) == 320
    assert {item.region for item in bars} == {"us", "eu"}
    assert {item.sector for item in bars} == set(SECTORS)
    days = np.unique(np.concatenate([item.dates for item in bars]))
    assert sum(item.dates[-1] < days[-30] for item in bars) >= 5
    assert sum(item.dates[0] > days[30] for item in bars) >= 5
    assert sum(len(item.dates) < 0.999 * len(days) for item in bars) > 100
    squares = np.concatenate([np.diff(np.log(item.close)) ** 2 for item in bars[:50]])
    assert float(np.corrcoef(squares[1:], squares[:-1])[0, 1]) > 0.03


def test_bars_are_possible_prices() -> None:
    for item in market(2025):
        assert (item.low > 0).all()
        assert (item.high >= np.maximum(item.open, item.close)).all()
        assert (item.low <= np.minimum(item.open, item.close)).all()
        assert (item.volume >= 0).all()
        assert (np.diff(item.dates) > np.timedelta64(0, "D")).all()


def test_the_same_seed_gives_the_same_market() -> None:
    spec = MarketSpec(tickers=12, seed=3)
    for one, other in zip(simulate(spec), simulate(spec), strict=True):
        assert one.key == other.key
        np.testing.assert_array_equal(one.close, other.close)
    assert simulate(MarketSpec(tickers=12, seed=4))[0].close[0] != simulate(spec)[0].close[0]


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(DataError, match="tickers=0"):
        MarketSpec(tickers=0)
