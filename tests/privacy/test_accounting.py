import math
import time

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.accountants.analysis import rdp as opacus_rdp

from privacy.accounting import (
    ORDERS,
    PAPER_ORDERS,
    best_order,
    epsilon_from_rdp,
    epsilon_group,
    epsilon_pld,
    epsilon_rdp,
    rdp,
    rdp_at,
)
from privacy.conversion import epsilon_at_order, order_budget
from privacy.errors import PrivacyError
from privacy.plan import MechanismPlan

DELTA = 1e-5
GRID = [(q, sigma) for q in (0.001, 0.01, 0.1, 0.25, 0.5, 1.0) for sigma in (0.6, 1.0, 4.0)]


@pytest.mark.parametrize(("q", "sigma"), GRID)
def test_rdp_agrees_with_dp_accounting_and_opacus(q: float, sigma: float) -> None:
    orders = [1.05, 1.5, 2, 3.3, 8, 17, 32, 64]
    ours = rdp(q, sigma, 30, orders)
    for order in (2, 3, 17, 64, 1024):
        library = rdp_at(q, sigma, 30, order, by_library=True)
        assert rdp_at(q, sigma, 30, order) == pytest.approx(library, rel=1e-9, abs=1e-10)
    accountant = dp_accounting.rdp.RdpAccountant(orders, dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(MechanismPlan(q, 1.0, sigma, 30, 100).event())
    converged = np.isfinite(accountant._rdp)
    assert converged[[2, 4, 5, 6, 7]].all()
    assert np.isfinite(ours).all()
    assert ours[converged] == pytest.approx(accountant._rdp[converged], rel=1e-10, abs=1e-10)
    theirs = opacus_rdp.compute_rdp(q=q, noise_multiplier=sigma, steps=30, orders=orders)
    # Opacus subtracts the alternating terms of the fractional series; dp-accounting adds them, an upper bound.
    assert np.all(ours >= theirs * (1 - 1e-6) - 1e-9)
    assert ours[[2, 4, 5, 6, 7]] == pytest.approx(theirs[[2, 4, 5, 6, 7]], rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(("q", "sigma"), GRID)
def test_epsilon_agrees_with_dp_accounting_and_opacus(q: float, sigma: float) -> None:
    accountant = dp_accounting.rdp.RdpAccountant(ORDERS, dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    accountant.compose(MechanismPlan(q, 1.0, sigma, 30, 100).event())
    ours = epsilon_rdp(q, sigma, 30, DELTA)
    assert ours == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-9)
    theirs, _ = opacus_rdp.get_privacy_spent(
        orders=list(ORDERS),
        rdp=opacus_rdp.compute_rdp(q=q, noise_multiplier=sigma, steps=30, orders=ORDERS),
        delta=DELTA,
    )
    assert ours >= theirs * (1 - 1e-9)
    assert ours == pytest.approx(theirs, rel=2e-3 if theirs < 10 else 4e-2)


def test_published_anchors() -> None:
    assert epsilon_rdp(0.25, 1.0, 150, DELTA) == pytest.approx(25.4, abs=0.05)
    assert epsilon_rdp(0.01, 1.0, 30, DELTA, DEFAULT_RDP_ORDERS) == pytest.approx(1.0959, abs=5e-5)
    assert epsilon_pld(0.01, 1.0, 30, DELTA, 1e-4) == pytest.approx(0.5064, abs=5e-5)
    assert epsilon_pld(0.01, 1.0, 30, DELTA) == pytest.approx(0.5064, abs=1e-3)


def test_paper_table_8_cannot_be_1_28() -> None:
    for sigma, ours, theirs in ((1.2, 18.91, 18.72), (0.9, 31.28, 30.60)):
        assert epsilon_rdp(0.25, sigma, 150, DELTA) == pytest.approx(ours, abs=0.01)
        spent = opacus_rdp.compute_rdp(q=0.25, noise_multiplier=sigma, steps=150, orders=ORDERS)
        assert opacus_rdp.get_privacy_spent(orders=list(ORDERS), rdp=spent, delta=DELTA)[0] == pytest.approx(
            theirs, abs=0.01
        )


def test_null_record_and_add_remove_privacy_loss_agree() -> None:
    event = MechanismPlan(0.05, 1.0, 1.5, 40, 100).event()
    removed = dp_accounting.pld.PLDAccountant(
        dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=1e-3
    )
    removed.compose(event)
    assert epsilon_pld(0.05, 1.5, 40, DELTA) == pytest.approx(removed.get_epsilon(DELTA), abs=1e-6)


def test_tiny_costs_are_not_rounded_to_zero() -> None:
    # Second order in q at order 2: log(1 + q^2 (exp(1/s^2) - 1)).
    for q, sigma in ((1e-9, 50.0), (1e-12, 1.0), (1e-3, 1e4)):
        assert rdp_at(q, sigma, 1, 2) == pytest.approx(math.log1p(q**2 * math.expm1(1 / sigma**2)), rel=1e-10)
        assert rdp_at(q, sigma, 1, 2, by_library=True) >= rdp_at(q, sigma, 1, 2) > 0


def test_gaussian_closed_form_without_sampling() -> None:
    assert rdp(1.0, 2.0, 7, [5.0])[0] == pytest.approx(7 * 5.0 / (2 * 4.0))


@pytest.mark.parametrize("order", [1.05, 2.5, 17.5])
def test_divergence_is_bounded_where_the_series_does_not_converge(order: float) -> None:
    value = rdp_at(0.01, 40.0, 1, order)
    assert math.isfinite(value)
    # High-precision quadrature of E_N(0,s^2)[((1-q) + q exp((2x-1)/(2s^2)))^order].
    import mpmath

    with mpmath.workdps(40):
        q, s = mpmath.mpf("0.01"), mpmath.mpf(40)
        moment = mpmath.quad(
            lambda x: mpmath.npdf(x, 0, s) * ((1 - q) + q * mpmath.exp((2 * x - 1) / (2 * s * s))) ** order,
            [-12 * s, -4 * s, 0, 4 * s, 12 * s],
        )
        truth = float(mpmath.log(moment) / (order - 1))
    assert truth <= value * (1 + 1e-9)
    integer = rdp_at(0.01, 40.0, 1, float(math.ceil(order)))
    assert value <= integer


@pytest.mark.parametrize(
    ("q", "sigma", "order"), [(0.1, 3.77, 17.0), (0.1, 3.77, 2.5), (0.25, 1.0, 2.0), (0.01, 0.8, 5.5)]
)
def test_rdp_against_quadrature_in_both_directions(q: float, sigma: float, order: float) -> None:
    import mpmath

    with mpmath.workdps(40):
        points = [-14 * sigma, -5 * sigma, 0, 1, order, order + 5 * sigma, order + 14 * sigma]

        def mixture(x: object) -> object:
            return (1 - q) * mpmath.npdf(x, 0, sigma) + q * mpmath.npdf(x, 1, sigma)

        forward = mpmath.quad(
            lambda x: mpmath.npdf(x, 0, sigma) * (mixture(x) / mpmath.npdf(x, 0, sigma)) ** order, points
        )
        back = mpmath.quad(lambda x: mixture(x) * (mpmath.npdf(x, 0, sigma) / mixture(x)) ** order, points)
        truth = float(mpmath.log(max(forward, back)) / (order - 1))
    value = rdp_at(q, sigma, 1, order)
    assert truth <= value * (1 + 1e-7)
    assert value <= truth * 1.05


def test_orders_include_fractions_and_the_papers() -> None:
    assert ORDERS[0] == 1.05
    assert sorted(set(ORDERS)) == list(ORDERS)
    assert set(PAPER_ORDERS) <= set(ORDERS)


def test_paper_conversion_is_the_looser_one() -> None:
    orders = PAPER_ORDERS
    spent = rdp(0.1, 1.0, 20, orders)
    loose = epsilon_from_rdp(orders, spent, DELTA, "paper")
    assert loose == pytest.approx(min(s + math.log(1e5) / (a - 1) for a, s in zip(orders, spent, strict=True)))
    assert epsilon_from_rdp(orders, spent, DELTA) < loose
    assert best_order(orders, spent, DELTA) in orders


@given(
    order=st.floats(1.05, 512),
    epsilon=st.floats(1e-3, 50),
    delta=st.floats(1e-9, 1e-2),
    conversion=st.sampled_from(["improved", "paper"]),
)
@settings(max_examples=300, deadline=None)
def test_order_budget_is_the_largest_that_fits(order: float, epsilon: float, delta: float, conversion: str) -> None:
    budget = order_budget(order, epsilon, delta, conversion)  # type: ignore[arg-type]
    if budget > 0:
        assert epsilon_at_order(order, budget, delta, conversion) <= epsilon  # type: ignore[arg-type]
    assert epsilon_at_order(order, budget * (1 + 1e-9) + 1e-9, delta, conversion) > epsilon  # type: ignore[arg-type]


def test_group_figure_contains_the_single_record_and_grows() -> None:
    single = epsilon_pld(0.1, 4.0, 5, DELTA, 1e-2)
    assert epsilon_group(0.1, 4.0, 5, DELTA, 1, 1e-2) == pytest.approx(single, rel=1e-3)
    assert epsilon_group(0.1, 4.0, 5, DELTA, 5, 1e-2) > 3 * single


def test_prices_that_enter_many_samples_are_not_protected() -> None:
    # The default setting: epsilon 0.91 for one sample through the loss distribution, 1.00 through the filter.
    single = epsilon_pld(0.1, 3.77007, 75, DELTA)
    assert single == pytest.approx(0.906, abs=2e-3)
    assert epsilon_group(0.1, 3.77007, 75, DELTA, 1) == pytest.approx(single, abs=2e-3)
    start = time.process_time()
    month, year = (epsilon_group(0.1, 3.77007, 75, DELTA, group) for group in (21, 252))
    assert time.process_time() - start < 4.0, "two figures of a report, each within two seconds"
    # Finer grids: 34.69 and, in 15 seconds, 2118.55.
    assert 34.68 <= month == pytest.approx(34.69, abs=0.02)
    assert 2118.55 <= year == pytest.approx(2118.55, rel=1e-3)


def test_a_release_over_all_records_adds_to_the_group_figure() -> None:
    """The moments of the features: the whole group is in them, so they may cost more than all sampled steps."""
    alone = epsilon_group(1.0, 8.0, 1, DELTA, 4)
    assert alone == pytest.approx(epsilon_pld(1.0, 2.0, 1, DELTA), rel=1e-3)
    assert epsilon_group(1.0, 8.0, 1, DELTA, 4, unsampled=[8.0]) == pytest.approx(
        epsilon_pld(1.0, 2.0, 2, DELTA), rel=1e-3
    )
    without = epsilon_group(0.1, 4.0, 2, DELTA, 20, 0.05)
    assert epsilon_group(0.1, 4.0, 2, DELTA, 20, 0.05, unsampled=[4.0]) > 2 * without


def test_every_grid_bounds_the_group_figure_from_above() -> None:
    finest = epsilon_group(0.1, 3.77, 75, DELTA, 5, 4e-3)
    widths = [epsilon_group(0.1, 3.77, 75, DELTA, 5, width) for width in (1.0, 0.1, 0.01)]
    assert widths == sorted(widths, reverse=True)
    assert finest <= min(widths)
    assert epsilon_group(0.1, 3.77, 75, DELTA, 5) == pytest.approx(finest, rel=1e-3)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0, True, "1", None])
