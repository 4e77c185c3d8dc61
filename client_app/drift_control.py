"""Drift control variates: the silo's control ``c_i`` (section 4.2 of the paper, errata E6, E7).

``c_i`` tracks ``grad F_i`` through the mean noised gradient, so it is post-processing of released
noise. The silo keeps ``N_i c_i`` as the integer sum of exactly the ring encodings it sent, so that the
coordinator's ``c = sum_i N_i c_i / sum_i N_i`` holds without rounding.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Control:
    """Committed control of one silo in one run.

    Attributes
    ----------
    weighted : ndarray of float64, shape (p,)
        ``N_i c_i``: a sum of multiples of the ring's step, a power of two, hence exact in float64.
    settled : int
        Last epoch that is over for this silo: its outcome is included, its number is never used again.
    drift : float
        ``d_i`` of eq. 20, the privatised squared drift of the last settled contribution.
    direction : float
        ``||g_bar_i - c_i + c||^2`` of that contribution, less its known noise energy.
    variance : float
        ``v_i`` of eq. 19: privatised variance of the clipped gradients of that contribution (errata E9); infinite
        where it is not measured, so that its public bound counts.
    measured : bool
        Whether a contribution has been settled.
    generation : int
        How often the coordinator has reset all controls (errata E7).
    noise_energy : float
        Expected squared norm of the privacy noise in ``c_i``; known from the plans, independent of the records.
    """

    weighted: NDArray[np.float64]
    settled: int = 0
    drift: float = 0.0
    direction: float = 0.0
    variance: float = math.inf
    measured: bool = False
    generation: int = 0
    noise_energy: float = 0.0


@dataclass(frozen=True)
class Pending:
    """What a contribution will change once its epoch is announced as completed.

    Attributes
    ----------
    change : ndarray of float64, shape (p,)
        ``N_i (c_i_new - c_i)`` exactly as encoded.
    drift, direction, variance, noise_energy : float
        As in `Control`.
    """

    change: NDArray[np.float64]
    drift: float
    direction: float
    variance: float = math.inf
    noise_energy: float = 0.0


def change(control: Control, mean_gradient: NDArray[np.float64], records: int, smoothing: float) -> NDArray[np.float64]:
    """``N_i (c_i_new - c_i)`` for ``c_i_new = (1 - xi) c_i + xi g_bar_i`` (errata E7)."""
    return smoothing * (records * mean_gradient - control.weighted)


def noise_energy_after(control: Control, noise_energy: float, smoothing: float) -> float:
    """Noise energy of ``c_i_new``, where that of ``g_bar_i`` is ``noise_energy``: the two are independent."""
    return (1 - smoothing) ** 2 * control.noise_energy + smoothing**2 * noise_energy


def settle(control: Control, epoch: int, pending: Pending | None) -> Control:
    """Include the outcome of ``epoch``: add ``pending``, or nothing where it did not count."""
    if pending is None:
        return replace(control, settled=epoch)
    return Control(
        control.weighted + pending.change,
        epoch,
        pending.drift,
        pending.direction,
        pending.variance,
        measured=True,
        generation=control.generation,
        noise_energy=pending.noise_energy,
    )


def reset(control: Control, generation: int) -> Control:
    """Return a control of zero: one silo lost its own, so that all begin again, and the mean stays exact."""
    return Control(np.zeros_like(control.weighted), control.settled, generation=generation)
