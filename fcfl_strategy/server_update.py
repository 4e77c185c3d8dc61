"""Accelerated server update of section 4.1 of the paper, as a `ServerRule`.

Signs and anchors follow ``docs/paper-errata.md`` E1 and E2: an update ``Delta_i = w_i - y`` points
downhill and is added, and the step starts at the broadcast point ``y``.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fcfl_strategy.server_rule import ServerRule, ServerState, Vector, check

Preconditioner = Literal["none", "normalised", "raw"]

# Share of the known noise variance below which a noise-corrected second moment may not fall:
# at 0.1 no coordinate is amplified by more than sqrt(10) against pure noise.
NOISE_FLOOR = 0.1


@dataclass(frozen=True)
class ServerUpdate(ServerRule):
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
    shrinkage : bool
        Multiply the step of each block by ``max(0, 1 - d v / ||m||^2)``, where ``d`` is its size and ``v`` the known
        noise variance of a coordinate of its first moment ``m``: the positive-part estimator of James and Stein (1961)
        around no step. Steps end by themselves where only noise is left, so that no decay has to be tuned.
    blocks : tuple of int
        Sizes of the blocks, in order; needed for shrinkage.
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
    shrinkage: bool = False
    blocks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.jitter > 0:
            raise ValueError(f"server.jitter: expected a number above 0, got {self.jitter!r}")
        if self.preconditioner == "raw" and not self.trust_region > 0:
            raise ValueError(
                "server.trust-region: the raw preconditioner needs a positive trust region, got 0; "
                "set it (1.0 is usual) or choose preconditioner 'normalised'"
            )

    def broadcast_point(self, state: ServerState) -> Vector:
        """Return the Nesterov point ``y = w + eta_m (w - w_previous)`` of section 4.1."""
        return state.weights + self.lookahead * (state.weights - state.previous)

    def update(
        self, state: ServerState, mean_update: Vector, noise_variance: float = 0.0, gradient: Vector | None = None
    ) -> ServerState:
        """Take one accelerated step (eqs. 7-9 and 12); see `ServerRule.update`."""
        check(state, mean_update)
        beta1, beta2 = self.momentum, self.second_moment
        count = state.updates + 1
        first = beta1 * state.first_moment + (1 - beta1) * mean_update
        second = beta2 * state.second_moment + (1 - beta2) * mean_update**2
        noise = beta2 * state.noise_moment + (1 - beta2) * noise_variance
        correct1 = 1 - beta1**count if self.bias_correction else 1.0
        correct2 = 1 - beta2**count if self.bias_correction else 1.0

        first_noise = beta1**2 * state.first_noise + (1 - beta1) ** 2 * noise_variance
        step = self.step_size * first / correct1
        if self.shrinkage:
            step = step * self._kept(first, first_noise)
        if self.preconditioner != "none":
            variance = second / correct2
            if self.noise_corrected:
                known = noise / correct2
                variance = np.maximum(variance - known, NOISE_FLOOR * known)
            rms = np.sqrt(variance) + self.jitter
            step = step / rms
            if self.preconditioner == "normalised":
                step = step * rms.mean()
        if self.trust_region > 0:
            limit = self.trust_region * float(np.sqrt(np.mean(state.weights**2)))
            step = np.clip(step, -limit, limit)

        half = self.broadcast_point(state) + step
        rho = self.interpolation
        return replace(
            state,
            weights=(1 - rho) * state.weights + rho * half,
            previous=state.weights,
            first_moment=first,
            second_moment=second,
            noise_moment=noise,
            updates=count,
            first_noise=first_noise,
        )

    def _kept(self, moment: Vector, variance: float) -> Vector:
        """Share of each coordinate's step that shrinkage leaves, equal in a block."""
        if sum(self.blocks) != len(moment):
            raise ValueError(f"server.shrinkage: blocks of {sum(self.blocks)} values, the model has {len(moment)}")
        parts = np.split(moment, np.cumsum(self.blocks)[:-1])
        energies = np.array([float(part @ part) for part in parts])
        noise = np.array(self.blocks) * variance
        shares = 1.0 - np.divide(noise, energies, out=np.ones(len(parts)), where=energies > noise)
        return np.repeat(shares, self.blocks)
