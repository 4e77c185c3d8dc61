import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from scipy import stats

from privacy import metrics, scaling
from privacy.accounting import epsilon_rdp, rdp_at
from privacy.calibration import calibrate
from privacy.errors import PrivacyError
from privacy.ledger import Ledger, verify
from privacy.plan import MechanismPlan
from privacy.randomness import RandomStream
from privacy.records import Release, RunOpened
from privacy.scaling import (
    SCALING,
    FeatureScale,
    contributions,
    feature_scale,
    largest_norm,
    private_moments,
    sums_stddev,
)
from tests.privacy.signed import KEY

BOUND, RECORDS, WIDTH = 3.0, 400, 7
HOSTILE = [0.0, 3.0, -3.0, 1e30, -1e300, 1e-300, math.nan, math.inf, -math.inf]
Array = np.ndarray[Any, np.dtype[np.float64]]


class Quiet(RandomStream):
    def rounded_normal(self, n: int, scale: float) -> Array:
        return np.zeros(n)


def records(seed: int = 0, n: int = RECORDS) -> np.ndarray[Any, np.dtype[np.float32]]:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n, WIDTH)) * np.linspace(0.3, 1.2, WIDTH) + np.linspace(-0.8, 0.8, WIDTH)
    return np.clip(rows, -BOUND, BOUND).astype(np.float32)


def plan(clip: float = 2.0, sigma: float = 3.0, q: float = 1.0) -> MechanismPlan:
    return MechanismPlan(q, clip, sigma, 1, RECORDS)


def sums(rows: Any, of: MechanismPlan) -> Array:
    return private_moments(rows, of, Quiet.seeded(0), BOUND)


@pytest.mark.parametrize("clip", [0.3, 2.0, largest_norm(WIDTH)])
@pytest.mark.parametrize("value", HOSTILE)
def test_one_record_moves_the_released_sums_by_the_clip_at_most(clip: float, value: float) -> None:
    of, rows = plan(clip), records()
    grid = of.grid(2 * WIDTH, RECORDS)
    slack = math.sqrt(2 * WIDTH) * grid.step  # what rounding may add, and the noise covers
    for victim, columns in ((0, slice(None)), (17, slice(0, 1)), (RECORDS - 1, slice(2, 5))):
        null, moved = rows.copy(), rows.astype(np.float64)
        null[victim] = 0.0
        moved[victim, columns] = value
        without, before, after = sums(null, of), sums(rows, of), sums(moved, of)
        assert np.linalg.norm(after - without) <= clip + slack
        assert np.linalg.norm(before - without) <= clip + slack
        assert np.linalg.norm(after - before) <= 2 * (clip + slack)
        if not math.isfinite(value):
            np.testing.assert_array_equal(after, without)
    assert grid.noise_stddev >= of.noise_multiplier * (clip + slack)


@given(
    row=npst.arrays(np.float64, (1, 5), elements=st.floats(allow_nan=True, allow_infinity=True)),
    clip=st.floats(1e-6, 1e3),
    bound=st.floats(1e-3, 1e3),
)
def test_no_record_of_any_kind_is_longer_than_the_clip(row: Any, clip: float, bound: float) -> None:
    vector = contributions(row, bound, clip)
    assert np.isfinite(vector).all()
    assert np.linalg.norm(vector) <= clip
    assert np.linalg.norm(contributions(row, bound, largest_norm(5) + 1e-9)) <= largest_norm(5) * (1 + 1e-12)


def test_a_record_at_a_corner_reaches_the_largest_norm() -> None:
    corner = np.full((1, WIDTH), -BOUND)
    reached = np.linalg.norm(contributions(corner, BOUND, 100.0))
    assert reached == pytest.approx(largest_norm(WIDTH)) == math.sqrt(2 * WIDTH)


def test_a_record_does_not_touch_the_rounding_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    of, rows = plan(), records()
    step = of.grid(2 * WIDTH, RECORDS).step
    each = np.rint(contributions(rows, BOUND, of.clip_norm) / step).sum(axis=0)
    np.testing.assert_array_equal(sums(rows, of), each * step)
    monkeypatch.setattr(metrics, "_CHUNK", 7)
    np.testing.assert_array_equal(sums(rows, of), each * step)


