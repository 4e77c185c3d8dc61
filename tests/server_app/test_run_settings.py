"""From a configuration to the noise, the terms and the settings of a run."""

import math
from dataclasses import replace
from typing import Any

import dp_accounting
import numpy as np
import pytest

from fcfl_strategy import rounds
from fcfl_strategy.settings import Settings
from privacy.conversion import epsilon_at_order
from privacy.errors import PrivacyError
from privacy.filter import RenyiFilter
from server_app.config import KEYS, RunConfig
from server_app.run_settings import initial_weights, settings_of

RUN = b"i" * 16


def made(**changes: Any) -> Settings:
    return settings_of(RunConfig.from_mapping(changes), RUN)


# q = 1 has no fractional orders to search, so a grid of it is cheap.
GRID = [
    {"dp.sampling-rate": q, "rounds": k, "dp.epsilon": epsilon, "dp.delta": delta, "local.steps": steps}
    for q, steps in ((1.0, 1), (1.0, 4), (0.1, 5))
    for k in (1, 15)
    for epsilon, delta in ((1.0, 1e-5), (4.0, 1e-6))
] + [
    {"dp.schedule": "divergence", "rounds": 8, "dp.sampling-rate": 1.0, "local.steps": 1},
    {"dp.contributions": 3, "rounds": 12, "dp.sampling-rate": 1.0},
    {"dp.schedule": "divergence", "dp.contributions": 3, "rounds": 8, "dp.sampling-rate": 1.0},
]


@pytest.mark.parametrize("changes", GRID, ids=lambda c: ",".join(f"{k.split('.')[-1]}={v}" for k, v in c.items()))
def test_the_planned_contributions_cost_the_target_and_not_more(changes: dict[str, Any]) -> None:
    """The plan is charged to a filter as a run would; epsilon is met to 1e-4 and never passed."""
    settings = made(**changes)
    terms = settings.terms
    spent = RenyiFilter(terms.order, terms.rdp_budget)
    state = rounds.first_state(settings, np.zeros(4, np.float32), {"a": 100, "b": 200})
    planned = [rounds.sigma(settings, replace(state, rounds=k)) for k in range(settings.rounds)]
    for noise in sorted(planned)[: settings.contributions]:
        spent = spent.charge(settings.terms.mechanism(noise, settings.terms.steps, 1).rdp(terms.order))
    assert spent.spent <= terms.rdp_budget
    epsilon = epsilon_at_order(terms.order, spent.spent, terms.delta)
    assert epsilon <= terms.epsilon
    assert epsilon == pytest.approx(terms.epsilon, abs=1e-3)
    assert epsilon_at_order(terms.order, terms.rdp_budget, terms.delta) <= terms.epsilon


