"""The server step against a literal re-implementation of eqs. 7-9 and 12, and errata E1-E4."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fcfl_strategy.server_rule import ServerState, init
from fcfl_strategy.server_update import NOISE_FLOOR, ServerUpdate


def literal(rule: ServerUpdate, w0: list[float], rounds: list[tuple[list[float], float]]) -> list[float]:
    """Scalar Python arithmetic, written from the equations; returns the final weights."""
    d = len(w0)
    w, w_before = list(w0), list(w0)
    m, v, noise = [0.0] * d, [0.0] * d, 0.0
    for t, (u, known_variance) in enumerate(rounds, start=1):
        y = [w[j] + rule.lookahead * (w[j] - w_before[j]) for j in range(d)]
        m = [rule.momentum * m[j] + (1 - rule.momentum) * u[j] for j in range(d)]
        v = [rule.second_moment * v[j] + (1 - rule.second_moment) * u[j] * u[j] for j in range(d)]
        noise = rule.second_moment * noise + (1 - rule.second_moment) * known_variance
        m_hat, v_hat, noise_hat = m, v, noise
        if rule.bias_correction:
            m_hat = [x / (1 - rule.momentum**t) for x in m]
            v_hat = [x / (1 - rule.second_moment**t) for x in v]
            noise_hat = noise / (1 - rule.second_moment**t)
        if rule.noise_corrected:
            v_hat = [max(x - noise_hat, NOISE_FLOOR * noise_hat) for x in v_hat]
        rms = [math.sqrt(x) + rule.jitter for x in v_hat]
        scale = {"none": rms, "raw": [1.0] * d, "normalised": [math.fsum(rms) / d] * d}[rule.preconditioner]
        step = [rule.step_size * m_hat[j] * scale[j] / rms[j] for j in range(d)]
        if rule.trust_region > 0:
            limit = rule.trust_region * math.sqrt(math.fsum(x * x for x in w) / d)
            step = [min(max(x, -limit), limit) for x in step]
        after = [(1 - rule.interpolation) * w[j] + rule.interpolation * (y[j] + step[j]) for j in range(d)]
        w, w_before = after, w
    return w


def run(rule: ServerUpdate, w0: list[float], rounds: list[tuple[list[float], float]]) -> ServerState:
    state = init(np.array(w0))
    for u, known_variance in rounds:
        state = rule.update(state, np.array(u), known_variance)
    return state


numbers = st.floats(-10, 10).map(lambda x: round(x, 6))


@st.composite
def rules(draw: st.DrawFn) -> ServerUpdate:
    preconditioner = draw(st.sampled_from(["none", "normalised", "raw"]))
    trust = draw(st.floats(0.01, 5) if preconditioner == "raw" else st.just(0.0) | st.floats(0.01, 5))
    return ServerUpdate(
        momentum=draw(st.floats(0, 0.95)),
        second_moment=draw(st.floats(0, 0.999)),
        step_size=draw(st.floats(0.01, 2)),
        lookahead=draw(st.floats(0, 0.9)),
        interpolation=draw(st.floats(0.05, 1)),
        bias_correction=draw(st.booleans()),
        preconditioner=preconditioner,
        noise_corrected=draw(st.booleans()),
        jitter=draw(st.sampled_from([1e-8, 1e-4, 0.1])),
        trust_region=trust,
    )


@settings(max_examples=150, deadline=None)
@given(
    rule=rules(),
    start=st.lists(numbers, min_size=3, max_size=3),
    rounds=st.lists(
        st.tuples(st.lists(numbers, min_size=3, max_size=3), st.floats(0, 20)),
        min_size=1,
        max_size=5,
    ),
)
def test_the_step_is_the_one_of_the_equations(
    rule: ServerUpdate, start: list[float], rounds: list[tuple[list[float], float]]
) -> None:
    expected = np.array(literal(rule, start, rounds))
    found = run(rule, start, rounds).weights
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9 * (1 + np.abs(expected).max()))


def test_three_rounds_by_hand() -> None:
    """beta_1 = 1/2, no preconditioner, Nesterov 1/2: every figure can be checked on paper."""
    rule = ServerUpdate(momentum=0.5, lookahead=0.5, preconditioner="none")
    state = rule.update(init(np.array([1.0])), np.array([2.0]))
    assert state.weights == [3.0]  # y = 1, m_hat = 2
    state = rule.update(state, np.array([2.0]))
    assert state.weights == [6.0]  # y = 3 + (3 - 1)/2 = 4, m_hat = 2
    state = rule.update(state, np.array([-5.0]))
    assert state.first_moment == [-1.75]  # (1.5 - 5)/2
    assert state.weights == [5.5]  # y = 7.5, m_hat = -1.75 / (7/8) = -2
    assert state.updates == 3


@pytest.mark.parametrize("bias_correction", [False, True])
@pytest.mark.parametrize(
    "rule",
    [
        ServerUpdate(preconditioner="none"),
        ServerUpdate(preconditioner="normalised"),
        ServerUpdate(preconditioner="normalised", noise_corrected=True),
        ServerUpdate(preconditioner="normalised", interpolation=0.3),
        ServerUpdate(preconditioner="raw", trust_region=0.05),
    ],
    ids=["none", "normalised", "noise-corrected", "interpolated", "raw"],
)
def test_an_update_that_points_downhill_reduces_the_loss(rule: ServerUpdate, *, bias_correction: bool) -> None:
    """E1: Delta = w_i - y is added. On a quadratic a gradient step of the silos must lower the loss."""
    rule = replace(rule, bias_correction=bias_correction)
    curvature = np.array([0.3, 1.0, 2.0, 0.7])
    state = init(np.array([1.0, -2.0, 0.5, 3.0]))
    losses = [float(curvature @ state.weights**2)]
    for _ in range(5):
        delta = -0.05 * curvature * rule.broadcast_point(state)
        state = rule.update(state, delta, noise_variance=1e-6)
        losses.append(float(curvature @ state.weights**2))
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]


def test_the_broadcast_point_looks_ahead_along_the_last_movement() -> None:
    rule = ServerUpdate(lookahead=0.3)
    state = init(np.array([1.0, 2.0]))
    assert rule.broadcast_point(state).tolist() == [1.0, 2.0]
    state = replace(state, weights=np.array([3.0, 1.0]))
    np.testing.assert_allclose(rule.broadcast_point(state), [3.6, 0.7])


vectors = st.lists(st.floats(-1, 1).filter(lambda x: abs(x) > 1e-3), min_size=2, max_size=8)


@settings(max_examples=60, deadline=None)
@given(direction=vectors, scale=st.sampled_from([1e-3, 1.0, 1e3]))
def test_the_normalised_step_keeps_the_scale_of_the_update(direction: list[float], scale: float) -> None:
    """mean(RMS)/RMS: the first step has the mean magnitude of u, and c times the update is c times the step."""
    rule = ServerUpdate(preconditioner="normalised", jitter=1e-12)
    u = np.array(direction)
    step = rule.update(init(np.zeros(u.size)), u).weights
    assert np.mean(np.abs(step)) == pytest.approx(np.mean(np.abs(u)), rel=1e-6)
    scaled = rule.update(init(np.zeros(u.size)), scale * u).weights
    np.testing.assert_allclose(scaled, scale * step, rtol=1e-6)


def test_the_literal_first_step_has_unit_length_whatever_the_update() -> None:
    """Why E3: m_hat / sqrt(v_hat) is the sign of u, one whole unit a coordinate, for updates of size 1e-6 too."""
    rule = ServerUpdate(preconditioner="raw", trust_region=1e12, step_size=1.0, lookahead=0.0)
    u = np.array([1e-6, -3e-4, 2.0, -1e-5])
    step = rule.update(init(np.ones(4)), u).weights - 1
    np.testing.assert_allclose(step, np.sign(u), rtol=0.02)


class TwoLayers:
    """A small ReLU network on standard normal inputs with full gradients; its output layer starts at zero."""

    def __init__(self) -> None:
        rng = np.random.default_rng(7)
        self.inputs = rng.standard_normal((400, 52))
        self.targets = 0.3 * self.inputs[:, 0] + rng.standard_normal(400)
        self.first = rng.standard_normal((52, 64)) / math.sqrt(52)

    def start(self) -> np.ndarray[Any, Any]:
        return np.concatenate([self.first.ravel(), np.zeros(64)])

    def loss_and_gradient(self, weights: np.ndarray[Any, Any]) -> tuple[float, np.ndarray[Any, Any]]:
        first, second = weights[:-64].reshape(52, 64), weights[-64:]
        hidden = np.maximum(self.inputs @ first, 0)
        error = hidden @ second - self.targets
        back = np.outer(error, second) * (hidden > 0)
        gradient = np.concatenate([(self.inputs.T @ back).ravel(), hidden.T @ error]) * 2 / len(error)
        return float(np.mean(error**2)), gradient

    def losses(self, rule: ServerUpdate, rounds: int) -> list[float]:
        state = init(self.start())
        found = [self.loss_and_gradient(state.weights)[0]]
        for _ in range(rounds):
            _, gradient = self.loss_and_gradient(rule.broadcast_point(state))
            state = rule.update(state, -0.01 * gradient)
            found.append(self.loss_and_gradient(state.weights)[0])
        return found


PAPER = ServerUpdate(
    momentum=0.9, second_moment=0.999, step_size=1.0, lookahead=0.8, preconditioner="raw", trust_region=1e8
)


def test_the_papers_literal_step_raises_the_loss_by_orders_of_magnitude_each_round() -> None:
    """E3: an Adam step with learning rate 1 (the trust region of eq. 12 with epsilon_p is about 1e8: none)."""
    network = TwoLayers()
    before, first, second = network.losses(PAPER, 2)
    assert first > 50 * before
    assert second > 50 * first
    taken = network.losses(ServerUpdate(), 5)
    assert taken[-1] < taken[0]


def test_the_trust_region_bounds_every_coordinate_by_the_rms_of_the_weights() -> None:
    rule = replace(PAPER, trust_region=0.01)
    weights = np.array([0.1, -0.2, 0.3])
    step = rule.update(init(weights), np.array([5.0, -1.0, 0.0])).weights - weights
    limit = 0.01 * math.sqrt(np.mean(weights**2))
    np.testing.assert_allclose(step, [limit, -limit, 0.0], rtol=1e-12)


def test_raw_without_a_trust_region_is_refused() -> None:
    with pytest.raises(ValueError, match=r"server\.trust-region"):
        ServerUpdate(preconditioner="raw")


def test_a_coordinate_without_update_stays_where_it_is() -> None:
    """Quantised sums hold exact zeros: 0 / (0 + epsilon_p) must be 0, which is why epsilon_p 0 is refused."""
    for preconditioner in ("normalised", "raw"):
        rule = ServerUpdate(preconditioner=preconditioner, trust_region=1.0)
        after = rule.update(init(np.array([0.5, 0.5])), np.array([0.0, 0.1]))
        assert np.isfinite(after.weights).all()
        assert after.weights[0] == 0.5
    with pytest.raises(ValueError, match=r"server\.jitter"):
        ServerUpdate(jitter=0.0)


def test_noise_correction_recovers_the_size_of_the_signal() -> None:
    """E4: v minus the known variance; a coordinate of pure noise is held at the floor, not blown up."""
    rng = np.random.default_rng(3)
    signal, noise = np.array([3.0, 0.0]), 1.0
    rule = ServerUpdate(noise_corrected=True, second_moment=0.999)
    state = init(np.zeros(2))
    for _ in range(4000):
        state = rule.update(state, signal + rng.normal(0, noise, 2), noise**2)
    correct = 1 - 0.999**4000
    assert state.noise_moment / correct == pytest.approx(1.0)
    assert state.second_moment[0] / correct - state.noise_moment / correct == pytest.approx(9.0, rel=0.1)
    plain = replace(rule, noise_corrected=False).update(state, signal, 1.0)
    corrected = rule.update(state, signal, 1.0)
    moved = [abs(after.weights - rule.broadcast_point(state)) for after in (plain, corrected)]
    assert moved[1][0] / moved[1][1] != pytest.approx(moved[0][0] / moved[0][1], rel=0.1)


@settings(max_examples=30, deadline=None)
@given(rule=rules(), u=st.lists(numbers, min_size=3, max_size=3))
def test_nothing_given_is_changed(rule: ServerUpdate, u: list[float]) -> None:
    state = rule.update(init(np.array([0.1, 0.2, -0.3])), np.array([1.0, 2.0, 3.0]))
    before = {name: np.copy(value) for name, value in vars(state).items()}
    given_update = np.array(u)
    rule.update(state, given_update, 0.5)
    for name, value in vars(state).items():
        np.testing.assert_array_equal(value, before[name])
    assert given_update.tolist() == u


def test_init_takes_a_copy_of_the_weights() -> None:
    weights = np.ones(2, dtype=np.float32)
    state = init(weights)
    weights[:] = 7
    assert state.weights.tolist() == [1.0, 1.0]
    assert state.weights.dtype == np.float64
    assert state.weights is not state.previous


@pytest.mark.parametrize("bad", [np.array([1.0, np.nan]), np.array([np.inf, 0.0]), np.zeros(3), np.zeros((2, 1))])
def test_an_update_that_is_no_finite_vector_of_the_model_is_refused(bad: np.ndarray[Any, Any]) -> None:
    with pytest.raises(ValueError, match="finite vector of the size of the model"):
        ServerUpdate().update(init(np.zeros(2)), bad)


def shrinking(**changes: Any) -> ServerUpdate:
    values: dict[str, Any] = {"preconditioner": "none", "lookahead": 0.0, "shrinkage": True, "blocks": (400, 600)}
    return ServerUpdate(**(values | changes))


def test_the_known_noise_of_the_first_moment_is_its_measured_variance() -> None:
    rng = np.random.default_rng(5)
    rule = shrinking(momentum=0.8)
    state = init(np.zeros(1000))
    for _ in range(60):
        state = rule.update(state, rng.normal(0, 2.0, 1000), 4.0)
    assert state.first_noise == pytest.approx(4.0 * (1 - 0.8) / (1 + 0.8), rel=1e-6)
    assert float(np.var(state.first_moment)) == pytest.approx(state.first_noise, rel=0.2)


def test_shrinkage_stops_blocks_of_noise_and_lets_signal_pass() -> None:
    rng = np.random.default_rng(6)
    noise = rng.normal(0, 1.0, 1000)
    signal = np.concatenate([np.full(400, 10.0), np.zeros(600)])
    rule = shrinking(momentum=0.0)
    state = rule.update(init(np.zeros(1000)), signal + noise, 1.0)
    moved = state.weights
    assert moved[:400] == pytest.approx((signal + noise)[:400], rel=0.03)
    assert np.linalg.norm(moved[400:]) < 0.2 * np.linalg.norm(noise[400:])
    whole = shrinking(momentum=0.0, shrinkage=False).update(init(np.zeros(1000)), signal + noise, 1.0).weights
    assert np.linalg.norm(moved - signal) < np.linalg.norm(whole - signal)


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6))
def test_shrinkage_never_turns_or_lengthens_a_step(first: float, second: float, variance: float) -> None:
    update = np.array([first, second, -second])
    whole = shrinking(shrinkage=False).update(init(np.zeros(3)), update, variance).weights
    shrunk = shrinking(blocks=(1, 2)).update(init(np.zeros(3)), update, variance).weights
    assert (np.abs(shrunk) <= np.abs(whole)).all()
    assert (shrunk * whole >= 0).all()


def test_without_noise_nothing_is_shrunk_and_blocks_that_do_not_fit_are_refused() -> None:
    update = np.arange(1000.0)
    whole = shrinking(shrinkage=False).update(init(np.zeros(1000)), update).weights
    np.testing.assert_array_equal(shrinking().update(init(np.zeros(1000)), update).weights, whole)
    with pytest.raises(ValueError, match="blocks of 1000 values, the model has 3"):
        shrinking().update(init(np.zeros(3)), np.ones(3))
