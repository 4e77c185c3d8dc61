"""The attack: canaries in the training data of one silo, its released steps, and a score for every canary.

The attacker is the one the accountant assumes: it sees every noised gradient, knows the weights, all records, the plan
and the code, and does not know which canaries were replaced by the null record, the Poisson samples or the noise.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from experiments.audit import bounds
from privacy.dpsgd import PrivateGradient, private_gradient
from privacy.mlp import Mlp
from privacy.plan import MechanismPlan
from privacy.randomness import RandomStream

FEATURE_RANGE, TARGET_RANGE = 3.0, 10.0
"""Largest absolute feature and scaled target that the public ranges of the data room let through."""

Floats = npt.NDArray[np.float64]
Mechanism = Callable[[Mlp, Tensor, npt.NDArray[Any], npt.NDArray[Any], MechanismPlan, RandomStream], PrivateGradient]


NARROW = Mlp(52, (64,))


@dataclass(frozen=True)
class Setting:
    """What is audited.

    Attributes
    ----------
    sampling_rate, noise_multiplier, clip_norm, steps
        q, sigma, C and tau of the claim.
    canaries, background
        Records whose presence is guessed, and ordinary records that are always there.
    model
        Layer sizes; more parameters than records, so that canaries do not drown each other.
    step_size
        eta of the local training.
    """

    sampling_rate: float
    noise_multiplier: float
    clip_norm: float
    steps: int
    canaries: int
    background: int = 0
    model: Mlp = NARROW
    step_size: float = 0.1

    @property
    def plan(self) -> MechanismPlan:
        """The plan that a silo would be given."""
        records = self.canaries + self.background
        return MechanismPlan(self.sampling_rate, self.clip_norm, self.noise_multiplier, self.steps, records)


@dataclass(frozen=True)
class Records:
    """Raw-record side of an audit: canaries first, then background."""

    features: npt.NDArray[np.float32]
    targets: npt.NDArray[np.float32]

    @classmethod
    def of(cls, setting: Setting, rng: np.random.Generator) -> "Records":
        """Canaries at the corners of the public ranges, background from their inside.

        A corner with the largest target has a gradient far above the clip norm, so its clipped gradient has norm C;
        random signs make the gradients of different canaries nearly orthogonal.
        """
        shape = setting.canaries + setting.background, setting.model.features
        features = FEATURE_RANGE * rng.choice([-1.0, 1.0], shape)
        targets = TARGET_RANGE * rng.choice([-1.0, 1.0], shape[0])
        features[setting.canaries :] = np.clip(rng.standard_normal((setting.background, shape[1])), -3, 3)
        targets[setting.canaries :] = rng.standard_normal(setting.background)
        return cls(features.astype(np.float32), targets.astype(np.float32))

    def without(self, absent: npt.NDArray[np.intp]) -> "Records":
        """Replace records by null records: a record that is not finite adds the zero vector (errata E25)."""
        features = self.features.copy()
        features[absent] = np.nan
        return Records(features, self.targets)


@dataclass(frozen=True)
class Trace:
    """What the attacker sees: weights before each step and the release of the step."""

    weights: list[Tensor]
    releases: list[Tensor]

    @classmethod
    def together(cls, traces: Sequence["Trace"]) -> "Trace":
        """Of several runs, with a first axis for the run."""
        return cls(
            [torch.stack(parts) for parts in zip(*(trace.weights for trace in traces), strict=True)],
            [torch.stack(parts) for parts in zip(*(trace.releases for trace in traces), strict=True)],
        )


def start(setting: Setting, seed: int) -> Tensor:
    """Starting weights an attacking server would choose: the public ones with an output layer of size one."""
    weights = torch.from_numpy(setting.model.initial_parameters(seed))
    width = setting.model.hidden[-1]
    signs = RandomStream.seeded(seed, "audit-output-layer").uniform(width) < 0.5
    weights[-width - 1 : -1] = torch.from_numpy(np.where(signs, -1.0, 1.0).astype(np.float32)) / width**0.5
    return weights


def train(
    setting: Setting, records: Records, weights: Tensor, stream: RandomStream, mechanism: Mechanism = private_gradient
) -> Trace:
    """The steps of `client_app.local_training.train_locally`, without drift correction and proximal term."""
    trace = Trace([], [])
    plan, anchor = setting.plan, weights
    for _ in range(setting.steps):
        release = mechanism(setting.model, weights, records.features, records.targets, plan, stream).mean
        trace.weights.append(weights)
        trace.releases.append(release)
        weights = anchor + (weights - anchor - setting.step_size * release)
    return trace


def clipped_gradients(model: Mlp, weights: Tensor, records: Records, clip_norm: float) -> Tensor:
    """Clipped gradient of every record, by torch.func and independent of the kernel under audit.

    Shape (records, parameters), or (runs, records, parameters) for weights of shape (runs, parameters).
    """

    def loss(current: Tensor, row: Tensor, target: Tensor) -> Tensor:
        entering = row
        for index, width in enumerate(model.hidden):
            weight, bias, gain, shift = (
                current[block.span].view(block.shape) for block in model.layout[4 * index : 4 * index + 4]
            )
            activated = torch.nn.functional.gelu(weight @ entering + bias)
            entering = torch.nn.functional.layer_norm(activated, [width], gain, shift)
        forecast = entering @ current[model.layout[-2].span] + current[-1]
        return (forecast - target) ** 2 / 2

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0), chunk_size=256)
    if weights.ndim == 2:
        each = torch.func.vmap(each, in_dims=(0, None, None), chunk_size=256)
    gradients: Tensor = each(weights, torch.from_numpy(records.features), torch.from_numpy(records.targets))
    factors: Tensor = (clip_norm / gradients.norm(dim=-1, keepdim=True)).clamp(max=1.0)
    return gradients * factors


def _chances(setting: Setting) -> Tensor:
    """Chance of every record to be in a step's sum, canaries being present with probability 1/2."""
    chance = torch.full((setting.canaries + setting.background,), setting.sampling_rate, dtype=torch.float64)
    chance[: setting.canaries] /= 2
    return chance


