"""Features use no future, have no scale, a known memory, and public ranges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_prep.bars import Bars
from data_prep.calendar import Aligned, align
from data_prep.features.compute import build_context, compute_features, warm_rows
from data_prep.features.table import FEATURES, MEMORY_ROWS, N_FEATURES, markdown_table
from data_prep.readers.factors import FACTORS, DailyFactors
from data_prep.readers.factors import PUBLICATION_LAG_DAYS as FACTOR_LAG_DAYS
from data_prep.readers.macro import SERIES, MonthlySeries

DOCS = Path(__file__).resolve().parents[2] / "docs" / "features.md"
OWN = [i for i, feature in enumerate(FEATURES) if feature.window]
SHARED = [i for i, feature in enumerate(FEATURES) if feature.values]


def public_series(seed: int) -> tuple[dict[str, MonthlySeries], DailyFactors]:
    rng = np.random.default_rng(seed)
    months = np.arange(np.datetime64("2017-01"), np.datetime64("2022-06"))
    macro = {
        # Levels at which no feature is clipped throughout.
        name: MonthlySeries(name, months, level * np.exp(np.cumsum(rng.normal(0, 0.02, len(months)))))
        for name, level in zip(SERIES, (2.0, 100.0, 5.0, 250.0), strict=True)
    }
    days = np.arange(np.datetime64("2019-01-01"), np.datetime64("2022-06-01"))
    days = days[np.is_busday(days)]
    return macro, DailyFactors(days, {name: rng.normal(0, 0.01, len(days)) for name in FACTORS})


def features(bars: Bars, macro: dict[str, MonthlySeries], factors: DailyFactors) -> np.ndarray:
    aligned = align(bars, bars.dates, limit=3)
    assert aligned is not None
    return compute_features(aligned, build_context(bars.dates, macro=macro, factors=factors))


def changed(bars: Bars, rows: slice, rng: np.random.Generator) -> Bars:
    """Replace bars by wild ones: prices jump by factors up to e, volumes may vanish."""
    columns = {name: getattr(bars, name).copy() for name in ("open", "high", "low", "close", "volume")}
    n = len(bars.close[rows])
    level = columns["close"][rows] * np.exp(rng.uniform(-1, 1, n))
    columns["close"][rows] = level
    columns["open"][rows] = level * np.exp(rng.normal(0, 0.03, n))
    columns["high"][rows] = np.maximum(columns["open"][rows], level) * np.exp(np.abs(rng.normal(0, 0.02, n)))
    columns["low"][rows] = np.minimum(columns["open"][rows], level) * np.exp(-np.abs(rng.normal(0, 0.02, n)))
    columns["volume"][rows] = columns["volume"][rows] * rng.choice([0.0, 0.1, 30.0], n)
    return replace(bars, **columns)


def test_there_are_52_features_with_distinct_names() -> None:
    assert N_FEATURES == 52
    assert len({feature.name for feature in FEATURES}) == 52


def test_the_documented_table_is_the_one_in_the_code() -> None:
    assert markdown_table() in DOCS.read_text(encoding="utf-8"), (
        "docs/features.md is out of date; paste the output of data_prep.features.markdown_table() into it"
    )


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32 - 1), day=st.integers(MEMORY_ROWS, 398))
def test_nothing_after_the_close_of_a_day_moves_its_features(
    make_bars: Callable[..., Bars], seed: int, day: int
) -> None:
    rng = np.random.default_rng(seed)
    bars = make_bars(seed % 1000)
    macro, factors = public_series(seed % 1000)
    before = features(bars, macro, factors)
    cut = bars.dates[day]
    later_macro = {
        name: replace(s, values=np.where(s.available > cut, s.values * rng.uniform(0.5, 2, len(s.values)), s.values))
        for name, s in macro.items()
    }
    unseen = published(factors) > cut
    later_factors = replace(
        factors, returns={n: np.where(unseen, rng.normal(0, 0.1, len(r)), r) for n, r in factors.returns.items()}
    )
    after = features(changed(bars, slice(day + 1, None), rng), later_macro, later_factors)
    np.testing.assert_array_equal(before[: day + 1], after[: day + 1])
    assert not np.array_equal(before[day + 1 :], after[day + 1 :])


def published(factors: DailyFactors) -> np.ndarray:
    return factors.dates + np.timedelta64(FACTOR_LAG_DAYS, "D")


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32 - 1), day=st.integers(MEMORY_ROWS, 398))
def test_values_not_yet_published_may_be_missing_or_more_and_move_nothing(
    make_bars: Callable[..., Bars], seed: int, day: int
) -> None:
    """What a file downloaded on the day would hold gives the features that the whole file gives for that day."""
    rng = np.random.default_rng(seed)
    bars = make_bars(seed % 1000)
    macro, factors = public_series(seed % 1000)
    cut = bars.dates[day]
    known = {
        name: MonthlySeries(name, s.months[s.available <= cut], s.values[s.available <= cut])
        for name, s in macro.items()
    }
    kept = (published(factors) <= cut) | (rng.random(len(factors.dates)) < 0.5)
    fewer = DailyFactors(factors.dates[kept], {n: r[kept] for n, r in factors.returns.items()})
    np.testing.assert_array_equal(features(bars, known, fewer)[: day + 1], features(bars, macro, factors)[: day + 1])


@pytest.mark.parametrize("number", range(N_FEATURES), ids=[feature.name for feature in FEATURES])
def test_each_feature_depends_on_its_sources_and_on_no_other(make_bars: Callable[..., Bars], number: int) -> None:
    feature = FEATURES[number]
    sources = set(feature.source.split(", "))
    bars = make_bars(5, n=260)
    macro, factors = public_series(5)
    before = features(bars, macro, factors)[-40:, number]
    rng = np.random.default_rng(number)
    for name in ("open", "high", "low", "close", "volume"):
        factor = np.exp(rng.normal(0.0, 0.01, len(bars.close)))
        other = features(replace(bars, **{name: getattr(bars, name) * factor}), macro, factors)[-40:, number]
        assert np.array_equal(before, other) == (name not in sources), name
    for name in SERIES:
        moved = replace(macro[name], values=macro[name].values * np.exp(rng.normal(0.0, 0.01, len(macro[name].values))))
        other = features(bars, {**macro, name: moved}, factors)[-40:, number]
        assert np.array_equal(before, other) == (name not in sources), name
    for name in FACTORS:
        moved_returns = {**factors.returns, name: factors.returns[name] + 0.001}
        other = features(bars, macro, replace(factors, returns=moved_returns))[-40:, number]
        assert np.array_equal(before, other) == (name not in sources), name
    assert (sources == {"date"}) == (feature.group == "calendar")


@pytest.mark.parametrize("number", SHARED, ids=[FEATURES[i].name for i in SHARED])
def test_features_of_public_series_begin_with_the_stated_number_of_values_once_published(number: int) -> None:
    feature = FEATURES[number]
    days = np.arange(np.datetime64("2018-01-01"), np.datetime64("2022-01-01"))
    macro, factors = public_series(2)
    months = np.arange(np.datetime64("2019-03"), np.datetime64("2022-01"))
    late = {
        name: MonthlySeries(name, months, macro[name].values[: len(months)] * (1 + np.arange(len(months)) / 99))
        for name in SERIES
    }
    after = factors.dates >= np.datetime64("2019-05-01")
    late_factors = DailyFactors(factors.dates[after], {n: r[after] for n, r in factors.returns.items()})
    context = build_context(days, macro=late, factors=late_factors)
    column = context.values[:, [i for i, f in enumerate(FEATURES) if f.window == 0].index(number)]
    first = days[np.flatnonzero(column)[0]]
    if feature.group == "macro":
        assert first == late[feature.source].available[feature.values - 1]
    else:
        assert first == published(late_factors)[feature.values - 1]


@pytest.mark.parametrize("seed", range(5))
def test_bars_that_go_missing_later_do_not_move_earlier_features(make_bars: Callable[..., Bars], seed: int) -> None:
    bars = make_bars(seed)
    macro, factors = public_series(seed)
    rng = np.random.default_rng(seed)
    day = int(rng.integers(MEMORY_ROWS, 380))
    later = np.arange(day + 1, 400)
    keep = np.r_[np.arange(day + 1), later[rng.random(len(later)) < 0.5]]
    columns = ("dates", "open", "high", "low", "close", "volume")
    gappy = align(replace(bars, **{name: getattr(bars, name)[keep] for name in columns}), bars.dates, limit=3)
    assert gappy is not None
    context = build_context(bars.dates, macro=macro, factors=factors)
    np.testing.assert_allclose(
        compute_features(gappy, context)[: day + 1], features(bars, macro, factors)[: day + 1], rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("day", [MEMORY_ROWS, 250, 399])
def test_features_do_not_change_when_the_series_is_cut_after_the_day(make_bars: Callable[..., Bars], day: int) -> None:
    bars = make_bars(3)
    macro, factors = public_series(3)
    columns = ("dates", "open", "high", "low", "close", "volume")
    short = replace(bars, **{name: getattr(bars, name)[: day + 1] for name in columns})
    np.testing.assert_allclose(
        features(short, macro, factors)[day], features(bars, macro, factors)[day], rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("number", OWN, ids=[FEATURES[i].name for i in OWN])
def test_each_feature_remembers_exactly_its_window(make_bars: Callable[..., Bars], number: int) -> None:
    window = FEATURES[number].window
    assert FEATURES[number].warm_up == f"{window - 1} days"
    macro, factors = public_series(1)
    bars = make_bars(11)
    day = 399
    reference = features(bars, macro, factors)[day, number]
    rng = np.random.default_rng(0)
    older = changed(bars, slice(0, day + 1 - window), rng)
    assert features(older, macro, factors)[day, number] == pytest.approx(reference, abs=2e-5)
    moved = [features(changed(bars, slice(0, day + 2 - window), rng), macro, factors)[day, number] for _ in range(12)]
    assert any(abs(value - reference) > 1e-7 for value in moved)


@pytest.mark.parametrize(("price", "lot"), [(1000.0, 7.0), (7.0, 3.0), (1e-11, 1e-9), (1e6, 1e-3)])
def test_features_do_not_depend_on_currency_or_lot_size(
    make_bars: Callable[..., Bars], price: float, lot: float
) -> None:
    bars = make_bars(4)
    macro, factors = public_series(4)
    scaled = replace(
        bars,
        **{name: getattr(bars, name) * price for name in ("open", "high", "low", "close")},
        volume=bars.volume * lot,
    )
    np.testing.assert_allclose(
        features(scaled, macro, factors), features(bars, macro, factors), rtol=0, atol=1e-5, equal_nan=True
    )


def test_features_are_finite_and_within_their_public_range(make_bars: Callable[..., Bars]) -> None:
    macro, factors = public_series(5)
    wild = changed(make_bars(5), slice(150, 300), np.random.default_rng(1))
    aligned = align(wild, wild.dates, limit=3)
    assert aligned is not None
    x = features(wild, macro, factors)[warm_rows(aligned)]
    assert len(x) == 400 - MEMORY_ROWS + 1
    assert np.isfinite(x).all()
    assert (np.abs(x) <= np.array([feature.clip for feature in FEATURES], dtype=np.float32)).all()


def test_features_of_ordinary_bars_have_about_unit_size(make_bars: Callable[..., Bars]) -> None:
    macro, factors = public_series(6)
    x = np.concatenate([features(make_bars(seed), macro, factors)[MEMORY_ROWS - 1 :] for seed in range(20)])[:, OWN]
    assert (np.abs(x.mean(axis=0)) < 1.6).all()
    assert (x.std(axis=0) < 1.6).all()
    assert (x.std(axis=0) > 0.25).all()


def test_a_flat_price_gives_finite_neutral_technicals(make_bars: Callable[..., Bars]) -> None:
    bars = make_bars(7)
    flat = np.full(len(bars.close), 12.3)
    flat_bars = replace(bars, open=flat, high=flat, low=flat, close=flat)
    macro, factors = public_series(7)
    x = features(flat_bars, macro, factors)[MEMORY_ROWS - 1 :]
    technical = [i for i, feature in enumerate(FEATURES) if feature.group == "technical"]
    assert np.isfinite(x).all()
    assert (x[:, technical] == 0.0).all()


def test_missing_volume_makes_volume_features_neutral_and_no_other(make_bars: Callable[..., Bars]) -> None:
    bars = make_bars(8)
    macro, factors = public_series(8)
    x = features(replace(bars, volume=np.full(400, np.nan)), macro, factors)[MEMORY_ROWS - 1 :]
    volume = [i for i, feature in enumerate(FEATURES) if feature.group == "volume"]
    rest = [i for i, feature in enumerate(FEATURES) if feature.group != "volume"]
    assert (x[:, volume] == 0.0).all()
    np.testing.assert_array_equal(x[:, rest], features(bars, macro, factors)[MEMORY_ROWS - 1 :, rest])


def test_groups_without_files_are_zero_and_named(make_bars: Callable[..., Bars]) -> None:
    bars = make_bars(9)
    context = build_context(bars.dates)
    aligned = align(bars, bars.dates, limit=3)
    assert aligned is not None
    shared = [i for i, feature in enumerate(FEATURES) if feature.group in ("macro", "factors")]
    assert context.neutral_groups == ("macro", "factors")
    assert (compute_features(aligned, context)[:, shared] == 0.0).all()


def test_stale_public_series_become_neutral_and_are_counted(make_bars: Callable[..., Bars]) -> None:
    bars = make_bars(10, start="2022-01-03")
    macro, factors = public_series(10)
    context = build_context(bars.dates, macro=macro, factors=factors)
    shared_groups = [feature.group for feature in FEATURES if feature.window == 0]
    last = context.values[-1]
    assert all(last[i] == 0.0 for i, group in enumerate(shared_groups) if group in ("macro", "factors"))
    assert 0 < context.neutral_days["macro"] < len(bars.dates)
    assert 0 < context.neutral_days["factors"] < len(bars.dates)


def test_rows_before_a_full_memory_are_the_warm_up(
    make_bars: Callable[..., Bars], make_aligned: Callable[[Bars], Aligned]
) -> None:
    aligned = make_aligned(make_bars(12))
    np.testing.assert_array_equal(np.flatnonzero(~warm_rows(aligned)), np.arange(MEMORY_ROWS - 1))
