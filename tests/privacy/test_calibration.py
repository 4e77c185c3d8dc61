import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.accounting import ORDERS, epsilon_rdp, rdp_at
from privacy.calibration import calibrate
from privacy.errors import PrivacyError
from privacy.filter import RenyiFilter
from privacy.plan import MechanismPlan

DEFAULT = {"epsilon": 1.0, "delta": 1e-5, "sampling_rate": 0.1, "steps": 5, "contributions": 15}


def test_default_setting() -> None:
    found = calibrate(**DEFAULT)  # type: ignore[arg-type]
    assert found.noise_multiplier == pytest.approx(3.770, abs=1e-3)
    assert found.order == 17.0
    assert 1.0 - 1e-4 <= found.epsilon <= 1.0
    assert epsilon_rdp(0.1, found.noise_multiplier, 75, 1e-5) == pytest.approx(found.epsilon, abs=1e-9)
    # Minimality: a thousandth less noise breaks the budget at every order.
    assert epsilon_rdp(0.1, found.noise_multiplier * 0.999, 75, 1e-5) > 1.0


def test_the_filter_admits_exactly_the_planned_contributions() -> None:
    found = calibrate(**DEFAULT)  # type: ignore[arg-type]
    plan = MechanismPlan(0.1, 1.0, found.noise_multiplier, 5, 1000)
    current = RenyiFilter(found.order, found.rdp_budget)
    for _ in range(15):
        current = current.charge(plan.rdp(found.order))
    assert current.spent == found.rdp_spent
    assert not current.admits(plan.rdp(found.order))


def test_shape_is_followed_between_the_clamps() -> None:
    shape = [(k + 1) ** -0.5 for k in range(15)]
    found = calibrate(**DEFAULT, shape=shape, sigma_min=3.0, sigma_max=8.0)  # type: ignore[arg-type]
    assert found.schedule == tuple(min(max(found.noise_multiplier * s, 3.0), 8.0) for s in shape)
    assert found.schedule[0] == 8.0
    spent = sum(rdp_at(0.1, sigma, 5, found.order) for sigma in found.schedule)
    assert spent == pytest.approx(found.rdp_spent)
    assert found.rdp_spent <= found.rdp_budget
    assert found.epsilon >= 1.0 - 1e-4


def test_any_choice_of_rounds_fits() -> None:
    shape = [1.0, 0.5, 2.0, 0.7, 1.5, 0.6]
    found = calibrate(1.0, 1e-5, 0.1, 5, 3, shape)
    dearest = sum(rdp_at(0.1, sigma, 5, found.order) for sigma in sorted(found.schedule)[:3])
    assert dearest == pytest.approx(found.rdp_spent)
    assert found.epsilon >= 1.0 - 1e-4


def test_lower_clamp_leaves_budget_unused() -> None:
    found = calibrate(8.0, 1e-5, 0.01, 1, 1, sigma_min=2.0)
    assert found.schedule == (2.0,)
    assert found.epsilon < 1.0
    assert found.rdp_spent < found.rdp_budget


def test_more_contributions_need_more_noise() -> None:
    sigmas = [calibrate(1.0, 1e-5, 0.1, 5, count).noise_multiplier for count in (1, 5, 15, 40)]
    assert sigmas == sorted(sigmas)
    assert calibrate(1.0, 1e-5, 0.1, 5, 15, conversion="paper").noise_multiplier > sigmas[2]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"epsilon": 1e-4, "sigma_max": 10.0}, "epsilon 0.0001 is too small for one round at q=0.1"),
        ({"epsilon": 0.5, "sigma_max": 3.0}, "epsilon 0.5 is too small for 15 contributions"),
        ({"epsilon": float("nan")}, "epsilon"),
        ({"delta": 1.0}, "delta"),
        ({"sampling_rate": 0.0}, "sampling_rate"),
        ({"steps": 0}, "steps"),
        ({"contributions": True}, "contributions"),
        ({"shape": [1.0] * 14}, "shape has 14"),
        ({"shape": [1.0] * 14 + [0.0]}, "shape"),
        ({"sigma_min": 5.0, "sigma_max": 4.0}, "sigma_max"),
    ],
)
def test_impossible_requests_name_the_key(changed: dict[str, object], words: str) -> None:
    with pytest.raises(PrivacyError, match=words):
        calibrate(**(DEFAULT | changed))  # type: ignore[arg-type]


@given(
    epsilon=st.floats(0.2, 10),
    q=st.floats(0.005, 0.5),
    steps=st.integers(1, 10),
    contributions=st.integers(1, 40),
)
@settings(max_examples=5, deadline=None, derandomize=True)
def test_calibration_meets_its_target(epsilon: float, q: float, steps: int, contributions: int) -> None:
    found = calibrate(epsilon, 1e-5, q, steps, contributions, sigma_min=0.3)
    assert found.order in ORDERS
    assert found.rdp_spent <= found.rdp_budget
    assert found.epsilon <= epsilon
    if found.noise_multiplier > 0.3:
        assert found.epsilon >= epsilon - 1e-4 * max(1.0, epsilon)
        assert epsilon_rdp(q, found.noise_multiplier, steps * contributions, 1e-5) >= found.epsilon * 0.995 - 1e-4