def _estimate(gradients: Tensor, seen: Tensor, chance: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    """Best linear estimate of who is in the noised sum `seen` of rows of `gradients` (Gauss and Markov).

    Returns the deviation from `chance`, shrunk, and the share of the prior variance that `seen` explains.
    """
    variance = (chance * (1 - chance)).clamp(min=1e-12)
    overlaps = (gradients @ gradients.mT).double()
    residual = (gradients @ seen.to(gradients.dtype).unsqueeze(-1)).double() - (overlaps @ chance).unsqueeze(-1)
    system = overlaps * variance
    system.diagonal(dim1=-2, dim2=-1).add_(noise**2)
    solved = torch.linalg.solve(system, torch.cat([residual, overlaps], dim=-1))
    gain = solved[..., 1:].diagonal(dim1=-2, dim2=-1) * variance
    return solved[..., 0] * variance, gain.clamp(1e-9, 1 - 1e-9)


def likelihood(setting: Setting, gradients: list[Tensor], trace: Trace, assumed: float, cap: float) -> Floats:
    """Log likelihood ratio of "present" against "null record" for every canary, steps taken as independent.

    Parameters
    ----------
    setting, gradients, trace
        What the attacker knows and sees.
    assumed
        Standard deviation of the noise the attacker reckons with, as a share of the claimed one.
    cap
        Most that one step can count.
    """
    q, m, chance = setting.sampling_rate, setting.canaries, _chances(setting)
    variance = (chance * (1 - chance)).clamp(min=1e-12)
    total = torch.zeros((), dtype=torch.float64)
    for rows, release in zip(gradients, trace.releases, strict=True):
        deviation, gain = _estimate(
            rows, release.double() * setting.plan.divisor, chance, assumed * setting.plan.noise_stddev
        )
        # deviation / gain is unbiased with variance (1 - gain) / gain of the prior's
        centre = (chance + deviation / gain - 0.5)[..., :m]
        exponent = (centre / (variance * (1 - gain) / gain)[..., :m]).clamp(-700, 700)
        total = total + (exponent if q == 1 else torch.log1p(q * torch.expm1(exponent))).clamp(max=cap)
    return total.numpy()


def differences(setting: Setting, gradients: list[Tensor], trace: Trace, assumed: float) -> Floats:
    """Largest estimate of a canary's being in a step, from differences of successive releases: stale noise cancels."""
    m, chance = setting.canaries, _chances(setting)
    best = torch.full((m,), -np.inf, dtype=torch.float64)
    for step, (before, after) in enumerate(pairwise(gradients)):
        seen = (trace.releases[step].double() - trace.releases[step + 1].double()) * setting.plan.divisor
        rows, noise = torch.cat([before, -after]), assumed * setting.plan.noise_stddev
        deviation = _estimate(rows, seen, torch.cat([chance, chance]), noise)[0]
        best = torch.maximum(best, torch.maximum(deviation[:m], deviation[len(chance) : len(chance) + m]))
    return best.numpy()


def scores(setting: Setting, records: Records, trace: Trace) -> dict[str, Floats]:
    """All scores: one for the mechanism as claimed, and two for an attacker who hopes for a defect."""
    gradients = [clipped_gradients(setting.model, weights, records, setting.clip_norm) for weights in trace.weights]
    return {
        "as claimed": likelihood(setting, gradients, trace, assumed=1.0, cap=np.inf),
        "little noise": likelihood(setting, gradients, trace, assumed=0.1, cap=10.0),
        "stale noise": differences(setting, gradients, trace, assumed=0.05),
    }


SHARES = (1 / 16, 1 / 4)
"""Shares of the canaries that are guessed present, from the top of a score. All fixed before any output is seen."""


@dataclass(frozen=True)
class Bound:
    """Result of one audit.

    Attributes
    ----------
    epsilon
        Lower bound with the stated confidence.
    guesses, correct
        Of the attack that gave it.
    score
        Its name.
    """

    epsilon: float
    guesses: int
    correct: int
    score: str


def audit_canaries(
    setting: Setting,
    delta: float,
    streams: Sequence[RandomStream],
    seed: int,
    mechanism: Callable[[], Mechanism] = lambda: private_gradient,
    confidence: float = 0.95,
) -> Bound:
    """Training runs full of canaries, and the best of a few attacks fixed beforehand (Bonferroni).

    One stream is one run. Several runs on canaries of their own are together still (epsilon, delta)-DP for every single
    inclusion bit, so the theorem for one run holds for their union.

    Parameters
    ----------
    setting
        The claim, for one run.
    delta
        Of the claim.
    streams
        Noise and samples of each training run; the coins of the canaries come from a stream of their own.
    seed
        Of records, coins and starting weights.
    mechanism
        Makes what makes the releases of one run; tests plant bugs here.
    confidence
        Of the bound.
    """
    guesses = [max(1, round(share * setting.canaries)) for share in SHARES]
    correct: dict[tuple[str, int], int] = {}
    for number, stream in enumerate(streams):
        rng = np.random.default_rng([seed, number])
        records = Records.of(setting, rng)
        present = rng.random(setting.canaries) < 0.5
        trace = train(setting, records.without(np.flatnonzero(~present)), start(setting, seed), stream, mechanism())
        for name, score in scores(setting, records, trace).items():
            order = np.argsort(score)
            for count in guesses:
                right = int(present[order[-count:]].sum())
                correct[name, count] = correct.get((name, count), 0) + right
    runs, each = len(streams), 1 - (1 - confidence) / len(correct)
    found = [
        Bound(bounds.one_run(runs * setting.canaries, runs * count, right, delta, each), runs * count, right, name)
        for (name, count), right in correct.items()
    ]
    return max(found, key=lambda bound: bound.epsilon)


def audit_two_worlds(
    setting: Setting,
    delta: float,
    runs: int,
    stream: RandomStream,
    seed: int,
    mechanism: Callable[[], Mechanism] = lambda: private_gradient,
    confidence: float = 0.95,
) -> tuple[Bound, float]:
    """Independent runs with and without one canary; the bound on epsilon, and on mu if the mechanism is Gaussian.

    The first half of the runs chooses the thresholds, the second half gives the bounds.

    Parameters
    ----------
    setting
        The claim, with one canary.
    delta
        Of the claim.
    runs
        Number of runs.
    stream
        Noise and samples of all runs.
    seed
        Of records, coins and starting weights.
    mechanism, confidence
        As for `audit_canaries`.
    """
    if setting.canaries != 1:
        raise ValueError(f"{setting.canaries} canaries: the audit in two worlds has exactly one")
    rng = np.random.default_rng(seed)
    records = Records.of(setting, rng)
    null, weights = records.without(np.array([0])), start(setting, seed)
    present = rng.random(runs) < 0.5
    traces = [train(setting, records if there else null, weights, stream, mechanism()) for there in present]
    trace = Trace.together(traces)
    gradients = [clipped_gradients(setting.model, at, records, setting.clip_norm) for at in trace.weights]
    score = likelihood(setting, gradients, trace, assumed=1.0, cap=np.inf)[:, 0]
    half = runs // 2

    def counts(part: slice, threshold: float) -> tuple[int, int, int, int]:
        there, said = present[part], score[part] > threshold
        return int(said[there].sum()), int(there.sum()), int(said[~there].sum()), int((~there).sum())

    first, second = slice(0, half), slice(half, runs)
    grid = np.quantile(score[first], np.linspace(0.02, 0.98, 49))
    cut = max(grid, key=lambda at: bounds.two_world(*counts(first, at), delta, confidence))
    middle = max(grid, key=lambda at: bounds.gaussian_mu(*counts(first, at), confidence))
    hits, there, alarms, absent = counts(second, float(cut))
    epsilon = bounds.two_world(hits, there, alarms, absent, delta, confidence)
    mu = bounds.gaussian_mu(*counts(second, float(middle)), confidence)
    return Bound(epsilon, there + absent, hits + absent - alarms, "two worlds"), mu
