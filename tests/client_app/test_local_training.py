"""Local steps against a float64 re-implementation, and their noise against its stated energy."""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from client_app.local_training import LocalUpdate, step_size, train_locally
from client_app.silo_level_training import train_as_a_whole
from privacy.mlp import Mlp
from privacy.model import ClippedSum
from privacy.plan import MechanismPlan
from privacy.randomness import RandomStream
from privacy.release import ReleasePlan
from privacy.silo_unit import SiloPlan
from tests.client_app.terms import plan_of, terms_of

P, RECORDS = 4, 30


@dataclass(frozen=True)
class Linear:
    """Least squares with clipped per-example gradients, a `privacy.model.PerExampleModel`."""

    size: int = P

    def predict(self, params: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        return features @ params

    def clipped_gradient_sum(
        self, params: torch.Tensor, features: torch.Tensor, targets: torch.Tensor, clip_norm: float
    ) -> ClippedSum:
        rows = (features @ params - targets)[:, None] * features
        norms = torch.linalg.vector_norm(rows, dim=1).clamp(min=1e-30)
        return ClippedSum((rows * (clip_norm / norms).clamp(max=1.0)[:, None]).sum(0), 0)


def data(seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(RECORDS, P)).astype(np.float32)
    return features, (features @ np.array([1.0, -2.0, 0.5, 3.0]) + 1).astype(np.float32)


def planned(**change: object) -> tuple[ReleasePlan, MechanismPlan]:
    """A plan with all records in every step and noise too small to see, unless changed."""
    values = {"parameters": P, "sampling_rate": 1.0, "noise_multiplier": 1e-9, "steps": 6, "step_size": 0.3}
    plan = plan_of(terms_of(), **(values | change))
    mechanism = MechanismPlan(plan.sampling_rate, plan.clip_norm, plan.noise_multiplier, plan.steps, RECORDS)
    return plan, mechanism


def trained(
    plan: ReleasePlan, mechanism: MechanismPlan, point: np.ndarray, correction: np.ndarray, eta: float, seed: int = 0
) -> LocalUpdate:
    return train_locally(
        Linear(),
        *data(),
        plan,
        mechanism,
        point.astype(np.float32),
        correction.astype(np.float32),
        eta,
        RandomStream.seeded(seed, "test"),
    )


def brute_force(plan: ReleasePlan, point: np.ndarray, correction: np.ndarray, eta: float) -> dict[str, object]:
    """The same in float64, one record at a time, written from the specification (E20)."""
    features, targets = (part.astype(np.float64) for part in data())
    w, gradients = point.astype(np.float64), []
    for _ in range(plan.steps):
        total = np.zeros(P)
        for x, target in zip(features, targets, strict=True):
            gradient = (x @ w - target) * x
            total += gradient * min(1.0, plan.clip_norm / np.linalg.norm(gradient))
        gradients.append(total / RECORDS)
        w = point + (w - eta * (gradients[-1] + correction) - point) / (1 + eta * plan.proximal)
        if plan.drift_budget > 0 and np.sum((w - point) ** 2) > plan.drift_budget:
            break
    taken, shrink = len(gradients), 1 / (1 + eta * plan.proximal)
    # A step with nothing but the direction 1 shows the length these steps have in all.
    length = eta * sum(shrink ** (taken - j) for j in range(taken))
    return {
        "steps": taken,
        "drift": float(np.sum((w - point) ** 2)),
        "delta": (w - point) * plan.step_size * plan.steps / length,
        "mean_gradient": np.mean(gradients, axis=0),
        "direction": float(np.sum((np.mean(gradients, axis=0) + correction) ** 2)),
    }


POINT = np.array([0.5, 0.25, -1.0, 2.0])
CORRECTION = np.array([0.125, -0.5, 0.25, 0.0])


@pytest.mark.parametrize("eta", [0.3, 0.11])
@pytest.mark.parametrize("proximal", [0.0, 0.7, 50.0])
@pytest.mark.parametrize("clip", [0.8, 1e4])
@pytest.mark.parametrize("correction", [np.zeros(P), CORRECTION])
def test_without_noise_the_steps_are_those_of_the_specification(
    eta: float, proximal: float, clip: float, correction: np.ndarray
) -> None:
    # With a clip norm of 1e4 the noise has to shrink with it.
    plan, mechanism = planned(proximal=proximal, clip_norm=clip, noise_multiplier=1e-9 / clip)
    update, expected = trained(plan, mechanism, POINT, correction, eta), brute_force(plan, POINT, correction, eta)
    assert (update.steps, update.zeroed) == (6, 0)
    # The weights are float32: a stiff proximal term leaves few digits of w - y.
    np.testing.assert_allclose(update.delta, expected["delta"], rtol=2e-5, atol=2e-6 + 3e-7 * proximal)
    np.testing.assert_allclose(update.mean_gradient, expected["mean_gradient"], rtol=2e-5, atol=2e-6)
    assert update.drift == pytest.approx(expected["drift"], rel=1e-5 * (1 + proximal))
    assert update.direction == pytest.approx(expected["direction"], rel=1e-4)


@pytest.mark.parametrize("proximal", [0.0, 0.7])
def test_the_drift_budget_ends_the_steps_early_and_the_rescaling_makes_up_for_it(proximal: float) -> None:
    plan, mechanism = planned(drift_budget=0.05, proximal=proximal)
    update, expected = trained(plan, mechanism, POINT, CORRECTION, 0.3), brute_force(plan, POINT, CORRECTION, 0.3)
    assert update.steps == expected["steps"]
    assert 1 <= update.steps < plan.steps
    assert update.drift > plan.drift_budget
    np.testing.assert_allclose(update.delta, expected["delta"], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("eta", [0.3, 0.05])
@pytest.mark.parametrize("proximal", [0.0, 2.0])
def test_in_a_constant_field_every_pace_gives_the_same_update(eta: float, proximal: float) -> None:
    # FedNova: whatever eta_i, tau_i and mu, a silo counts with tau steps of eta_0 in its mean direction.
    field = np.array([1.0, -2.0, 0.5, 0.25])
    zeros = np.zeros((RECORDS, P), np.float32), np.zeros(RECORDS, np.float32)
    for budget in (0.0, 0.02):
        plan, mechanism = planned(drift_budget=budget, proximal=proximal)
        update = train_locally(
            Linear(),
            *zeros,
            plan,
            mechanism,
            np.zeros(P, np.float32),
            field.astype(np.float32),
            eta,
            RandomStream.seeded(1, "test"),
        )
        np.testing.assert_allclose(update.delta, -plan.step_size * plan.steps * field, rtol=1e-5)


def test_what_is_not_normalised_is_the_move_as_it_stands() -> None:
    """FedProx: the proximal term shortens the update, and nothing makes up for it; so does a drift budget."""
    for change in ({"proximal": 0.7}, {"drift_budget": 0.05}):
        plan, mechanism = planned(normalised=False, **change)
        update = trained(plan, mechanism, POINT, CORRECTION, 0.3)
        assert np.sum(update.delta**2) == pytest.approx(update.drift, rel=1e-6)
        normalised = trained(*planned(**change), POINT, CORRECTION, 0.3)
        assert np.linalg.norm(update.delta) < np.linalg.norm(normalised.delta)
        np.testing.assert_allclose(
            update.delta / np.linalg.norm(update.delta), normalised.delta / np.linalg.norm(normalised.delta), rtol=1e-6
        )


@pytest.mark.parametrize("momentum", [0.25, 0.9])
def test_mime_s_local_step_mixes_gradient_and_server_momentum(momentum: float) -> None:
    """w <- w - eta ((1 - beta) g + beta s), s unchanged over the round, where ``correction`` is beta s."""
    plan, mechanism = planned(momentum=momentum, control_gain=0.0, clip_norm=1e4, noise_multiplier=1e-13)
    features, targets = (part.astype(np.float64) for part in data())
    moment, w = np.array([0.5, -1.0, 0.0, 2.0]), POINT.copy()
    for _ in range(plan.steps):
        w = w - 0.3 * ((1 - momentum) * features.T @ (features @ w - targets) / RECORDS + momentum * moment)
    update = trained(plan, mechanism, POINT, momentum * moment, 0.3)
    np.testing.assert_allclose(update.delta, w - POINT, rtol=2e-5, atol=2e-5)


def test_a_stiff_proximal_term_is_stable() -> None:
    # The explicit step diverges once eta mu > 2 (E20).
    plan, mechanism = planned(proximal=1e4, steps=40)
    update = trained(plan, mechanism, POINT, CORRECTION, 0.3)
    assert update.drift < 1e-6
    assert np.linalg.norm(update.delta) < 10 * plan.step_size * plan.steps


@pytest.mark.parametrize("change", [{}, {"normalised": False}, {"momentum": 0.6, "control_gain": 0.0}])
@pytest.mark.parametrize(("proximal", "budget", "sigma"), [(0.0, 0.0, 2.0), (3.0, 0.0, 2.0), (0.5, 1e-9, 0.7)])
def test_the_stated_noise_energy_is_that_of_the_noise(
    proximal: float, budget: float, sigma: float, change: dict[str, object]
) -> None:
    plan, mechanism = planned(
        proximal=proximal, noise_multiplier=sigma, sampling_rate=0.4, steps=3, drift_budget=budget, **change
    )
    zeros = np.zeros((RECORDS, P), np.float32), np.zeros(RECORDS, np.float32)
    nothing, stream = np.zeros(P, np.float32), RandomStream.seeded(11, "energy")
    runs = [train_locally(Linear(), *zeros, plan, mechanism, nothing, nothing, 0.2, stream) for _ in range(800)]
    energies = [float(np.sum(run.delta**2)) for run in runs]
    stated = runs[0].noise_energy
    # Spread of a mean of 800 chi-square values of 4 degrees of freedom: 2.5 %.
    assert np.mean(energies) == pytest.approx(stated, rel=0.1)
    assert runs[0].steps == (1 if budget else 3)
    # ||g_bar||^2 less its noise is zero on average, so what is kept of it is small against the noise.
    noise = P * (mechanism.noise_stddev / mechanism.divisor) ** 2 / runs[0].steps
    assert runs[0].gradient_noise == pytest.approx(noise)
    assert np.mean([run.direction for run in runs]) < 0.5 * noise
    assert np.mean([np.sum(run.mean_gradient**2) for run in runs]) == pytest.approx(noise, rel=0.1)


def test_records_that_give_no_finite_gradient_become_zero_vectors() -> None:
    model = Mlp(P, (3,))
    features, targets = data()
    features[4, 1], targets[9] = np.nan, np.inf
    plan, mechanism = planned(parameters=model.size, steps=3)
    update = train_locally(
        model,
        features,
        targets,
        plan,
        mechanism,
        model.initial_parameters(1),
        np.zeros(model.size, np.float32),
        0.1,
        RandomStream.seeded(1, "test"),
    )
    assert update.zeroed == 2 * plan.steps
    assert np.isfinite(update.delta).all()
    assert math.isfinite(update.drift)


SIZED = plan_of(terms_of(), parameters=1000, drift_budget=0.5)
SIZED_MECHANISM = MechanismPlan(SIZED.sampling_rate, SIZED.clip_norm, SIZED.noise_multiplier, SIZED.steps, 400)


def bound(eta: float, plan: ReleasePlan, mechanism: MechanismPlan, direction: float) -> float:
    """E19 without an unknown smoothness: the expected squared drift of tau steps."""
    tau, q_n = plan.steps, mechanism.divisor
    spread = tau * plan.clip_norm**2 / q_n
    noise = tau * plan.parameters * (plan.noise_multiplier * plan.clip_norm / q_n) ** 2
    return eta**2 * (tau**2 * direction + spread + noise)


@given(direction=st.floats(0, 1e9))
def test_the_step_is_the_largest_within_the_drift_budget(direction: float) -> None:
    eta = step_size(SIZED, SIZED_MECHANISM, direction)
    assert 0 < eta <= SIZED.step_size
    within = bound(eta, SIZED, SIZED_MECHANISM, direction)
    assert within <= SIZED.drift_budget * (1 + 1e-9)
    assert eta == SIZED.step_size or within == pytest.approx(SIZED.drift_budget, rel=1e-9)


@given(direction=st.floats(0, 1e6), more=st.floats(0, 1e6))
def test_a_longer_direction_never_gives_a_longer_step(direction: float, more: float) -> None:
    assert step_size(SIZED, SIZED_MECHANISM, direction + more) <= step_size(SIZED, SIZED_MECHANISM, direction)


def test_a_smaller_silo_or_more_noise_never_gives_a_longer_step() -> None:
    steps = [step_size(SIZED, dataclasses.replace(SIZED_MECHANISM, records=n), 0.1) for n in (10, 50, 400, 10**6)]
    assert steps == sorted(steps)
    noisy = [step_size(SIZED, dataclasses.replace(SIZED_MECHANISM, noise_multiplier=s), 0.1) for s in (0.5, 2, 9)]
    assert noisy == sorted(noisy, reverse=True)


def test_without_a_drift_budget_the_step_is_the_planned_one() -> None:
    assert step_size(dataclasses.replace(SIZED, drift_budget=0.0), SIZED_MECHANISM, 1e12) == SIZED.step_size


def test_without_an_adaptive_step_the_drift_budget_only_cuts_the_steps() -> None:
    fixed = dataclasses.replace(SIZED, adaptive_step=False)
    assert step_size(fixed, SIZED_MECHANISM, 1e12) == SIZED.step_size
    plan, mechanism = planned(drift_budget=0.05, adaptive_step=False)
    assert trained(plan, mechanism, POINT, CORRECTION, step_size(plan, mechanism, 1e12)).steps < plan.steps


def test_a_correction_is_added_after_clipping_and_moves_the_weights_in_full() -> None:
    """+1000 on c - c_i moves one step by the step size times 1000: no clip, no optimiser drops it."""
    plan, mechanism = planned(steps=1, step_size=0.3, proximal=0.0)
    free = trained(plan, mechanism, POINT, np.zeros(P), 0.3)
    pushed = trained(plan, mechanism, POINT, np.full(P, 1000.0), 0.3)
    np.testing.assert_allclose(pushed.delta - free.delta, -0.3 * 1000.0, rtol=1e-5)


# --- backtracking -------------------------------------------------------------------------------------


def backtracked(eta: float, looks: int, *, noise: float = 1e-9, seed: int = 0) -> tuple[LocalUpdate, LocalUpdate]:
    """The same steps without and with looks at the loss."""
    plan, mechanism = planned(steps=3, step_size=eta)
    look = MechanismPlan(1.0, 1e6, noise, looks, RECORDS)
    point, correction = np.zeros(P, np.float32), np.zeros(P, np.float32)
    common = (Linear(), *data(), plan, mechanism, point, correction, eta)
    free = train_locally(*common, RandomStream.seeded(seed, "mechanism"))
    return free, train_locally(*common, RandomStream.seeded(seed, "mechanism"), look)


def test_a_step_that_lowers_the_loss_enough_is_kept_whole() -> None:
    free, looked = backtracked(0.05, 4)
    np.testing.assert_array_equal(looked.delta, free.delta)
    assert looked.noise_energy == free.noise_energy


@pytest.mark.parametrize(("looks", "part"), [(1, 0.5), (3, 0.125)])
def test_a_step_far_too_long_is_halved_once_a_look(looks: int, part: float) -> None:
    free, looked = backtracked(4000.0, looks)
    np.testing.assert_allclose(looked.delta, part * free.delta, rtol=1e-12)
    assert looked.noise_energy == pytest.approx(part**2 * free.noise_energy)
    assert looked.drift == pytest.approx(part**2 * free.drift)
    assert looked.mean_gradient.tolist() == free.mean_gradient.tolist(), (
        "the control follows the gradients as they were"
    )


def test_a_step_somewhat_too_long_is_halved_until_the_loss_falls() -> None:
    features, targets = data()

    def loss(weights: np.ndarray) -> float:
        return float(np.mean((features @ weights - targets) ** 2) / 2)

    free, looked = backtracked(40.0, 12)
    assert loss(free.delta) > loss(np.zeros(P)) > loss(looked.delta)


def test_noise_that_drowns_the_loss_decides_by_chance() -> None:
    """The looks are as private as they claim to be: their answer is not the truth."""
    lengths = {
        float(np.linalg.norm(backtracked(0.05, 3, noise=10.0, seed=seed)[1].delta).round(6)) for seed in range(12)
    }
    assert len(lengths) > 1


# --- the silo as unit ---------------------------------------------------------------------------------


def test_a_whole_silo_sends_its_clipped_move_plus_noise() -> None:
    plan, _ = planned(steps=6, step_size=0.3)
    quiet = SiloPlan(0.5, 1e-9)
    point = np.array([1.0, 0.0, -1.0, 0.5], np.float32)
    move = train_as_a_whole(Linear(), *data(), plan, quiet, point, RandomStream.seeded(0, "a"))
    assert np.linalg.norm(move) == pytest.approx(0.5, rel=1e-4), "clipped"
    generous = SiloPlan(100.0, 1e-9)
    unclipped = train_as_a_whole(Linear(), *data(), plan, generous, point, RandomStream.seeded(0, "a"))
    free = trained(*planned(steps=6, step_size=0.3), point, np.zeros(P, np.float32), 0.3)
    np.testing.assert_allclose(unclipped, free.delta, rtol=1e-3)
    loud = np.array(
        [
            train_as_a_whole(Linear(), *data(), plan, SiloPlan(0.5, 4.0), point, RandomStream.seeded(seed, "a"))
            for seed in range(300)
        ]
    )
    assert loud.std(axis=0) == pytest.approx(np.full(P, 2.0), rel=0.15)
