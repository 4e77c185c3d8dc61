"""What a silo puts into one secure sum: coin, local training, control change, scalars, metrics."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from client_app.drift_control import Control, Pending, change, noise_energy_after
from client_app.participation import probability, score
from data_prep.shards import Shard, Split
from privacy.metrics import BACKTRACKING, EVALUATION
from privacy.mlp import Mlp
from privacy.plan import MechanismPlan
from privacy.randomness import RandomStream
from privacy.records import FULL_GRADIENT
from privacy.release import FEATURE_BOUND, Charge, ReleasePlan
from privacy.scaling import FeatureScale, ScaledRows, private_moments
from privacy.silo_unit import SiloPlan
from privacy.terms import RunTerms
from secagg.messages import Announcement
from secagg.ring import EncodedVector, encode

MAX_RATIO = 1 + 1e-9
LARGEST = 1e100
"""Stands for what is not finite: no sum of squares of float32 values reaches it."""


@dataclass(frozen=True)
class Sample:
    """The silo's samples as training sees them.

    Attributes
    ----------
    shard : Shard
        Memory-mapped splits.
    records : int
        ``N_i``: number of training samples, frozen at enrolment.
    features : int
        Width of a sample.
    """

    shard: Shard

    @property
    def records(self) -> int:
        """``N_i``."""
        return len(self.shard.train.targets)

    @property
    def fingerprint(self) -> bytes:
        """SHA-256 over those of the arrays, as the manifest has them, and ``N_i``."""
        arrays = json.dumps(self.shard.manifest["arrays"], sort_keys=True)
        return hashlib.sha256(f"{self.records} {arrays}".encode()).digest()

    @property
    def features(self) -> int:
        """Width of a sample."""
        return int(self.shard.train.features.shape[1])


@dataclass(frozen=True)
class Contribution:
    """An encoded vector and what it means for the silo.

    Attributes
    ----------
    encoded : EncodedVector
    pending : Pending or None
        Control change that waits for the epoch's outcome; None with coin tails, and where nothing is trained.
    released : bool
        Whether the charges of the training budget are due.
    diagnostics : str
        For the silo's own log: it depends on data and never leaves the silo.
    """

    encoded: EncodedVector
    pending: Pending | None
    released: bool
    diagnostics: str


def randomness(terms: RunTerms, silo: str, epoch: int, purpose: str) -> RandomStream:
    """Return the OS CSPRNG, or in a seeded (not private) run the stream of that purpose."""
    if terms.noise_seed is None:
        return RandomStream.from_os()
    return RandomStream.seeded(terms.noise_seed, silo, epoch, purpose)


@dataclass(frozen=True)
class Question:
    """What a silo is asked in one epoch, checked and read.

    Attributes
    ----------
    announcement : Announcement
    plan : ReleasePlan
    terms : RunTerms
    charges : tuple of Charge
        What the epoch costs if the silo releases.
    point, control_mean : ndarray of float32, shape (p,)
        ``y`` and ``c``.
    scale : FeatureScale or None
        Scale of the features, where the run has one (errata E27).
    """

    announcement: Announcement
    plan: ReleasePlan
    terms: RunTerms
    charges: tuple[Charge, ...]
    point: NDArray[np.float32]
    control_mean: NDArray[np.float32]
    scale: FeatureScale | None = None

    def split(self, split: Split) -> Split:
        """Return a split with the features of this run."""
        if self.scale is None:
            return split
        # Scaled as rows are read: a memory-mapped split stays on disk.
        return replace(split, features=ScaledRows(split.features, self.scale))  # type: ignore[arg-type]

    @property
    def training(self) -> tuple[Charge, ...]:
        """Charges of the training budget, in a training epoch due with coin heads only."""
        return tuple(charge for charge in self.charges if charge.run == self.terms.run)

    @property
    def others(self) -> tuple[Charge, ...]:
        """Charges that are due whatever the coin."""
        return tuple(charge for charge in self.charges if charge.run != self.terms.run)

    def mechanism(self, purpose: str) -> MechanismPlan | None:
        """Return the mechanism of a purpose, if the epoch has it."""
        return next((charge.mechanism for charge in self.charges if charge.purpose == purpose), None)


def contribution(
    sample: Sample, silo: str, asked: Question, control: Control, *, may_train: bool, may_measure: bool
) -> Contribution:
    """Compute the vector of one epoch.

    Guarantee: with coin heads everything but the metrics is a post-processing of the mechanisms of ``asked.training``
    (errata E6); with coin tails, or when the budget does not admit them (``may_train`` false), all of it is zero
    except the score and the metrics (errata E10). Metrics are exact, or one release of ``asked.others``, or zero if
    their budget does not admit it (``may_measure`` false). Values that overflow, as they do under an absurd step size,
    saturate: a refusal would tell about the noised gradient, uncharged.
    """
    plan, terms, epoch = asked.plan, asked.terms, asked.announcement.epoch
    layout = asked.announcement.layout
    values = {segment.name: np.zeros(segment.length) for segment in layout}
    if plan.splits and may_measure:
        for name, value in _metrics(sample, silo, asked).items():
            values[name][0] = value

    pending, diagnostics = None, "metrics only" if may_measure else "nothing: the budget of the metrics is used up"
    if plan.purpose == "train":
        own = 1.0
        if not plan.uniform:
            own = score(sample.records, control.drift, control.variance, plan.clip_norm, plan.drift_penalty)
        if "score" in values:
            values["score"][0] = own
        chance = probability(plan, own if "score" in values else 1.0)
        heads = randomness(terms, silo, epoch, "coin").coin(chance)
        diagnostics = "sat out: " + ("the budget is used up" if heads else f"coin tails at p = {chance:.3f}")
        if heads and may_train:
            train = _train if terms.unit == "record" else _train_as_a_whole
            pending, diagnostics = train(sample, silo, asked, control, chance, values)
    if plan.purpose == "scale":
        diagnostics = "sat out: the budget is used up"
        if may_train:
            diagnostics = _sum_moments(sample, silo, asked, values)
    rounding = randomness(terms, silo, epoch, "rounding")
    encoded = encode(layout, {name: _finite(value) for name, value in values.items()}, rounding.uniform)
    if pending is not None and "control" in values:
        step = next(segment.step for segment in layout if segment.name == "control")
        # Multiplying by a power of two is exact: the silo commits to the very value it sends.
        sent = np.multiply(encoded.signed("control"), step, dtype=np.float64)
        pending = replace(pending, change=sent)
    if saturated := {name: count for name, count in encoded.saturated.items() if count}:
        diagnostics += f", saturated {saturated}"
    released = may_train and (pending is not None or plan.purpose == "scale")
    return Contribution(encoded, pending, released, diagnostics)


def _sum_moments(sample: Sample, silo: str, asked: Question, values: Mapping[str, NDArray[np.float64]]) -> str:
    """Fill in the noised moments of the features (errata E27)."""
    mechanism = asked.training[0].mechanism
    stream = randomness(asked.terms, silo, asked.announcement.epoch, "scaling")
    values["moments"][:] = private_moments(sample.shard.train.features, mechanism, stream, FEATURE_BOUND)
    values["records"][0] = sample.records
    values["contributors"][0] = 1.0
    return "contributed the moments of its features"


def _train(
    sample: Sample,
    silo: str,
    asked: Question,
    control: Control,
    chance: float,
    values: Mapping[str, NDArray[np.float64]],
) -> tuple[Pending, str]:
    """Train locally and fill in the weighted update, its scalars and the control change."""
    # torch is imported only where training runs: a silo process that exchanges keys starts fast.
    import torch

    from client_app.local_training import step_size, train_locally
    from privacy.dpsgd import private_gradient

    plan, terms = asked.plan, asked.terms
    mechanism, data = asked.training[0].mechanism, asked.split(sample.shard.train)
    difference = asked.control_mean - control.weighted / sample.records
    # Controls are off where the vector in their place is MIME's momentum.
    correction = plan.momentum * asked.control_mean if plan.momentum else plan.control_gain * difference
    update = train_locally(
        _model(terms),
        data.features,
        data.targets,
        plan,
        mechanism,
        asked.point,
        correction.astype(np.float32),
        step_size(plan, mechanism, control.direction),
        randomness(terms, silo, asked.announcement.epoch, "mechanism"),
        asked.mechanism(BACKTRACKING),
    )
    weight = sample.records / chance
    if weight > plan.max_records / plan.min_probability * MAX_RATIO:
        raise ValueError("the aggregation weight exceeds n_max / p_min")
    values["update"][:] = weight * update.delta
    values["weight"][0] = weight
    values["squared_norm"][0] = weight * float(np.sum(update.delta**2))
    values["noise_energy"][0] = weight * update.noise_energy
    values["weighted_noise_energy"][0] = weight**2 * update.noise_energy
    values["contributors"][0] = 1.0
    if (full := asked.mechanism(FULL_GRADIENT)) is not None:
        stream = randomness(terms, silo, asked.announcement.epoch, "gradient")
        released = private_gradient(
            _model(terms), torch.from_numpy(asked.point), data.features, data.targets, full, stream
        )
        values["gradient"][:] = weight * released.mean.double().numpy()
    if plan.control_measured:
        values["control_spread"][0] = weight * float(np.sum(difference**2))
        values["control_noise"][0] = weight * control.noise_energy
    if plan.control_smoothing > 0:
        values["control"][:] = change(control, update.mean_gradient, sample.records, plan.control_smoothing)
    diagnostics = f"contributed {update.steps} steps at p = {chance:.3f}"
    if update.zeroed:
        diagnostics += f", {update.zeroed} gradients were not finite and count as zero"
    drift, direction = map(float, _finite(np.array([update.drift, update.direction])))
    noise = noise_energy_after(control, update.gradient_noise, plan.control_smoothing)
    return Pending(np.zeros(plan.parameters), drift, direction, update.variance, noise), diagnostics


def _train_as_a_whole(
    sample: Sample,
    silo: str,
    asked: Question,
    control: Control,
    chance: float,
    values: Mapping[str, NDArray[np.float64]],
) -> tuple[Pending, str]:
    """Release one clipped and noised update of the whole silo, with weight 1 (errata E6); ``control`` has no part."""
    from client_app.silo_level_training import train_as_a_whole

    plan, terms, data = asked.plan, asked.terms, asked.split(sample.shard.train)
    values["update"][:] = train_as_a_whole(
        _model(terms),
        data.features,
        data.targets,
        plan,
        SiloPlan.of(terms.clip_norm, plan.noise_multiplier, terms.adjacency),
        asked.point,
        randomness(terms, silo, asked.announcement.epoch, "mechanism"),
    )
    values["contributors"][0] = 1.0
    return Pending(np.zeros(plan.parameters), 0.0, 0.0), f"contributed as a whole at p = {chance:.3f}"


def _finite(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.nan_to_num(values, nan=0.0, posinf=LARGEST, neginf=-LARGEST)


def _model(terms: RunTerms) -> Mlp:
    import torch

    # Two torch threads on busy cores cost ten times one thread's CPU time.
    torch.set_num_threads(1)
    return terms.model


def _metrics(sample: Sample, silo: str, asked: Question) -> dict[str, float]:
    """Metrics of the plan's splits by ``split.metric``; those of an empty split are zero."""
    from client_app.evaluation import metric_sums, noised_sums

    terms, model, shard = asked.terms, _model(asked.terms), sample.shard
    splits = {name: asked.split(getattr(shard, name)) for name in asked.plan.splits}
    mechanism = asked.mechanism(EVALUATION)
    if mechanism is not None:
        stream = randomness(terms, silo, asked.announcement.epoch, "metrics")
        return noised_sums(model, asked.point, splits, shard.target_scale, terms.metric_bound, mechanism, stream)
    found: dict[str, float] = {}
    for name, split in splits.items():
        if len(split.targets) > 0:
            sums = metric_sums(model, asked.point, split.features, split.targets, split.truth, shard.target_scale)
            found |= {f"{name}.{metric}": value for metric, value in sums.items()}
    return found