def test_the_noise_is_that_of_the_plan_and_on_the_grid() -> None:
    of, rows = plan(q=0.5), np.zeros((RECORDS, WIDTH), np.float32)
    released = np.concatenate([private_moments(rows, of, RandomStream.seeded(k), BOUND) for k in range(300)])
    expected = sums_stddev(of, WIDTH, RECORDS)
    assert stats.kstest(released / expected, "norm").pvalue > 1e-3
    assert expected == pytest.approx(of.noise_stddev / 0.5, rel=1e-3)
    steps = released * 0.5 / of.grid(2 * WIDTH, RECORDS).step
    np.testing.assert_allclose(steps, np.rint(steps), rtol=0, atol=1e-6)


@pytest.mark.parametrize("q", [1.0, 0.3])
def test_the_sums_are_unbiased_where_nothing_is_clipped(q: float) -> None:
    of, rows = plan(largest_norm(WIDTH), 0.5, q), records(3)
    unit = rows.astype(np.float64) / BOUND
    truth = np.concatenate([unit.sum(0), (unit**2).sum(0)])
    found = np.array([private_moments(rows, of, RandomStream.seeded(5, k), BOUND) for k in range(400)])
    assert (np.abs(found.mean(0) - truth) < 5 * found.std(0) / math.sqrt(len(found))).all()


def test_several_silos_give_the_moments_of_their_pooled_records() -> None:
    silos = [records(seed, n) for seed, n in ((1, 900), (2, 500), (3, 700))]
    of = [MechanismPlan(1.0, largest_norm(WIDTH), 1e-3, 1, len(rows)) for rows in silos]
    pairs = list(zip(silos, of, strict=True))
    total = sum(private_moments(rows, p, RandomStream.seeded(1, i), BOUND) for i, (rows, p) in enumerate(pairs))
    noise = math.sqrt(sum(sums_stddev(p, WIDTH, len(rows)) ** 2 for rows, p in pairs))
    pooled = np.concatenate(silos).astype(np.float64)
    found = feature_scale(np.asarray(total), len(pooled), noise, BOUND)
    np.testing.assert_allclose(found.mean, pooled.mean(0), atol=1e-4)
    np.testing.assert_allclose(found.scale, pooled.std(0), atol=1e-3)
    expected = np.clip((pooled - pooled.mean(0)) / pooled.std(0), -4, 4)
    np.testing.assert_allclose(found.apply(pooled), expected, atol=1e-2)


def test_the_variance_is_unbiased_under_noise() -> None:
    rows, of = records(4), plan(largest_norm(WIDTH), 1.0)
    noise = sums_stddev(of, WIDTH, RECORDS)

    def variances(seed: int) -> Array:
        released = private_moments(rows, of, RandomStream.seeded(9, seed), BOUND)
        return np.square(feature_scale(released, RECORDS, noise, BOUND).scale)

    found = np.array([variances(seed) for seed in range(600)])
    truth = rows.astype(np.float64).var(0)
    clear = truth > 0.5  # the floor at twice the noise does not bind
    assert clear.sum() >= 3
    off = np.abs(found.mean(0) - truth)[clear]
    assert (off < 5 * found.std(0)[clear] / math.sqrt(len(found))).all()


@given(
    vector=npst.arrays(np.float64, 10, elements=st.floats(allow_nan=False, allow_infinity=False)),
    count=st.integers(1, 2**40),
    noise=st.floats(0, 1e12),
)
def test_any_finite_sums_give_a_scale_within_the_public_ranges(vector: Array, count: int, noise: float) -> None:
    found = feature_scale(vector, count, noise, BOUND)
    assert (np.abs(found.mean) <= BOUND).all()
    assert (np.array(found.scale) >= scaling.FLOOR * (1 - 1e-12)).all()
    assert (np.array(found.scale) <= BOUND).all()
    rows = found.apply(np.array([[math.inf, -math.inf, 1e300, 0.0, -2.5]]))
    assert (np.abs(rows) <= found.limit).all()


def test_a_constant_feature_is_not_blown_up() -> None:
    rows = np.zeros((RECORDS, WIDTH), np.float32)
    assert feature_scale(sums(rows, plan()), RECORDS, 0.0, BOUND).scale == pytest.approx([scaling.FLOOR] * WIDTH)
    of = plan(sigma=20.0)
    noise = sums_stddev(of, WIDTH, RECORDS)
    worst = 0.0
    for seed in range(50):
        found = feature_scale(private_moments(rows, of, RandomStream.seeded(seed), BOUND), RECORDS, noise, BOUND)
        worst = max(worst, float(np.abs(found.apply(rows)).max()))
    assert worst < 1.5, "the noise of the mean, in deviations"


