"""Eq. 25 with the clamp of errata E26."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fcfl_strategy.schedule import NoiseSchedule, noise_multiplier, planned_shape

DIVERGENCE = NoiseSchedule("divergence", 4.0, 0.5, 100.0, sensitivity=2.0)


def test_equation_25_by_hand() -> None:
    # k = 3, D = 0.5, ||w - w'|| = 3: 4 / sqrt(4) * sqrt(1 + 2 * 0.5) * sqrt(1 / (1 + 3)) = 4/2 * 1.4142 / 2
    assert noise_multiplier(DIVERGENCE, 3, 0.5, 3.0) == pytest.approx(math.sqrt(2))


def test_the_first_round_of_a_run_has_sigma_0() -> None:
    assert noise_multiplier(DIVERGENCE, 0, 0.0, 0.0) == 4.0


@given(step=st.integers(0, 500), divergence=st.floats(0, 1e6), movement=st.floats(0, 1e6))
def test_a_constant_schedule_ignores_everything(step: int, divergence: float, movement: float) -> None:
    assert noise_multiplier(NoiseSchedule("constant", 4.0, 0.5, 100.0, 2.0), step, divergence, movement) == 4.0


@given(
    step=st.integers(0, 10_000),
    divergence=st.floats(0, 1e9),
    movement=st.floats(0, 1e9),
    kind=st.sampled_from(["constant", "divergence"]),
    sigma_0=st.floats(1e-3, 1e6),
)
def test_sigma_never_leaves_its_clamp(step: int, divergence: float, movement: float, kind: str, sigma_0: float) -> None:
    schedule = NoiseSchedule(kind, sigma_0, 0.5, 100.0, 2.0)  # type: ignore[arg-type]
    assert 0.5 <= noise_multiplier(schedule, step, divergence, movement) <= 100.0


@given(step=st.integers(0, 100), divergence=st.floats(0, 10), movement=st.floats(0, 10))
def test_sigma_falls_with_the_round_and_with_movement_and_rises_with_divergence(
    step: int, divergence: float, movement: float
) -> None:
    here = noise_multiplier(DIVERGENCE, step, divergence, movement)
    assert noise_multiplier(DIVERGENCE, step + 1, divergence, movement) <= here
    assert noise_multiplier(DIVERGENCE, step, divergence, movement + 1) <= here
    assert noise_multiplier(DIVERGENCE, step, divergence + 1, movement) >= here


def test_the_planned_shape_is_the_schedule_without_divergence_and_movement() -> None:
    assert planned_shape("constant", 3) == (1.0, 1.0, 1.0)
    planned = [4.0 * factor for factor in planned_shape("divergence", 6)]
    assert planned == pytest.approx([noise_multiplier(DIVERGENCE, step, 0.0, 0.0) for step in range(6)])
