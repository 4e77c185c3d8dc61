"""How much noise a budget needs: bisection through the accountant at the best single order (E15)."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from privacy.accounting import ORDERS, PAPER_ORDERS, order_budget, rdp_at
from privacy.checks import real, whole
from privacy.conversion import Conversion, conversion_overhead, epsilon_at_order
from privacy.count_filter import Budget, CountFilter
from privacy.errors import PrivacyError
from privacy.filter import RenyiFilter, add_up
from privacy.pld import epsilon_pld

Accountant = Literal["rdp", "pld"]

TOLERANCE = 1e-4
# Below 2 the conversion costs over 10 at delta 1e-5. From 8 on a fraction gains under half a percent of epsilon, and
# would make every silo load the accountant to charge its filter.
_FINE = tuple(order for order in ORDERS if 2 <= order < 8 or (order >= 8 and order == int(order)))


def _candidates(conversion: Conversion) -> tuple[float, ...]:
    """Orders to choose from; the paper's conversion comes with the paper's orders (eq. 26)."""
    return PAPER_ORDERS if conversion == "paper" else _FINE


@dataclass(frozen=True, slots=True)
class Calibration:
    """Noise for a budget, with the order and Renyi budget of the filter that will enforce it.

    Guarantee: any `contributions` rounds of `schedule` together cost `rdp_spent` <= `rdp_budget` at `order`, hence are
    (epsilon, delta)-DP with epsilon <= `target_epsilon` for the adjacency "one record replaced by the null record".
    Assumptions: as for `MechanismPlan`. E15; theorems of `rdp_at` and `order_budget`. With `accountant` "pld" the
    guarantee is that of `CountFilter` instead; `rdp_budget` is then 0, so that no Renyi filter admits anything.

    Attributes
    ----------
    noise_multiplier : float
        sigma before shape and clamp.
    schedule : tuple of float
        sigma_k of every round; one entry per contribution if no shape was given.
    order, rdp_budget : float
        alpha* and what the filter may spend there.
    rdp_spent, epsilon : float
        What the dearest `contributions` rounds of the schedule cost at `order`, and its conversion there; with "pld"
        epsilon is that of the privacy loss distribution.
    target_epsilon, delta : float
        What was asked for.
    contributions : int
        Contributions per silo.
    conversion : str
        Theorem of the conversion.
    sampling_rate, steps : float, int
        q and tau that the noise was found for.
    accountant : str
        "rdp" or "pld".
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
    sampling_rate: float
    steps: int
    accountant: Accountant = "rdp"

    def filter(self) -> Budget:
        """Return the empty filter that enforces the budget; guarantee and adjacency: those of its class."""
        if self.accountant == "rdp":
            return RenyiFilter(self.order, self.rdp_budget)
        return CountFilter(self.contributions, self.sampling_rate, min(self.schedule), self.steps, self.order)


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
    reserved: float = 0.0

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
        spent = self.spend(noise, order) / (1.0 - self.reserved)
        return spent + conversion_overhead(order, self.delta, self.conversion)

    def fits(self, noise: float, order: float) -> bool:
        budget = order_budget(order, self.epsilon, self.delta, self.conversion)
        return self.spend(noise, order) <= (1.0 - self.reserved) * budget


def _cheapest_order(orders: Sequence[float], cost: Callable[[float], float]) -> float:
    """Coarse scan, then descend to a local minimum: cost over orders has one valley."""
    stride = 8 if len(orders) > 16 else 1
    start = min(range(0, len(orders), stride), key=lambda index: cost(orders[index]))
    window = range(max(0, start - stride), min(len(orders), start + stride + 1))
    return orders[min(window, key=lambda index: cost(orders[index]))]


