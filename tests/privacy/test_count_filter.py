import math
from pathlib import Path

import pytest
from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.accounting import PAPER_ORDERS, best_order, epsilon_from_rdp, epsilon_pld, epsilon_rdp, rdp
from privacy.calibration import calibrate
from privacy.conversion import epsilon_at_order, order_budget
from privacy.count_filter import Budget, CountFilter
from privacy.errors import BudgetExceeded, LedgerError, PrivacyError
from privacy.filter import RenyiFilter
from privacy.ledger import Ledger, verify
from privacy.plan import MechanismPlan
from privacy.records import Release, RunClosed, RunOpened, filter_of
from tests.privacy.signed import KEY

DELTA = 1e-5
RATE = 256 / 28_000
PLAN = CountFilter(3, 0.01, 1.0, 10, 9.0)


@pytest.fixture(scope="module")
def found() -> object:
    return calibrate(1.0, DELTA, RATE, 5, 65, accountant="pld")


def bisect(orders: tuple[float, ...]) -> float:
    low, high = 0.9, 1.5
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (low, middle) if epsilon_rdp(RATE, middle, 325, DELTA, orders) <= 1.0 else (middle, high)
    return high


def test_the_loss_distribution_needs_the_least_noise(found: object) -> None:
    assert found.noise_multiplier == pytest.approx(1.002, abs=5e-4)  # type: ignore[attr-defined]
    assert 1.0 - 1e-4 <= found.epsilon <= 1.0  # type: ignore[attr-defined]
    assert epsilon_pld(RATE, found.noise_multiplier, 325, DELTA) <= 1.0  # type: ignore[attr-defined]
    assert bisect(tuple(11 + k / 20 for k in range(21))) == pytest.approx(1.147, abs=1e-3)
    assert bisect(PAPER_ORDERS) == pytest.approx(1.305, abs=1e-3)
    paper = calibrate(1.0, 1e-5, 256 / 28_000, 5, 65, conversion="paper")
    assert paper.noise_multiplier == pytest.approx(1.324, abs=1e-3)
    assert paper.order in PAPER_ORDERS


def test_a_counted_calibration_gives_the_filter_that_enforces_it(found: object) -> None:
    current = found.filter()  # type: ignore[attr-defined]
    assert isinstance(current, CountFilter)
    assert current.planned_epsilon(DELTA) <= 1.0
    plan = MechanismPlan(RATE, 1.0, found.noise_multiplier, 5, 28_000)  # type: ignore[attr-defined]
    for _ in range(65):
        current = current.charge(plan)
    assert current.spent == found.rdp_spent  # type: ignore[attr-defined]
    assert current.fraction == 1.0
    assert not current.admits(plan)
    assert not RenyiFilter(found.order, found.rdp_budget).admits(plan), "a Renyi filter must not enforce this noise"  # type: ignore[attr-defined]


def test_either_budget_can_be_held() -> None:
    plan = MechanismPlan(0.01, 1.0, 1.0, 10, 1000)
    budgets: list[Budget] = [PLAN, RenyiFilter(9.0, order_budget(9.0, 2.0, DELTA))]
    for budget in budgets:
        assert budget.admits(plan)
        after = budget.charge(plan)
        assert after.spent == plan.rdp(9.0)
        assert 0 < after.fraction < 1
        assert 0 < after.epsilon(DELTA) < 2.0
        assert budget.epsilon(DELTA) == 0.0
    assert calibrate(1.0, DELTA, 0.1, 5, 15).filter() == RenyiFilter(17.0, order_budget(17.0, 1.0, DELTA))


@given(rate=st.floats(1e-3, 0.02), noise=st.floats(0.5, 2.0), steps=st.integers(1, 20), used=st.integers(0, 3))
@settings(max_examples=200, deadline=None)
def test_only_what_the_plan_dominates_is_admitted(rate: float, noise: float, steps: int, used: int) -> None:
    current = CountFilter(3, 0.01, 1.0, 10, 9.0, used)
    plan = MechanismPlan(rate, 1.0, noise, steps, 1000)
    assert current.admits(plan) == (rate <= 0.01 and noise >= 1.0 and steps <= 10 and used < 3)
    if not current.admits(plan):
        with pytest.raises(BudgetExceeded):
            current.charge(plan)


