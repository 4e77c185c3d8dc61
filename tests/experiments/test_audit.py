"""The audit stays below the claim on the true path, catches planted bugs, and what it cannot see has tests here."""

import dataclasses
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from rich.console import Console
from scipy import stats
from torch import Tensor

from client_app.local_training import train_locally
from data_prep.features.table import FEATURES
from data_prep.spec import FederationSpec
from experiments.audit import __main__ as command
from experiments.audit import attack, bounds
from experiments.audit.attack import Mechanism, Records, Setting, audit_canaries, audit_two_worlds
from privacy.accounting import epsilon_pld, epsilon_rdp
from privacy.dpsgd import PrivateGradient, clipped_sum, drawn_ahead, private_gradient
from privacy.mlp import Mlp
from privacy.mlp_kernel import clip_limit
from privacy.model import ClippedSum
from privacy.plan import MechanismPlan
from privacy.randomness import RandomStream
from privacy.release import ReleasePlan

torch.set_num_threads(1)
DELTA, RUNS = 1e-5, 10
SMALL = Setting(0.25, 3.0, 8.0, 6, canaries=60, background=10, model=Mlp(52, (64,)))
"""Claimed epsilon about 1.04 by Renyi orders, 0.92 by the privacy loss distribution."""

Array = npt.NDArray[Any]


def streams(label: str, runs: int = RUNS) -> list[RandomStream]:
    return [RandomStream.seeded(7, label, run) for run in range(runs)]


def claim(setting: Setting) -> float:
    return epsilon_rdp(setting.sampling_rate, setting.noise_multiplier, setting.steps, DELTA)


@dataclasses.dataclass
class Parts:
    """`private_gradient` taken apart, so that one part can be replaced by a wrong one; state lives for one run."""

    sample: Callable[[RandomStream, int, float], Array] = lambda stream, n, q: stream.poisson_sample(n, q)
    total: Callable[[Callable[[float], Array], MechanismPlan, int], Array] = lambda clip, plan, size: clip(
        plan.clip_norm
    )
    noise: Callable[[Callable[[], Array], MechanismPlan, int], Array] = lambda normal, plan, size: (
        normal() * plan.noise_stddev
    )

    def __call__(
        self, model: Any, params: Tensor, features: Array, targets: Array, plan: MechanismPlan, stream: RandomStream
    ) -> PrivateGradient:
        rows = self.sample(stream, len(features), plan.sampling_rate)

        def clip(norm: float) -> Array:
            return clipped_sum(model, params, features, targets, rows, norm)[0]

        total = self.total(clip, plan, len(rows))
        scale = plan.grid(model.size, len(features)).noise
        noise = self.noise(lambda: stream.rounded_normal(model.size, scale) / scale, plan, len(rows))
        return PrivateGradient(torch.from_numpy((total + noise) / plan.divisor).float(), len(rows), 0)


def clip_the_mean(clip: Callable[[float], Array], plan: MechanismPlan, size: int) -> Array:
    mean = clip(1e6) / max(size, 1)
    return mean * min(1.0, plan.clip_norm / float(np.linalg.norm(mean))) * plan.divisor


def only_once() -> Mechanism:
    left = iter([1.0])
    return Parts(noise=lambda normal, plan, size: normal() * plan.noise_stddev * next(left, 0.0))


def always_the_same() -> Mechanism:
    kept: list[Array] = []

    def noise(normal: Callable[[], Array], plan: MechanismPlan, size: int) -> Array:
        if not kept:
            kept.append(normal() * plan.noise_stddev)
        return kept[0]

    return Parts(noise=noise)


BUGS: dict[str, Callable[[], Mechanism]] = {
    "noise divided by the batch size twice": lambda: Parts(
        noise=lambda normal, plan, size: normal() * plan.noise_stddev / max(size, 1)
    ),
    "no clipping": lambda: Parts(total=lambda clip, plan, size: clip(1e6)),
    "the mean is clipped, not the records": lambda: Parts(total=clip_the_mean),
    "noise in the first step only": only_once,
    "noise forgets the clip norm": lambda: Parts(noise=lambda normal, plan, size: normal() * plan.noise_multiplier),
    "the same noise in every step": always_the_same,
}


def test_the_parts_put_together_are_the_mechanism() -> None:
    """Otherwise a planted bug might be caught for another reason than the bug."""
    rng = np.random.default_rng(0)
    records, weights = Records.of(SMALL, rng), attack.start(SMALL, 1)
    one = attack.train(SMALL, records, weights, RandomStream.seeded(1))
    other = attack.train(SMALL, records, weights, RandomStream.seeded(1), Parts())
    # The mechanism rounds its release to the public grid, the parts do not.
    close = 1e-3 * SMALL.plan.noise_stddev / SMALL.plan.divisor
    for left, right in zip(one.releases, other.releases, strict=True):
        np.testing.assert_allclose(left.numpy(), right.numpy(), rtol=0, atol=close)


