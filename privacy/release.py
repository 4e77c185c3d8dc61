"""What a silo is asked to release in one epoch: the plan, what it costs, and the public bounds of what leaves.

Both sides read the same canonical bytes: the coordinator writes them, binds them into the masks through
the announcement, and the silo checks them against its own policy before any record is touched.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from privacy.metrics import BACKTRACKING, EVALUATION
from privacy.plan import MechanismPlan
from privacy.records import FULL_GRADIENT, TRAINING
from privacy.scaling import SCALING
from privacy.terms import RunTerms
from privacy.wire import Wire, require

MAX_EVALUATION_RECORDS = 2**24
"""Public bound on the records of a silo's validation or test split."""

MAX_SQUARED_ERROR = 1.0
"""Public bound on one squared error in raw log-return units in exact metrics; larger errors saturate."""

TAIL = 12.0
"""Gaussian noise beyond this many standard deviations saturates (probability below 1e-32 a value)."""

METRICS = ("count", "sse", "sae", "hits", "sse_zero", "count_optimal", "sse_optimal")
"""Sums over the records of a split: number, squared and absolute error of the model, directional hits,
squared error of the zero forecast, and, where the data know it, of the optimal forecast."""

FEATURE_BOUND = 3.0
"""Public range of a feature in a scaling release: features beyond it are clipped."""

SAMPLES_PER_BAR = 134
"""Samples that one raw bar enters at most: the group whose epsilon is told beside that of one sample (errata E23)."""

SCALING_NORM = 4.0
"""Largest norm of a record's scaled features and their squares in a scaling release; longer ones are clipped."""

METRIC_NORM = 2.0
"""Largest norm of a record's noised metrics: four values in [0, 1]."""


def noised_metric_scales(bound: float) -> dict[str, float]:
    """Return the metrics that are released with noise, and the public bound on one record's value of each.

    Divided by these a record's four metrics have a norm of at most `METRIC_NORM`: the sensitivity of their sums for the
    adjacency "one record replaced by a null record", which adds nothing.

    Parameters
    ----------
    bound : float
        Bound on a squared error; its root bounds an absolute one.
    """
    return {"sse": bound, "sae": math.sqrt(bound), "hits": 1.0, "sse_zero": bound}


@dataclass(frozen=True)
class Bound:
    """Public bound of one segment of the masked vector.

    Attributes
    ----------
    name : str
    length : int
    bits : int
        Width of the ring, 32 or 64.
    bound : float
        Largest absolute value a silo may put in; larger ones saturate.
    """

    name: str
    length: int
    bits: int
    bound: float


@dataclass(frozen=True)
class Charge:
    """What an epoch costs one budget of a run if the silo releases; a line of the ledger either way.

    Attributes
    ----------
    run : str
        Name of the budget in the ledger.
    purpose : str
        As the ledger says it.
    mechanism : MechanismPlan
    """

    run: str
    purpose: str
    mechanism: MechanismPlan


