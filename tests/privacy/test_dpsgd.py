from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from privacy import dpsgd
from privacy.dpsgd import clipped_sum, private_gradient
from privacy.errors import PrivacyError
from privacy.mlp import Mlp
from privacy.model import ROWS
from privacy.plan import MechanismPlan
from privacy.randomness import RandomStream

torch.set_num_threads(1)
MODEL = Mlp(6, (9, 8))
RECORDS = 300


class Fixed(RandomStream):
    """A seeded stream with a forced sample and, if wanted, no noise."""

    rows: np.ndarray[Any, np.dtype[np.int64]]
    quiet: bool

    @classmethod
    def of(cls, rows: list[int], quiet: bool = True, seed: int = 0) -> "Fixed":
        made = cls.seeded(seed)
        assert isinstance(made, cls)
        made.rows, made.quiet = np.array(rows, dtype=np.int64), quiet
        return made

    def poisson_sample(self, n_records: int, rate: float) -> np.ndarray[Any, np.dtype[np.int64]]:
        return self.rows

    def rounded_normal(self, n: int, scale: float) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.zeros(n) if self.quiet else super().rounded_normal(n, scale)


@pytest.fixture
def data() -> tuple[torch.Tensor, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    params = torch.from_numpy(MODEL.initial_parameters(0))
    params[-9:] = 0.3
    features = rng.standard_normal((RECORDS, 6)).astype(np.float32)
    return params, features, rng.standard_normal(RECORDS).astype(np.float32)


PLAN = MechanismPlan(0.1, 0.5, 2.0, 5, RECORDS)
GRID = PLAN.grid(MODEL.size, RECORDS)


@pytest.mark.parametrize("size", [0, 1, 7, 300])
def test_the_divisor_is_public_whatever_the_batch(data: Any, size: int) -> None:
    params, features, targets = data
    rows = np.arange(size, dtype=np.int64)
    release = private_gradient(MODEL, params, features, targets, PLAN, Fixed.of(rows.tolist()))
    total, _ = clipped_sum(MODEL, params, features, targets, rows, PLAN.clip_norm)
    assert release.batch_size == size
    assert release.mean.dtype == torch.float32
    np.testing.assert_allclose(release.mean.numpy(), total / 30.0, rtol=1e-6, atol=GRID.step / 30.0)


def test_an_empty_batch_is_pure_noise_of_full_size(data: Any) -> None:
    params, features, targets = data
    release = private_gradient(MODEL, params, features, targets, PLAN, Fixed.of([], quiet=False))
    expected = RandomStream.seeded(0).rounded_normal(MODEL.size, GRID.noise) * GRID.step / 30.0
    np.testing.assert_allclose(release.mean.numpy(), expected, rtol=1e-6)


def test_noise_has_the_planned_variance(data: Any) -> None:
    params, features, targets = data
    rows = list(range(40))
    silent = private_gradient(MODEL, params, features, targets, PLAN, Fixed.of(rows)).mean.double().numpy()
    pooled = np.concatenate(
        [
            private_gradient(
                MODEL, params, features, targets, PLAN, Fixed.of(rows, quiet=False, seed=seed)
            ).mean.numpy()
            - silent
            for seed in range(40)
        ]
    )
    assert stats.kstest(pooled * PLAN.divisor / PLAN.noise_stddev, "norm").pvalue > 1e-3
    assert pooled.std() == pytest.approx(PLAN.noise_stddev / PLAN.divisor, rel=0.03)


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e10, 1e25])
def test_sensitivity_from_the_record_to_the_release(data: Any, scale: float) -> None:
    params, features, targets = data
    rows = list(range(50))
    bound = PLAN.clip_norm / PLAN.divisor

    def release(chosen: list[int], x: Any, y: Any) -> Any:
        return private_gradient(MODEL, params, x, y, PLAN, Fixed.of(chosen)).mean.double()

    for victim in (0, 13, 49):
        x, y = features.copy(), targets.copy()
        x[victim] *= scale
        y[victim] *= -scale
        null = release([row for row in rows if row != victim], features, targets)
        assert float((release(rows, features, targets) - null).norm()) <= bound
        assert float((release(rows, x, y) - null).norm()) <= bound
        assert float((release(rows, x, y) - release(rows, features, targets)).norm()) <= 2 * bound


