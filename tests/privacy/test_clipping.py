"""Small cases with known answers, from one gradient to one release."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from privacy.clipping import clip_rows
from privacy.dpsgd import private_gradient
from privacy.errors import PrivacyError
from privacy.mlp import Mlp
from privacy.model import ClippedSum
from privacy.plan import MechanismPlan
from privacy.randomness import RandomStream
from tests.privacy.test_dpsgd import Fixed


class Rows:
    """A model whose gradients are the features themselves."""

    def __init__(self, size: int) -> None:
        self.size = size

    def predict(self, params: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        return features[:, 0]

    def clipped_gradient_sum(self, params: Any, features: torch.Tensor, targets: Any, clip_norm: float) -> ClippedSum:
        return clip_rows(features, clip_norm)


def test_a_zero_gradient_stays_zero() -> None:
    found = clip_rows(torch.zeros(3, 4), 5.0)
    assert not found.total.any()
    assert (found.zeroed, found.squares) == (0, 0.0)


def test_non_finite_gradients_become_zero_and_are_counted() -> None:
    nan, inf = float("nan"), float("inf")
    found = clip_rows(torch.tensor([[1.0, nan], [inf, 1.0], [0.3, 0.4]]), 5.0)
    assert found.zeroed == 2
    assert found.total.tolist() == pytest.approx([0.3, 0.4])
    assert found.squares == pytest.approx(0.25)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_half_precision_norms_do_not_overflow(dtype: torch.dtype) -> None:
    found = clip_rows(torch.full((1, 4), 300.0, dtype=dtype), 1.0)
    assert found.total.tolist() == pytest.approx([0.5] * 4, abs=1e-5)
    assert float(found.total.norm()) <= 1.0
    assert found.zeroed == 0


@given(
    rows=st.lists(st.lists(st.floats(width=64), min_size=3, max_size=3), min_size=1, max_size=4),
    clip_norm=st.floats(1e-6, 1e6),
)
@settings(max_examples=200, deadline=None)
def test_no_row_adds_more_than_the_clip(rows: list[list[float]], clip_norm: float) -> None:
    for row in rows:
        found = clip_rows(torch.tensor([row], dtype=torch.float64), clip_norm)
        assert float(torch.linalg.vector_norm(found.total)) <= clip_norm
        if np.isfinite(row).all() and 0 < math.hypot(*row) < clip_norm * 0.999:
            assert found.total.tolist() == pytest.approx(row, rel=1e-9)
    finite = [row for row in rows if np.isfinite(row).all()]
    whole = clip_rows(torch.tensor(rows, dtype=torch.float64), clip_norm)
    assert whole.zeroed == len(rows) - len(finite)
    assert float(torch.linalg.vector_norm(whole.total)) <= clip_norm * len(finite) * (1 + 1e-9)


def test_other_dtypes_are_refused_by_name_where_they_are_not_supported() -> None:
    model = Mlp(4, (3,))
    params = torch.from_numpy(model.initial_parameters(0))
    with pytest.raises(PrivacyError, match=r"features.*torch\.float32.*torch\.float16"):
        model.clipped_gradient_sum(params, torch.full((1, 4), 300.0).half(), torch.zeros(1), 1.0)
    with pytest.raises(PrivacyError, match="params"):
        model.clipped_gradient_sum(params.half(), torch.ones(1, 4), torch.zeros(1), 1.0)
    with pytest.raises(PrivacyError, match="gradients"):
        clip_rows(torch.ones(2, 3, dtype=torch.int64), 1.0)
    with pytest.raises(PrivacyError, match="gradients"):
        clip_rows(torch.ones(3), 1.0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 0.0, -1.0])
def test_no_clip_and_no_noise_that_is_not_a_number(bad: float) -> None:
    with pytest.raises(PrivacyError, match="clip_norm"):
        clip_rows(torch.ones(1, 2), bad)
    with pytest.raises(PrivacyError, match="clip_norm"):
        MechanismPlan(0.1, bad, 1.0, 1, 10)
    with pytest.raises(PrivacyError, match="noise_multiplier"):
        MechanismPlan(0.1, 1.0, bad, 1, 10)


@pytest.mark.parametrize("size", [0, 1, 7])
def test_a_hundred_records_at_three_per_cent_are_divided_by_three(size: int) -> None:
    plan = MechanismPlan(0.03, 1.0, 1.0, 1, 100)
    assert plan.divisor == pytest.approx(3.0, rel=1e-15)
    features = np.full((100, 4), 0.25, dtype=np.float32)
    release = private_gradient(
        Rows(4), torch.zeros(4), features, np.zeros(100, dtype=np.float32), plan, Fixed.of(list(range(size)))
    )
    assert release.batch_size == size
    assert release.mean.dtype == torch.float32
    assert release.mean.tolist() == pytest.approx([0.25 * size / 3] * 4, abs=1e-4)


def test_a_hundred_records_at_three_per_cent_give_an_empty_sample_as_often_as_they_should() -> None:
    stream = RandomStream.seeded(12)
    empty = sum(len(stream.poisson_sample(100, 0.03)) == 0 for _ in range(20_000))
    assert pytest.approx(0.0476, abs=5e-5) == 0.97**100
    assert stats.binomtest(empty, 20_000, 0.97**100).pvalue > 1e-6


@pytest.mark.parametrize(("records", "expected"), [(16, 4), (100, 3)])
def test_one_nulled_record_moves_the_output_by_the_clip_over_the_divisor(records: int, expected: int) -> None:
    plan = MechanismPlan(expected / records, 0.8, 1.0, 1, records)
    rng = np.random.default_rng(records)
    features = (rng.standard_normal((records, 5)) * 3).astype(np.float32)
    targets = np.zeros(records, dtype=np.float32)
    for victim in range(records):
        nulled = features.copy()
        nulled[victim] = 0.0
        rows = sorted({victim, *range(expected)})
        outputs = [
            private_gradient(Rows(5), torch.zeros(5), of, targets, plan, Fixed.of(rows)).mean.double()
            for of in (features, nulled)
        ]
        moved = float((outputs[0] - outputs[1]).norm())
        assert moved <= 0.8 / plan.divisor * (1 + 1e-6), "up to the grid and float32, which the noise covers"
        assert moved > 0.79 / plan.divisor, "the records are longer than the clip, so the bound is nearly met"
