"""From Renyi to (epsilon, delta) at one order. Pure arithmetic, so that a coordinator starts without scipy."""

import math
from typing import Literal, get_args

from privacy.checks import real
from privacy.errors import PrivacyError

Conversion = Literal["improved", "paper"]


def _check(order: float, delta: float, conversion: str) -> None:
    real("order", order, 1.0, low_open=True)
    real("delta", delta, 0.0, 1.0, low_open=True, high_open=True)
    if conversion not in get_args(Conversion):
        raise PrivacyError(f'conversion = {conversion!r}: expected "improved" or "paper"')


def conversion_overhead(order: float, delta: float, conversion: Conversion = "improved") -> float:
    """What the conversion adds to the Renyi divergence at `order`; may be negative.

    Guarantee: rdp + overhead is a valid epsilon wherever it is not negative (theorems, adjacency and assumptions of
    `epsilon_at_order`). Unlike that function it has no branch, so it also ranks orders whose epsilon is 0.

    Parameters
    ----------
    order : float
        Renyi order, above 1.
    delta : float
        In (0, 1).
    conversion : {"improved", "paper"}
        Which theorem.

    Returns
    -------
    float
        The overhead.
    """
    _check(order, delta, conversion)
    if conversion == "paper":
        return -math.log(delta) / (order - 1)
    return math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)


def epsilon_at_order(order: float, rdp: float, delta: float, conversion: Conversion = "improved") -> float:
    """Epsilon that follows from one Renyi bound.

    Guarantee: a mechanism with Renyi divergence at most `rdp` at `order`, in both directions of the adjacency
    (one record replaced by the null record), is (returned epsilon, delta)-DP for that adjacency. Assumptions: none.
    "improved" is Canonne, Kamath and Steinke 2020, proposition 12 (also Balle et al. 2020, theorem 21),
    rdp + log(1 - 1/order) - log(delta order)/(order - 1), and epsilon 0 where delta^2 >= 1 - exp(-rdp)
    (Bretagnolle and Huber). "paper" is Mironov 2017, proposition 3, rdp + log(1/delta)/(order - 1).

    Parameters
    ----------
    order : float
        Renyi order, above 1.
    rdp : float
        Renyi divergence at that order, at least 0; may be infinite.
    delta : float
        Target delta in (0, 1).
    conversion : {"improved", "paper"}
        Which theorem.

    Returns
    -------
    float
        Epsilon, at least 0.
    """
    overhead = conversion_overhead(order, delta, conversion)
    if math.isnan(rdp) or rdp < 0:
        raise PrivacyError(f"rdp = {rdp!r}: expected a number >= 0")
    if conversion == "improved" and delta**2 + math.expm1(-rdp) >= 0:
        return 0.0
    return max(0.0, rdp + overhead)


def order_budget(order: float, epsilon: float, delta: float, conversion: Conversion = "improved") -> float:
    """Largest Renyi divergence at `order` whose conversion is at most `epsilon`; 0 where there is none.

    Guarantee: a mechanism that stays within the returned budget at `order` is (epsilon, delta)-DP for its adjacency
    (one record replaced by the null record). Assumptions: the order was fixed before the mechanism saw data, as the
    Renyi filter needs it. The inverse of `epsilon_at_order` (same theorems), rounded down so that
    the conversion of the result never exceeds `epsilon`.

    Parameters
    ----------
    order : float
        Renyi order, above 1.
    epsilon : float
        Target, above 0.
    delta : float
        Target, in (0, 1).
    conversion : {"improved", "paper"}
        Which theorem.

    Returns
    -------
    float
        The budget, at least 0.
    """
    real("epsilon", epsilon, 0.0, low_open=True)
    budget = max(0.0, epsilon - conversion_overhead(order, delta, conversion))
    if conversion == "improved":
        budget = max(budget, -math.log1p(-(delta**2)))
    while budget > 0 and epsilon_at_order(order, budget, delta, conversion) > epsilon:
        budget = math.nextafter(budget, 0.0)
    return budget
