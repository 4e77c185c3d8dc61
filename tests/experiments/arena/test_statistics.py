"""Hedges' g and its interval against other computations of them."""

import math
from statistics import fmean, stdev

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from experiments.arena.statistics import hedges_g

ONE, OTHER = (1.0, 2.0, 4.0), (3.0, 3.5, 5.0)


def test_g_is_the_corrected_standardised_difference() -> None:
    effect = hedges_g(ONE, OTHER)
    assert effect is not None
    d = (fmean(ONE) - fmean(OTHER)) / math.sqrt((stdev(ONE) ** 2 + stdev(OTHER) ** 2) / 2)
    assert effect.g == pytest.approx(d * math.gamma(2) / (math.sqrt(2) * math.gamma(1.5)), rel=1e-12)
    assert effect.g == pytest.approx(d * (1 - 3 / (4 * 4 - 1)), rel=0.01)


@pytest.mark.parametrize(("ones", "others"), [(ONE, OTHER), (ONE + ONE, OTHER), (ONE[:2], OTHER[:2]), (ONE, ONE)])
def test_interval_inverts_the_noncentral_t_distribution(ones: tuple[float, ...], others: tuple[float, ...]) -> None:
    effect = hedges_g(ones, others)
    assert effect is not None
    freedom = len(ones) + len(others) - 2
    scale = math.sqrt(len(ones) * len(others) / (len(ones) + len(others)))
    correction = math.gamma(freedom / 2) / (math.sqrt(freedom / 2) * math.gamma((freedom - 1) / 2))
    statistic = stats.ttest_ind(ones, others).statistic
    for bound, probability in ((effect.low, 0.975), (effect.high, 0.025)):
        assert stats.nct.cdf(statistic, freedom, bound / correction * scale) == pytest.approx(probability, abs=2e-5)


def test_interval_covers_the_truth_as_often_as_it_says() -> None:
    rng, truth, covered, times = np.random.default_rng(0), 1.0, 0, 60
    correction = math.gamma(2) / (math.sqrt(2) * math.gamma(1.5))
    for _ in range(times):
        effect = hedges_g((rng.normal(size=3) + truth).tolist(), rng.normal(size=3).tolist())
        assert effect is not None
        covered += effect.low <= truth * correction <= effect.high
    # Five standard deviations of a binomial.
    assert abs(covered / times - 0.95) < 5 * math.sqrt(0.95 * 0.05 / times)


@settings(max_examples=20)
@given(st.lists(st.integers(-50, 50), min_size=3, max_size=3), st.lists(st.integers(-50, 50), min_size=3, max_size=3))
def test_changing_sides_changes_the_sign(ones: list[int], others: list[int]) -> None:
    one, other = hedges_g(ones, others), hedges_g(others, ones)
    if one is None or other is None:
        assert len(set(ones)) == len(set(others)) == 1
        return
    assert (one.g, one.low, one.high) == pytest.approx((-other.g, -other.high, -other.low), rel=1e-6, abs=1e-6)
    assert one.low <= one.g <= one.high or abs(one.g) > 5


def test_nothing_is_said_of_too_few_values_or_of_values_that_do_not_vary() -> None:
    assert hedges_g((1.0,), (2.0, 3.0)) is None
    assert hedges_g((1.0, 1.0), (2.0, 2.0)) is None
