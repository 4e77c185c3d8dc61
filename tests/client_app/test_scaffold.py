"""SCAFFOLD by hand: counts and signs that are easy to get wrong."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from client_app.drift_control import Control, Pending, change, settle
from client_app.local_training import LocalUpdate, train_locally
from fcfl_strategy import rounds
from privacy.model import ClippedSum
from privacy.plan import MechanismPlan
from privacy.randomness import RandomStream
from server_app.config import RunConfig
from server_app.run_settings import settings_of

RECORDS, STEPS = 32, 12


@dataclass(frozen=True)
class Slope:
    """Loss ``slope * w`` of every record, a `privacy.model.PerExampleModel` of one parameter."""

    slope: float
    size: int = 1

    def predict(self, params: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        return features @ params

    def clipped_gradient_sum(
        self, params: torch.Tensor, features: torch.Tensor, targets: torch.Tensor, clip_norm: float
    ) -> ClippedSum:
        return ClippedSum(torch.tensor([self.slope * len(features)]), 0)


def scaffold(silos: int) -> tuple[rounds.Settings, rounds.RunState, dict[str, int]]:
    config = RunConfig.from_mapping(
        {
            "method": "scaffold",
            "silos": max(silos, 3),
            "participation.cohort": 1.0,
            "local.steps": STEPS,
            "local.step-size": 0.1,
            "dp.clip-norm": 4.0,
            "dp.sampling-rate": 1.0,
            "rounds": 1,
        }
    )
    settings = settings_of(config, bytes(16))
    records = {f"silo-{i}": RECORDS for i in range(silos)}
    return settings, rounds.first_state(settings, np.zeros(1, np.float32), records), records


def local(slope: float, control: Control, mean: float, silos: int = 2) -> LocalUpdate:
    """The local steps of the round's plan: all 32 records for 4 batches and 3 epochs, 12 steps, next to no noise."""
    settings, state, records = scaffold(silos)
    plan = rounds.plan_training(settings, state, records)
    mechanism = MechanismPlan(plan.sampling_rate, plan.clip_norm, 1e-9, plan.steps, RECORDS)
    correction = plan.control_gain * (mean - control.weighted / RECORDS)
    return train_locally(
        Slope(slope),
        np.zeros((RECORDS, 1), np.float32),
        np.zeros(RECORDS, np.float32),
        plan,
        mechanism,
        np.zeros(1, np.float32),
        correction.astype(np.float32),
        plan.step_size,
        RandomStream.seeded(0, "scaffold"),
    )


def after(control: Control, update: LocalUpdate, epoch: int = 1) -> tuple[Control, np.ndarray]:
    """The silo's new control, and what it adds to the coordinator's total."""
    sent = change(control, update.mean_gradient, RECORDS, 1.0)
    return settle(control, epoch, Pending(sent, update.drift, update.direction)), sent


def test_a_constant_gradient_moves_the_model_by_all_steps_and_becomes_the_control() -> None:
    """y = -12 * 0.1 * 2; option II divides by 12 steps: dividing by 4 batches gives 6.0, by 96 or more 0.25."""
    start = Control(np.zeros(1))
    update = local(2.0, start, 0.0)
    assert update.delta[0] == pytest.approx(-2.4, rel=1e-5)
    control, _ = after(start, update)
    assert control.weighted[0] / RECORDS == pytest.approx(2.0, rel=1e-5)
    # Option II by its own formula: c_i - c + (x - y) / (K eta).
    assert control.weighted[0] / RECORDS == pytest.approx(0 - 0 + (0 - update.delta[0]) / (STEPS * 0.1), rel=1e-5)


@pytest.mark.parametrize(("silos", "mean"), [(2, 0.5), (5, 0.2)])
def test_the_server_s_control_is_the_mean_over_all_silos_and_stays_when_the_round_is_repeated(
    silos: int, mean: float
) -> None:
    """Of two contributors with gradients 2 and -1, whatever the number of silos."""
    settings, state, records = scaffold(silos)
    controls = [Control(np.zeros(1)), Control(np.zeros(1))]
    for epoch in (1, 2):
        broadcast = float(rounds.broadcast(settings, state, records)[1][0])
        found = [local(slope, c, broadcast, silos) for slope, c in zip((2.0, -1.0), controls, strict=True)]
        made = [after(c, update, epoch) for c, update in zip(controls, found, strict=True)]
        controls = [control for control, _ in made]
        state = replace(state, control_total=state.control_total + sum(sent for _, sent in made))
        assert rounds.broadcast(settings, state, records)[1][0] == pytest.approx(mean, rel=1e-5)
        assert [c.weighted[0] / RECORDS for c in controls] == pytest.approx([2.0, -1.0], rel=1e-5)


def test_the_corrected_gradient_is_the_server_s_control() -> None:
    """2 - 2 + 0.5 = 0.5 at the silo with gradient 2; with the sign turned it would be 3.5."""
    control = Control(np.array([2.0 * RECORDS]), measured=True)
    update = local(2.0, control, 0.5)
    assert update.delta[0] / (STEPS * 0.1) == pytest.approx(-0.5, rel=1e-5)
