"""Options of the synthetic market: the stress window, jumps, and regions with the sessions of their exchanges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest

from data_prep.bars import Bars
from data_prep.calendar import exchange_days
from data_prep.errors import DataError
from data_prep.synthetic import GENERATOR_VERSION, MarketSpec, Region, Stress, simulate
from data_prep.universes import UNIVERSES

START = date(2023, 6, 1)
SEEDS = tuple(range(50))
STRESSED = MarketSpec(tickers=40, first=date(2022, 1, 3), stress=Stress(START))


class Panel(NamedTuple):
    """Log returns from one trading day to the next and their conditional means, shape (days - 1, tickers)."""

    days: np.ndarray
    returns: np.ndarray
    means: np.ndarray


def panel(bars: Sequence[Bars]) -> Panel:
    days = np.unique(np.concatenate([item.dates for item in bars]))
    close, truth = (np.full((len(days), len(bars)), np.nan) for _ in range(2))
    for number, item in enumerate(bars):
        rows = np.searchsorted(days, item.dates)
        close[rows, number] = np.log(item.close)
        assert item.truth is not None
        truth[rows, number] = item.truth
    return Panel(days[1:], np.diff(close, axis=0), truth[:-1])


@cache
def stressed(seed: int) -> Panel:
    return panel(simulate(replace(STRESSED, seed=seed)))


def listed(found: Panel, window: np.ndarray) -> np.ndarray:
    """Returns of instruments that trade on most days of the window, and on most days of all."""
    known = np.isfinite(found.returns)
    return found.returns[:, (known[window].mean(axis=0) > 0.8) & (known.mean(axis=0) > 0.8)]


def correlation(returns: np.ndarray) -> float:
    """Average over pairs, from the days on which both have a return."""
    known = np.isfinite(returns)
    centred = np.where(known, returns - np.nanmean(returns, axis=0), 0.0)
    both = known.T.astype(float) @ known
    scale = np.sqrt(np.nanvar(returns, axis=0))
    matrix = centred.T @ centred / both / np.outer(scale, scale)
    return float(matrix[np.triu_indices(len(matrix), 1)].mean())


def inside(days: np.ndarray, stress: Stress) -> np.ndarray:
    begin = int(np.searchsorted(days, np.datetime64(stress.start)))
    return (np.arange(len(days)) >= begin) & (np.arange(len(days)) < begin + stress.days)


def test_in_the_stress_window_variance_is_2_2_times_and_correlation_as_wanted() -> None:
    figures = []
    for seed in SEEDS:
        window = inside(stressed(seed).days, Stress(START))
        outside = ~window & (stressed(seed).days >= np.datetime64("2023-01-01"))
        returns = listed(stressed(seed), window)
        assert window.sum() == 60
        per_asset = np.nanmean(returns[window] ** 2, axis=0) / np.nanmean(returns[outside] ** 2, axis=0)
        figures.append((per_asset.mean(), correlation(returns[window]), correlation(returns[outside])))
    ratio, high, usual = np.mean(figures, axis=0)
    error = np.std(figures, axis=0) / np.sqrt(len(figures))
    print(f"variance ratio {ratio:.3f} +- {error[0]:.3f}, correlation inside {high:.3f}, outside {usual:.3f}")
    assert ratio == pytest.approx(2.2, abs=max(3 * error[0], 0.1))
    assert high == pytest.approx(0.5, abs=0.05)
    assert usual == pytest.approx(0.07, abs=0.03)


@pytest.mark.parametrize(("variance", "wanted"), [(2.2, 0.3), (4.0, 0.8), (1.0, 0.1)])
def test_other_multiples_and_correlations_are_met_too(variance: float, wanted: float) -> None:
    stress = Stress(START, days=120, variance=variance, correlation=wanted)
    figures = []
    for seed in SEEDS[:25]:
        found = panel(simulate(replace(STRESSED, seed=seed, stress=stress)))
        window = inside(found.days, stress)
        outside = ~window & (found.days >= np.datetime64("2023-01-01"))
        returns = listed(found, window)
        ratio = np.nanmean(returns[window] ** 2) / np.nanmean(returns[outside] ** 2)
        figures.append((ratio, correlation(returns[window])))
    ratio, high = np.mean(figures, axis=0)
    assert ratio == pytest.approx(variance, rel=0.1)
    assert high == pytest.approx(wanted, abs=0.06)


def test_the_calibration_holds_outside_the_window_and_the_error_inside_is_2_2_times_it() -> None:
    spec = MarketSpec(stress=Stress(START), first=date(2019, 1, 1))
    errors = []
    for seed in range(12):
        days, returns, means = panel(simulate(replace(spec, seed=seed, tickers=80)))
        window = inside(days, Stress(START))
        outside = ~window & (days >= np.datetime64("2023-01-01"))
        squares = (returns - means) ** 2
        errors.append((np.nanmean(squares[outside]), np.nanmean(squares[window])))
    usual, stressed = np.mean(errors, axis=0)
    assert usual == pytest.approx(1.20e-4, rel=0.03)
    assert stressed == pytest.approx(2.2 * 1.20e-4, rel=0.1)


def test_the_conditional_mean_has_no_bias_in_the_window() -> None:
    slopes = []
    for seed in SEEDS:
        days, returns, means = stressed(seed)
        window = inside(days, Stress(START))
        known = np.isfinite(returns[window]) & np.isfinite(means[window])
        x, y = means[window][known], returns[window][known]
        slopes.append(float(x @ y / (x @ x)))
    assert np.mean(slopes) == pytest.approx(1.0, abs=3.5 * np.std(slopes) / np.sqrt(len(slopes)))


def test_days_before_the_window_are_those_of_the_market_without_it() -> None:
    plain, stressed = simulate(replace(STRESSED, stress=None)), simulate(STRESSED)
    ratio = None
    for one, other in zip(plain, stressed, strict=True):
        before = one.dates < np.datetime64("2023-05-30")
        first, second = np.diff(np.log(one.close[before])), np.diff(np.log(other.close[before]))
        ratio = ratio or float(second[0] / first[0])
        np.testing.assert_allclose(second, ratio * first, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("start", [date(2024, 11, 1), date(2021, 1, 1), date(2030, 1, 1)])
def test_a_window_that_does_not_fit_is_refused(start: date) -> None:
    with pytest.raises(DataError, match="stress window: found 60 days"):
        simulate(replace(STRESSED, stress=Stress(start)))


@pytest.mark.parametrize(
    "settings", [{"days": 0}, {"variance": 0.0}, {"variance": float("nan")}, {"correlation": 1.0}, {"correlation": 0.0}]
)
def test_a_stress_window_out_of_range_is_refused(settings: dict[str, float]) -> None:
    with pytest.raises(DataError, match="stress window: found"):
        Stress(START, **settings)  # type: ignore[arg-type]


def test_with_jumps_the_best_forecast_keeps_its_figures_and_tails_grow() -> None:
    found = {}
    for jumps in (0.0, 1.0):
        days, returns, means = panel(simulate(MarketSpec(first=date(2020, 1, 1), jumps=jumps)))
        rows = days >= np.datetime64("2023-01-01")
        known = np.isfinite(returns[rows]) & np.isfinite(means[rows])
        y, mu = returns[rows][known], means[rows][known]
        error = np.mean((y - mu) ** 2)
        standard = (y - mu) / np.sqrt(error)
        found[jumps] = error, 1 - error / np.mean(y**2), np.mean(np.sign(y) == np.sign(mu)), np.mean(standard**4)
    error, r_squared, accuracy, tails = found[1.0]
    print(f"MSE {error:.3e}, R^2 {r_squared:.4f}, accuracy {accuracy:.4f}, kurtosis {tails:.2f}")
    assert error == pytest.approx(1.20e-4, rel=0.05)
    assert r_squared == pytest.approx(0.052, abs=0.005)
    assert accuracy == pytest.approx(0.573, abs=0.008)
    assert tails > found[0.0][3] + 1.0


def test_jumps_come_as_often_as_wanted_and_overnight() -> None:
    quiet, jumpy = simulate(MarketSpec(tickers=60)), simulate(MarketSpec(tickers=60, jumps=2.0))
    jumps = nights = 0
    for one, other in zip(quiet, jumpy, strict=True):
        np.testing.assert_array_equal(one.dates, other.dates)
        # The other's scale is smaller throughout, so that its error with the jumps is the calibrated one.
        usual, night = (np.log(item.open[1:] / item.close[:-1]) for item in (one, other))
        jumped = np.abs(night - usual * np.median(night / usual)) > 1e-3
        jumps, nights = jumps + int(jumped.sum()), nights + len(night)
        assert np.std(night[jumped]) > 3 * np.std(night[~jumped])
        day, usual_day = (np.log(item.close / item.open) for item in (other, one))
        assert np.corrcoef(day, usual_day)[0, 1] > 0.999
    assert jumps / nights * 252 == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize("jumps", [-1.0, float("nan"), 26.0])
def test_a_rate_of_jumps_out_of_range_is_refused(jumps: float) -> None:
    with pytest.raises(DataError, match="found jumps="):
        MarketSpec(jumps=jumps)


def test_each_region_trades_on_the_sessions_of_its_exchange() -> None:
    spec = MarketSpec(tickers=24, regions=UNIVERSES["U3"].regions)
    bars = simulate(spec)
    assert {item.region for item in bars} == {"us", "eu", "jp"}
    for region in spec.regions:
        own = [item.dates for item in bars if item.region == region.name]
        sessions = exchange_days(region.exchange, first=spec.first, last=spec.last)
        assert len(own) == round(region.share * spec.tickers)
        np.testing.assert_array_equal(np.unique(np.concatenate(own)), sessions)


def test_over_a_holiday_the_conditional_mean_is_that_of_the_next_session() -> None:
    bars = simulate(MarketSpec(tickers=320, regions=UNIVERSES["U3"].regions))
    weekdays = np.unique(np.concatenate([item.dates for item in bars]))
    x, y = [], []
    for item in bars:
        assert item.truth is not None
        place = np.searchsorted(weekdays, item.dates)
        step = np.diff(place)
        sessions = exchange_days(
            {region.name: region.exchange for region in UNIVERSES["U3"].regions}[item.region],
            first=date(2014, 1, 1),
            last=date(2024, 12, 31),
        )
        consecutive = np.diff(np.searchsorted(sessions, item.dates)) == 1
        rested = (step > 1) & consecutive
        x.append(item.truth[:-1][rested])
        y.append(np.diff(np.log(item.close))[rested])
    truth, returns = np.concatenate(x), np.concatenate(y)
    assert len(truth) > 5000
    slope = truth @ returns / (truth @ truth)
    noise = np.std(returns) / np.sqrt(truth @ truth)
    assert slope == pytest.approx(1.0, abs=4 * noise)
    # One session's variance, not two.
    assert np.var(returns) == pytest.approx(np.mean([np.var(np.diff(np.log(item.close))) for item in bars]), rel=0.2)


def test_the_last_session_before_a_holiday_foretells_the_volatility_after_it() -> None:
    # The window ends on a day without a session in the U.S., so no return of theirs after 3 July is stressed.
    stress = Stress(date(2023, 5, 1), days=47, variance=100.0)
    regions = (Region("us", 0.5, "XNYS"), Region("eu", 0.5, "XPAR"))
    bars = simulate(MarketSpec(tickers=60, first=date(2022, 1, 3), regions=regions, stress=stress))
    days = np.unique(np.concatenate([item.dates for item in bars]))
    assert days[inside(days, stress)][-1] == np.datetime64("2023-07-04")

    def size(region: str, day: str) -> float:
        means = [
            float(item.truth[item.dates == np.datetime64(day)].mean())
            for item in bars
            if item.region == region and item.truth is not None and np.datetime64(day) in item.dates
        ]
        return float(np.sqrt(np.mean(np.square(means))))

    assert size("us", "2023-07-03") < 3 * size("us", "2023-07-06") < size("us", "2023-06-30")
    assert size("eu", "2023-07-03") > 3 * size("eu", "2023-07-06")


def test_regions_that_do_not_add_up_are_refused() -> None:
    for shares in ({}, {"us": 0.5}, {"us": 2.0, "eu": -1.0}):
        with pytest.raises(DataError, match="found regions"):
            MarketSpec(regions=tuple(Region(name, share) for name, share in shares.items()))
    with pytest.raises(DataError, match="distinct names"):
        MarketSpec(regions=(Region("us", 0.5), Region("us", 0.5)))


def test_the_embedded_market_without_options_is_the_one_it_always_was() -> None:
    first = simulate(MarketSpec())[0]
    assert first.key == "eu/EU0192"
    # A change here changes every figure measured on the market, and needs another GENERATOR_VERSION.
    assert GENERATOR_VERSION == 1
    np.testing.assert_allclose(
        first.close[[0, 1000, -1]], [34.478551071115, 56.574898077882, 48.756232099195], rtol=1e-9
    )
