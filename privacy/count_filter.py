"""A counted budget: so many contributions at no less than a planned noise, priced by the privacy loss distribution."""

from dataclasses import dataclass, replace
from typing import Any

from privacy.checks import real, whole
from privacy.errors import BudgetExceeded, PrivacyError
from privacy.filter import Priced, RenyiFilter, add_up

_RELATIVE = 1e-4


@dataclass(frozen=True, slots=True)
class CountFilter:
    """At most `contributions` contributions, each no dearer than the planned one.

    Guarantee: if every contribution of a run is admitted before it is made, the whole run is (epsilon, delta)-DP with
    the epsilon of `planned_epsilon`, for the adjacency of the plan (one record replaced by the null record), although
    which rounds contribute, and with how much more noise, depends on earlier outputs. Reason: an admitted contribution
    is a post-processing of the planned one at that adjacency (`admits`), so the fixed pair of the planned one
    dominates it whatever came before; pairs compose adaptively (Zhu, Dong and Wang 2022, theorem 10); and a round
    without contribution tells nothing, which every pair dominates. Assumptions: the four planned numbers are fixed
    before the run; a refused contribution is not made. Only the planned number counts: the loss of the contributions
    made so far is no guarantee of a run whose length depended on outputs.

    Parameters
    ----------
    contributions : int
        K, at least 1.
    sampling_rate : float
        Largest q, in (0, 1].
    noise_multiplier : float
        Least sigma, above 0.
    steps : int
        Largest tau, at least 1.
    order : float
        Renyi order of `spent`, above 1.
    used : int
        Contributions charged so far, at most K.
    spent : float
        Their Renyi cost at `order`, rounded up; for the record, it decides nothing.
    """

    contributions: int
    sampling_rate: float
    noise_multiplier: float
    steps: int
    order: float
    used: int = 0
    spent: float = 0.0

    def __post_init__(self) -> None:
        """Validate by field name."""
        whole("contributions", self.contributions, 1)
        real("sampling_rate", self.sampling_rate, 0.0, 1.0, low_open=True)
        real("noise_multiplier", self.noise_multiplier, 0.0, low_open=True)
        whole("steps", self.steps, 1)
        real("order", self.order, 1.0, low_open=True)
        whole("used", self.used, 0, self.contributions)
        real("spent", self.spent, 0.0)

    def _excess(self, plan: Priced) -> str | None:
        """What about a plan the count does not cover."""
        if isinstance(plan, int | float):
            raise PrivacyError("cost: a counted budget admits plans, not Renyi costs; pass the MechanismPlan")
        if plan.sampling_rate > self.sampling_rate:
            return f"sampling_rate {plan.sampling_rate:g} is above the planned {self.sampling_rate:g}"
        if plan.steps > self.steps:
            return f"steps {plan.steps} are more than the planned {self.steps}"
        if plan.noise_multiplier < self.noise_multiplier:
            return f"noise_multiplier {plan.noise_multiplier:g} is below the planned {self.noise_multiplier:g}"
        if self.used >= self.contributions:
            return f"all {self.contributions} contributions are used"
        return None

    def admits(self, plan: Priced) -> bool:
        """Whether one more contribution of this plan is covered.

        Guarantee, adjacency and assumptions: those of the class. A plan with smaller q is the planned one whose
        output is replaced by a fresh one of the null record with probability 1 - q' / q, one with larger sigma is the
        planned one with more noise, one with fewer steps drops some: each is a post-processing.

        Parameters
        ----------
        plan : MechanismPlan
            The contribution.
        """
        return self._excess(plan) is None

    def charge(self, plan: Priced) -> "CountFilter":
        """Return the filter after a contribution of this plan; call it before the contribution is made.

        Guarantee, adjacency and assumptions: those of the class.

        Raises
        ------
        BudgetExceeded
            If the plan is not admitted; the filter is unchanged.
        """
        if excess := self._excess(plan):
            raise BudgetExceeded(f"a contribution does not fit: {excess}; end the run or keep to the plan")
        return replace(self, used=self.used + 1, spent=add_up(self.spent, plan.rdp(self.order)))

    def full(self) -> "CountFilter":
        """Return the filter with all contributions used: the most that any sequence of them can have been.

        Guarantee, adjacency and assumptions: those of the class. `spent`, which decides nothing, stays.
        """
        return replace(self, used=self.contributions)

    @property
    def fraction(self) -> float:
        """Share of the contributions used, in [0, 1]. Bookkeeping, no guarantee of its own."""
        return self.used / self.contributions

    def planned_epsilon(self, delta: float, discretization: float = 1e-3) -> float:
        """Epsilon of all K contributions: the guarantee of the run, for the adjacency and assumptions of the class.

        Parameters
        ----------
        delta : float
            In (0, 1).
        discretization : float
            Width of the grid of the privacy loss.
        """
        return self._epsilon(self.contributions, delta, discretization)

    def check(self, epsilon: float, delta: float) -> None:
        """Refuse a plan whose contributions together cost more than is said.

        Guarantee: if this returns, `planned_epsilon` is at most `epsilon`, but for 1e-4 of it, which another version of
        the accountant may differ by; adjacency and assumptions: those of the class. Whoever did not make the plan calls
        it before the first contribution. A few contributions are priced first, so that an absurd plan is refused before
        its loss distribution fills the memory.

        Parameters
        ----------
        epsilon, delta : float
            What the plan is said to cost.

        Raises
        ------
        PrivacyError
            If it costs more.
        """
        made = 1
        while (found := self._epsilon(made, delta, 1e-3)) <= epsilon * (1 + _RELATIVE):
            if made == self.contributions:
                return
            made = min(8 * made, self.contributions)
        raise PrivacyError(
            f"epsilon is {epsilon!r}, recomputed {found!r} for {made} of {self.contributions} planned contributions"
        )

    def epsilon(self, delta: float, *_: Any) -> float:
        """Epsilon of as many planned contributions as are used so far.

        Guarantee: the run so far is (returned epsilon, delta)-DP for the adjacency of the class, if it ends here and
        how often it contributed did not depend on outputs; otherwise only `planned_epsilon` is its guarantee.

        Parameters
        ----------
        delta : float
            In (0, 1).
        *_
            A conversion, as `RenyiFilter.epsilon` takes it; not used.
        """
        return self._epsilon(self.used, delta, 1e-3) if self.used else 0.0

    def _epsilon(self, contributions: int, delta: float, discretization: float) -> float:
        from privacy.pld import epsilon_pld

        return epsilon_pld(self.sampling_rate, self.noise_multiplier, self.steps * contributions, delta, discretization)


Budget = RenyiFilter | CountFilter
"""Either filter: both take a `MechanismPlan` in `admits` and `charge`, and have `order`, `spent`, `full`,
`fraction` and `epsilon(delta)`."""
