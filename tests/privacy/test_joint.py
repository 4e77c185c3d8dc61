"""The joint mechanism of errata E9: clipped gradient and its squared norm under one noise."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.dpsgd import clipped_sum, estimated_variance, private_gradient
from privacy.errors import PrivacyError
from privacy.ledger import Ledger, verify
from privacy.mlp import Mlp
from privacy.mlp_kernel import clip_limit
from privacy.model import ClippedSum
from privacy.plan import MechanismPlan
from privacy.randomness import RandomStream
from privacy.records import Release, RunOpened
from tests.privacy.signed import KEY
from tests.privacy.test_mlp import brute_force

torch.set_num_threads(1)
MODEL = Mlp(6, (9, 8))


@pytest.fixture
def data() -> tuple[torch.Tensor, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    params = torch.from_numpy(MODEL.initial_parameters(0))
    params[-9:] = 0.3
    return params, rng.standard_normal((60, 6)).astype(np.float32), rng.standard_normal(60).astype(np.float32)


@pytest.mark.parametrize(("scale", "factor"), [(0.0, 1.0), (0.25, 1.0625), (1.0, 2.0)])
def test_what_the_squared_norms_cost_in_noise(scale: float, factor: float) -> None:
    for clip_norm in (0.3, 1.0, 7.0):
        plain, joint = (MechanismPlan(0.1, clip_norm, 2.0, 5, 100, s) for s in (0.0, scale))
        assert joint.noise_stddev**2 == pytest.approx(factor * plain.noise_stddev**2)
        s = joint.square_weight
        assert joint.sensitivity == pytest.approx(math.sqrt(clip_norm**2 + s**2 * clip_norm**4))
        assert joint.rdp(17.0) == plain.rdp(17.0), "noise is relative to the sensitivity, so the cost is the same"
    assert MechanismPlan(0.1, 3.0, 2.0, 5, 100).sensitivity == 3.0


@given(
    gradient=st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=6),
    clip_norm=st.floats(1e-3, 1e3),
    scale=st.floats(0, 4),
)
@settings(max_examples=300, deadline=None)
def test_sensitivity_of_the_joint_vector_by_brute_force(gradient: list[float], clip_norm: float, scale: float) -> None:
    plan = MechanismPlan(0.1, clip_norm, 2.0, 5, 100, scale)
    norm = float(np.linalg.norm(gradient))
    clipped = np.array(gradient) * min(1.0, clip_norm / norm if norm > 0 else 1.0)
    joint = np.append(clipped, plan.square_weight * float(clipped @ clipped))
    assert float(np.linalg.norm(joint)) <= plan.sensitivity * (1 + 1e-12)
    reached = np.append(clip_norm, plan.square_weight * clip_norm**2)
    assert float(np.linalg.norm(reached)) == pytest.approx(plan.sensitivity)


@pytest.mark.parametrize("size", [1e-20, 1e-3, 1.0, 1e3, 1e10, 1e25])
@pytest.mark.parametrize("scale", [0.25, 1.0])
def test_one_record_moves_the_joint_sum_by_the_sensitivity_at_most(data: Any, size: float, scale: float) -> None:
    params, x, y = data
    plan = MechanismPlan(0.1, 0.5, 2.0, 5, 60, scale)
    grid = plan.grid(MODEL.size, 60)
    x, y = x.copy(), y.copy()
    x[7] *= size
    y[7] *= -size
    rows = np.arange(60)
    sums = [
        clipped_sum(MODEL, params, x, y, chosen, plan.clip_norm, plan.square_weight)[0]
        for chosen in (rows, rows[rows != 7])
    ]
    assert len(sums[0]) == MODEL.size + 1
    assert float(np.linalg.norm(sums[0] - sums[1])) <= plan.sensitivity
    moved = np.rint(sums[0] / grid.step) - np.rint(sums[1] / grid.step)
    assert float(np.linalg.norm(moved)) * grid.step <= grid.noise_stddev / plan.noise_multiplier


def test_the_kernel_sums_clipped_squares_without_materialising(data: Any) -> None:
    params, x, y = (torch.as_tensor(value) for value in data)
    x[3] = float("nan")
    for clip_norm in (0.1, 1.0, 100.0):
        truth = brute_force(MODEL, params, x, y).norm(dim=1)
        truth = truth[~truth.isnan()].clamp(max=clip_limit(MODEL, clip_norm)).square().sum()
        found = MODEL.clipped_gradient_sum(params, x, y, clip_norm)
        assert found.zeroed == 1
        assert found.squares == pytest.approx(float(truth), rel=1e-5)
    assert MODEL.clipped_gradient_sum(params, x[:0], y[:0], 1.0).squares == 0.0


def test_the_variance_is_unbiased() -> None:
    rng = np.random.default_rng(1)
    records, size, trials = 40, 5, 60_000
    plan = MechanismPlan(0.2, 1.0, 1.5, 1, records, 0.5)
    gradients = rng.standard_normal((records, size)) * 0.3 + 0.2
    gradients /= np.maximum(1.0, np.linalg.norm(gradients, axis=1, keepdims=True))
    truth = float(np.mean(np.sum(gradients**2, 1)) - np.sum(gradients.mean(0) ** 2))
    joint = np.c_[gradients, plan.square_weight * np.sum(gradients**2, 1)]
    sums = (rng.random((trials, records)) < plan.sampling_rate) @ joint
    noisy = (sums + plan.noise_stddev * rng.standard_normal(sums.shape)) / plan.divisor
    found = np.array(
        [estimated_variance(row[:-1], row[-1] / plan.square_weight, plan, plan.noise_stddev) for row in noisy]
    )
    error = found.std() / math.sqrt(trials)
    assert abs(found.mean() - truth) < 4 * error
    # The formula of E9 as written leaves the sampling variance of the mean in.
    literal = found - noisy[:, -1] / plan.square_weight * (1 - plan.sampling_rate) / plan.divisor
    assert literal.mean() < truth - 4 * error


def test_the_release_carries_the_variance_of_the_gradients(data: Any) -> None:
    params, x, y = data
    plan = MechanismPlan(1.0, 2.0, 1e-3, 1, 60, 0.25)
    gradients = brute_force(MODEL, *(torch.as_tensor(value) for value in data))
    gradients = gradients * (clip_limit(MODEL, 2.0) / gradients.norm(dim=1)).clamp(max=1.0).unsqueeze(1)
    truth = float(gradients.square().sum(1).mean() - gradients.mean(0).square().sum())
    found = private_gradient(MODEL, params, x, y, plan, RandomStream.seeded(1))
    assert found.variance == pytest.approx(truth, rel=1e-3)
    assert len(found.mean) == MODEL.size
    loud = [
        private_gradient(
            MODEL, params, x, y, MechanismPlan(0.5, 2.0, 50.0, 1, 60, 1.0), RandomStream.seeded(k)
        ).variance
        for k in range(40)
    ]
    assert all(value is not None and 0.0 <= value <= 4.0 for value in loud)
    assert {0.0, 4.0} <= set(loud)
    off = private_gradient(MODEL, params, x, y, MechanismPlan(0.5, 2.0, 1.0, 1, 60), RandomStream.seeded(1))
    assert off.variance is None


def test_a_model_without_squares_is_refused(data: Any) -> None:
    class Bare:
        size = MODEL.size

        def predict(self, params: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
            return MODEL.predict(params, features)

        def clipped_gradient_sum(self, *given: Any) -> ClippedSum:
            return ClippedSum(MODEL.clipped_gradient_sum(*given).total, 0)

    params, x, y = data
    with pytest.raises(PrivacyError, match="variance_scale"):
        private_gradient(Bare(), params, x, y, MechanismPlan(1.0, 1.0, 1.0, 1, 60, 0.5), RandomStream.seeded(1))
    private_gradient(Bare(), params, x, y, MechanismPlan(1.0, 1.0, 1.0, 1, 60), RandomStream.seeded(1))
    for bad in (-0.1, float("nan"), float("inf"), True):
        with pytest.raises(PrivacyError, match="variance_scale"):
            MechanismPlan(0.1, 1.0, 1.0, 1, 60, bad)


def test_the_ledger_holds_the_variance_scale(tmp_path: Path) -> None:
    files = tmp_path / "l", tmp_path / "a"
    opened = RunOpened("run-1", 1.0, 1e-5, 17.0, 0.5, "fcfl 0.1.0")
    current = opened.filter()
    with Ledger.create(*files, signer=KEY) as ledger:
        ledger.append(opened.KIND, opened.body())
        for epoch, scale in enumerate((0.0, 0.25)):
            plan = MechanismPlan(0.1, 1.0, 4.0, 5, 1000, scale)
            release, current = Release.charge("run-1", epoch, plan, current)
            assert release.plan == plan
            assert ("variance_scale" in release.body()) == (scale > 0), "ledgers without it keep their bytes"
            assert Release.from_body(release.body()) == release
            ledger.append(release.KIND, release.body())
    assert verify(*files).runs[0].releases == 2
