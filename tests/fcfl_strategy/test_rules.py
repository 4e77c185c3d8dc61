"""The baselines' server steps against their formulas, and what every rule promises."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fcfl_strategy import iterate_average
from fcfl_strategy.adaptive import Adaptive
from fcfl_strategy.fedavg import Averaging
from fcfl_strategy.mime import Mime
from fcfl_strategy.schedule import step_size
from fcfl_strategy.server_rule import ServerRule
from fcfl_strategy.server_update import ServerUpdate

RULES: dict[str, ServerRule] = {
    "fcfl": ServerUpdate(),
    "fedavg": Averaging(),
    "fedavgm": Averaging(0.5, 0.9),
    "fedadam": Adaptive("adam"),
    "fedyogi": Adaptive("yogi"),
    "mime": Mime(1.0, 0.7),
}
every = pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())


@every
def test_a_rule_changes_nothing_it_is_given_and_counts_its_steps(rule: ServerRule) -> None:
    state = rule.update(rule.init(np.array([0.1, -0.2])), np.array([1.0, 2.0]), 0.1, np.array([0.5, 0.5]))
    before = {name: np.copy(value) for name, value in vars(state).items()}
    u, g = np.array([3.0, -1.0]), np.array([0.1, 0.2])
    after = rule.update(state, u, 0.1, g)
    for name, value in vars(state).items():
        np.testing.assert_array_equal(value, before[name])
    assert (u.tolist(), g.tolist()) == ([3.0, -1.0], [0.1, 0.2])
    assert (state.updates, after.updates) == (1, 2)
    np.testing.assert_array_equal(after.previous, state.weights)


@every
def test_a_rule_starts_and_broadcasts_where_the_model_is(rule: ServerRule) -> None:
    start = np.array([0.25, -0.5], dtype=np.float32)
    state = rule.init(start)
    assert state.weights.dtype == np.float64
    assert rule.broadcast_point(state).tolist() == state.weights.tolist() == [0.25, -0.5]


@every
@pytest.mark.parametrize("bad", [np.array([np.nan, 0.0]), np.zeros(3)], ids=["nan", "shape"])
def test_what_is_no_finite_vector_of_the_model_is_refused(rule: ServerRule, bad: np.ndarray[Any, Any]) -> None:
    with pytest.raises(ValueError, match="finite vector of the size of the model"):
        rule.update(rule.init(np.zeros(2)), bad, 0.0, np.zeros(2))


@every
def test_a_coordinate_without_update_stays_where_it_is(rule: ServerRule) -> None:
    after = rule.update(rule.init(np.array([0.5, 0.5])), np.array([0.0, 0.1]), 0.0, np.array([0.0, 0.1]))
    assert after.weights[0] == 0.5
    assert after.weights[1] > 0.5


def test_fedavgm_adds_up_the_updates() -> None:
    """v = 1, 1.5, 1.75 for updates of 1 and beta 0.5; steps of half of that."""
    rule, state = Averaging(0.5, 0.5), Averaging().init(np.zeros(1))
    seen = []
    for _ in range(3):
        state = rule.update(state, np.ones(1))
        seen.append(float(state.weights[0]))
    assert seen == [0.5, 1.25, 2.125]


@settings(max_examples=50, deadline=None)
@given(
    kind=st.sampled_from(["adam", "yogi"]),
    updates=st.lists(st.floats(-10, 10), min_size=1, max_size=6),
    tau=st.floats(1e-4, 1.0),
)
def test_the_adaptive_step_is_that_of_algorithm_2_of_its_source(kind: Any, updates: list[float], tau: float) -> None:
    rule = Adaptive(kind, step_size=0.1, momentum=0.6, second_moment=0.9, adaptivity=tau)
    state, w, m, v = rule.init(np.zeros(1)), 0.0, 0.0, tau**2
    for u in updates:
        state = rule.update(state, np.array([u]))
        m = 0.6 * m + 0.4 * u
        v = 0.9 * v + 0.1 * u * u if kind == "adam" else v - 0.1 * u * u * float(np.sign(v - u * u))
        w += 0.1 * m / (math.sqrt(v) + tau)
        assert state.weights[0] == pytest.approx(w, rel=1e-9, abs=1e-15)
        assert v > 0, "so the root is real, for yogi too: it starts above zero and loses at most a tenth of u^2 <= v"


def test_an_adaptivity_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match=r"adaptive\.tau"):
        Adaptive("adam", adaptivity=0.0)


def test_mime_mixes_full_gradients_into_its_momentum_and_takes_the_mean_model() -> None:
    rule = Mime(1.0, 0.75)
    state = rule.init(np.array([1.0]))
    state = rule.update(state, np.array([-0.5]), 0.0, np.array([4.0]))
    assert (state.weights[0], state.first_moment[0]) == (0.5, 1.0)
    state = rule.update(state, np.array([0.25]), 0.0, np.array([0.0]))
    assert (state.weights[0], state.first_moment[0]) == (0.75, 0.75)
    assert rule.local_momentum == 0.75
    with pytest.raises(ValueError, match="gradient: MIME needs"):
        rule.update(state, np.array([0.25]))


# --- what all methods share ---------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(decay=st.floats(0.01, 0.99), iterates=st.lists(st.floats(-5, 5), min_size=1, max_size=8))
def test_the_served_model_is_the_exponentially_weighted_mean_of_the_iterates(
    decay: float, iterates: list[float]
) -> None:
    average = np.zeros(1)
    for w in iterates:
        average = iterate_average.add(decay, average, np.array([w]))
    shares = decay ** np.arange(len(iterates) - 1, -1, -1)
    expected = float(np.average(iterates, weights=shares))
    found = iterate_average.served(decay, average, len(iterates), np.array([99.0]))
    assert found[0] == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_without_averaging_or_before_the_first_iterate_the_last_weights_are_served() -> None:
    weights = np.array([3.0])
    assert iterate_average.served(0.0, np.zeros(1), 5, weights) is weights
    assert iterate_average.served(0.9, np.zeros(1), 0, weights) is weights


def test_averaging_lowers_the_noise_of_the_served_model() -> None:
    """Iterates that bounce around the optimum with variance 1: the mean of about 1 / (1 - a) has (1 - a) / (1 + a)."""
    draw = np.random.default_rng(0)
    average, decay = np.zeros(2000), 0.8
    for _ in range(60):
        average = iterate_average.add(decay, average, draw.normal(size=2000))
    found = float(np.var(iterate_average.served(decay, average, 60, np.zeros(2000))))
    assert found == pytest.approx((1 - decay) / (1 + decay), rel=0.15)


def test_the_client_step_decays_linearly_and_never_to_zero() -> None:
    assert [step_size(0.5, 0.0, k, 5) for k in (0, 4)] == [0.5, 0.5]
    found = [step_size(0.5, 1.0, k, 5) for k in range(5)]
    np.testing.assert_allclose(found, [0.5, 0.4, 0.3, 0.2, 0.1])
    assert step_size(0.5, 1.0, 9, 5) == pytest.approx(0.1), "rounds repeated after the planned ones keep the last step"
    assert step_size(0.5, 0.5, 4, 5) == pytest.approx(0.3)


def test_rules_of_one_family_differ_in_the_settings_only() -> None:
    """FedAvgM without momentum is FedAvg, FCFL with everything off as well."""
    off = ServerUpdate(0.0, 0.0, 1.0, 0.0, bias_correction=False, preconditioner="none")
    draw = np.random.default_rng(2)
    states = {name: rule.init(np.ones(3)) for name, rule in {"a": Averaging(), "b": off}.items()}
    for _ in range(4):
        u = draw.normal(size=3)
        states = {"a": Averaging(1.0, 0.0).update(states["a"], u), "b": off.update(states["b"], u)}
    np.testing.assert_allclose(states["a"].weights, states["b"].weights, rtol=1e-12)
    assert replace(off, step_size=2.0) != off
