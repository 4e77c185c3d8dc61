import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.conversion import epsilon_at_order, order_budget
from privacy.errors import BudgetExceeded, PrivacyError
from privacy.filter import RenyiFilter, add_up

costs = st.floats(0.0, 1e3) | st.floats(1e-300, 1e-12) | st.just(0.1) | st.just(math.inf)


@given(st.floats(0, 1e300), st.floats(0, 1e300))
def test_sums_are_rounded_up(total: float, cost: float) -> None:
    result = add_up(total, cost)
    assert Fraction(result) >= Fraction(total) + Fraction(cost)
    assert math.nextafter(result, 0) <= total + cost


@given(budget=st.floats(1e-6, 1e3), data=st.data())
@settings(max_examples=100, deadline=None)
def test_no_adaptive_sequence_passes_the_budget(budget: float, data: st.DataObject) -> None:
    current, exact = RenyiFilter(17.0, budget), Fraction(0)
    for _ in range(30):
        # The adversary sees the filter, so it may ask for exactly what is left, or one ulp more.
        left = max(0.0, budget - current.spent)
        cost = data.draw(costs | st.sampled_from([left, math.nextafter(left, math.inf), left / 2, left / 3]))
        if current.admits(cost):
            current = current.charge(cost)
            exact += Fraction(cost)
        else:
            with pytest.raises(BudgetExceeded):
                current.charge(cost)
        assert exact <= Fraction(current.spent) <= Fraction(budget)
        assert 0.0 <= current.fraction <= 1.0


def test_rounding_down_would_have_let_it_pass() -> None:
    # 0.7 + 0.1 is 0.8 - 1 ulp in floating point although the exact sum of the two floats is above that.
    assert 0.7 + 0.1 < 0.8
    assert Fraction(add_up(0.7, 0.1)) >= Fraction(0.7) + Fraction(0.1)
    tiny = RenyiFilter(2.0, 1.0, 1.0)
    assert not tiny.admits(1e-300)
    assert tiny.admits(0.0)


def test_epsilon_is_the_conversion_at_alpha_star_only() -> None:
    budget = order_budget(17.0, 1.0, 1e-5)
    full = RenyiFilter(17.0, budget).charge(budget)
    assert full.epsilon(1e-5) == epsilon_at_order(17.0, budget, 1e-5) <= 1.0
    assert full.epsilon(1e-5) == pytest.approx(1.0)
    assert full.fraction == 1.0
    assert RenyiFilter(17.0, budget).epsilon(1e-5) == 0.0
    assert full.epsilon(1e-5, "paper") > 1.0


def test_a_refused_charge_names_the_next_step_and_changes_nothing() -> None:
    start = RenyiFilter(8.0, 0.5, 0.4)
    with pytest.raises(BudgetExceeded, match="end the run or raise the noise"):
        start.charge(0.2)
    assert start == RenyiFilter(8.0, 0.5, 0.4)


@pytest.mark.parametrize("cost", [float("nan"), -1e-9, True])
def test_bad_costs_are_refused(cost: float) -> None:
    with pytest.raises(PrivacyError, match="cost"):
        RenyiFilter(8.0, 0.5).admits(cost)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("order", (1.0, 1.0, 0.0)),
        ("order", (float("nan"), 1.0, 0.0)),
        ("budget", (2.0, -1.0, 0.0)),
        ("budget", (2.0, float("inf"), 0.0)),
        ("spent", (2.0, 1.0, 1.5)),
        ("spent", (2.0, 1.0, -0.5)),
        ("budget", (2.0, True, 0.0)),
    ],
)
def test_bad_filters_are_refused_by_name(name: str, fields: tuple[float, float, float]) -> None:
    with pytest.raises(PrivacyError, match=name):
        RenyiFilter(*fields)


def test_empty_budget_is_full() -> None:
    assert RenyiFilter(2.0, 0.0).fraction == 1.0
    assert not RenyiFilter(2.0, 0.0).admits(1e-12)
