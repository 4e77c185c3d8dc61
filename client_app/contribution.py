"""What a silo puts into one secure sum: coin, local training, control change, scalars, metrics."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from client_app.drift_control import Control, Pending, change
from client_app.participation import probability, score
from data_prep.shards import Shard
from privacy.mlp import Mlp
from privacy.plan import MechanismPlan
from privacy.randomness import RandomStream
from privacy.release import METRICS, ReleasePlan, RunTerms
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
        Control change that waits for the epoch's outcome; None with coin tails, when nothing private is released.
    diagnostics : str
        For the silo's own log: it depends on data and never leaves the silo.
    """

    encoded: EncodedVector
    pending: Pending | None
    diagnostics: str


def randomness(terms: RunTerms, silo: str, epoch: int, purpose: str) -> RandomStream:
    """Return the OS CSPRNG, or in a seeded (not private) run the stream of that purpose."""
    if terms.noise_seed is None:
        return RandomStream.from_os()
    return RandomStream.seeded(terms.noise_seed, silo, epoch, purpose)


def contribution(
    sample: Sample,
    silo: str,
    announcement: Announcement,
    plan: ReleasePlan,
    mechanism: MechanismPlan,
    terms: RunTerms,
    point: NDArray[np.float32],
    control_mean: NDArray[np.float32],
    control: Control,
    *,
    may_spend: bool,
) -> Contribution:
    """Compute the vector of one epoch.

    Guarantee: in a training epoch with coin heads everything but the metrics is a post-processing of one
    ``mechanism`` (errata E6); with coin tails, or when the budget does not admit the mechanism
    (``may_spend`` false), all of it is zero except the score and the metrics (errata E10). Values that overflow,
    as they do under an absurd step size, saturate: a refusal would tell about the noised gradient, uncharged.
    """
    layout = announcement.layout
    values = {segment.name: np.zeros(segment.length) for segment in layout}
    for split in plan.splits:
        for metric, value in _metrics(sample, terms, split, point).items():
            values[f"{split}.{metric}"][0] = value

    pending, diagnostics = None, "metrics only"
    if plan.purpose == "train":
        own = score(sample.records, control.drift, plan.clip_norm, plan.drift_penalty)
        chance = probability(plan, own)
        values["score"][0] = own
        heads = randomness(terms, silo, announcement.epoch, "coin").coin(chance)
        diagnostics = "sat out: " + ("the budget is used up" if heads else f"coin tails at p = {chance:.3f}")
        if heads and may_spend:
            pending, diagnostics = _train(
                sample, silo, announcement.epoch, plan, mechanism, terms, point, control_mean, control, chance, values
            )
    rounding = randomness(terms, silo, announcement.epoch, "rounding")
    encoded = encode(layout, {name: _finite(value) for name, value in values.items()}, rounding.uniform)
    if pending is not None and plan.control_smoothing > 0:
        step = next(segment.step for segment in layout if segment.name == "control")
        # Multiplying by a power of two is exact: the silo commits to the very value it sends.
        sent = np.multiply(encoded.signed("control"), step, dtype=np.float64)
        pending = Pending(sent, pending.drift, pending.direction)
    if saturated := {name: count for name, count in encoded.saturated.items() if count}:
        diagnostics += f", saturated {saturated}"
    return Contribution(encoded, pending, diagnostics)


def _train(
    sample: Sample,
    silo: str,
    epoch: int,
    plan: ReleasePlan,
    mechanism: MechanismPlan,
    terms: RunTerms,
    point: NDArray[np.float32],
    control_mean: NDArray[np.float32],
    control: Control,
    chance: float,
    values: Mapping[str, NDArray[np.float64]],
) -> tuple[Pending, str]:
    """Train locally and fill in the weighted update, its scalars and the control change."""
    # torch is imported only where training runs: a silo process that exchanges keys starts fast.
    from client_app.local_training import step_size, train_locally

    model = _model(terms)
    correction = plan.control_gain * (control_mean - control.weighted / sample.records)
    update = train_locally(
        model,
        sample.shard.train.features,
        sample.shard.train.targets,
        plan,
        mechanism,
        point,
        correction.astype(np.float32),
        step_size(plan, mechanism, control.direction),
        randomness(terms, silo, epoch, "mechanism"),
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
    if plan.control_smoothing > 0:
        values["control"][:] = change(control, update.mean_gradient, sample.records, plan.control_smoothing)
    diagnostics = f"contributed {update.steps} steps at p = {chance:.3f}"
    if update.zeroed:
        diagnostics += f", {update.zeroed} gradients were not finite and count as zero"
    drift, direction = map(float, _finite(np.array([update.drift, update.direction])))
    return Pending(np.zeros(plan.parameters), drift, direction), diagnostics


def _finite(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.nan_to_num(values, nan=0.0, posinf=LARGEST, neginf=-LARGEST)


def _model(terms: RunTerms) -> Mlp:
    import torch

    # Two torch threads on busy cores cost ten times one thread's CPU time.
    torch.set_num_threads(1)
    return Mlp(terms.features, terms.hidden)


def _metrics(sample: Sample, terms: RunTerms, split: str, point: NDArray[np.float32]) -> dict[str, float]:
    from client_app.evaluation import metric_sums

    part = getattr(sample.shard, split)
    if len(part.targets) == 0:
        return dict.fromkeys(METRICS, 0.0)
    return metric_sums(_model(terms), point, part.features, part.targets, part.truth, sample.shard.target_scale)
