"""The terms of a run: what a silo agrees to at enrolment, constant for the run, in canonical bytes."""

import hashlib
import math
from dataclasses import dataclass
from typing import ClassVar

from privacy.conversion import Conversion
from privacy.count_filter import Budget
from privacy.errors import PrivacyError
from privacy.metric import Metric
from privacy.mlp import Mlp
from privacy.plan import MechanismPlan
from privacy.records import (
    PRIVATE,
    RECORD_ADJACENCY,
    SEEDED,
    SILO_REPLACE_ADJACENCY,
    SILO_ZERO_ADJACENCY,
    Accountant,
    RunOpened,
    Unit,
)
from privacy.wire import Wire, require


@dataclass(frozen=True)
class Allowance:
    """A budget beside that of training, for Gaussian releases of all records at once, with a filter of its own.

    Guarantee: that of `RenyiFilter` for `rdp_budget` at `order`, which converts to at most (`epsilon`, the run's
    delta), for the adjacency "one record replaced by a null record" (E22). Over the budgets of a run basic
    composition adds up; where they concern disjoint records that is more than is spent.

    Attributes
    ----------
    epsilon : float
    order, rdp_budget : float
        ``alpha*`` and what may be spent there.
    noise_multiplier : float
        Noise in units of the sensitivity of one release.
    """

    epsilon: float
    order: float
    rdp_budget: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        """Validate by field name."""
        require(
            "allowance",
            epsilon=0 < self.epsilon < math.inf,
            order=1 < self.order <= 10_000,
            rdp_budget=0 < self.rdp_budget < math.inf,
            noise_multiplier=0 < self.noise_multiplier < math.inf,
        )


