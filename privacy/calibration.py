"""How much noise a budget needs: bisection through the accountant at the best single order (E15)."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from privacy.accounting import ORDERS, order_budget, rdp_at
from privacy.checks import real, whole
from privacy.conversion import Conversion, conversion_overhead, epsilon_at_order
from privacy.errors import PrivacyError
from privacy.filter import add_up

TOLERANCE = 1e-4
# Below 2 the conversion costs over 10 at delta 1e-5. From 8 on a fraction gains under half a percent of epsilon, and
# would make every silo load the accountant to charge its filter.
_CANDIDATES = tuple(order for order in ORDERS if 2 <= order < 8 or (order >= 8 and order == int(order)))


@dataclass(frozen=True, slots=True)
class Calibration:
    """Noise for a budget, with the order and Renyi budget of the filter that will enforce it.

    Guarantee: any `contributions` rounds of `schedule` together cost `rdp_spent` <= `rdp_budget` at `order`, hence are
    (epsilon, delta)-DP with epsilon <= `target_epsilon` for the adjacency "one record replaced by the null record".
    Assumptions: as for `MechanismPlan`. E15; theorems of `rdp_at` and `order_budget`.

    Attributes
    ----------
    noise_multiplier : float
        sigma before shape and clamp.
    schedule : tuple of float
        sigma_k of every round; one entry per contribution if no shape was given.
    order, rdp_budget : float
        alpha* and what the filter may spend there.
    rdp_spent, epsilon : float
        What the dearest `contributions` rounds of the schedule cost, and its conversion at `order`.
    target_epsilon, delta : float
        What was asked for.
    contributions : int
        Contributions per silo.
    conversion : str
        Theorem of the conversion.
    """

    noise_multiplier: float
    schedule: tuple[float, ...]
    order: float
    rdp_budget: float
    rdp_spent: float
    epsilon: float
    target_epsilon: float
    delta: float
    contributions: int
    conversion: Conversion


@dataclass(frozen=True, slots=True)
class _Problem:
    epsilon: float
    delta: float
    sampling_rate: float
    steps: int
    contributions: int
    shape: tuple[float, ...]
    sigma_min: float
    sigma_max: float
    conversion: Conversion

    def schedule(self, noise: float) -> tuple[float, ...]:
        return tuple(min(max(noise * factor, self.sigma_min), self.sigma_max) for factor in self.shape)

    def spend(self, noise: float, order: float) -> float:
        dearest = sorted(self.schedule(noise))[: self.contributions]
        total = 0.0
        for sigma, times in Counter(dearest).items():
            cost = rdp_at(self.sampling_rate, sigma, self.steps, order)
            for _ in range(times):  # summed as the filter will sum it, so that the plan fits the filter to the last bit
                total = add_up(total, cost)
        return total

    def epsilon_of(self, noise: float, order: float) -> float:
        return epsilon_at_order(order, self.spend(noise, order), self.delta, self.conversion)

    def rank(self, noise: float, order: float) -> float:
        return self.spend(noise, order) + conversion_overhead(order, self.delta, self.conversion)

    def fits(self, noise: float, order: float) -> bool:
        return self.spend(noise, order) <= order_budget(order, self.epsilon, self.delta, self.conversion)


def _cheapest_order(cost: Callable[[float], float]) -> float:
    """Coarse scan, then descend to a local minimum: cost over orders has one valley."""
    stride = 8
    start = min(range(0, len(_CANDIDATES), stride), key=lambda index: cost(_CANDIDATES[index]))
    window = range(max(0, start - stride), min(len(_CANDIDATES), start + stride + 1))
    return _CANDIDATES[min(window, key=lambda index: cost(_CANDIDATES[index]))]


def _too_small(problem: _Problem) -> PrivacyError:
    single = [
        epsilon_at_order(
            order,
            rdp_at(problem.sampling_rate, problem.sigma_max, problem.steps, order),
            problem.delta,
            problem.conversion,
        )
        for order in _CANDIDATES
    ]
    rounds = "one round" if min(single) > problem.epsilon else f"{problem.contributions} contributions"
    return PrivacyError(
        f"epsilon {problem.epsilon:g} is too small for {rounds} at q={problem.sampling_rate:g}, "
        f"{problem.steps} steps and sigma_max={problem.sigma_max:g}; "
        "raise epsilon or sigma_max, or lower q, steps or contributions"
    )


def calibrate(
    epsilon: float,
    delta: float,
    sampling_rate: float,
    steps: int,
    contributions: int,
    shape: Sequence[float] | None = None,
    sigma_min: float = 0.3,
    sigma_max: float = 1000.0,
    conversion: Conversion = "improved",
) -> Calibration:
    """Return the smallest noise that keeps a stated number of contributions within the budget.

    Guarantee: the dearest `contributions` rounds of the returned schedule cost at most `rdp_budget` at `order`, and
    any run held to that budget by a `RenyiFilter` is (epsilon, delta)-DP for the adjacency "one record replaced by
    the null record", also if its sigmas later depend on outputs. Assumptions: as for `MechanismPlan`; the result
    depends on public numbers only. E15 (replaces paper eq. 27); Feldman and Zrnic 2021. Unless a clamp binds, epsilon
    is met to 1e-4.

    Parameters
    ----------
    epsilon, delta : float
        Target.
    sampling_rate : float
        q in (0, 1].
    steps : int
        Local steps per contribution.
    contributions : int
        Contributions per silo that must fit.
    shape : sequence of float, optional
        Factor of each round, above 0, at least `contributions` long; None is constant noise.
    sigma_min, sigma_max : float
        Clamp of every sigma_k.
    conversion : {"improved", "paper"}
        Theorem of the conversion.

    Returns
    -------
    Calibration
        Noise, schedule, order and Renyi budget.

    Raises
    ------
    PrivacyError
        If a value is out of range, or even `sigma_max` passes the budget.
    """
    real("epsilon", epsilon, 0.0, low_open=True)
    real("delta", delta, 0.0, 1.0, low_open=True, high_open=True)
    real("sampling_rate", sampling_rate, 0.0, 1.0, low_open=True)
    whole("steps", steps, 1)
    whole("contributions", contributions, 1)
    real("sigma_min", sigma_min, 0.0, low_open=True)
    real("sigma_max", sigma_max, sigma_min)
    factors = (
        (1.0,) * contributions
        if shape is None
        else tuple(real("shape", factor, 0.0, low_open=True) for factor in shape)
    )
    if len(factors) < contributions:
        raise PrivacyError(
            f"shape has {len(factors)} rounds for {contributions} contributions: expected at least as many"
        )
    problem = _Problem(epsilon, delta, sampling_rate, steps, contributions, factors, sigma_min, sigma_max, conversion)

    low, high = sigma_min / max(factors), sigma_max / min(factors)
    order = _cheapest_order(lambda candidate: problem.rank(high, candidate))
    if not problem.fits(high, order):
        raise _too_small(problem)
    noise = high
    while True:
        noise = _smallest_noise(problem, order, low, noise)
        cheaper = _cheapest_order(lambda candidate, at=noise: problem.rank(at, candidate))  # type: ignore[misc]
        if problem.rank(noise, cheaper) >= problem.rank(noise, order):
            break
        order = cheaper
    spent = problem.spend(noise, order)
    return Calibration(
        noise_multiplier=noise,
        schedule=problem.schedule(noise),
        order=order,
        rdp_budget=order_budget(order, epsilon, delta, conversion),
        rdp_spent=spent,
        epsilon=epsilon_at_order(order, spent, delta, conversion),
        target_epsilon=epsilon,
        delta=delta,
        contributions=contributions,
        conversion=conversion,
    )


def _smallest_noise(problem: _Problem, order: float, low: float, high: float) -> float:
    """Bisect on a logarithmic scale; `high` always fits, and is what is returned."""
    if problem.fits(low, order):
        return low
    while high / low - 1 > 1e-9:
        middle = math.sqrt(low * high)
        if problem.fits(middle, order):
            high = middle
            if problem.epsilon - problem.epsilon_of(high, order) <= TOLERANCE * min(1.0, problem.epsilon) / 10:
                break
        else:
            low = middle
    return high
