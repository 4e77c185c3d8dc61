"""What every method's server step has in common: one frozen state and three pure functions of it.

A method differs from another by its rule, by what its silos add to a step (`ServerRule.local_momentum`, controls,
proximal term) and by nothing else: secure sums, privacy mechanism, participation and rounds are shared.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class ServerState:
    """What the server carries from one optimisation step to the next; a rule leaves at zero what it does not have.

    Attributes
    ----------
    weights, previous : ndarray of float64, shape (p,)
        ``w^(k)`` and ``w^(k-1)``.
    first_moment, second_moment : ndarray of float64, shape (p,)
        Moving average (or sum) of the updates or gradients, and of their squares, without bias correction.
    noise_moment : float
        Moving average of the known noise variance of one coordinate of the update, weighted as the second moment.
    updates : int
        ``t_k`` of eq. 8: completed rounds with at least one contributor.
    first_noise : float
        Known noise variance of one coordinate of the first moment.
    """

    weights: Vector
    previous: Vector
    first_moment: Vector
    second_moment: Vector
    noise_moment: float
    updates: int
    first_noise: float = 0.0


def init(weights: NDArray[np.floating]) -> ServerState:
    """Start at ``weights`` with empty moments."""
    start = np.array(weights, dtype=np.float64)
    zeros = np.zeros_like(start)
    return ServerState(start, start.copy(), zeros, zeros.copy(), 0.0, 0)


class ServerRule(ABC):
    """A server step as pure functions; implementations are frozen dataclasses of its settings."""

    @property
    def local_momentum(self) -> float:
        """Share ``beta`` of the server's first moment in every local step of the silos; 0: none (all but MIME)."""
        return 0.0

    def init(self, weights: NDArray[np.floating]) -> ServerState:
        """State before the first round."""
        return init(weights)

    def broadcast_point(self, state: ServerState) -> Vector:
        """Point ``y`` that the silos start from and that ``Delta_i = w_i - y`` refers to."""
        return state.weights

    @abstractmethod
    def update(
        self, state: ServerState, mean_update: Vector, noise_variance: float = 0.0, gradient: Vector | None = None
    ) -> ServerState:
        """Take one step.

        Parameters
        ----------
        state : ServerState
            Left unchanged.
        mean_update : ndarray of float64, shape (p,)
            ``u^(k)`` of eq. 6, the weighted mean of ``Delta_i = w_i - y``; it points downhill and is added.
        noise_variance : float
            Known privacy-noise variance of one coordinate of ``mean_update``.
        gradient : ndarray of float64, shape (p,), optional
            Weighted mean of the silos' noised full-batch gradients at ``y``, where the method has them.

        Raises
        ------
        ValueError
            If a vector is not finite or has the wrong shape.
        """


def check(state: ServerState, vector: Vector, name: str = "mean update") -> None:
    """Refuse what is no finite vector of the size of the model."""
    if vector.shape != state.weights.shape or not np.isfinite(vector).all():
        raise ValueError(f"{name}: expected a finite vector of the size of the model")