@pytest.mark.parametrize(
    ("rate", "noise", "steps"), [(0.01, 1.0, 9), (0.004, 1.0, 10), (0.01, 1.3, 10), (0.01, 40.0, 1)]
)
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-8])
def test_the_planned_contribution_is_the_dearest(rate: float, noise: float, steps: int, delta: float) -> None:
    assert epsilon_pld(rate, noise, steps, delta) <= epsilon_pld(0.01, 1.0, 10, delta) + 1e-3


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"shape": [1.0] * 14 + [0.9]}, "shape varies"),
        ({"conversion": "paper"}, "conversion"),
        ({"accountant": "gdp"}, "accountant"),
        ({"epsilon": 1e-3, "sigma_max": 5.0}, "too small for 15 contributions"),
    ],
)
def test_what_the_loss_distribution_cannot_price_is_refused(changed: dict[str, object], words: str) -> None:
    asked: dict[str, object] = {"epsilon": 1.0, "delta": DELTA, "sampling_rate": 0.1, "steps": 5, "contributions": 15}
    with pytest.raises(PrivacyError, match=words):
        calibrate(**(asked | {"accountant": "pld"} | changed))  # type: ignore[arg-type]


def test_a_constant_shape_and_clamps_are_kept() -> None:
    found = calibrate(1.0, DELTA, 0.1, 5, 15, [2.0] * 20, accountant="pld")
    assert found.schedule == (found.noise_multiplier * 2.0,) * 20
    assert found.schedule[0] == pytest.approx(3.473, abs=2e-3)
    clamped = calibrate(8.0, DELTA, 0.01, 1, 1, sigma_min=2.0, accountant="pld")
    assert clamped.schedule == (2.0,)
    assert clamped.epsilon < 1.0


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("contributions", {"contributions": 0}),
        ("sampling_rate", {"sampling_rate": 1.5}),
        ("noise_multiplier", {"noise_multiplier": math.nan}),
        ("steps", {"steps": 0}),
        ("order", {"order": 1.0}),
        ("used", {"used": 4}),
        ("spent", {"spent": -1.0}),
    ],
)
def test_bad_counts_are_refused_by_name(name: str, changed: dict[str, object]) -> None:
    good: dict[str, object] = {
        "contributions": 3,
        "sampling_rate": 0.1,
        "noise_multiplier": 1.0,
        "steps": 5,
        "order": 9.0,
    }
    with pytest.raises(PrivacyError, match=name):
        CountFilter(**(good | changed))  # type: ignore[arg-type]
    with pytest.raises(PrivacyError, match="pass the MechanismPlan"):
        PLAN.admits(0.1)  # type: ignore[arg-type]


def opened(kind: str) -> RunOpened:
    if kind == "pld":
        return RunOpened.counted("run-1", 0.51, DELTA, PLAN, "fcfl 0.1.0")
    order = best_order(DEFAULT_RDP_ORDERS, rdp(0.01, 1.0, 30, DEFAULT_RDP_ORDERS), DELTA)
    return RunOpened("run-1", 1.1, DELTA, order, order_budget(order, 1.1, DELTA), "fcfl 0.1.0")


@pytest.mark.parametrize(("kind", "epsilon", "off"), [("rdp", 1.0959, 5e-5), ("pld", 0.5064, 1e-3)])
def test_three_rounds_with_a_restart_each_and_a_crash(tmp_path: Path, kind: str, epsilon: float, off: float) -> None:
    files = tmp_path / "l", tmp_path / "a"
    plan = MechanismPlan(0.01, 1.0, 1.0, 10, 1000)
    with Ledger.create(*files, signer=KEY) as ledger:
        ledger.append(RunOpened.KIND, opened(kind).body())
    for epoch in range(3):
        anchor = files[1].read_bytes()
        with Ledger.open(*files, signer=KEY) as ledger:
            entry, _ = Release.charge("run-1", epoch, plan, filter_of(ledger.entries(), "run-1"))
            ledger.append(entry.KIND, entry.body())
        if epoch == 1:  # killed between the entry and its anchor, and while it began another
            files[1].write_bytes(anchor)
            with files[0].open("ab") as handle:
                handle.write(b'{"body":{"cl')
    before = files[0].read_bytes()
    first, second = verify(*files), verify(*files)
    assert first == second
    assert files[0].read_bytes() == before
    (run,) = first.runs
    assert run.releases == 3
    assert run.epsilon == pytest.approx(epsilon, abs=off)
    if kind == "pld":
        with Ledger.open(*files, signer=KEY) as ledger, pytest.raises(BudgetExceeded, match="all 3 contributions"):
            Release.charge("run-1", 3, plan, filter_of(ledger.entries(), "run-1"))


def forge(files: tuple[Path, Path], bodies: list[tuple[str, dict[str, object]]]) -> None:
    with Ledger.create(*files, signer=KEY) as ledger:
        for kind, body in bodies:
            ledger.append(kind, body)