def test_a_row_is_scaled_the_same_in_any_company() -> None:
    rows = records(6)
    rows[3, 2] = np.nan
    found = feature_scale(sums(records(), plan()), RECORDS, 1.0, BOUND)
    together = found.apply(rows)
    assert together.dtype == np.float32
    np.testing.assert_array_equal(together, np.concatenate([found.apply(row[None]) for row in rows]))
    assert np.isnan(together[3]).sum() == 1
    np.testing.assert_array_equal(FeatureScale.public(WIDTH, BOUND).apply(rows), rows)


@pytest.mark.parametrize("sigma", [0.8, 5.0, 12.885])
def test_the_cost_is_that_of_dp_accounting_for_the_gaussian_mechanism(sigma: float) -> None:
    import dp_accounting

    accountant = dp_accounting.rdp.RdpAccountant(None, dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    accountant.compose(dp_accounting.GaussianDpEvent(sigma))
    assert epsilon_rdp(1.0, sigma, 1, 1e-5) == pytest.approx(accountant.get_epsilon(1e-5), rel=0.02)
    assert plan(sigma=sigma).rdp(16.0) == pytest.approx(16 / (2 * sigma**2))


@pytest.mark.parametrize("epsilon", [0.05, 0.2, 1.0])
def test_the_full_data_are_the_cheapest_sample(epsilon: float) -> None:
    noise = [calibrate(epsilon, 1e-5, q, 1, 1, sigma_min=0.1).noise_multiplier / q for q in (1.0, 0.5, 0.1, 0.02)]
    assert noise == sorted(noise), "sigma / q, the noise of the estimated sum, at equal epsilon"


def test_scaling_is_one_row_of_the_ledger_and_uses_the_budget_of_the_run(tmp_path: Path) -> None:
    files = tmp_path / "l", tmp_path / "a"
    opened = RunOpened("run-1", 2.0, 1e-5, 9.0, 0.5, "fcfl")
    training = MechanismPlan(0.1, 1.0, 4.0, 5, RECORDS)
    current = opened.filter()
    with Ledger.create(*files, signer=KEY) as ledger:
        ledger.append(opened.KIND, opened.body())
        for epoch, (of, purpose) in enumerate([(plan(sigma=12.0), SCALING), (training, "training")]):
            entry, current = Release.charge("run-1", epoch, of, current, purpose)
            ledger.append(entry.KIND, entry.body())
    (run,) = verify(*files).runs
    assert run.releases == 2
    assert run.rdp_spent == pytest.approx(rdp_at(1.0, 12.0, 1, 9.0) + rdp_at(0.1, 4.0, 5, 9.0))


def test_what_is_not_one_release_or_not_a_scale_is_refused() -> None:
    for bad in (dataclasses.replace(plan(), steps=2), dataclasses.replace(plan(), variance_scale=0.25)):
        with pytest.raises(PrivacyError, match="steps"):
            sums(records(), bad)
    with pytest.raises(PrivacyError, match="matrix"):
        sums(np.zeros(5), plan())
    with pytest.raises(PrivacyError, match="bound"):
        private_moments(records(), plan(), Quiet.seeded(0), math.inf)
    for vector in (np.array([0.1, math.nan]), np.zeros(3), np.zeros((2, 2))):
        with pytest.raises(PrivacyError, match="sums"):
            feature_scale(vector, 10, 1.0, BOUND)
    for records_, noise, floor in ((0, 1.0, 0.1), (10, math.nan, 0.1), (10, -1.0, 0.1), (10, 1.0, 0.0)):
        with pytest.raises(PrivacyError):
            feature_scale(np.zeros(4), records_, noise, BOUND, floor)
    for mean, scale in (((0.0,), (0.0,)), ((math.nan,), (1.0,)), ((0.0, 0.0), (1.0,)), ((), ())):
        with pytest.raises(PrivacyError):
            FeatureScale(mean, scale, BOUND)
    with pytest.raises(PrivacyError, match="7 values"):
        FeatureScale.public(WIDTH, BOUND).apply(np.zeros((2, 6)))


def test_an_empty_sample_is_pure_noise() -> None:
    empty = np.zeros((0, WIDTH), np.float32)
    assert np.abs(private_moments(empty, plan(), RandomStream.seeded(0), BOUND)).max() > 0