def test_a_non_finite_record_equals_the_null_record(data: Any) -> None:
    params, features, targets = data
    features[3, 2] = np.nan
    with_bad = private_gradient(MODEL, params, features, targets, PLAN, Fixed.of([1, 2, 3, 4]))
    without = private_gradient(MODEL, params, features, targets, PLAN, Fixed.of([1, 2, 4]))
    assert with_bad.zeroed == 1
    assert torch.allclose(with_bad.mean, without.mean, atol=1e-7)


def test_calls_depend_on_indices_only() -> None:
    rng = np.random.default_rng(1)
    for records, share in ((1000, 0.3), (5000, 0.2), (5000, 0.9), (353, 1.0), (100_000, 0.01)):
        rows = np.flatnonzero(rng.random(records) < share)
        calls = list(dpsgd._calls(rows, 0, records))
        assert np.array_equal(np.concatenate(calls), rows)
        assert all(0 < len(call) <= ROWS for call in calls)
        for gone in rng.choice(rows, 20):
            others = list(dpsgd._calls(rows[rows != gone], 0, records))
            kept = {call.tobytes() for call in calls} & {call.tobytes() for call in others}
            changed = [[call for call in side if call.tobytes() not in kept] for side in (calls, others)]
            assert sum(map(len, changed[0])) <= ROWS + 1
            assert sum(map(len, changed[1])) <= ROWS


def test_several_calls_move_by_the_clip_at_most(data: Any) -> None:
    params, features, targets = data
    features = np.repeat(features, 5, 0)
    features[:, :] = features[0]
    targets = np.full(len(features), 9.0, dtype=np.float32)
    every = np.arange(len(features))
    for size in (ROWS, ROWS + 1, 2 * ROWS, 2 * ROWS + 1, len(features)):
        rows = every[:size]
        whole, zeroed = clipped_sum(MODEL, params, features, targets, rows, 0.5)
        assert zeroed == 0
        for gone in (0, size // 2, size - 1):
            without, _ = clipped_sum(MODEL, params, features, targets, rows[rows != gone], 0.5)
            null = features.copy()
            null[gone] = np.nan
            nulled, zeroed = clipped_sum(MODEL, params, null, targets, rows, 0.5)
            assert zeroed == 1
            assert 0.49 < np.linalg.norm(whole - without) <= 0.5
            assert 0.49 < np.linalg.norm(whole - nulled) <= 0.5


def test_more_records_than_the_proof_covers_are_refused(data: Any) -> None:
    params, _, targets = data
    many = np.broadcast_to(np.zeros(6, dtype=np.float32), (2**21 + 1, 6))
    with pytest.raises(PrivacyError, match="records"):
        clipped_sum(MODEL, params, many, targets, np.arange(3), 1.0)


def test_memory_mapped_and_float64_features_work(data: Any, tmp_path: Path) -> None:
    params, features, targets = data
    np.save(tmp_path / "x.npy", features)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    expected = private_gradient(MODEL, params, features, targets, PLAN, RandomStream.seeded(4))
    for x in (mapped, features.astype(np.float64)):
        found = private_gradient(MODEL, params, x, targets.astype(np.float64), PLAN, RandomStream.seeded(4))
        assert torch.equal(found.mean, expected.mean)


def test_sampling_uses_the_plans_rate(data: Any) -> None:
    params, features, targets = data
    source = RandomStream.seeded(5)
    sizes = [private_gradient(MODEL, params, features, targets, PLAN, source).batch_size for _ in range(300)]
    assert np.mean(sizes) == pytest.approx(30, abs=4 * np.sqrt(27 / 300))
    assert len(set(sizes)) > 5


def test_two_releases_from_the_os_differ_and_hide_their_batch_size(data: Any) -> None:
    params, features, targets = data
    source = RandomStream.from_os()
    first = private_gradient(MODEL, params, features, targets, PLAN, source)
    second = private_gradient(MODEL, params, features, targets, PLAN, source)
    assert not torch.equal(first.mean, second.mean)
    assert "batch_size" not in repr(first)


def test_lengths_must_agree(data: Any) -> None:
    params, features, targets = data
    with pytest.raises(PrivacyError, match="one target per record"):
        private_gradient(MODEL, params, features, targets[:-1], PLAN, RandomStream.from_os())