def release(epoch: int = 0, **changed: object) -> tuple[str, dict[str, object]]:
    made, _ = Release.charge("run-1", epoch, MechanismPlan(0.01, 1.0, 1.0, 10, 1000), PLAN)
    return Release.KIND, made.body() | changed


COST = MechanismPlan(0.01, 1.0, 1.0, 10, 1000).rdp(9.0)


@pytest.mark.parametrize(
    ("bodies", "words"),
    [
        ([release(k, rdp_total=COST * (k + 1)) for k in range(4)], "line 6: the budget is passed.*all 3"),
        ([release(rdp=COST / 2, rdp_total=COST / 2)], "line 3: rdp is"),
        ([release(rdp_total=COST * 2)], "line 3: rdp_total"),
    ],
)
def test_verify_enforces_the_count(tmp_path: Path, bodies: list[tuple[str, dict[str, object]]], words: str) -> None:
    files = tmp_path / "l", tmp_path / "a"
    forge(files, [(RunOpened.KIND, opened("pld").body()), *bodies])
    with pytest.raises(LedgerError, match=words):
        verify(*files)


def test_verify_refuses_releases_outside_the_plan(tmp_path: Path) -> None:
    files = tmp_path / "l", tmp_path / "a"
    quiet = MechanismPlan(0.01, 1.0, 0.9, 10, 1000)
    cost = quiet.rdp(9.0)
    forge(
        files,
        [(RunOpened.KIND, opened("pld").body()), release(noise_multiplier=0.9, rdp=cost, rdp_total=cost)],
    )
    with pytest.raises(LedgerError, match=r"noise_multiplier 0\.9 is below the planned 1"):
        verify(*files)


def test_verify_recomputes_the_planned_epsilon(tmp_path: Path) -> None:
    files = tmp_path / "l", tmp_path / "a"
    forge(files, [(RunOpened.KIND, opened("pld").body() | {"epsilon": 0.4})])
    with pytest.raises(LedgerError, match=r"line 2: epsilon is 0\.4, recomputed 0\.50"):
        verify(*files)


def test_counted_runs_fail_closed_where_a_renyi_filter_is_expected() -> None:
    with pytest.raises(PrivacyError, match="counted"):
        opened("pld").filter()
    assert opened("pld").rdp_budget == 0.0
    assert opened("pld").budget() == PLAN
    assert "contributions" not in opened("rdp").body()
    assert RunOpened.from_body(opened("pld").body()) == opened("pld")
    for changed, words in (
        ({"rdp_budget": 0.1}, "rdp_budget"),
        ({"contributions": 0}, "contributions"),
        ({"accountant": "x"}, "accountant"),
        ({"accountant": "rdp"}, "contributions"),
    ):
        with pytest.raises(PrivacyError, match=words):
            RunOpened.from_body(opened("pld").body() | changed)


def test_closed_runs_have_no_budget(tmp_path: Path) -> None:
    files = tmp_path / "l", tmp_path / "a"
    forge(files, [(RunOpened.KIND, opened("pld").body()), (RunClosed.KIND, RunClosed("run-1", "x").body())])
    with Ledger.open(*files, signer=KEY) as ledger, pytest.raises(PrivacyError, match="not open"):
        filter_of(ledger.entries(), "run-1")


def test_published_anchors_of_one_step() -> None:
    assert epsilon_pld(0.00105, 1.0, 1, 1e-3) == 0.0
    assert epsilon_pld(0.00105, 1.0, 1, 1e-5) == pytest.approx(0.00978, abs=1e-3)
    assert epsilon_pld(0.00105, 1.0, 1, 1e-5, 1e-4) == pytest.approx(0.00978, abs=2e-5)
    for delta, expected in ((1e-3, 0.2548), (1e-5, 0.6090)):
        orders = tuple(DEFAULT_RDP_ORDERS)
        spent = rdp(0.00105, 1.0, 1, orders)
        assert epsilon_from_rdp(orders, spent, delta) == pytest.approx(expected, abs=5e-5)
        finer = tuple(6 + k / 4 for k in range(40))
        more = (*orders, *finer), (*spent, *rdp(0.00105, 1.0, 1, finer))
        assert epsilon_from_rdp(*more, delta) <= epsilon_from_rdp(orders, spent, delta)
        growing = [epsilon_from_rdp(orders[:count], spent[:count], delta) for count in range(1, len(orders) + 1)]
        assert growing == sorted(growing, reverse=True), "adding orders never raises epsilon"
    assert epsilon_rdp(0.25, 1.0, 150, DELTA) == pytest.approx(25.4, abs=0.05)
    assert epsilon_at_order(9.0, 0.0, DELTA) == 0.0
