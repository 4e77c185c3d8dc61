import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from privacy.errors import PrivacyError
from privacy.ledger import Ledger, verify
from privacy.metrics import (
    BACKTRACKING,
    EVALUATION,
    private_mean_loss,
    private_mean_loss_difference,
    private_metric,
    private_sums,
)
from privacy.mlp import Mlp
from privacy.plan import MechanismPlan
from privacy.randomness import RandomStream
from privacy.records import Release, RunOpened
from tests.privacy.signed import KEY

torch.set_num_threads(1)
MODEL = Mlp(6, (9, 8))
PLAN = MechanismPlan(0.2, 0.5, 1.5, 1, 300)


class Quiet(RandomStream):
    def rounded_normal(self, n: int, scale: float) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        return np.zeros(n)


@pytest.fixture
def data() -> tuple[torch.Tensor, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    params = torch.from_numpy(MODEL.initial_parameters(0))
    params[-9:] = 0.3
    return params, rng.standard_normal((300, 6)).astype(np.float32), rng.standard_normal(300).astype(np.float32)


@pytest.mark.parametrize("value", [1e-9, 0.4, 0.5, 0.6, 1e300, math.inf, math.nan, -0.5, -1e9])
def test_one_value_moves_the_mean_by_the_bound_at_most(value: float) -> None:
    values = np.linspace(-1, 1, 300)
    everyone = MechanismPlan(1.0, 0.5, 1.5, 1, 300)

    def mean(of: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> float:
        return private_metric(lambda rows: of[rows], 300, everyone, Quiet.seeded(0))

    null, moved = values.copy(), values.copy()
    null[7], moved[7] = 0.0, value
    assert abs(mean(moved) - mean(null)) * everyone.divisor <= 0.5
    assert mean(null) == pytest.approx(np.clip(null, -0.5, 0.5).mean(), abs=1e-4)
    if not math.isfinite(value):
        assert mean(moved) == mean(null), "a value that is not finite is a null record"


@settings(deadline=None)
@given(
    arrays(np.float64, (5, 3), elements=st.floats(allow_nan=True, allow_infinity=True, width=64)),
    arrays(np.float64, 3, elements=st.floats(allow_nan=True, allow_infinity=True, width=64)),
)
def test_one_vector_moves_the_sums_by_the_norm_at_most(
    company: "np.ndarray[tuple[int, int], np.dtype[np.float64]]",
    changed: "np.ndarray[tuple[int], np.dtype[np.float64]]",
) -> None:
    everyone = MechanismPlan(1.0, 0.5, 1.5, 1, 5)

    def sums(record: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        values = np.vstack([company, record])
        return private_sums(lambda rows: values[rows], 3, 6, everyone, Quiet.seeded(0))

    grid = everyone.grid(3, 6)
    allowed = 0.5 + math.sqrt(3) * grid.step / 2
    null = sums(np.zeros(3))
    assert np.linalg.norm(sums(changed) - null) <= allowed
    assert np.linalg.norm(sums(changed)) <= 6 * allowed


def test_vectors_within_the_norm_are_summed_exactly() -> None:
    values = np.array([[0.25, -0.25], [0.0, 0.5], [0.5, 0.0]])
    everyone = MechanismPlan(1.0, 0.625, 1.5, 1, 3)
    assert private_sums(lambda rows: values[rows], 2, 3, everyone, Quiet.seeded(0)).tolist() == [0.75, 0.25]
    with pytest.raises(PrivacyError, match="2 values"):
        private_sums(lambda rows: values[rows, :1], 2, 3, everyone, Quiet.seeded(0))


def test_the_divisor_is_public_and_the_noise_is_planned() -> None:
    source = RandomStream.seeded(1)
    released = np.array([private_metric(lambda rows: np.zeros(len(rows)), 300, PLAN, source) for _ in range(1000)])
    assert stats.kstest(released * PLAN.divisor / PLAN.noise_stddev, "norm").pvalue > 1e-3
    steps = released * PLAN.divisor / PLAN.grid(1, 300).step
    assert np.allclose(steps, np.rint(steps), atol=1e-6)
    sizes = []
    silent = [
        private_metric(lambda rows: sizes.append(len(rows)) or np.full(len(rows), 0.25), 300, PLAN, Quiet.seeded(k))  # type: ignore[func-returns-value]
        for k in range(5)
    ]
    assert silent == pytest.approx([0.25 * size / 60.0 for size in sizes], abs=1e-4)
    assert len(set(sizes)) > 1, "every release samples afresh"


def test_the_mean_is_unbiased() -> None:
    values = np.random.default_rng(2).uniform(-0.4, 0.4, 300) + 0.05
    source = RandomStream.seeded(3)
    found = [private_metric(lambda rows: values[rows], 300, PLAN, source) for _ in range(1500)]
    assert abs(np.mean(found) - values.mean()) < 4 * np.std(found) / math.sqrt(1500)


def test_losses_and_differences_are_those_of_the_model(data: Any) -> None:
    params, x, y = data
    after = params.clone()
    after[-9:] = 0.25
    everyone = MechanismPlan(1.0, 0.5, 1.5, 1, 300)

    def losses(at: torch.Tensor) -> Any:
        return (MODEL.predict(at, torch.from_numpy(x)).double().numpy() - y) ** 2 / 2

    found = private_mean_loss(MODEL, params, x, y, everyone, Quiet.seeded(0))
    assert found == pytest.approx(np.clip(losses(params), 0, 0.5).mean(), abs=1e-4)
    moved = private_mean_loss_difference(MODEL, params, after, x, y, everyone, Quiet.seeded(0))
    assert moved == pytest.approx(np.clip(losses(after) - losses(params), -0.5, 0.5).mean(), abs=1e-4)
    same = private_mean_loss_difference(MODEL, params, params, x, y, everyone, Quiet.seeded(0))
    assert same == 0.0
    x[5], y[6] = np.nan, np.inf
    for release in (private_mean_loss(MODEL, params, x, y, everyone, Quiet.seeded(0)),):
        kept = np.isfinite(x).all(axis=1) & np.isfinite(y)
        assert release * 300 == pytest.approx(np.clip(losses(params)[kept], 0, 0.5).sum(), abs=1e-2)


def test_every_evaluation_is_a_row_of_its_own(tmp_path: Path) -> None:
    files = tmp_path / "l", tmp_path / "a"
    opened = RunOpened("run-1", 2.0, 1e-5, 9.0, 0.5, "fcfl")
    current, plan = opened.filter(), MechanismPlan(0.2, 0.5, 5.0, 1, 300)
    with Ledger.create(*files, signer=KEY) as ledger:
        ledger.append(opened.KIND, opened.body())
        for purpose in ("training", BACKTRACKING, EVALUATION):
            entry, current = Release.charge("run-1", 4, plan, current, purpose)
            ledger.append(entry.KIND, entry.body())
    (run,) = verify(*files).runs
    assert run.releases == 3
    assert run.rdp_spent == pytest.approx(3 * plan.rdp(9.0))


def test_what_is_not_one_release_is_refused(data: Any) -> None:
    params, x, y = data
    for bad in (MechanismPlan(0.2, 0.5, 1.5, 2, 300), MechanismPlan(0.2, 0.5, 1.5, 1, 300, 0.25)):
        with pytest.raises(PrivacyError, match="steps"):
            private_metric(lambda rows: np.zeros(len(rows)), 300, bad, Quiet.seeded(0))
    with pytest.raises(PrivacyError, match="values_of"):
        private_metric(lambda rows: np.zeros(len(rows) + 1), 300, PLAN, Quiet.seeded(0))
    for function in (private_mean_loss, lambda m, p, *rest: private_mean_loss_difference(m, p, p, *rest)):
        with pytest.raises(PrivacyError, match="one target per record"):
            function(MODEL, params, x, y[:-1], PLAN, Quiet.seeded(0))
