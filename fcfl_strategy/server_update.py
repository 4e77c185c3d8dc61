"""Accelerated server update of section 4.1 of the paper, as pure ``init`` / ``update`` functions.

Signs and anchors follow ``docs/paper-errata.md`` E1 and E2: an update ``Delta_i = w_i - y`` points
downhill and is added, and the step starts at the broadcast point ``y``.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Preconditioner = Literal["none", "normalised", "raw"]

# Share of the known noise variance below which a noise-corrected second moment may not fall:
# at 0.1 no coordinate is amplified by more than sqrt(10) against pure noise.
NOISE_FLOOR = 0.1


@dataclass(frozen=True)
class ServerUpdate:
    """Settings of the server step.

    Attributes
    ----------
    momentum, second_moment : float
        ``beta_1`` and ``beta_2`` of eq. 7, in [0, 1).
    step_size : float
        ``eta_s`` of eq. 9.
    lookahead : float
        ``eta_m`` of the Nesterov point ``y = w + eta_m (w - w_previous)``, in [0, 1).
    interpolation : float
        ``rho`` of Algorithm 1 line 11, in (0, 1]; 1 switches it off.
    bias_correction : bool
        Divide the moments by ``1 - beta^t`` (eq. 8).
    preconditioner : {"none", "normalised", "raw"}
        ``normalised``: ``P = mean(RMS) / RMS``, so that the step keeps the scale of the update.
        ``raw``: ``P = 1 / RMS``, the literal eq. 9.
    noise_corrected : bool
        Subtract the known variance of the privacy noise from the second moment (errata E4).
    jitter : float
        ``epsilon_p`` of eq. 9, above 0: a coordinate whose update was always 0 would divide 0 by 0.
    trust_region : float
        Largest step of a coordinate, as a multiple of the RMS of the weights; 0 switches it off.
        Required with ``raw`` (errata E3).
    """

    momentum: float = 0.5
    second_moment: float = 0.99
    step_size: float = 1.0
    lookahead: float = 0.3
    interpolation: float = 1.0
    bias_correction: bool = True
    preconditioner: Preconditioner = "normalised"
    noise_corrected: bool = False
    jitter: float = 1e-8
    trust_region: float = 0.0

    def __post_init__(self) -> None:
        if not self.jitter > 0:
            raise ValueError(f"server.jitter: expected a number above 0, got {self.jitter!r}")
        if self.preconditioner == "raw" and not self.trust_region > 0:
            raise ValueError(
                "server.trust-region: the raw preconditioner needs a positive trust region, got 0; "
                "set it (1.0 is usual) or choose preconditioner 'normalised'"
            )


@dataclass(frozen=True)
class ServerState:
    """What the server carries from one optimisation step to the next.

    Attributes
    ----------
    weights, previous : ndarray of float64, shape (p,)
        ``w^(k)`` and ``w^(k-1)``.
    first_moment, second_moment : ndarray of float64, shape (p,)
        ``m`` and ``v`` of eq. 7, without bias correction.
    noise_moment : float
        The same moving average of the known noise variance of one coordinate of ``u``.
    updates : int
        ``t_k`` of eq. 8: completed rounds with at least one contributor.
    """

    weights: Vector
    previous: Vector
    first_moment: Vector
    second_moment: Vector
    noise_moment: float
    updates: int


def init(weights: NDArray[np.floating]) -> ServerState:
    """Start at ``weights`` with empty moments."""
    start = np.array(weights, dtype=np.float64)
    zeros = np.zeros_like(start)
    return ServerState(start, start.copy(), zeros, zeros.copy(), 0.0, 0)


def broadcast_point(settings: ServerUpdate, state: ServerState) -> Vector:
    """Return the Nesterov point ``y = w + eta_m (w - w_previous)`` of section 4.1."""
    return state.weights + settings.lookahead * (state.weights - state.previous)


def update(settings: ServerUpdate, state: ServerState, mean_update: Vector, noise_variance: float = 0.0) -> ServerState:
    """Take one accelerated step (eqs. 7-9 and 12).

    Parameters
    ----------
    settings, state
        The rule and what it remembers.
    mean_update : ndarray of float64, shape (p,)
        ``u^(k)`` of eq. 6, the weighted mean of ``Delta_i = w_i - y``.
    noise_variance : float
        Known privacy-noise variance of one coordinate of ``mean_update``; used when
        ``noise_corrected`` is set.

    Returns
    -------
    ServerState
        The next state; the input is unchanged.

    Raises
    ------
    ValueError
        If the update is not finite or has the wrong shape.
    """
    if mean_update.shape != state.weights.shape or not np.isfinite(mean_update).all():
        raise ValueError("mean update: expected a finite vector of the size of the model")
    beta1, beta2 = settings.momentum, settings.second_moment
    count = state.updates + 1
    first = beta1 * state.first_moment + (1 - beta1) * mean_update
    second = beta2 * state.second_moment + (1 - beta2) * mean_update**2
    noise = beta2 * state.noise_moment + (1 - beta2) * noise_variance
    correct1 = 1 - beta1**count if settings.bias_correction else 1.0
    correct2 = 1 - beta2**count if settings.bias_correction else 1.0

    step = settings.step_size * first / correct1
    if settings.preconditioner != "none":
        variance = second / correct2
        if settings.noise_corrected:
            known = noise / correct2
            variance = np.maximum(variance - known, NOISE_FLOOR * known)
        rms = np.sqrt(variance) + settings.jitter
        step = step / rms
        if settings.preconditioner == "normalised":
            step = step * rms.mean()
    if settings.trust_region > 0:
        limit = settings.trust_region * float(np.sqrt(np.mean(state.weights**2)))
        step = np.clip(step, -limit, limit)

    half = broadcast_point(settings, state) + step
    rho = settings.interpolation
    return replace(
        state,
        weights=(1 - rho) * state.weights + rho * half,
        previous=state.weights,
        first_moment=first,
        second_moment=second,
        noise_moment=noise,
        updates=count,
    )