@pytest.mark.parametrize("name", ["sampling_rate", "clip_norm", "noise_multiplier", "steps", "records"])
def test_plan_refuses_bad_fields_by_name(name: str, bad: object) -> None:
    good: dict[str, object] = {
        "sampling_rate": 0.1,
        "clip_norm": 1.0,
        "noise_multiplier": 1.0,
        "steps": 5,
        "records": 100,
    }
    with pytest.raises(PrivacyError, match=name):
        MechanismPlan(**(good | {name: bad}))  # type: ignore[arg-type]


def test_plan_refuses_zero_and_rates_above_one() -> None:
    for bad in ((0.0, 1.0, 1.0, 5, 10), (1.1, 1.0, 1.0, 5, 10), (0.1, 0.0, 1.0, 5, 10), (0.1, 1.0, 0.0, 5, 10)):
        with pytest.raises(PrivacyError):
            MechanismPlan(*bad)
    with pytest.raises(PrivacyError, match="steps"):
        MechanismPlan(0.1, 1.0, 1.0, 0, 10)


def test_everything_about_a_plan_comes_from_its_fields() -> None:
    plan = MechanismPlan(0.1, 2.0, 3.0, 5, 1000)
    assert plan.divisor == 100.0
    assert plan.noise_stddev == 6.0
    assert plan.rdp(17.0) == rdp_at(0.1, 3.0, 5, 17.0)
    event = plan.event()
    assert (event.count, event.event.sampling_probability, event.event.event.noise_multiplier) == (5, 0.1, 3.0)


def test_bad_conversions_are_refused() -> None:
    with pytest.raises(PrivacyError, match="conversion"):
        order_budget(2.0, 1.0, DELTA, "zcdp")  # type: ignore[arg-type]
    with pytest.raises(PrivacyError, match="orders"):
        epsilon_from_rdp([2.0, 3.0], [0.1], DELTA)
    with pytest.raises(PrivacyError, match="delta"):
        epsilon_at_order(2.0, 0.1, 0.0)
    assert epsilon_at_order(2.0, math.inf, DELTA) == math.inf
