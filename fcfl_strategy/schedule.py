"""Noise multiplier of each round, constant or divergence-aware as in eq. 25 of the paper, and client step of each."""

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class NoiseSchedule:
    """Rule for ``sigma_k``.

    Attributes
    ----------
    kind : {"constant", "divergence"}
        ``constant``: ``sigma_0`` in every round. ``divergence``: eq. 25.
    sigma_0 : float
        Noise multiplier found by calibration.
    sigma_min, sigma_max : float
        Clamp (errata E26): below ``sigma_min`` every silo would decline.
    sensitivity : float
        ``rho`` of eq. 25, the weight of the divergence.
    """

    kind: Literal["constant", "divergence"]
    sigma_0: float
    sigma_min: float
    sigma_max: float
    sensitivity: float = 0.0


def planned_shape(kind: str, rounds: int) -> tuple[float, ...]:
    """Return ``sigma_k / sigma_0`` before any divergence or movement has been seen.

    Calibration uses it as the plan; what the run really spends is bounded by the filter.
    """
    if kind == "constant":
        return (1.0,) * rounds
    return tuple(1 / math.sqrt(k + 1) for k in range(rounds))


def noise_multiplier(schedule: NoiseSchedule, step: int, divergence: float, movement: float) -> float:
    """Return ``sigma_k``.

    Parameters
    ----------
    schedule : NoiseSchedule
    step : int
        ``k``, counted from 0.
    divergence : float
        ``D_hat`` of the last completed round, computed from privatised sums only.
    movement : float
        ``||w^(k) - w^(k-1)||_2``.

    Returns
    -------
    float
        In [``sigma_min``, ``sigma_max``]. It is a function of released values (post-processing);
        the adaptive composition is accounted by a Renyi filter (errata E14).
    """
    sigma = schedule.sigma_0
    if schedule.kind == "divergence":
        sigma *= math.sqrt((1 + schedule.sensitivity * divergence) / ((step + 1) * (1 + movement)))
    return min(max(sigma, schedule.sigma_min), schedule.sigma_max)


def step_size(start: float, decay: float, step: int, rounds: int) -> float:
    """Return the client step of a round: linear decay, ``eta_0 (1 - decay k / K)``.

    Parameters
    ----------
    start : float
        ``eta_0``.
    decay : float
        In [0, 1]; 0 is constant, 1 decays towards zero and ends at ``eta_0 / K``.
    step : int
        ``k``, counted from 0.
    rounds : int
        ``K``.
    """
    return start * (1 - decay * min(step, rounds - 1) / rounds)
