import math
from pathlib import Path

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from privacy.accounting import ORDERS, epsilon_pld, epsilon_rdp
from privacy.errors import LedgerError, PrivacyError
from privacy.grid import Grid
from privacy.ledger import Ledger, verify
from privacy.plan import MechanismPlan
from privacy.randomness import RandomStream
from privacy.records import RECORD_ADJACENCY, SILO_REPLACE_ADJACENCY, SILO_ZERO_ADJACENCY, Release, RunOpened
from privacy.silo_unit import PURPOSE, SiloPlan, clip_update, release_update
from tests.privacy.signed import KEY

DELTA = 1e-5


class Quiet(RandomStream):
    def rounded_normal(self, n: int, scale: float) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        return np.zeros(n)


def quiet() -> Quiet:
    made = Quiet.seeded(0)
    assert isinstance(made, Quiet)
    return made


@given(
    values=st.lists(st.floats(width=64), min_size=1, max_size=8),
    clip_norm=st.floats(1e-6, 1e6),
)
@settings(max_examples=300, deadline=None)
def test_no_update_is_longer_than_the_clip(values: list[float], clip_norm: float) -> None:
    update = np.array(values)
    clipped = clip_update(update, clip_norm)
    assert np.isfinite(clipped).all()
    assert math.hypot(*clipped) <= clip_norm
    if not np.isfinite(update).all():
        assert not clipped.any()
    elif math.hypot(*values) < clip_norm * (1 - 1e-9):
        assert np.array_equal(clipped, update)


@pytest.mark.parametrize("size", [0.0, 1e-3, 1.0, 1e9, 1e300, math.inf])
def test_a_silo_moves_the_release_by_the_sensitivity_at_most(size: float) -> None:
    rng = np.random.default_rng(0)
    first, second = rng.standard_normal(500), rng.standard_normal(500)
    plan = SiloPlan(0.7, 1.0, "replace")
    ours, theirs = release_update(first * size, plan, quiet()), release_update(-second * 1e3, plan, quiet())
    opposite = release_update(-first * size, plan, quiet())
    off = math.sqrt(500) * Grid.of(1.4, 0.5, 500, 0.7).step
    assert off < 1.4 * 2.0**-13
    assert float(np.linalg.norm(ours)) <= 0.7 + off
    assert SiloPlan(0.7, 1.0).sensitivity == 0.7
    assert float(np.linalg.norm(ours - theirs)) <= plan.sensitivity + off
    assert float(np.linalg.norm(ours - opposite)) <= 1.4 + off


@pytest.mark.parametrize(("neighbour", "relative"), [("zero", 1.0), ("replace", 0.5)])
@pytest.mark.parametrize("sigma", [0.8, 5.0, 40.0])
def test_cost_is_that_of_the_gaussian_mechanism(neighbour: str, relative: float, sigma: float) -> None:
    plan = SiloPlan(3.0, sigma, neighbour).mechanism  # type: ignore[arg-type]
    assert plan.noise_multiplier == pytest.approx(relative * sigma)
    rounds = 12
    event = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(relative * sigma), rounds)
    library = dp_accounting.rdp.RdpAccountant(ORDERS)
    library.compose(event)
    assert epsilon_rdp(1.0, plan.noise_multiplier, rounds, DELTA) == pytest.approx(library.get_epsilon(DELTA), rel=1e-9)
    loss = PLDAccountant(value_discretization_interval=1e-3)
    loss.compose(event)
    assert epsilon_pld(1.0, plan.noise_multiplier, rounds, DELTA) == pytest.approx(
        loss.get_epsilon(DELTA), rel=1e-3, abs=1e-6
    )


def test_loss_distribution_agrees_with_the_analytic_gaussian() -> None:
    # Balle and Wang 2018, theorem 8, for rounds of a Gaussian mechanism: mu = sqrt(rounds) / sigma.
    sigma, rounds = 10.0, 15
    mu = math.sqrt(rounds) / sigma
    epsilon = epsilon_pld(1.0, sigma, rounds, DELTA, 1e-4)
    delta = stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)
    assert delta == pytest.approx(DELTA, rel=1e-2)


