"""Metric sums against numpy, in raw log-return units."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from client_app import evaluation
from client_app.evaluation import metric_sums, noised_sums
from data_prep.shards import Split
from privacy.model import ClippedSum
from privacy.plan import MechanismPlan
from privacy.randomness import RandomStream
from privacy.release import MAX_EVALUATION_RECORDS, METRIC_NORM, METRICS, noised_metric_scales

SCALE = 0.02


@dataclass(frozen=True)
class FirstColumn:
    """Forecasts the first feature times the only parameter."""

    size: int = 1

    def predict(self, params: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        return features[:, 0] * params[0]

    def clipped_gradient_sum(
        self, params: torch.Tensor, features: torch.Tensor, targets: torch.Tensor, clip_norm: float
    ) -> ClippedSum:
        raise NotImplementedError


def sums(
    forecasts: list[float] | np.ndarray, targets: list[float] | np.ndarray, truth: object = None
) -> dict[str, float]:
    column = np.asarray(forecasts, dtype=np.float32)[:, None]
    actual = np.asarray(targets, dtype=np.float32)
    optimal = None if truth is None else np.asarray(truth, dtype=np.float32)
    return metric_sums(FirstColumn(), np.ones(1, np.float32), column, actual, optimal, SCALE)


def random_split(rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(rows)
    forecasts, targets = generator.normal(size=(2, rows)).astype(np.float32)
    forecasts[::7], targets[::5] = 0.0, 0.0
    return forecasts, targets, (0.1 * generator.normal(size=rows)).astype(np.float32)


@pytest.mark.parametrize("rows", [1, 6, 7, 8, 13, 14, 15, 40])
def test_the_sums_are_numpy_s_whatever_the_chunks(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(evaluation, "BATCH", 7)
    forecasts, targets, truth = random_split(rows)
    f, a, t = (part.astype(np.float64) for part in (forecasts * 1.0, targets, truth))
    f, a = f * SCALE, a * SCALE
    hits = np.where(f * a > 0, 1.0, np.where(f * a == 0, 0.5, 0.0))
    expected = {
        "count": rows,
        "sse": np.sum((f - a) ** 2),
        "sae": np.sum(np.abs(f - a)),
        "hits": hits.sum(),
        "sse_zero": np.sum(a**2),
        "count_optimal": rows,
        "sse_optimal": np.sum((t - a) ** 2),
    }
    found = sums(forecasts, targets, truth)
    assert list(found) == list(METRICS)
    assert found == pytest.approx(expected, rel=1e-6)


def test_without_known_truth_its_sums_stay_zero() -> None:
    found = sums([1.0, -1.0], [1.0, 1.0])
    assert (found["count_optimal"], found["sse_optimal"]) == (0.0, 0.0)
    assert (found["count"], found["hits"]) == (2.0, 1.0)


def test_the_zero_forecast_is_right_half_of_the_time() -> None:
    forecasts, targets, _ = random_split(50)
    found = sums(np.zeros_like(forecasts), targets)
    assert found["hits"] / found["count"] == 0.5
    assert found["sse"] == found["sse_zero"]


def test_a_return_of_zero_is_half_a_hit() -> None:
    assert sums([1.0, -1.0, 0.0], [0.0, 0.0, 0.0])["hits"] == 1.5


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf, 1e30, -1e30])
def test_a_diverged_forecast_counts_as_the_largest_error_and_stays_finite(broken: float) -> None:
    found = sums([broken, 0.5], [0.5, 0.5])
    assert found["sse"] == 1.0
    assert found["sae"] == 1.0
    assert 0 <= found["hits"] <= 2
    assert np.isfinite(list(found.values())).all()


def test_a_target_that_is_not_a_number_counts_as_the_largest_error_and_stays_finite() -> None:
    found = sums([0.5, 0.5], [np.nan, 0.5], [0.0, 0.01])
    assert (found["sse"], found["sae"], found["hits"]) == (1.0, 1.0, 1.0)
    assert found["sse_zero"] == pytest.approx(1.0 + 0.01**2)
    assert found["sse_optimal"] == pytest.approx(1.0)


def test_an_empty_split_is_all_zero() -> None:
    assert set(sums(np.zeros(0), np.zeros(0)).values()) == {0.0}


def test_more_records_than_the_public_bound_are_refused() -> None:
    many = np.broadcast_to(np.float32(0), (MAX_EVALUATION_RECORDS + 1,))
    with pytest.raises(ValueError, match="public bound"):
        metric_sums(FirstColumn(), np.ones(1, np.float32), many[:, None], many, None, SCALE)


# --- noised metrics -----------------------------------------------------------------------------------


class Quiet(RandomStream):
    """No noise; only the rounding to the grid is left."""

    def rounded_normal(self, n: int, scale: float) -> np.ndarray:
        return np.zeros(n)


def noised(splits: dict[str, Split], bound: float, stream: RandomStream | None = None) -> dict[str, float]:
    plan = MechanismPlan(1.0, METRIC_NORM, 5.0, 1, 1)
    return noised_sums(
        FirstColumn(), np.ones(1, np.float32), splits, SCALE, bound, plan, stream or Quiet.seeded(1, "metrics")
    )


def as_split(forecasts: np.ndarray, targets: np.ndarray) -> Split:
    return Split(np.asarray(forecasts, dtype=np.float32)[:, None], np.asarray(targets, dtype=np.float32))


def test_without_noise_and_within_the_bound_they_are_the_exact_sums() -> None:
    found: dict[str, float] = {}
    splits = {}
    for name, rows in (("validation", 40), ("test", 17)):
        forecasts, targets, _ = random_split(rows)
        splits[name] = as_split(forecasts, targets)
        found |= {f"{name}.{metric}": value for metric, value in sums(forecasts, targets).items()}
    made = noised(splits, 1.0)
    assert set(made) == set(found)
    for name, value in found.items():
        assert made[name] == pytest.approx(value, abs=2e-5), name


@settings(deadline=None, max_examples=50)
@given(
    forecast=st.floats(width=32),
    target=st.floats(width=32),
    where=st.sampled_from(["validation", "test"]),
    bound=st.floats(1e-6, 1.0),
)
def test_one_record_moves_all_noised_sums_by_the_norm_at_most(
    forecast: float, target: float, where: str, bound: float
) -> None:
    """One release covers both splits because a record lies in one of them."""
    base = {name: random_split(rows)[:2] for name, rows in (("validation", 6), ("test", 5))}
    others = {name: as_split(*parts) for name, parts in base.items()}
    with_it = dict(others)
    parts = base[where]
    with_it[where] = as_split(np.append(parts[0], np.float32(forecast)), np.append(parts[1], np.float32(target)))
    scales = noised_metric_scales(bound)
    before, after = noised(others, bound), noised(with_it, bound)
    moved = [(after[f"{s}.{m}"] - before[f"{s}.{m}"]) / scale for s in base for m, scale in scales.items()]
    assert np.linalg.norm(moved) <= METRIC_NORM * (1 + 1e-5)
    assert [after[f"{s}.count"] - before[f"{s}.count"] for s in base] == [float(s == where) for s in base]


def test_the_noise_of_every_sum_is_the_planned_one() -> None:
    splits = {"validation": as_split(np.zeros(3), np.zeros(3)), "test": as_split(np.zeros(0), np.zeros(0))}
    draws = [noised(splits, 0.25, RandomStream.seeded(seed, "metrics")) for seed in range(400)]
    for metric, scale in noised_metric_scales(0.25).items():
        for split in splits:
            values = np.array([draw[f"{split}.{metric}"] for draw in draws])
            assert values.std() == pytest.approx(5.0 * METRIC_NORM * scale, rel=0.15)
    assert {draw["test.count"] for draw in draws} == {0.0}
