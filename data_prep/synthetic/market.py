"""Daily bars of a market with factors, changing volatility, listings and gaps, and a known conditional mean.

One day's log return of an instrument is mu + h eta. eta is standard normal and has a market, a sector and an own part;
h^2 is the product of the instrument's level, a volatility regime all share (calm, normal, stress; a Markov chain), and
a mixture of two GARCH(1,1) variances, the market's and its own. mu = kappa h s with s of unit variance from the day
before (see `signal`), so the best forecast's R^2 is kappa^2 / (1 + kappa^2) and, everything being normal, its
directional accuracy 1/2 + arctan(kappa) / pi: 5.2 % gives 57.3 %. Finally all returns are scaled so that the mean of
h^2 over the test years is the wanted mean squared error. Market and sector carry only a tenth of the variance, far less
than in life: two test years with a strong common part would leave the realised R^2 too noisy to calibrate.

Where regions follow exchanges, an instrument rests on a day without a session: nothing about it changes, and its next
return belongs to its next session. Jumps and a stress window (see `extremes`) are options. A jump adds to the night's
move and nothing to the mean; its variance counts in R^2 and in the mean squared error. In the window the volatility is
flat at the wanted multiple, whatever regime and GARCH would have given.

The same market cannot also have the annualised Sharpe ratio of 1.29 that goes with these figures in the literature this
is modelled on: R^2 = 5.2 % is an information coefficient of 0.23 a day, and 320 nearly independent bets with it give a
ratio of about 0.23 sqrt(320 * 252) = 65 before costs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_prep.bars import Bars, Dates, Floats
from data_prep.calendar import exchange_days
from data_prep.synthetic.extremes import JUMP_VARIANCE, draw_jumps, raise_correlation, stress_rows
from data_prep.synthetic.signal import SECTORS, Loadings, sector_loadings
from data_prep.synthetic.spec import MarketSpec, Region

__all__ = ["GENERATOR_VERSION", "simulate"]

GENERATOR_VERSION = 1
# Streams of the seed beside the one of the ordinary days.
_JUMPS, _STRESS = 1, 2
_HOLIDAYS = ((1, 1), (5, 1), (12, 25))
_MARKET_SHARE, _SECTOR_SHARE = 0.07, 0.03
_ARCH, _GARCH = 0.06, 0.90
_MARKET_GARCH_SHARE = 0.3
_REGIME_VARIANCE = np.array([0.75, 1.0, 1.6])
_REGIME_STAY = 0.99
_LEVEL_SPREAD = 0.15
_NIGHT_SHARE, _NIGHT_NOISE = 0.3, 0.3
_LOCATION_CORRELATION = 0.5
_TREND_KEEP = 0.9
_WIDEST_RANGE = 6.0


@dataclass(frozen=True)
class _Days:
    """What kind of day each is: shape (days, tickers), (days, tickers) and (days,)."""

    trading: NDArray[np.bool_]
    ordinary: NDArray[np.bool_]
    stressed: NDArray[np.bool_]


@dataclass(frozen=True)
class _Paths:
    """Arrays of shape (days, tickers); log moves are in units before calibration."""

    night: Floats
    day: Floats
    mean: Floats
    volatility: Floats
    position: Floats
    width: Floats
    log_volume: Floats


def simulate(spec: MarketSpec) -> list[Bars]:
    """Simulate the market.

    Parameters
    ----------
    spec : MarketSpec
        Settings.

    Returns
    -------
    list of Bars
        Sorted by region and ticker, each with `truth`: the conditional mean of the next trading day's log return given
        everything up to the close of the day.
    """
    rng = np.random.default_rng(spec.seed)
    region = _regions(spec)
    days, trading = _days(spec, region)
    sector = rng.permutation(np.arange(spec.tickers) % len(SECTORS))
    loadings = sector_loadings(rng)
    ordinary = trading & _calibration_rows(spec, days)[:, None]
    stressed = stress_rows(days, spec.stress)
    paths = _paths(rng, spec, _Days(trading, ordinary, stressed), sector, loadings)
    noise = float(np.mean(paths.volatility[ordinary] ** 2)) * (1.0 + _jump_share(spec))
    scale = math.sqrt(spec.mse / noise)
    present = trading & _presence(rng, len(days), spec.tickers)
    first_close = np.exp(rng.normal(3.5, 0.8, spec.tickers))
    log_close = np.log(first_close) + scale * np.cumsum(paths.night + paths.day, axis=0)
    log_open = log_close - scale * paths.day
    log_low = log_close - scale * paths.position * paths.width
    log_high = log_low + scale * paths.width
    bars = []
    for i in range(spec.tickers):
        rows = present[:, i]
        prices = [np.exp(values[rows, i]) for values in (log_open, log_high, log_low, log_close)]
        open_, high, low, close = prices
        bars.append(
            Bars(
                ticker=f"{region[i].name.upper()}{i:04d}",
                region=region[i].name,
                sector=SECTORS[int(sector[i])],
                dates=days[rows],
                open=open_,
                high=np.maximum(high, np.maximum(open_, close)),
                low=np.minimum(low, np.minimum(open_, close)),
                close=close,
                volume=np.round(np.exp(paths.log_volume[rows, i])),
                truth=scale * paths.mean[rows, i],
            )
        )
    return sorted(bars, key=lambda item: item.key)


def _regions(spec: MarketSpec) -> list[Region]:
    """Return the region of each instrument."""
    bounds = np.round(np.cumsum([region.share for region in spec.regions]) * spec.tickers).astype(np.int64)
    return [spec.regions[int(place)] for place in np.searchsorted(bounds, np.arange(spec.tickers), side="right")]


def _days(spec: MarketSpec, region: list[Region]) -> tuple[Dates, NDArray[np.bool_]]:
    """Return the days on which a region trades, and which instruments trade on each."""
    sessions = {
        item: exchange_days(item.exchange, first=spec.first, last=spec.last) if item.exchange else _weekdays(spec)
        for item in dict.fromkeys(region)
    }
    days = np.unique(np.concatenate(list(sessions.values())))
    return days, np.stack([np.isin(days, sessions[item]) for item in region], axis=1)


def _weekdays(spec: MarketSpec) -> Dates:
    days = np.arange(np.datetime64(spec.first), np.datetime64(spec.last) + 1)
    months = days.astype("datetime64[M]")
    month = months.astype(np.int64) % 12 + 1
    day = (days - months.astype("datetime64[D]")).astype(np.int64) + 1
    closed = ~np.is_busday(days)
    for holiday_month, holiday_day in _HOLIDAYS:
        closed |= (month == holiday_month) & (day == holiday_day)
    return days[~closed]


def _jump_share(spec: MarketSpec) -> float:
    """Return the variance of the jumps in units of that of the ordinary shocks."""
    return spec.jumps / 252.0 * JUMP_VARIANCE


def _calibration_rows(spec: MarketSpec, days: Dates) -> NDArray[np.bool_]:
    """Return the days of the calibration years outside the stress window; without one all days outside it."""
    year = days.astype("datetime64[Y]").astype(np.int64) + 1970
    first, last = spec.calibration_years
    calm = ~stress_rows(days, spec.stress)
    rows = calm & (year >= first) & (year <= last)
    return rows if rows.any() else calm


def _signal_to_noise(spec: MarketSpec, loadings: Loadings) -> float:
    """Return kappa for which E[mu^2] / E[r^2] is the wanted R^2.

    A large shock raises both the next day's own GARCH variance and the square of the signal it enters, so E[h^2 s^2]
    exceeds E[h^2] E[s^2] by a factor that kappa is corrected for.
    """
    on_shock = float(np.mean(loadings.linear[:, 0] ** 2))
    excess = 1.0 + 2.0 * (1.0 - _MARKET_GARCH_SHARE) * _ARCH * on_shock
    return math.sqrt(spec.r_squared / (1.0 - spec.r_squared) * (1.0 + _jump_share(spec)) / excess)


def _paths(
    rng: np.random.Generator, spec: MarketSpec, kind: _Days, sector: NDArray[np.int64], loadings: Loadings
) -> _Paths:
    days, n = len(kind.trading), len(sector)
    kappa = _signal_to_noise(spec, loadings)
    level = np.exp(rng.normal(0.0, _LEVEL_SPREAD, n))
    beta = rng.uniform(0.7, 1.3, n) * math.sqrt(_MARKET_SHARE)
    own = np.sqrt(1.0 - beta**2 - _SECTOR_SHARE)
    shock = (
        beta * rng.standard_normal((days, 1))
        + math.sqrt(_SECTOR_SHARE) * rng.standard_normal((days, len(SECTORS)))[:, sector]
        + own * rng.standard_normal((days, n))
    )
    market_shock = rng.standard_normal(days)
    if spec.stress is not None:
        usual = np.outer(beta, beta) + _SECTOR_SHARE * (sector[:, None] == sector)
        np.fill_diagonal(usual, 1.0)
        own_rng = np.random.default_rng([spec.seed, _STRESS])
        shock[kind.stressed] = raise_correlation(own_rng, shock[kind.stressed], usual, spec.stress.correlation)
    location, volume, gap, width = (rng.standard_normal((days, n)) for _ in range(4))
    regime = np.sqrt(_REGIME_VARIANCE[_regimes(rng, days)])
    linear = loadings.linear[sector].T
    ratio = np.empty((days, n))
    volatility = np.empty((days, n))
    signal = np.empty((days, n))
    own_garch, market_garch, trend, s = np.ones(n), 1.0, np.zeros(n), np.zeros(n)
    unit = 1.0 / math.sqrt(1.0 + kappa**2)
    for t in range(days):
        mixture = _MARKET_GARCH_SHARE * market_garch + (1.0 - _MARKET_GARCH_SHARE) * own_garch
        volatility[t] = level * regime[t] * np.sqrt(mixture)
        ratio[t] = kappa * s + shock[t]
        today = ratio[t] * unit
        following = linear[0] * today + linear[1] * location[t] + linear[2] * trend
        following += linear[3] * volume[t] + linear[4] * gap[t] + loadings.product * location[t] * volume[t]
        live = kind.trading[t]
        s = np.where(live, following, s)
        signal[t] = s
        trend = np.where(live, _TREND_KEEP * trend + math.sqrt(1.0 - _TREND_KEEP**2) * today, trend)
        next_garch = (1.0 - _ARCH - _GARCH) + _ARCH * shock[t] ** 2 + _GARCH * own_garch
        own_garch = np.where(live, next_garch, own_garch)
        market_garch = (1.0 - _ARCH - _GARCH) + _ARCH * market_shock[t] ** 2 + _GARCH * market_garch
    if spec.stress is not None:
        usual_variance = np.mean(volatility**2, axis=0, where=kind.ordinary)
        volatility[kind.stressed] = np.sqrt(spec.stress.variance * usual_variance)
    active = volatility * kind.trading
    move = active * ratio
    night = _NIGHT_SHARE * move + _NIGHT_NOISE * active * gap
    day = move - night
    if spec.jumps:
        night += active * draw_jumps(np.random.default_rng([spec.seed, _JUMPS]), days, n, spec.jumps)
    day_spread = math.hypot(1.0 - _NIGHT_SHARE, _NIGHT_NOISE)
    lean = _LOCATION_CORRELATION * day / (volatility * day_spread)
    position = _normal_cdf(lean + math.sqrt(1.0 - _LOCATION_CORRELATION**2) * location)
    widest = _WIDEST_RANGE * volatility
    position = np.clip(position, np.maximum(day / widest, 0.01), 1.0 - np.maximum(-day / widest, 0.01))
    needed = np.maximum(day / position, -day / (1.0 - position))
    base = rng.normal(13.5, 1.0, n)
    slow = np.empty((days, n))
    state = rng.standard_normal(n)
    steps = math.sqrt(1.0 - 0.98**2) * rng.standard_normal((days, n))
    for t in range(days):
        state = 0.98 * state + steps[t]
        slow[t] = state
    return _Paths(
        night=night,
        day=day,
        mean=kappa * _next_session(volatility, kind.trading) * signal,
        volatility=volatility,
        position=position,
        width=np.maximum(volatility * (0.7 + 0.45 * np.abs(width)), needed),
        log_volume=base + 0.3 * slow + 0.5 * volume + 0.2 * (np.abs(ratio) - 0.8),
    )


def _next_session(volatility: Floats, trading: NDArray[np.bool_]) -> Floats:
    """Return each instrument's volatility on its next trading day; on the last day that of the day itself."""
    result = np.vstack([volatility[1:], volatility[-1:]])
    for t in range(len(result) - 2, -1, -1):
        result[t] = np.where(trading[t + 1], result[t], result[t + 1])
    return result


