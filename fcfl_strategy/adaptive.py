"""Adaptive server steps: FedAdam and FedYogi (Reddi et al. 2021, "Adaptive Federated Optimization", algorithm 2)."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fcfl_strategy.server_rule import ServerRule, ServerState, Vector, check, init


@dataclass(frozen=True)
class Adaptive(ServerRule):
    """``m <- beta_1 m + (1 - beta_1) u``, ``w <- w + eta m / (sqrt(v) + tau)``; no bias correction, as in the source.

    Attributes
    ----------
    kind : {"adam", "yogi"}
        ``adam``: ``v <- beta_2 v + (1 - beta_2) u^2``. ``yogi``: ``v <- v - (1 - beta_2) u^2 sign(v - u^2)``.
    step_size : float
        ``eta``, in units of a weight: what a coordinate whose updates all agree moves in a round.
    momentum, second_moment : float
        ``beta_1`` and ``beta_2``, in [0, 1).
    adaptivity : float
        ``tau``, above 0: updates far smaller than it are not scaled up. ``v`` starts at its square.
    """

    kind: Literal["adam", "yogi"]
    step_size: float = 0.01
    momentum: float = 0.9
    second_moment: float = 0.99
    adaptivity: float = 1e-3

    def __post_init__(self) -> None:
        if not self.adaptivity > 0:
            raise ValueError(f"adaptive.tau: expected a number above 0, got {self.adaptivity!r}")

    def init(self, weights: NDArray[np.floating]) -> ServerState:
        """Start with ``v = tau^2``, the least value the source allows."""
        state = init(weights)
        return replace(state, second_moment=np.full_like(state.weights, self.adaptivity**2))

    def update(
        self, state: ServerState, mean_update: Vector, noise_variance: float = 0.0, gradient: Vector | None = None
    ) -> ServerState:
        """Take one step; see `ServerRule.update`."""
        check(state, mean_update)
        square, weight = mean_update**2, 1 - self.second_moment
        first = self.momentum * state.first_moment + (1 - self.momentum) * mean_update
        if self.kind == "adam":
            second = self.second_moment * state.second_moment + weight * square
        else:
            second = state.second_moment - weight * square * np.sign(state.second_moment - square)
        return replace(
            state,
            weights=state.weights + self.step_size * first / (np.sqrt(second) + self.adaptivity),
            previous=state.weights,
            first_moment=first,
            second_moment=second,
            updates=state.updates + 1,
        )
