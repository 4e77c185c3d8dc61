"""Server steps without a preconditioner: FedAvg (McMahan et al. 2017) and FedAvgM (Hsu, Qi and Brown 2019).

FedProx (Li et al. 2020), SCAFFOLD (Karimireddy et al. 2020) and FedNova (Wang et al. 2020) take the same server step
as FedAvg; what they change happens at the silos.
"""

from dataclasses import dataclass, replace

from fcfl_strategy.server_rule import ServerRule, ServerState, Vector, check


@dataclass(frozen=True)
class Averaging(ServerRule):
    """``v <- beta v + u``, ``w <- w + eta_s v``.

    Attributes
    ----------
    step_size : float
        ``eta_s``; 1 replaces the model by the mean of the silos' models.
    momentum : float
        ``beta``; 0 is FedAvg.
    """

    step_size: float = 1.0
    momentum: float = 0.0

    def update(
        self, state: ServerState, mean_update: Vector, noise_variance: float = 0.0, gradient: Vector | None = None
    ) -> ServerState:
        """Take one step; see `ServerRule.update`."""
        check(state, mean_update)
        velocity = self.momentum * state.first_moment + mean_update
        return replace(
            state,
            weights=state.weights + self.step_size * velocity,
            previous=state.weights,
            first_moment=velocity,
            updates=state.updates + 1,
        )