def test_the_audit_trains_as_a_silo_does() -> None:
    rng = np.random.default_rng(0)
    records, weights = Records.of(SMALL, rng), attack.start(SMALL, 1)
    draws = drawn_ahead(SMALL.model, len(records.features), SMALL.plan, RandomStream.seeded(1))
    trace = attack.train(
        SMALL, records, weights, RandomStream.seeded(1), lambda *given: private_gradient(*given[:-1], draws)
    )
    size = SMALL.model.size
    plan = ReleasePlan(
        purpose="train", round=1, parameters=size, sampling_rate=SMALL.sampling_rate, clip_norm=SMALL.clip_norm,
        noise_multiplier=SMALL.noise_multiplier, steps=SMALL.steps, step_size=SMALL.step_size, proximal=0.0,
        drift_budget=0.0, control_smoothing=0.0, control_gain=0.0, cohort=1.0, score_total=1.0, min_probability=1.0,
        drift_penalty=0.0, min_records=64, max_records=128, splits=(), point_hash=bytes(32), control_hash=bytes(32),
            scale_hash=b"", control_generation=0,
        terms_hash=bytes(32),
    )  # fmt: skip
    update = train_locally(
        SMALL.model, records.features, records.targets, plan, SMALL.plan, weights.numpy(),
        np.zeros(size, dtype=np.float32), SMALL.step_size, RandomStream.seeded(1),
    )  # fmt: skip
    np.testing.assert_allclose(update.mean_gradient, torch.stack(trace.releases).double().mean(0).numpy(), atol=1e-6)
    moved = trace.weights[-1] - SMALL.step_size * trace.releases[-1] - weights
    np.testing.assert_allclose(update.delta, moved.double().numpy(), atol=1e-6)


def test_canaries_lie_in_the_public_ranges_and_are_clipped_at_the_claimed_norm() -> None:
    records, weights = Records.of(SMALL, np.random.default_rng(0)), attack.start(SMALL, 1)
    assert np.abs(records.targets).max() <= FederationSpec().target_clip
    assert (np.abs(records.features).max(0) <= [feature.clip for feature in FEATURES]).all()
    own = attack.clipped_gradients(SMALL.model, weights, records, SMALL.clip_norm)
    assert own[: SMALL.canaries].norm(dim=1).min() > 0.999 * SMALL.clip_norm
    kernel = SMALL.model.clipped_gradient_sum(
        weights, torch.from_numpy(records.features), torch.from_numpy(records.targets), SMALL.clip_norm
    )
    limited = attack.clipped_gradients(SMALL.model, weights, records, clip_limit(SMALL.model, SMALL.clip_norm))
    assert float((limited.sum(0) - kernel.total).norm()) < 1e-4 * float(kernel.total.norm())


def test_a_missing_canary_is_a_null_record() -> None:
    records, weights = Records.of(SMALL, np.random.default_rng(0)), attack.start(SMALL, 1)
    rows = np.arange(5)
    null = clipped_sum(SMALL.model, weights, *_pair(records.without(np.array([2]))), rows, 8.0)
    kept = clipped_sum(SMALL.model, weights, *_pair(records), np.array([0, 1, 3, 4]), 8.0)
    assert null[1] == 1
    np.testing.assert_allclose(null[0], kept[0], atol=1e-6)


def _pair(records: Records) -> tuple[Array, Array]:
    return records.features, records.targets


# The audit itself.


def test_the_true_path_stays_below_the_claim() -> None:
    bound = audit_canaries(SMALL, DELTA, streams("true"), 1)
    assert bound.epsilon <= epsilon_pld(SMALL.sampling_rate, SMALL.noise_multiplier, SMALL.steps, DELTA) < claim(SMALL)


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug: str) -> None:
    assert audit_canaries(SMALL, DELTA, streams(bug), 1, BUGS[bug]).epsilon > claim(SMALL)


def test_sampling_that_takes_every_record_is_caught() -> None:
    setting = dataclasses.replace(SMALL, sampling_rate=0.1, noise_multiplier=2.0)
    everybody: Callable[[], Mechanism] = lambda: Parts(sample=lambda stream, n, q: np.arange(n))  # noqa: E731
    assert audit_canaries(setting, DELTA, streams("everybody"), 1, everybody).epsilon > claim(setting)
    assert audit_canaries(setting, DELTA, streams("sampled"), 1).epsilon <= claim(setting)


ALONE = Setting(1.0, 1.0, 2.0, 1, canaries=1, background=4, model=Mlp(4, (8,)))
"""One release without sampling: exactly mu-GDP with mu = 1."""