def _too_small(problem: _Problem) -> PrivacyError:
    single = [
        epsilon_at_order(
            order,
            rdp_at(problem.sampling_rate, problem.sigma_max, problem.steps, order),
            problem.delta,
            problem.conversion,
        )
        for order in _candidates(problem.conversion)
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
    accountant: Accountant = "rdp",
    reserved: float = 0.0,
) -> Calibration:
    """Return the smallest noise that keeps a stated number of contributions within the budget.

    Guarantee: the dearest `contributions` rounds of the returned schedule cost at most `rdp_budget` at `order`, and
    any run held to that budget by a `RenyiFilter` is (epsilon, delta)-DP for the adjacency "one record replaced by
    the null record", also if its sigmas later depend on outputs. With `accountant` "pld": any run held to
    `Calibration.filter()` has that guarantee, with less noise, because the noise is constant and never below the
    planned one (E16). Assumptions: as for `MechanismPlan`; the result
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
        Theorem of the conversion; "paper" also takes the paper's orders {2, 4, ..., 128} (eq. 26).
    accountant : {"rdp", "pld"}
        Renyi filter, or counted contributions priced by the privacy loss distribution (constant noise only).
    reserved : float
        Share of the Renyi budget, in [0, 1), to leave for other releases of the run.

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
    real("reserved", reserved, 0.0, 1.0, high_open=True)
    factors = (
        (1.0,) * contributions
        if shape is None
        else tuple(real("shape", factor, 0.0, low_open=True) for factor in shape)
    )
    if len(factors) < contributions:
        raise PrivacyError(
            f"shape has {len(factors)} rounds for {contributions} contributions: expected at least as many"
        )
    if accountant not in get_args(Accountant):
        raise PrivacyError(f'accountant = {accountant!r}: expected "rdp" or "pld"')
    if accountant == "pld":
        if reserved > 0:
            raise PrivacyError('reserved: a counted budget has room for its contributions only; use accountant = "rdp"')
        if len(set(factors)) > 1:
            raise PrivacyError(
                'shape varies while accountant = "pld": which rounds a silo contributes to depends on outputs, so each '
                'must be priced at the least noise; use a constant shape or accountant = "rdp"'
            )
        if conversion != "improved":
            raise PrivacyError('conversion: a privacy loss distribution needs none; leave it or use accountant = "rdp"')
        return _counted(epsilon, delta, sampling_rate, steps, contributions, factors, sigma_min, sigma_max)
    problem = _Problem(
        epsilon, delta, sampling_rate, steps, contributions, factors, sigma_min, sigma_max, conversion, reserved
    )

    low, high = sigma_min / max(factors), sigma_max / min(factors)
    orders = _candidates(conversion)
    order = _cheapest_order(orders, lambda candidate: problem.rank(high, candidate))
    if not problem.fits(high, order):
        raise _too_small(problem)
    noise = high
    while True:
        noise = _smallest_noise(problem, order, low, noise)
        cheaper = _cheapest_order(orders, lambda candidate, at=noise: problem.rank(at, candidate))  # type: ignore[misc]
        if problem.rank(noise, cheaper) >= problem.rank(noise, order):
            break
        order = cheaper
    spent = problem.spend(noise, order)
    return Calibration(
        noise_multiplier=noise,
        schedule=problem.schedule(noise),
        order=float(order),
        rdp_budget=order_budget(order, epsilon, delta, conversion),
        rdp_spent=spent,
        epsilon=epsilon_at_order(order, spent, delta, conversion),
        target_epsilon=epsilon,
        delta=delta,
        contributions=contributions,
        conversion=conversion,
        sampling_rate=sampling_rate,
        steps=steps,
    )


def _counted(
    epsilon: float,
    delta: float,
    sampling_rate: float,
    steps: int,
    contributions: int,
    factors: tuple[float, ...],
    sigma_min: float,
    sigma_max: float,
) -> Calibration:
    """Constant noise through the privacy loss distribution; guarantee: see `CountFilter`."""

    def excess(sigma: float) -> float:
        return epsilon_pld(sampling_rate, sigma, steps * contributions, delta) - epsilon

    low = high = min(max(1.0, sigma_min), sigma_max)
    above = below = excess(high)
    while above > 0 and high < sigma_max:
        low, below = high, above
        high = min(2 * high, sigma_max)
        above = excess(high)
    if above > 0:
        raise PrivacyError(
            f"epsilon {epsilon:g} is too small for {contributions} contributions at q={sampling_rate:g}, {steps} steps "
            f"and sigma_max={sigma_max:g}; raise epsilon or sigma_max, or lower q, steps or contributions"
        )
    while below <= 0 and low > sigma_min:
        high, above = low, below
        low = max(low / 2, sigma_min)
        below = excess(low)
    if below <= 0:
        high, above = low, below
    tries = 0
    while below > 0 and high / low - 1 > 1e-6 and -above > TOLERANCE * min(1.0, epsilon) / 2:
        # False position on logarithms, aimed a little inside the budget; every third step halves, so that it converges.
        tries += 1
        share = 0.5 if tries % 3 == 0 else (below + TOLERANCE * epsilon / 4) / (below - above)
        middle = low * (high / low) ** min(max(share, 0.02), 0.98)
        found = excess(middle)
        if found <= 0:
            high, above = middle, found
        else:
            low, below = middle, found
    plan = _Problem(epsilon, delta, sampling_rate, steps, contributions, factors, sigma_min, sigma_max, "improved")
    order = min((o for o in ORDERS if o >= 2 and o == int(o)), key=lambda o: plan.rank(high, o))
    spent = 0.0
    for _ in range(contributions):
        spent = add_up(spent, rdp_at(sampling_rate, high, steps, order))
    return Calibration(
        noise_multiplier=high / factors[0],
        schedule=(high,) * len(factors),
        order=float(order),
        rdp_budget=0.0,
        rdp_spent=spent,
        epsilon=epsilon + above,
        target_epsilon=epsilon,
        delta=delta,
        contributions=contributions,
        conversion="improved",
        sampling_rate=sampling_rate,
        steps=steps,
        accountant="pld",
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
