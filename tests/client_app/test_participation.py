"""The silo's own coin: eqs. 23 and 24 with the exact normaliser ``Z``."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_app.participation import probability, score
from tests.client_app.terms import plan_of, terms_of

PLAN = plan_of(terms_of())
POSITIVE = st.floats(1e-6, 1e12)


def test_the_score_is_the_paper_s() -> None:
    assert score(700, 2.0, 4.0, 3.0, 0.5) == pytest.approx(700 / (1 + 0.5 * 2.0) / math.sqrt(1 + 4.0), rel=1e-15)


def test_an_unknown_variance_counts_as_its_bound() -> None:
    assert score(50, 0.0, math.inf, 1.0, 1e9) == score(50, 0.0, 7.0, 1.0, 1e9) == 50 / math.sqrt(2)


@given(
    records=st.integers(1, 2**40),
    drift=st.floats(0, 1e12),
    variance=st.floats(0, math.inf),
    clip=st.floats(1e-3, 1e3),
    beta=st.floats(0, 1e9),
)
def test_a_score_is_positive_and_never_above_its_public_bound(
    records: int, drift: float, variance: float, clip: float, beta: float
) -> None:
    assert 0 < score(records, drift, variance, clip, beta) <= records


@given(drift=st.floats(0, 1e6), more=st.floats(0, 1e6), spread=st.floats(0, 1), wider=st.floats(0, 1))
def test_more_drift_or_variance_never_raises_the_score(drift: float, more: float, spread: float, wider: float) -> None:
    assert score(100, drift + more, spread + wider, 1.0, 0.3) <= score(100, drift, spread, 1.0, 0.3)


@given(own=POSITIVE, total=POSITIVE, cohort=st.floats(1e-3, 1e3), least=st.floats(1e-3, 1.0))
def test_a_probability_lies_between_the_least_and_one(own: float, total: float, cohort: float, least: float) -> None:
    plan = dataclasses.replace(PLAN, score_total=total, cohort=cohort, min_probability=least)
    assert least <= probability(plan, own) <= 1.0


def test_unclipped_probabilities_add_up_to_the_expected_cohort() -> None:
    scores = [
        score(records, drift, math.inf, 1.0, 0.2) for records, drift in ((100, 0.0), (300, 1.0), (250, 5.0), (900, 0.1))
    ]
    plan = dataclasses.replace(PLAN, cohort=1.5, min_probability=0.01, score_total=sum(scores))
    chances = [probability(plan, own) for own in scores]
    assert max(chances) < 1.0
    assert min(chances) > 0.01
    assert sum(chances) == pytest.approx(1.5, rel=1e-12)


def test_equal_weights_in_expectation() -> None:
    # omega_i p_i = N_i for every silo: participation does not reweight the objective.
    sizes = (100, 300, 900)
    scores = [score(n, d, math.inf, 1.0, 0.2) for n, d in zip(sizes, (0.0, 9.0, 1.0), strict=True)]
    plan = dataclasses.replace(PLAN, cohort=1.2, min_probability=0.2, score_total=sum(scores))
    for n, own in zip(sizes, scores, strict=True):
        chance = probability(plan, own)
        assert n / chance * chance == pytest.approx(n)
        assert n / chance <= max(sizes) / plan.min_probability