@dataclass(frozen=True)
class ReleasePlan(Wire):
    """Public plan of one epoch: everything that determines what a silo computes and releases.

    Attributes
    ----------
    purpose : str
        ``scale``, ``train`` or ``evaluate``.
    round : int
        Optimisation step ``k``, counted from 1.
    parameters : int
        ``p``.
    sampling_rate, clip_norm, noise_multiplier, steps
        ``q``, ``C``, ``sigma_k``, ``tau`` of the DP-SGD mechanism; the noise in units of the sensitivity.
    step_size : float
        ``eta_0``.
    proximal : float
        ``mu`` of eq. 13.
    drift_budget : float
        ``d_max`` on ``||w_i - y||^2``; 0 switches it off.
    control_generation : int
        How often all controls were reset, because a silo lost its own (errata E7).
    control_smoothing, control_gain : float
        ``xi`` of errata E7 (0 switches drift control off) and the factor on ``c - c_i``.
    cohort, score_total, min_probability, drift_penalty : float
        ``tau_sel``, ``Z``, ``p_min`` and ``beta`` of errata E10.
    min_records, max_records : int
        Public bounds on the enrolled ``N_i``, rounded outwards to powers of two.
    splits : tuple of str
        Splits whose metrics are summed in this epoch.
    point_hash, control_hash, scale_hash : bytes
        SHA-256 of the broadcast ``y``, ``c`` and feature scale (little-endian float32); the last is empty while
        features keep their public scale.
    terms_hash : bytes
        `RunTerms.hash` of the run, and with it the hash of the configuration.
    adaptive_step : bool
        Whether the silo may shorten its step so that the drift budget holds; else the budget only cuts the steps.
    normalised : bool
        Whether the update is rescaled to ``tau`` steps of ``eta_0`` (FedNova); else it is ``w_i - y`` as it stands.
    control_measured : bool
        Whether ``||c - c_i||^2`` and the noise energy of ``c_i`` are summed.
    uniform : bool
        Whether all silos have the same score, whatever their records and drift.
    momentum : float
        Share ``beta`` of the vector broadcast as ``c`` in every local step (MIME); 0: it is the mean of the controls.
    """

    label: ClassVar[str] = "release plan"
    purpose: str
    round: int
    parameters: int
    sampling_rate: float
    clip_norm: float
    noise_multiplier: float
    steps: int
    step_size: float
    proximal: float
    drift_budget: float
    control_generation: int
    control_smoothing: float
    control_gain: float
    cohort: float
    score_total: float
    min_probability: float
    drift_penalty: float
    min_records: int
    max_records: int
    splits: tuple[str, ...]
    point_hash: bytes
    control_hash: bytes
    scale_hash: bytes
    terms_hash: bytes
    adaptive_step: bool = True
    normalised: bool = True
    control_measured: bool = False
    uniform: bool = False
    momentum: float = 0.0

    def __post_init__(self) -> None:
        require(
            self.label,
            purpose=self.purpose in ("scale", "train", "evaluate"),
            round=self.round >= 0,
            parameters=0 < self.parameters <= 2**31,
            sampling_rate=0 < self.sampling_rate <= 1,
            clip_norm=0 < self.clip_norm < math.inf,
            noise_multiplier=0 < self.noise_multiplier < math.inf,
            steps=0 < self.steps <= 10_000,
            step_size=0 < self.step_size < math.inf,
            proximal=0 <= self.proximal < math.inf,
            drift_budget=0 <= self.drift_budget < math.inf,
            control_generation=0 <= self.control_generation < 2**31,
            control_smoothing=0 <= self.control_smoothing <= 1,
            control_gain=0 <= self.control_gain <= 1,
            cohort=0 < self.cohort < math.inf,
            score_total=0 < self.score_total < math.inf,
            min_probability=0 < self.min_probability <= 1,
            drift_penalty=0 <= self.drift_penalty < math.inf,
            min_records=0 < self.min_records <= self.max_records,
            max_records=self.max_records <= 2**40,
            splits=set(self.splits) <= {"validation", "test"} and len(set(self.splits)) == len(self.splits),
            point_hash=len(self.point_hash) == 32,
            control_hash=len(self.control_hash) == 32,
            scale_hash=len(self.scale_hash) in (0, 32),
            terms_hash=len(self.terms_hash) == 32,
            control_measured=not (self.control_measured and self.control_smoothing == 0),
            momentum=0 <= self.momentum < 1 and not (self.momentum and self.control_gain),
        )

    def charges(self, terms: RunTerms, records: int) -> tuple[Charge, ...]:
        """Return what the epoch costs a silo that releases, one entry for every line of its ledger.

        Guarantee: everything private in the epoch's vector is a post-processing of these mechanisms, for the adjacency
        of the terms (default: one record replaced by a null record). Which lines there are is public; a silo that
        abstains enters as many.

        Parameters
        ----------
        terms : RunTerms
        records : int
            ``N_i``.
        """
        found = []
        if self.purpose == "train":
            training = terms.mechanism(self.noise_multiplier, self.steps, records)
            found.append(Charge(terms.run, TRAINING, training))
            if terms.backtracks:
                looks = MechanismPlan(
                    self.sampling_rate, terms.loss_bound, self.noise_multiplier, terms.backtracks, records
                )
                found.append(Charge(terms.run, BACKTRACKING, looks))
            if terms.gradient_noise:
                once = MechanismPlan(1.0, self.clip_norm, terms.gradient_noise, 1, records)
                found.append(Charge(terms.run, FULL_GRADIENT, once))
        if self.purpose == "scale":
            once = MechanismPlan(1.0, SCALING_NORM, terms.scaling_noise, 1, 1)
            found.append(Charge(terms.run, SCALING, once))
        if self.splits and terms.evaluation is not None:
            once = MechanismPlan(1.0, METRIC_NORM, terms.evaluation.noise_multiplier, 1, 1)
            found.append(Charge(terms.evaluation_run, EVALUATION, once))
        return tuple(found)

    def bounds(self, terms: RunTerms) -> tuple[Bound, ...]:
        """Return the segments of this epoch's masked vector with their public bounds.

        The bound of ``update`` is on the weighted value ``omega_i Delta_i`` (spec of the layout:
        ``docs/secure-aggregation.md``). With ``n_i = N_i`` the noise of ``n_i g`` is ``sigma C' / q`` for every
        silo, and a coordinate of ``n_i g`` without noise is at most ``2 n_i C`` unless a Poisson batch
        is twice its mean. With the silo as unit only the clipped and noised update and its count leave (errata E6).
        """
        found = []
        if self.purpose == "scale":
            largest = self.max_records + TAIL * terms.scaling_noise * SCALING_NORM
            found += [
                Bound("moments", 2 * terms.features, 64, largest),
                Bound("records", 1, 64, float(self.max_records)),
                Bound("contributors", 1, 64, 1.0),
            ]
        elif self.purpose == "train" and terms.unit == "silo":
            largest = self.clip_norm + TAIL * self.noise_multiplier * terms.update_sensitivity
            found += [Bound("update", self.parameters, 32, largest), Bound("contributors", 1, 64, 1.0)]
        elif self.purpose == "train":
            weight = self.max_records / self.min_probability
            length = self.step_size * self.steps
            swing = 1 + 2 * self.control_gain
            sensitivity = terms.mechanism(self.noise_multiplier, self.steps, 1).sensitivity
            noise = TAIL * self.noise_multiplier * sensitivity / self.sampling_rate
            gradient = 2 * self.max_records * self.clip_norm + noise
            norm = swing * length * (2 * self.clip_norm + noise * math.sqrt(self.parameters) / self.min_records)
            found.append(Bound("update", self.parameters, 32, length * swing * gradient / self.min_probability))
            if self.control_smoothing > 0:
                found.append(Bound("control", self.parameters, 32, 2 * self.control_smoothing * gradient))
            if self.control_measured:
                reach = weight * (2 * norm / length) ** 2
                found += [Bound("control_spread", 1, 64, reach), Bound("control_noise", 1, 64, reach)]
            if terms.gradient_noise > 0:
                largest = self.max_records + TAIL * terms.gradient_noise
                found.append(Bound("gradient", self.parameters, 32, largest * self.clip_norm / self.min_probability))
            found += [
                Bound("weight", 1, 64, weight),
                Bound("squared_norm", 1, 64, weight * norm**2),
                Bound("noise_energy", 1, 64, weight * norm**2),
                Bound("weighted_noise_energy", 1, 64, weight**2 * norm**2),
                Bound("score", 1, 64, float(self.max_records)),
                Bound("contributors", 1, 64, 1.0),
            ]
        largest_metric = dict.fromkeys(METRICS, float(MAX_EVALUATION_RECORDS))
        if terms.evaluation is not None:
            reach = MAX_EVALUATION_RECORDS + TAIL * terms.evaluation.noise_multiplier * METRIC_NORM
            scales = noised_metric_scales(terms.metric_bound)
            largest_metric |= {metric: reach * scale for metric, scale in scales.items()}
        found += [
            Bound(f"{split}.{metric}", 1, 64, largest_metric[metric]) for split in self.splits for metric in METRICS
        ]
        return tuple(found)
