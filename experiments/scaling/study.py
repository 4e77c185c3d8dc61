"""Training of one federation under one scaling of the features, in this process.

The silos' local training, the mechanism and the server's step are the product's. Left out, because they do not bear on
the question: Flower and the secure sum (the plain sum is the same number up to its fixed point), drift control, and
sampling of silos. Noise is seeded: a simulation, not private.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch

from client_app.local_training import step_size, train_locally
from data_prep.shards import Shard, Split
from fcfl_strategy.server_update import ServerUpdate
from privacy.accounting import order_budget, rdp_at
from privacy.mlp import Mlp
from privacy.plan import MechanismPlan
from privacy.randomness import RandomStream
from privacy.release import ReleasePlan
from privacy.scaling import FeatureScale, feature_scale, private_moments, sums_stddev

BOUND = 3.0
"""Public range of every feature of the table."""
CLIP = 4.0
"""C of the scaling release; 99 % of the embedded market's records are shorter."""
_ORDERS = tuple(float(order) for order in range(2, 65))
_BATCH = 8192


@dataclass(frozen=True)
class Setting:
    """What all arms have in common.

    Attributes
    ----------
    epsilon, delta
        Of everything a silo releases, scaling included.
    sampling_rate, clip_norm, steps, rounds
        q, C, tau, and the number of rounds; every silo contributes to each.
    model
        Layer sizes.
    drift_budget
        Of the local steps.
    """

    epsilon: float = 1.0
    delta: float = 1e-5
    sampling_rate: float = 0.1
    clip_norm: float = 1.0
    steps: int = 5
    rounds: int = 8
    model: Mlp = field(default_factory=Mlp)
    drift_budget: float = 4.0


@dataclass(frozen=True)
class Noise:
    """Noise multipliers that share one budget.

    Attributes
    ----------
    order
        Renyi order of the filter.
    scaling
        Noise multiplier of the scaling release; None without one.
    training
        Noise multiplier of every round.
    """

    order: float
    scaling: float | None
    training: float


def split_budget(setting: Setting, share: float) -> Noise:
    """Give a share of the Renyi budget to the scaling release and the rest to training, at the best single order.

    Together they cost what the filter of a silo admits for (epsilon, delta); the scaling release is over all records.
    """
    best: Noise | None = None
    for order in _ORDERS:
        budget = order_budget(order, setting.epsilon, setting.delta, "improved")
        if budget <= 0:
            continue
        left = (1 - share) * budget

        def fits(sigma: float, order: float = order, left: float = left) -> bool:
            return rdp_at(setting.sampling_rate, sigma, setting.steps, order) * setting.rounds <= left

        if best is not None and not fits(best.training):
            continue
        low, high = 0.3, 1000.0 if best is None else best.training
        if not fits(high):
            continue
        while high / low - 1 > 1e-5:
            middle = (low * high) ** 0.5
            low, high = (low, middle) if fits(middle) else (middle, high)
        # A Gaussian release of sensitivity 1 costs order / (2 sigma^2); rounded up to stay within the share.
        scaling = (order / (2 * share * budget)) ** 0.5 * (1 + 1e-9) if share else None
        best = Noise(order, scaling, high)
    if best is None:
        raise ValueError(f"epsilon = {setting.epsilon:g}: too small for {setting.rounds} rounds; raise it")
    return best


@dataclass(frozen=True)
class Silo:
    """Arrays of one silo that training and evaluation look at."""

    train: Split
    validation: Split
    test: Split
    target_scale: float

    @classmethod
    def of(cls, shard: Shard, factors: npt.NDArray[np.float32]) -> "Silo":
        """Read a shard; `factors` multiply the features (1: as prepared)."""
        made = cls(shard.train, shard.validation, shard.test, shard.target_scale)
        return made._each(lambda features: features * factors)

    def scaled(self, scale: FeatureScale) -> "Silo":
        """Apply a scale to every split."""
        return self._each(scale.apply)

    def _each(self, change: Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]) -> "Silo":
        def changed(part: Split) -> Split:
            return replace(part, features=change(part.features), targets=np.array(part.targets))

        return replace(self, train=changed(self.train), validation=changed(self.validation), test=changed(self.test))


