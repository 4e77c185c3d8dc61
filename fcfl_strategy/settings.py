"""Everything the strategy needs to know besides the run's state."""

from dataclasses import dataclass
from typing import Literal

from fcfl_strategy.schedule import NoiseSchedule
from fcfl_strategy.server_rule import ServerRule
from privacy.terms import RunTerms
from secagg.graph_parameters import Rates
from secagg.pins import PinnedRoster

GainRule = Literal["constant", "signal-to-noise"]
USUAL_RATES = Rates(corruption=0.05, dropout=0.05, active=True)


@dataclass(frozen=True)
class Deadlines:
    """Seconds the coordinator waits in each stage, and between two looks at the replies."""

    enrol: float = 120.0
    train: float = 600.0
    unmask: float = 120.0
    poll: float = 0.2


@dataclass(frozen=True)
class Settings:
    """Settings of one run.

    Attributes
    ----------
    terms : RunTerms
        What the silos agree to.
    rounds : int
        ``K``, planned optimisation rounds.
    contributions : int
        Contributions per silo the noise is calibrated for (errata E15).
    rule : ServerRule
        The method's server step.
    schedule : NoiseSchedule
    step_size : float
        ``eta_0``.
    drift_budget : float
        ``d_max`` as a multiple of the median silo's noise energy; 0 switches it off.
    proximal, proximal_max : float
        ``lambda_0`` and the bound on ``mu = lambda_0 D_hat``.
    control_smoothing, control_gain : float
        ``xi`` and the factor on ``c - c_i``, or its bound.
    drift_penalty : float
        ``beta`` of eq. 23.
    silos : int
        Expected number of silos; the run starts when as many have enrolled.
    colluders : int
        ``n_C``, silos that may collude with the coordinator.
    max_abandoned : int
        Consecutive abandoned epochs after which the run gives up.
    evaluate_every : int
        Rounds from one validation to the next.
    evaluate : bool
        Whether to end with an evaluation of the served model on validation and test splits.
    deadlines : Deadlines
    graph : {"complete", "regular", "auto"}
        Who exchanges masks and shares with whom.
    rates : Rates
        What a regular graph has to withstand.
    pins : PinnedRoster or None
        The only silos that may enrol, with their identity keys; None: any. The silos pin their peers themselves.
    step_decay : float
        Share of ``eta_0`` that the client step loses over the run.
    proximal_constant : float
        Part of ``mu`` that does not depend on the divergence.
    adaptive_step : bool
        Whether silos choose ``eta_i`` within the drift budget; without, the budget only cuts ``tau_i`` (errata E20).
    normalised : bool
        Whether silos rescale their update to ``tau`` steps of ``eta_0`` (FedNova).
    gain_rule : {"constant", "signal-to-noise"}
        Whether the control's gain is ``control_gain``, or what `divergence.control_gain` says, at most that.
    uniform : bool
        Whether participation ignores the importance scores.
    averaging : float
        Decay of the average of iterates that is served; 0: the last iterate.
    """

    terms: RunTerms
    rounds: int
    contributions: int
    rule: ServerRule
    schedule: NoiseSchedule
    step_size: float
    drift_budget: float
    proximal: float
    proximal_max: float
    control_smoothing: float
    control_gain: float
    drift_penalty: float
    silos: int
    colluders: int
    max_abandoned: int
    evaluate_every: int
    evaluate: bool
    deadlines: Deadlines
    graph: str = "complete"
    rates: Rates = USUAL_RATES
    pins: PinnedRoster | None = None
    step_decay: float = 0.0
    proximal_constant: float = 0.0
    adaptive_step: bool = True
    normalised: bool = True
    gain_rule: GainRule = "constant"
    uniform: bool = False
    averaging: float = 0.0