def _normal_cdf(x: Floats) -> Floats:
    """Return the standard normal distribution function, to 3e-4 (Page, 1977)."""
    return np.asarray(0.5 + 0.5 * np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def _regimes(rng: np.random.Generator, days: int) -> NDArray[np.int64]:
    """Return calm 0, normal 1, stress 2 per day; a change from calm or stress leads to normal."""
    changes = rng.random(days) > _REGIME_STAY
    up = rng.random(days) > 0.5
    path = np.empty(days, dtype=np.int64)
    state = 1
    for t in range(days):
        if changes[t]:
            state = 1 if state != 1 else (2 if up[t] else 0)
        path[t] = state
    return path


def _presence(rng: np.random.Generator, days: int, n: int) -> NDArray[np.bool_]:
    """Return which bars exist: late listings, delistings, suspensions of 5 to 9 days, single missing days."""
    row = np.arange(days)[:, None]
    start = np.where(rng.random(n) < 0.04, rng.integers(0, days // 2, n), 0)
    stop = np.where(rng.random(n) < 0.06, rng.integers(days // 4, days, n), days)
    stop = np.where(stop - start < days // 5, days, stop)
    begin = np.where(rng.random(n) < 0.3, rng.integers(0, days, n), days)
    length = rng.integers(5, 10, n)
    suspended = (row >= begin) & (row < begin + length)
    return np.asarray((row >= start) & (row < stop) & ~suspended & (rng.random((days, n)) > 0.002))