def private_scale(silos: Sequence[Silo], noise_multiplier: float, seed: int) -> FeatureScale:
    """Means and deviations from one release of every silo."""
    sums, variance, records = np.zeros(0), 0.0, 0
    for number, silo in enumerate(silos):
        n, d = silo.train.features.shape
        plan = MechanismPlan(1.0, CLIP, noise_multiplier, 1, n)
        found = private_moments(silo.train.features, plan, RandomStream.seeded(seed, "scaling", number), BOUND)
        sums = found if not number else sums + found
        variance += sums_stddev(plan, d, n) ** 2
        records += n
    return feature_scale(sums, records, variance**0.5, BOUND)


def leaking_scale(silos: Sequence[Silo]) -> FeatureScale:
    """Exact means and deviations of the pooled records: **not private**, for reference only."""
    rows = np.concatenate([silo.train.features for silo in silos]).astype(np.float64) / BOUND
    return feature_scale(np.concatenate([rows.sum(0), (rows**2).sum(0)]), len(rows), 0.0, BOUND)


@dataclass(frozen=True)
class Score:
    """Error of a model on one split of all silos.

    Attributes
    ----------
    mse
        Mean squared error in squared daily log returns.
    skill
        0 for the zero forecast, 1 for the optimum, which the synthetic market knows.
    """

    mse: float
    skill: float


def score(model: Mlp, weights: npt.NDArray[np.float64], silos: Sequence[Silo], split: str) -> Score:
    """Evaluate weights on a split, pooled over the silos."""
    at = torch.from_numpy(weights.astype(np.float32))
    error = zero = optimal = 0.0
    count = 0
    for silo in silos:
        part: Split = getattr(silo, split)
        if part.truth is None:
            raise ValueError("skill needs the synthetic market, whose optimal forecast is known")
        wanted = part.targets.astype(np.float64) * silo.target_scale
        for first in range(0, len(wanted), _BATCH):
            rows = slice(first, first + _BATCH)
            forecast = model.predict(at, torch.from_numpy(part.features[rows])).double().numpy() * silo.target_scale
            error += float(np.sum((forecast - wanted[rows]) ** 2))
        zero += float(np.sum(wanted**2))
        optimal += float(np.sum((part.truth - wanted) ** 2))
        count += len(wanted)
    return Score(error / count, (zero - error) / (zero - optimal))


def train(setting: Setting, silos: Sequence[Silo], sigma: float, eta: float, seed: int) -> npt.NDArray[np.float64]:
    """Run the rounds of FCFL and return the last weights.

    Parameters
    ----------
    setting
        What all arms have in common.
    silos
        With scaled features.
    sigma
        Noise multiplier of every round.
    eta
        Client step size.
    seed
        Of model, samples and noise; equal seeds draw equal samples and normals in every arm.
    """
    model, rule = setting.model, ServerUpdate()
    sizes = [len(silo.train.targets) for silo in silos]
    mechanisms = [MechanismPlan(setting.sampling_rate, setting.clip_norm, sigma, setting.steps, n) for n in sizes]
    plan = _plan(setting, sigma, eta, sizes)
    state = rule.init(model.initial_parameters(seed))
    directions = [0.0] * len(silos)
    still = np.zeros(model.size, dtype=np.float32)
    for number in range(setting.rounds):
        point = rule.broadcast_point(state).astype(np.float32)
        total = np.zeros(model.size)
        for i, (silo, mechanism) in enumerate(zip(silos, mechanisms, strict=True)):
            stream = RandomStream.seeded(seed, "training", number, i)
            pace = step_size(plan, mechanism, directions[i])
            done = train_locally(
                model, silo.train.features, silo.train.targets, plan, mechanism, point, still, pace, stream
            )
            directions[i] = done.direction
            total += sizes[i] * done.delta
        state = rule.update(state, total / sum(sizes))
    return state.weights


def _plan(setting: Setting, sigma: float, eta: float, sizes: Sequence[int]) -> ReleasePlan:
    return ReleasePlan(
        purpose="train",
        round=1,
        parameters=setting.model.size,
        sampling_rate=setting.sampling_rate,
        clip_norm=setting.clip_norm,
        noise_multiplier=sigma,
        steps=setting.steps,
        step_size=eta,
        proximal=0.0,
        drift_budget=setting.drift_budget,
        control_generation=0,
        control_smoothing=0.0,
        control_gain=0.0,
        cohort=float(len(sizes)),
        score_total=1.0,
        min_probability=1.0,
        drift_penalty=0.0,
        min_records=min(sizes),
        max_records=max(sizes),
        splits=(),
        point_hash=bytes(32),
        control_hash=bytes(32),
        scale_hash=b"",
        terms_hash=bytes(32),
    )