def test_two_worlds_stay_below_the_true_curve_and_come_close_to_it() -> None:
    bound, mu = audit_two_worlds(ALONE, DELTA, 1200, RandomStream.seeded(3), 1)
    assert bound.epsilon <= bounds.gaussian_epsilon(1.0, DELTA)
    assert 0.4 < mu <= 1.0


def test_two_worlds_catch_noise_at_half_its_size() -> None:
    half: Callable[[], Mechanism] = lambda: Parts(  # noqa: E731
        noise=lambda normal, plan, size: normal() * plan.noise_stddev / 2
    )
    assert audit_two_worlds(ALONE, DELTA, 1200, RandomStream.seeded(4), 1, half)[1] > 1.2


# The bounds.


def test_the_bound_reproduces_the_example_of_the_paper() -> None:
    """Appendix D of Steinke, Nasr and Jagielski 2023: 75 of 100 guesses on 1,000 canaries at delta = 1e-4."""
    assert bounds.one_run(1000, 100, 75, 1e-4) == pytest.approx(0.673, abs=1e-3)


def test_the_p_value_against_the_sum_written_out() -> None:
    m, r, v, epsilon, delta = 300, 40, 31, 0.7, 1e-3
    chance = math.exp(epsilon) / (1 + math.exp(epsilon))
    mass = [math.comb(r, k) * chance**k * (1 - chance) ** (r - k) for k in range(r + 1)]
    slack = max(sum(mass[v - i : v]) / i for i in range(1, v + 1))
    assert bounds.p_value(m, r, v, epsilon, delta) == pytest.approx(sum(mass[v:]) + 2 * m * delta * slack, rel=1e-9)


def test_the_bound_holds_for_randomised_response() -> None:
    """The extreme case of the theorem: the bound exceeds the true epsilon in at most 5 % of runs."""
    epsilon, rng = 1.0, np.random.default_rng(0)
    correct = rng.binomial(200, math.exp(epsilon) / (1 + math.exp(epsilon)), 2000)
    table = {v: bounds.one_run(200, 200, int(v), 0.0) for v in set(correct.tolist())}
    found = np.array([table[v] for v in correct.tolist()])
    assert 0.01 < np.mean(found > epsilon) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 2000)


def test_more_delta_and_more_confidence_give_smaller_bounds() -> None:
    assert bounds.one_run(500, 100, 90, 0.0) > bounds.one_run(500, 100, 90, 1e-5) > bounds.one_run(500, 100, 90, 1e-3)
    assert bounds.one_run(500, 100, 90, 1e-5, 0.9) > bounds.one_run(500, 100, 90, 1e-5, 0.99)
    assert bounds.one_run(500, 100, 50, 1e-5) == 0.0
    for wrong in ((10, 20, 5), (20, 10, 11), (20, 10, -1)):
        with pytest.raises(ValueError, match="ascending order"):
            bounds.p_value(*wrong, 1.0, 0.0)


def test_bounds_from_two_worlds() -> None:
    true_rate, false_rate = bounds.rates(50, 100, 0, 100)
    assert stats.binom.sf(49, 100, true_rate) == pytest.approx(0.025)
    assert false_rate == pytest.approx(1 - 0.025 ** (1 / 100))
    assert bounds.two_world(50, 100, 0, 100, 0.0) == pytest.approx(math.log(true_rate / false_rate))
    assert bounds.two_world(100, 100, 50, 100, 0.0) == pytest.approx(math.log(true_rate / false_rate))
    assert bounds.two_world(50, 100, 50, 100, 0.0) == bounds.gaussian_mu(50, 100, 50, 100) == 0.0
    assert bounds.gaussian_mu(900, 1000, 100, 1000) < 2 * stats.norm.ppf(0.9)
    assert bounds.gaussian_epsilon(1.0, DELTA) == pytest.approx(epsilon_pld(1.0, 1.0, 1, DELTA), abs=2e-3)


# What an audit cannot see.


class Revealing:
    """The gradient of record k is C times the k-th unit vector: a release without noise is the list of the sampled."""

    def __init__(self, records: int) -> None:
        self.size = records

    def predict(self, params: Tensor, features: Tensor) -> Tensor:
        return torch.zeros(len(features))

    def clipped_gradient_sum(self, params: Tensor, features: Tensor, targets: Tensor, clip_norm: float) -> ClippedSum:
        total = torch.zeros(self.size)
        total[features[:, 0].long()] = clip_norm
        return ClippedSum(total, 0)


