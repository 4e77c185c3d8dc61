"""MIME with momentum (Karimireddy et al. 2021, "Breaking the centralized barrier"), in its form MimeLite.

The server keeps a momentum of full-batch gradients at the broadcast point; the silos mix it, unchanged during the
round, into every local step. MIME proper also corrects each local gradient by that of the same batch at the broadcast
point and by this round's mean gradient: a second release per step and a second exchange per round, for which the source
finds no gain in practice (its section 7).
"""

from dataclasses import dataclass, replace

from fcfl_strategy.server_rule import ServerRule, ServerState, Vector, check


@dataclass(frozen=True)
class Mime(ServerRule):
    """``s <- (1 - beta) g + beta s`` after the round; ``w <- w + eta_s u``.

    Attributes
    ----------
    step_size : float
        ``eta_s``; 1 in the source.
    momentum : float
        ``beta`` of ``s`` and of the local step ``w <- w - eta ((1 - beta) g_i + beta s)``.
    """

    step_size: float = 1.0
    momentum: float = 0.9

    @property
    def local_momentum(self) -> float:
        """``beta``."""
        return self.momentum

    def update(
        self, state: ServerState, mean_update: Vector, noise_variance: float = 0.0, gradient: Vector | None = None
    ) -> ServerState:
        """Take one step; see `ServerRule.update`. The gradient is required."""
        check(state, mean_update)
        if gradient is None:
            raise ValueError("gradient: MIME needs the mean full-batch gradient of the round")
        check(state, gradient, "gradient")
        return replace(
            state,
            weights=state.weights + self.step_size * mean_update,
            previous=state.weights,
            first_moment=(1 - self.momentum) * gradient + self.momentum * state.first_moment,
            updates=state.updates + 1,
        )
