"""Errata E11: the ratio of two Horvitz-Thompson sums is biased, and less so the more silos contribute."""

import math

import numpy as np
import pytest

from client_app.participation import probability, score
from fcfl_strategy import rounds
from tests.fcfl_strategy.made import make_settings, make_state, make_terms

RNG = np.random.default_rng(11)
SILOS = 60
COUNTS = np.round(np.exp(RNG.normal(7.0, 1.0, SILOS))).astype(int)
# An update that goes with the size of the silo, so that a bias can show.
UPDATES = np.log(COUNTS) - 5.0
TARGET = float(COUNTS @ UPDATES / COUNTS.sum())


def probabilities(cohort: float) -> np.ndarray:
    """The silos' own coins, from the plan and their scores as the code computes both."""
    made = make_settings(make_terms(cohort=cohort, min_probability=0.001))
    records = {f"silo-{i:02d}": int(n) for i, n in enumerate(COUNTS)}
    plan = rounds.plan_training(made, rounds.first_state(made, np.zeros(2, np.float32), records), records)
    # Large, steady silos are preferred (eq. 23): a drift that falls with the size.
    drifts = 4000.0 / COUNTS
    own = [score(int(n), d, math.inf, plan.clip_norm, 0.5) for n, d in zip(COUNTS, drifts, strict=True)]
    return np.array([probability(plan, s) for s in own])


def estimates(cohort: float, trials: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """u = sum omega Delta / sum omega with omega = n / p over the contributors; and their mean number."""
    chance = probabilities(cohort)
    heads = np.random.default_rng(seed).random((trials, SILOS)) < chance
    weights = heads * (COUNTS / chance)
    total = weights.sum(axis=1)
    some = total > 0
    return (weights @ UPDATES)[some] / total[some], heads.sum(axis=1)[some]


def test_the_bias_of_the_weighted_mean_shrinks_with_the_number_of_contributors() -> None:
    biases = {}
    for cohort in (2.0, 8.0, 32.0):
        found, contributors = estimates(cohort, 60_000, 5)
        error = found.std() / np.sqrt(len(found))
        biases[cohort] = abs(found.mean() - TARGET)
        assert contributors.mean() <= cohort + 1
        assert error < 0.01
    assert biases[2.0] > 1.5 * biases[8.0] > 3 * biases[32.0]
    assert biases[2.0] > 0.05


def test_each_of_the_two_sums_is_unbiased() -> None:
    chance = probabilities(8.0)
    heads = np.random.default_rng(6).random((60_000, SILOS)) < chance
    weights = heads * (COUNTS / chance)
    assert weights.sum(axis=1).mean() == pytest.approx(COUNTS.sum(), rel=0.02)
    assert (weights @ UPDATES).mean() == pytest.approx(COUNTS @ UPDATES, rel=0.02)


def test_unweighted_participation_is_biased_however_many_contribute() -> None:
    """What the weights are for: with n_i alone the preferred silos count too much."""
    chance = probabilities(32.0)
    heads = np.random.default_rng(7).random((20_000, SILOS)) < chance
    weights = heads * COUNTS
    some = weights.sum(axis=1) > 0
    plain = ((weights @ UPDATES)[some] / weights.sum(axis=1)[some]).mean()
    weighted = estimates(32.0, 20_000, 7)[0].mean()
    assert abs(plain - TARGET) > 5 * abs(weighted - TARGET)


def test_a_probability_is_clipped_to_its_least_and_to_one() -> None:
    made = make_settings(make_terms(min_probability=0.2, cohort=2.0))
    plan = rounds.plan_training(made, make_state(made), {"silo-a": 10, "silo-b": 10, "silo-c": 10})
    assert probability(plan, 0.0) == 0.2
    assert probability(plan, plan.score_total) == 1.0
    assert probability(plan, plan.score_total / 4) == pytest.approx(0.5)