def sampled(source: RandomStream, records: int, rate: float, steps: int) -> Array:
    """Which record was in which step, seen through the release."""
    model, plan = Revealing(records), MechanismPlan(rate, 2.0, 1e-12, steps, records)
    features, none = np.arange(records, dtype=np.float32)[:, None], np.zeros(records, dtype=np.float32)
    releases = [
        private_gradient(model, torch.zeros(records), features, none, plan, source).mean.numpy() for _ in range(steps)
    ]
    included = np.array(releases) > 1e-6
    np.testing.assert_allclose(np.array(releases), included * 2.0 / (rate * records), atol=1e-9)  # the public divisor
    return included


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_the_releases_come_from_independent_poisson_samples(rate: float) -> None:
    """Batches of a fixed size, shuffled epochs and repeated samples all fail one of the three statements."""
    records, steps = 200, 3000
    included = sampled(RandomStream.seeded(11), records, rate, steps)
    variance = rate * (1 - rate)
    sizes = included.sum(1)
    low, high = stats.chi2.ppf([1e-4, 1 - 1e-4], steps - 1) * records * variance / (steps - 1)
    assert low < sizes.var(ddof=1) < high
    centred = (included - rate) / math.sqrt(variance)
    limit = stats.norm.ppf(1 - 1e-4 / records**2)
    records_with_records = centred.T @ centred / math.sqrt(steps)
    np.fill_diagonal(records_with_records, 0.0)
    assert np.abs(records_with_records).max() < limit
    for lag in (1, 2, 10):  # an epoch of 1/q steps would show at lag 10 or 2
        steps_with_steps = (centred[lag:] * centred[:-lag]).sum(0) / math.sqrt(steps - lag)
        assert np.abs(steps_with_steps).max() < limit
        assert abs(steps_with_steps.sum()) / math.sqrt(records) < stats.norm.ppf(1 - 1e-5)


def test_every_step_of_a_silo_draws_fresh_noise() -> None:
    """Two steps with empty batches differ by two independent noises: variance 2 sigma^2 C^2 / (q N)^2."""
    model, plan = Mlp(20, (90,)), MechanismPlan(1e-9, 2.0, 1.5, 4, 50)
    nothing = np.zeros((50, 20), dtype=np.float32), np.zeros(50, dtype=np.float32)
    weights, source = torch.from_numpy(model.initial_parameters(0)), RandomStream.from_os()
    releases = [private_gradient(model, weights, *nothing, plan, source) for _ in range(4)]
    assert all(release.batch_size == 0 for release in releases)
    noises = np.array([release.mean.double().numpy() for release in releases]) * plan.divisor / plan.noise_stddev
    for first in range(4):
        for second in range(first):
            difference = noises[first] - noises[second]
            assert difference.var() == pytest.approx(2.0, rel=5 * math.sqrt(2 / model.size))
            assert abs(noises[first] @ noises[second]) < 5 * math.sqrt(model.size)


@pytest.mark.parametrize("factor", [1e4, 1e9, 1e20])
def test_an_extreme_record_does_not_move_what_the_others_add(factor: float) -> None:
    """A scaler or a batch statistic inside the mechanism would spread one record over all (errata E27)."""
    records, weights = Records.of(SMALL, np.random.default_rng(2)), attack.start(SMALL, 1)
    rows, victim = np.arange(70), 65

    def total(features: Array, targets: Array, chosen: Array) -> Array:
        return clipped_sum(SMALL.model, weights, features, targets, chosen, SMALL.clip_norm)[0]

    features, targets = records.features.copy(), records.targets.copy()
    features[victim] *= np.float32(factor)
    targets[victim] *= np.float32(factor)
    alone = total(features, targets, np.array([victim]))
    others = total(records.features, records.targets, rows[rows != victim])
    assert np.linalg.norm(alone) <= SMALL.clip_norm
    np.testing.assert_allclose(total(features, targets, rows) - alone, others, atol=1e-4)


# The command.


def test_the_command_writes_table_figure_and_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for grid in ("SAMPLED_SIGMAS", "WHOLE_SIGMAS", "PAIR_SIGMAS"):
        monkeypatch.setattr(command, grid, (2.0,))
    monkeypatch.setattr(command, "FACTORS", (1.0, 0.5))
    out = Console(file=io.StringIO(), width=100)
    command.main(["--runs", "1", "--pairs", "20", "--out", str(tmp_path / "new")], out)
    text = out.file.getvalue()  # type: ignore[attr-defined]
    for shown in ("claimed", "exact", "bound", "Gaussian", "holds", "delta = 1e-05", "95%"):
        assert shown in text
    document = json.loads((tmp_path / "new" / "audit.json").read_text())
    assert [len(rows) for rows in document["audits"].values()] == [1, 1, 1]
    assert [row["noise_factor"] for row in document["less_noise_than_claimed"]] == [1.0, 0.5]
    for name in ("audit.svg", "audit.png"):
        assert (tmp_path / "new" / name).stat().st_size > 1000
    with pytest.raises(SystemExit):
        command.main(["--pairs", "3"], out)
