"""The Renyi filter: the budget of an adaptive run, at one order fixed before the run."""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Protocol

from privacy.checks import real
from privacy.conversion import Conversion, epsilon_at_order
from privacy.errors import BudgetExceeded, PrivacyError


class Priced(Protocol):
    """What a budget needs of a plan of releases; `MechanismPlan` is one. No guarantee of its own."""

    @property
    def sampling_rate(self) -> float:
        """Largest probability q of a record to enter a step."""
        ...

    @property
    def noise_multiplier(self) -> float:
        """Noise sigma in units of the sensitivity."""
        ...

    @property
    def steps(self) -> int:
        """Releases."""
        ...

    def rdp(self, order: float) -> float:
        """Renyi cost at an order, for the adjacency of the plan."""
        ...


def add_up(total: float, cost: float) -> float:
    """Sum of two non-negative floats, rounded up.

    Guarantee: the result is never below the exact sum, so a spend kept with it is an upper bound of the true spend
    whatever the order of additions. Adjacency does not enter. Assumption: both are finite and not NaN.

    Parameters
    ----------
    total, cost : float
        Summands.

    Returns
    -------
    float
        The smallest float at or above the exact sum, or its upper neighbour.
    """
    rounded = total + cost
    if math.isinf(rounded) or Fraction(rounded) >= Fraction(total) + Fraction(cost):
        return rounded
    return math.nextafter(rounded, math.inf)


@dataclass(frozen=True, slots=True)
class RenyiFilter:
    """Renyi filter at one order (Feldman and Zrnic 2021, theorem 4.3 and its filter form).

    Guarantee: if every release of a run is admitted before it is made and charged its Renyi cost at `order`, the
    whole run has Renyi divergence at most `budget` at `order` for the adjacency of the costs (one record replaced by
    the null record), although costs and the number of releases depend on earlier outputs. Assumptions: `order` and
    `budget` are fixed before the run; every cost is an upper bound given the past; a refused release is not made.
    Only the conversion at `order` is a guarantee of such a run: no minimum over orders, no PLD afterwards. The spend
    is rounded up.

    Parameters
    ----------
    order : float
        alpha*, above 1.
    budget : float
        Renyi budget at that order, at least 0.
    spent : float
        What earlier releases cost, at most `budget`.
    """

    order: float
    budget: float
    spent: float = 0.0

    def __post_init__(self) -> None:
        """Validate by field name."""
        object.__setattr__(self, "order", real("order", self.order, 1.0, low_open=True))
        object.__setattr__(self, "budget", real("budget", self.budget, 0.0))
        object.__setattr__(self, "spent", real("spent", self.spent, 0.0, self.budget))

    def _cost(self, cost: float | Priced) -> float:
        if not isinstance(cost, int | float):
            cost = cost.rdp(self.order)
        if isinstance(cost, bool) or math.isnan(cost) or cost < 0:
            raise PrivacyError(f"cost = {cost!r}: expected the Renyi cost of the release, a number >= 0")
        return float(cost)

    def admits(self, cost: float | Priced) -> bool:
        """Whether a release of this cost keeps the run within its budget.

        Guarantee, adjacency and assumptions: those of the class (Feldman and Zrnic 2021, the filter's stopping rule).
        The comparison uses the rounded-up sum, so rounding never admits what the exact sum would refuse.

        Parameters
        ----------
        cost : float or MechanismPlan
            Renyi cost at `order`, or a plan that knows it; infinite is never admitted, NaN and negative are errors.

        Returns
        -------
        bool
            True if the release may be made.
        """
        return add_up(self.spent, self._cost(cost)) <= self.budget

    def charge(self, cost: float | Priced) -> "RenyiFilter":
        """Return the filter after a release of this cost; call it before the release is made.

        Guarantee, adjacency and assumptions: those of the class (Feldman and Zrnic 2021, the filter's update).

        Parameters
        ----------
        cost : float or MechanismPlan
            Renyi cost at `order`, or a plan that knows it.

        Returns
        -------
        RenyiFilter
            With the cost added, rounded up.

        Raises
        ------
        BudgetExceeded
            If the cost is not admitted; the filter is unchanged.
        """
        cost = self._cost(cost)
        if not self.admits(cost):
            raise BudgetExceeded(
                f"a release of Renyi cost {cost:.6g} at order {self.order:g} does not fit: "
                f"{self.spent:.6g} of {self.budget:.6g} is spent; end the run or raise the noise"
            )
        return replace(self, spent=add_up(self.spent, cost))

    def full(self) -> "RenyiFilter":
        """Return the filter with all of its budget spent: the most that any sequence of releases can have cost.

        Guarantee, adjacency and assumptions: those of the class.
        """
        return replace(self, spent=self.budget)

    @property
    def fraction(self) -> float:
        """Share of the Renyi budget used, in [0, 1]; 1 if the budget is 0. Bookkeeping, no guarantee of its own."""
        return self.spent / self.budget if self.budget > 0 else 1.0

    def epsilon(self, delta: float, conversion: Conversion = "improved") -> float:
        """Epsilon of what is spent so far, at alpha* only.

        Guarantee: the releases made so far are (returned epsilon, delta)-DP for the adjacency of the costs (one
        record replaced by the null record), if the run ends here. Assumptions: those of the class; conversion as in
        `privacy.conversion.epsilon_at_order`.

        Parameters
        ----------
        delta : float
            In (0, 1).
        conversion : {"improved", "paper"}
            Which theorem.

        Returns
        -------
        float
            Epsilon, 0 if nothing is spent.
        """
        return epsilon_at_order(self.order, self.spent, delta, conversion) if self.spent > 0 else 0.0