def test_the_budget_holds_by_dp_accounting_itself() -> None:
    """The library's own accountant over the whole plan, at the very order of the filter."""
    settings = made(**{"rounds": 6, "local.steps": 3, "dp.sampling-rate": 0.2})
    terms = settings.terms
    accountant = dp_accounting.rdp.RdpAccountant([terms.order], dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    event = dp_accounting.PoissonSampledDpEvent(0.2, dp_accounting.GaussianDpEvent(settings.schedule.sigma_0))
    accountant.compose(dp_accounting.SelfComposedDpEvent(event, 6 * 3))
    assert accountant.get_epsilon(1e-5) <= 1.0
    assert accountant.get_epsilon(1e-5) == pytest.approx(1.0, abs=1e-3)


def test_a_budget_too_small_for_one_round_is_refused_in_one_line() -> None:
    with pytest.raises(PrivacyError, match=r"too small for one round") as caught:
        made(**{"dp.epsilon": 0.001, "dp.sampling-rate": 1.0, "dp.sigma-max": 10.0})
    assert "\n" not in str(caught.value)
    assert "raise epsilon" in str(caught.value)


def test_a_budget_for_fewer_rounds_than_planned_says_how_many_were_asked_for() -> None:
    with pytest.raises(PrivacyError, match=r"too small for 100 contributions"):
        made(**{"dp.epsilon": 1.0, "dp.sampling-rate": 1.0, "dp.sigma-max": 20.0, "rounds": 100})


def test_a_constant_schedule_binds_the_silos_to_its_one_sigma() -> None:
    settings = made(**{"dp.sampling-rate": 1.0})
    sigma = settings.schedule.sigma_0
    assert settings.terms.sigma_min == settings.terms.sigma_max == sigma
    assert (settings.schedule.sigma_min, settings.schedule.sigma_max) == (sigma, sigma)


def test_a_generous_budget_is_not_spent_below_the_least_sigma() -> None:
    settings = made(**{"dp.sampling-rate": 0.01, "dp.epsilon": 500.0, "rounds": 1, "dp.sigma-min": 0.7})
    assert settings.terms.sigma_min == pytest.approx(0.7)


def test_a_divergence_schedule_keeps_the_clamp_of_the_configuration() -> None:
    settings = made(**{"dp.schedule": "divergence", "dp.sampling-rate": 1.0, "dp.sensitivity": 0.4})
    assert (settings.terms.sigma_min, settings.terms.sigma_max) == (0.5, 100.0)
    assert settings.schedule.kind == "divergence"
    assert settings.schedule.sensitivity == 0.4


@pytest.mark.parametrize(("seed", "expected"), [(-1, None), (0, 0), (2**63 - 1, 2**63 - 1)])
def test_a_noise_seed_is_in_the_terms_only_if_there_is_one(seed: int, expected: int | None) -> None:
    terms = made(**{"noise-seed": seed, "dp.sampling-rate": 1.0}).terms
    assert terms.noise_seed == expected
    assert type(terms).from_bytes(terms.to_bytes()) == terms


def test_every_setting_of_the_configuration_reaches_the_run() -> None:
    """Each non-default value shows up somewhere in the settings, so no key is read and forgotten."""
    changes: dict[str, Any] = {
        "silos": 33,
        "rounds": 17,
        "noise-seed": 987,
        "dp.epsilon": 1.0625,
        "dp.delta": 1.1e-5,
        "dp.sampling-rate": 0.11,
        "dp.clip-norm": 1.3,
        "dp.contributions": 16,
        "dp.accountant": "paper",
        "dp.variance-scale": 0.26,
        "dp.scaling-share": 0.05,
        "local.backtracks": 7,
        "local.loss-bound": 0.17,
        "eval.epsilon": 0.77,
        "eval.loss-bound": 0.0036,
        "eval.every": 2,
        "dp.schedule": "divergence",
        "dp.sensitivity": 0.77,
        "dp.sigma-min": 0.51,
        "dp.sigma-max": 99.5,
        "local.steps": 6,
        "local.step-size": 0.55,
        "local.drift-budget": 4.4,
        "local.step-decay": 0.15,
        "local.proximal-constant": 0.043,
        "drift.gain-rule": "signal-to-noise",
        "server.averaging": 0.81,
        "local.proximal": 0.123,
        "local.proximal-max": 10.5,
        "drift.smoothing": 0.35,
        "drift.gain": 0.56,
        "metric.exponents": "4 0 -3",
        "metric.damping": 2.25,
        "server.momentum": 0.57,
        "server.second-moment": 0.991,
        "server.step-size": 1.01,
        "server.lookahead": 0.31,
        "server.interpolation": 0.91,
        "server.bias-correction": False,
        "server.preconditioner": "none",
        "server.noise-corrected": True,
        "server.jitter": 1.5e-8,
        "server.trust-region": 0.66,
        "server.shrinkage": True,
        "participation.cohort": 10.25,
        "participation.min-probability": 0.12,
        "participation.drift-penalty": 0.13,
        "secagg.colluders": 2,
        "secagg.graph": "auto",
        "secagg.dropout": 0.06,
        "secagg.corruption": 0.07,
        "secagg.active": False,
        "eval.final": False,
        "deadline.enrol": 181.0,
        "deadline.train": 601.0,
        "deadline.unmask": 121.0,
        "deadline.poll": 0.21,
        "max-abandoned": 4,
    }
    left = {
        "run-dir",
        "resume",
        "simulation-root",
        "roster-file",
        "model-seed",
        "dp.unit",
        "dp.neighbour",
        "eval.metrics",
        "method",
        "local.normalise",
        "participation.scores",
        "local.adaptive-step",
        "adaptive.step-size",
        "adaptive.tau",
        "mime.gradient-share",
    }
    assert set(changes) | left == set(KEYS)
    text = repr(made(**changes))
    assert made(**changes).terms.metric.exponents == (4, 0, -3)
    del changes["dp.scaling-share"], changes["metric.exponents"]
    assert made(**{**changes, "dp.scaling-share": 0.05}).terms.scaling_noise > 0
    for name, value in changes.items():
        assert repr(value) in text, name


def test_the_model_starts_from_its_public_seed_at_the_zero_forecast() -> None:
    first = initial_weights(RunConfig.from_mapping({}))
    assert first.dtype == np.float32
    assert first.size == 121_281
    np.testing.assert_array_equal(first, initial_weights(RunConfig.from_mapping({"noise-seed": 5})))
    assert (first != initial_weights(RunConfig.from_mapping({"model-seed": 2026}))).any()
    assert not first[-321:].any()
    assert math.isfinite(float(np.abs(first).sum()))
