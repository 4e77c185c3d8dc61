"""Modules through Opacus: clipped as the mechanism promises, whatever the record, or refused."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from opacus.layers import DPLSTM
from torch import Tensor, nn

from privacy.dpsgd import clipped_sum, private_gradient
from privacy.errors import PrivacyError
from privacy.mlp import Mlp
from privacy.opacus_module import OpacusModule
from privacy.plan import MechanismPlan
from privacy.randomness import RandomStream

torch.set_num_threads(1)
WIDTH = 12


class Recurrent(nn.Module):
    """The features as a short sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.output = DPLSTM(3, 8, batch_first=True), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(x.reshape(len(x), 4, 3))
        return self.output(states[:, -1])


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv1d(3, 6, 2), nn.GroupNorm(2, 6), nn.GELU(), nn.Flatten(), nn.Linear(18, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.reshape(len(x), 3, 4))


MODULES: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(WIDTH, 1),
    "flat output": lambda: nn.Sequential(nn.Linear(WIDTH, 1), nn.Flatten(0)),
    "mlp": lambda: nn.Sequential(nn.Linear(WIDTH, 9), nn.GELU(), nn.LayerNorm(9), nn.Linear(9, 1)),
    "convolution": Convolution,
    "lstm": Recurrent,
}


@pytest.fixture(params=MODULES)
def module(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(3)
    return MODULES[request.param]()


def records(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, WIDTH)).astype(np.float32), rng.standard_normal(n).astype(np.float32)


def summed(model: OpacusModule, params: Tensor, x: np.ndarray, y: np.ndarray, clip: float) -> np.ndarray:
    return clipped_sum(model, params, x, y, np.arange(len(x)), clip)[0]


def test_the_clipped_sum_is_that_of_one_record_at_a_time(module: nn.Module) -> None:
    model = OpacusModule(module)
    params, (x, y) = model.initial_parameters(), records(21)
    expected = np.zeros(model.size)
    for row, target in zip(x, y, strict=True):
        forecast = module(torch.from_numpy(row[None])).reshape(())
        gradients = torch.autograd.grad((forecast - float(target)) ** 2 / 2, list(module.parameters()))
        flat = torch.cat([g.flatten() for g in gradients]).double().numpy()
        expected += flat * min(1.0, 0.7 / np.linalg.norm(flat))
    np.testing.assert_allclose(summed(model, params, x, y, 0.7), expected, atol=2e-4)


@pytest.mark.parametrize("huge", [1e4, 1e15, 1e30, math.inf, math.nan])
def test_a_huge_record_moves_the_sum_by_two_clips_at_most(module: nn.Module, huge: float) -> None:
    model = OpacusModule(module)
    params, (x, y) = model.initial_parameters(), records(64)
    base = summed(model, params, x, y, 1.0)
    without = summed(model, params, np.delete(x, 5, 0), np.delete(y, 5), 1.0)
    for other in (np.float32(huge), np.float32(-huge)):
        moved_x, moved_y = x.copy(), y.copy()
        moved_x[5], moved_y[5] = other, -other
        moved = summed(model, params, moved_x, moved_y, 1.0)
        assert np.isfinite(moved).all()
        assert np.linalg.norm(moved - base) <= 2.0
        assert np.linalg.norm(moved - without) <= 1.0
    assert np.linalg.norm(base) <= 64, "B C: Opacus' own ghost clipping reaches 2097 here with losses of shape (B, 1)"


def test_the_mechanism_trains_a_module_as_it_trains_the_mlp() -> None:
    """Same architecture, same parameters, same stream: the release is that of the hand-written kernel."""
    ours = Mlp(WIDTH, (16,))
    theirs = nn.Sequential(nn.Linear(WIDTH, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 1))
    params = torch.from_numpy(ours.initial_parameters(1)).clone()
    params[-17:] = 0.25
    model, plan = OpacusModule(theirs), MechanismPlan(0.5, 10.0, 1e-3, 1, 100)
    x, y = records(100)
    releases = [private_gradient(m, params, x, y, plan, RandomStream.seeded(4)).mean for m in (ours, model)]
    assert torch.linalg.vector_norm(releases[0] - releases[1]) < 1e-2 * torch.linalg.vector_norm(releases[0])


def test_forecasts_are_the_module_s_and_an_empty_sample_is_zero(module: nn.Module) -> None:
    model = OpacusModule(module)
    params, (x, _) = model.initial_parameters(), records(5)
    with torch.no_grad():
        expected = module(torch.from_numpy(x)).reshape(5)
    torch.testing.assert_close(model.predict(params, torch.from_numpy(x)), expected)
    assert model.predict(params, torch.zeros(0, WIDTH)).shape == (0,)
    empty = model.clipped_gradient_sum(params, torch.zeros(0, WIDTH), torch.zeros(0), 1.0)
    assert not empty.total.any()
    assert model.size == len(params)


def two_outputs() -> nn.Module:
    return nn.Linear(WIDTH, 2)


def sum_of_rows() -> nn.Module:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x).sum()

    return Mixed()


@pytest.mark.parametrize("make", [two_outputs, sum_of_rows])
def test_a_module_without_one_forecast_per_row_is_refused(make: Callable[[], nn.Module]) -> None:
    model = OpacusModule(make())
    x, y = records(8)
    with pytest.raises(PrivacyError, match="one forecast per row"):
        summed(model, model.initial_parameters(), x, y, 1.0)


def test_a_module_that_mixes_rows_is_refused() -> None:
    with pytest.raises(PrivacyError, match="Opacus refuses"):
        OpacusModule(nn.Sequential(nn.Linear(WIDTH, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)))


def test_a_frozen_parameter_and_an_unused_one_are_refused() -> None:
    frozen = nn.Linear(WIDTH, 1)
    frozen.bias.requires_grad_(False)
    with pytest.raises(PrivacyError, match="bias"):
        OpacusModule(frozen)

    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(WIDTH, 1), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    model = OpacusModule(Unused())
    x, y = records(8)
    with pytest.raises(PrivacyError, match="no gradient per row"):
        summed(model, model.initial_parameters(), x, y, 1.0)


@pytest.mark.parametrize("change", ["targets", "params", "rows"])
def test_shapes_that_do_not_fit_are_refused(change: str) -> None:
    model = OpacusModule(nn.Linear(WIDTH, 1))
    values: dict[str, Any] = {
        "params": model.initial_parameters(),
        "features": torch.zeros(8, WIDTH),
        "targets": torch.zeros(8),
    }
    if change == "targets":
        values["targets"] = torch.zeros(8, 1)
    elif change == "params":
        values["params"] = values["params"].double()
    else:
        values |= {"features": torch.zeros(353, WIDTH), "targets": torch.zeros(353)}
    with pytest.raises(PrivacyError, match="expected"):
        model.clipped_gradient_sum(**values, clip_norm=1.0)