@dataclass(frozen=True)
class RunTerms(Wire):
    """What a silo agrees to at enrolment; constant for the run.

    Attributes
    ----------
    run_id : bytes
        16 random bytes.
    epsilon, delta : float
        Budget of the training releases for a silo's data set, for `adjacency`.
    adjacency : str
        One of those of `privacy.records`; it fixes the unit of privacy (errata E5, E25).
    accountant, conversion : str
        ``rdp`` or ``pld``; ``improved`` or ``paper`` (errata E16).
    order, rdp_budget : float
        ``alpha*`` of the Renyi filter and its budget (errata E14); with ``pld`` the budget is 0.
    contributions : int
        With ``pld``: how many contributions the count filter admits; else 0.
    sampling_rate, clip_norm : float
        ``q`` and ``C``.
    variance_scale : float
        ``s C`` of errata E9; 0: the gradient variance is not measured.
    sigma_min, sigma_max : float
        Range of the noise multiplier, in units of the sensitivity.
    steps : int
        ``tau``, the most local steps of a round.
    backtracks : int
        Private looks at the loss that a round's step size may depend on (errata E8); 0 is off.
    loss_bound : float
        Public clip of a loss difference; 0 without backtracking.
    cohort, min_probability : float
        Expected contributors ``tau_sel`` and least participation probability.
    features : int
    hidden : tuple of int
        Input width and hidden widths of the model.
    metric : Metric
        Coordinates of its parameters (errata E28).
    noise_seed : int or None
        Set only in seeded runs, which are not private; a silo refuses unless its policy allows it.
    metrics : bool
        Whether epochs may sum metrics over validation and test records.
    scaling_noise : float
        Noise multiplier of the one release of feature means and variances at the start (errata E27), charged to the
        training budget; 0: features keep their public scale.
    evaluation : Allowance or None
        Budget of noised metrics; None: the sums are exact, hence not differentially private (errata E22), and a
        silo refuses them unless its policy allows it.
    metric_bound : float
        Public bound on a squared error in noised metrics; 0 without.
    config_hash : bytes
        SHA-256 of the whole run configuration.
    gradient_noise : float
        Noise multiplier of the gradient of all records that comes with every contribution, charged to the training
        budget (MIME); 0: there is none.
    """

    label: ClassVar[str] = "run terms"
    run_id: bytes
    epsilon: float
    delta: float
    adjacency: str
    accountant: Accountant
    conversion: Conversion
    order: float
    rdp_budget: float
    contributions: int
    sampling_rate: float
    clip_norm: float
    variance_scale: float
    sigma_min: float
    sigma_max: float
    steps: int
    backtracks: int
    loss_bound: float
    cohort: float
    min_probability: float
    features: int
    hidden: tuple[int, ...]
    metric: Metric
    noise_seed: int | None
    metrics: bool
    scaling_noise: float
    evaluation: Allowance | None
    metric_bound: float
    config_hash: bytes
    gradient_noise: float = 0.0

    def __post_init__(self) -> None:
        counted = self.accountant == "pld"
        require(
            self.label,
            run_id=len(self.run_id) == 16,
            epsilon=0 < self.epsilon < math.inf,
            delta=0 < self.delta < 1,
            adjacency=self.adjacency in (RECORD_ADJACENCY, SILO_ZERO_ADJACENCY, SILO_REPLACE_ADJACENCY),
            order=1 < self.order <= 10_000,
            rdp_budget=0 <= self.rdp_budget < math.inf and (self.rdp_budget == 0) == counted,
            contributions=0 <= self.contributions <= 100_000 and (self.contributions > 0) == counted,
            sampling_rate=0 < self.sampling_rate <= 1,
            clip_norm=0 < self.clip_norm < math.inf,
            variance_scale=0 <= self.variance_scale <= 10,
            sigma_min=0 < self.sigma_min < math.inf,
            sigma_max=self.sigma_min <= self.sigma_max < math.inf,
            steps=0 < self.steps <= 10_000,
            backtracks=0 <= self.backtracks <= 100 and not (counted and self.backtracks),
            loss_bound=0 <= self.loss_bound < math.inf and (self.loss_bound > 0) == (self.backtracks > 0),
            cohort=0 < self.cohort < math.inf,
            min_probability=0 < self.min_probability <= 1,
            features=0 < self.features <= 100_000,
            hidden=0 < len(self.hidden) <= 16 and all(0 < width <= 100_000 for width in self.hidden),
            scaling_noise=0 <= self.scaling_noise < math.inf and not (counted and self.scaling_noise),
            evaluation=self.evaluation is None or self.metrics,
            metric_bound=0 <= self.metric_bound < math.inf and (self.metric_bound > 0) == (self.evaluation is not None),
            config_hash=len(self.config_hash) == 32,
            gradient_noise=0 <= self.gradient_noise < math.inf and not (counted and self.gradient_noise),
        )
        beside = self.variance_scale or self.backtracks or self.scaling_noise or self.gradient_noise
        if self.unit == "silo" and (beside or self.evaluation):
            raise PrivacyError(
                f"{self.label}: with the silo as unit only its update leaves; variance_scale, backtracks, "
                "scaling_noise, gradient_noise: expected 0, and evaluation, whose noise protects one record only: "
                "expected None"
            )
        _ = self.openings("checked")

    @property
    def model(self) -> Mlp:
        """The model and its coordinates: public, no privacy cost."""
        return Mlp(self.features, self.hidden, self.metric)

    @property
    def run(self) -> str:
        """Name of the training budget in the ledger."""
        return self.run_id.hex()

    @property
    def evaluation_run(self) -> str:
        """Name of the evaluation budget in the ledger."""
        return f"{self.run}.evaluation"

    @property
    def unit(self) -> Unit:
        """Unit of privacy."""
        return "record" if self.adjacency == RECORD_ADJACENCY else "silo"

    @property
    def update_sensitivity(self) -> float:
        """Sensitivity of a whole update with the silo as unit: C, or 2C where another silo takes its place (E6)."""
        return self.clip_norm * (2.0 if self.adjacency == SILO_REPLACE_ADJACENCY else 1.0)

    @property
    def total_epsilon(self) -> float:
        """Sum over the budgets of the run, by basic composition."""
        return self.epsilon + (self.evaluation.epsilon if self.evaluation else 0.0)

    @property
    def total_delta(self) -> float:
        """Sum over the budgets of the run, by basic composition."""
        return self.delta * (2 if self.evaluation else 1)

    def hash(self) -> bytes:
        """SHA-256 of the canonical encoding; every plan of the run carries it."""
        return hashlib.sha256(self.to_bytes()).digest()

    def openings(self, software: str) -> tuple[RunOpened, ...]:
        """Return the ledger entries that open the run's budgets, training first.

        Guarantee, adjacency and theorem: those of `RunOpened`.

        Raises
        ------
        PrivacyError
            If a Renyi budget allows more than its epsilon.
        """
        status = PRIVATE if self.noise_seed is None else SEEDED
        counted, dearest = self.accountant == "pld", self.mechanism(self.sigma_min, self.steps, 1)
        found = [
            RunOpened(
                run=self.run,
                epsilon=self.epsilon,
                delta=self.delta,
                order=self.order,
                rdp_budget=self.rdp_budget,
                software=software,
                status=status,
                unit=self.unit,
                adjacency=self.adjacency,
                conversion=self.conversion,
                accountant=self.accountant,
                contributions=self.contributions,
                sampling_rate=dearest.sampling_rate if counted else 0.0,
                noise_multiplier=dearest.noise_multiplier if counted else 0.0,
                steps=dearest.steps if counted else 0,
            )
        ]
        if (extra := self.evaluation) is not None:
            found.append(
                RunOpened(
                    self.evaluation_run, extra.epsilon, self.delta, extra.order, extra.rdp_budget, software, status
                )
            )
        return tuple(found)

    def budgets(self) -> dict[str, Budget]:
        """Return the empty filters of the run by name; guarantee, adjacency and theorem: those of each."""
        return {opened.run: opened.budget() for opened in self.openings("planned")}

    def mechanism(self, noise_multiplier: float, steps: int, records: int) -> MechanismPlan:
        """Return the mechanism of one training contribution.

        Guarantee, adjacency and assumptions: those of `MechanismPlan`; with the silo as unit those of
        `privacy.silo_unit.SiloPlan`, whose releases are neither sampled nor repeated (E6).

        Parameters
        ----------
        noise_multiplier : float
            ``sigma_k``, in units of the sensitivity.
        steps : int
            Local steps of the round.
        records : int
            ``N_i``.
        """
        if self.unit == "silo":
            return MechanismPlan(1.0, self.clip_norm, noise_multiplier, 1, 1)
        return MechanismPlan(self.sampling_rate, self.clip_norm, noise_multiplier, steps, records, self.variance_scale)