def test_noise_has_the_planned_size() -> None:
    plan = SiloPlan(2.0, 1.5)
    update = np.zeros(20_000)
    released = release_update(update, plan, RandomStream.seeded(1))
    assert stats.kstest(released / 3.0, "norm").pvalue > 1e-3
    step = Grid.of(2.0, 1.5, 20_000, 2.0).step
    assert np.array_equal(released / step, np.rint(released / step))


def test_the_noise_drowns_the_signal() -> None:
    size = 121_281
    plan = SiloPlan(1.0, 1.0)
    assert plan.noise_norm(size) == pytest.approx(348.3, abs=0.1)
    signal = np.full(size, 1 / math.sqrt(size))
    released = release_update(signal, plan, RandomStream.seeded(2))
    assert float(np.linalg.norm(released)) == pytest.approx(348, abs=3)
    # The mean of 20 silos still has noise of norm 78 C; and at sigma 1 one round already costs epsilon 4.4.
    assert plan.noise_norm(size) / math.sqrt(20) == pytest.approx(77.9, abs=0.1)
    assert epsilon_pld(1.0, 1.0, 1, DELTA) == pytest.approx(4.38, abs=0.02)


@pytest.mark.parametrize(
    ("neighbour", "adjacency"), [("zero", SILO_ZERO_ADJACENCY), ("replace", SILO_REPLACE_ADJACENCY)]
)
def test_the_ledger_says_which_silo_is_the_neighbour(tmp_path: Path, neighbour: str, adjacency: str) -> None:
    files = tmp_path / "l", tmp_path / "a"
    plan = SiloPlan(1.0, 40.0, neighbour)  # type: ignore[arg-type]
    assert plan.adjacency == adjacency
    opened = RunOpened("run-1", 1.0, DELTA, 17.0, 0.3, "fcfl", unit="silo", adjacency=plan.adjacency)
    current = opened.filter()
    with Ledger.create(*files, signer=KEY) as ledger:
        ledger.append(opened.KIND, opened.body())
        for epoch in range(3):
            entry, current = Release.charge("run-1", epoch, plan.mechanism, current, PURPOSE)
            ledger.append(entry.KIND, entry.body())
    (run,) = verify(*files).runs
    assert run.opened.adjacency == adjacency
    assert run.rdp_spent == pytest.approx(3 * 17.0 / (2 * plan.mechanism.noise_multiplier**2))
    with pytest.raises(PrivacyError, match="adjacency"):
        RunOpened("run-1", 1.0, DELTA, 17.0, 0.3, "fcfl", unit="silo", adjacency=RECORD_ADJACENCY)


@pytest.mark.parametrize("plan", [MechanismPlan(0.1, 1.0, 5.0, 1, 100), MechanismPlan(1.0, 1.0, 20.0, 2, 1)])
def test_a_silo_is_not_amplified_by_sampling_its_records(tmp_path: Path, plan: MechanismPlan) -> None:
    files = tmp_path / "l", tmp_path / "a"
    opened = RunOpened("run-1", 1.0, DELTA, 17.0, 0.3, "fcfl", unit="silo", adjacency=SILO_ZERO_ADJACENCY)
    with Ledger.create(*files, signer=KEY) as ledger:
        ledger.append(opened.KIND, opened.body())
        entry, _ = Release.charge("run-1", 1, plan, opened.filter())
        ledger.append(entry.KIND, entry.body())
    with pytest.raises(LedgerError, match="line 3: sampling_rate or steps"):
        verify(*files)
    counted = {"accountant": "pld", "contributions": 1, "noise_multiplier": 5.0, "rdp_budget": 0.0}
    with pytest.raises(PrivacyError, match="sampling_rate, steps"):
        RunOpened.from_body(opened.body() | counted | {"sampling_rate": plan.sampling_rate, "steps": plan.steps})


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 0.0, -1.0, True])
def test_bad_silo_plans_are_refused_by_name(bad: float) -> None:
    with pytest.raises(PrivacyError, match="clip_norm"):
        SiloPlan(bad, 1.0)
    with pytest.raises(PrivacyError, match="noise_multiplier"):
        SiloPlan(1.0, bad)
    with pytest.raises(PrivacyError, match="neighbour"):
        SiloPlan(1.0, 1.0, "other")  # type: ignore[arg-type]
    with pytest.raises(PrivacyError, match="update"):
        release_update(np.zeros(3, dtype=np.float32), SiloPlan(1.0, 1.0), quiet())  # type: ignore[arg-type]
