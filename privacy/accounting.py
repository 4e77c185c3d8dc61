"""The accountant: dp-accounting under the null-record adjacency, with the conversions of `privacy.conversion`."""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from privacy.checks import real
from privacy.conversion import Conversion, epsilon_at_order, order_budget
from privacy.errors import PrivacyError
from privacy.event import sampled_gaussian_event, validate
from privacy.integer_order import one_step
from privacy.pld import epsilon_group, epsilon_pld

__all__ = [
    "ORDERS",
    "PAPER_ORDERS",
    "best_order",
    "epsilon_from_rdp",
    "epsilon_group",
    "epsilon_pld",
    "epsilon_rdp",
    "order_budget",
    "rdp",
    "rdp_at",
    "sampled_gaussian_event",
]

PAPER_ORDERS: tuple[float, ...] = (2, 4, 8, 16, 32, 64, 128)
ORDERS: tuple[float, ...] = (
    *(round(1.05 + 0.05 * k, 2) for k in range(40)),
    *(round(3.1 + 0.1 * k, 1) for k in range(70)),
    *(round(10.5 + 0.5 * k, 1) for k in range(40)),
    *range(31, 65),
    *range(72, 129, 8),
    192,
    256,
    512,
    1024,
)


# The library works with logarithms near 0, whose float64 error would otherwise make very small costs 0.
_ROUNDING = 1e-13


def _library_rdp(sampling_rate: float, noise_multiplier: float, orders: tuple[float, ...]) -> list[float]:
    import dp_accounting
    from absl import logging

    accountant = dp_accounting.rdp.RdpAccountant(orders, dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    previous = logging.get_verbosity()
    logging.set_verbosity(
        logging.ERROR
    )  # a fractional order that does not converge is bounded by the chord, not dropped
    try:
        accountant.compose(sampled_gaussian_event(sampling_rate, noise_multiplier, 1))
    finally:
        logging.set_verbosity(previous)
    return [float(value) for value in accountant._rdp]


def _series_converges(sampling_rate: float, noise_multiplier: float) -> bool:
    """Whether the library's 1,000 terms reach past the point where its series starts to fall; saves trying."""
    return noise_multiplier**2 * abs(math.log(1 / sampling_rate - 1)) < 500


@lru_cache(maxsize=65536)
def _one_step(sampling_rate: float, noise_multiplier: float, order: float, by_library: bool) -> float:
    integer = order == int(order)
    if integer and not by_library:
        return one_step(sampling_rate, noise_multiplier, int(order))
    if integer or sampling_rate == 1 or _series_converges(sampling_rate, noise_multiplier):
        value = _library_rdp(sampling_rate, noise_multiplier, (order,))[0]
        if integer or math.isfinite(value):
            return max(0.0, value) + (_ROUNDING / (order - 1) if sampling_rate < 1 else 0.0)
    # (order - 1) * divergence is convex in the order and 0 at order 1: a chord is an upper bound.
    low, high = math.floor(order), math.ceil(order)
    left = (low - 1) * _one_step(sampling_rate, noise_multiplier, float(low), by_library) if low > 1 else 0.0
    right = (high - 1) * _one_step(sampling_rate, noise_multiplier, float(high), by_library)
    weight = order - low
    return ((1 - weight) * left + weight * right) / (order - 1)


def rdp_at(
    sampling_rate: float, noise_multiplier: float, steps: int, order: float, *, by_library: bool = False
) -> float:
    """Renyi divergence of `steps` Poisson-subsampled Gaussian releases at one order; cached.

    Guarantee: an upper bound, in both directions, for the adjacency "one record replaced by the null record" with
    noise sigma times the sensitivity. Assumptions: as for `MechanismPlan`. Mironov, Talwar and Zhang 2019, section
    3.3; integer orders in plain arithmetic (`privacy.integer_order`) or, with `by_library`, through dp-accounting, as
    all fractional ones; where its series does not converge, the chord of the convex function (order - 1) D_order
    between the neighbouring integers (Wang, Balle and Kasiviswanathan 2019, corollary 10).

    Parameters
    ----------
    sampling_rate : float
        q in (0, 1].
    noise_multiplier : float
        sigma, above 0.
    steps : int
        At least 1.
    order : float
        Renyi order, above 1.
    by_library : bool
        Use dp-accounting also for integer orders, as an independent check.

    Returns
    -------
    float
        The divergence; infinite where there is no bound.
    """
    validate(sampling_rate, noise_multiplier, steps)
    real("order", order, 1.0, low_open=True)
    return steps * _one_step(float(sampling_rate), float(noise_multiplier), float(order), by_library)


def rdp(
    sampling_rate: float, noise_multiplier: float, steps: int, orders: Sequence[float] = ORDERS
) -> npt.NDArray[np.float64]:
    """Renyi divergence of `steps` Poisson-subsampled Gaussian releases at every order.

    Guarantee, adjacency (one record replaced by the null record), assumptions and theorem: as for `rdp_at`.

    Parameters
    ----------
    sampling_rate : float
        q in (0, 1].
    noise_multiplier : float
        sigma, above 0.
    steps : int
        At least 1.
    orders : sequence of float
        Renyi orders, each above 1.

    Returns
    -------
    ndarray of float64
        One value per order.
    """
    return np.array([rdp_at(sampling_rate, noise_multiplier, steps, order) for order in orders], dtype=np.float64)


def _candidates(
    orders: Sequence[float],
    divergences: Sequence[float] | npt.NDArray[np.float64],
    delta: float,
    conversion: Conversion,
) -> list[tuple[float, float]]:
    if len(orders) != len(divergences) or len(orders) == 0:
        raise PrivacyError(
            f"rdp has {len(divergences)} values for {len(orders)} orders: expected one each, at least one"
        )
    return [
        (epsilon_at_order(float(order), float(value), delta, conversion), float(order))
        for order, value in zip(orders, divergences, strict=True)
    ]


def epsilon_from_rdp(
    orders: Sequence[float],
    rdp: Sequence[float] | npt.NDArray[np.float64],  # noqa: A002, RUF100 - the interface's name
    delta: float,
    conversion: Conversion = "improved",
) -> float:
    """Smallest epsilon that follows from Renyi bounds at several orders.

    Guarantee: a mechanism with these bounds is (returned epsilon, delta)-DP for their adjacency (one record replaced
    by the null record). Assumption: the bounds hold at **all** orders for the whole mechanism, so the sequence of
    costs did not depend on outputs; for an adaptive run use `RenyiFilter.epsilon`. Theorems:
    `privacy.conversion.epsilon_at_order`.

    Parameters
    ----------
    orders : sequence of float
        Renyi orders.
    rdp : sequence of float
        Divergence at each order.
    delta : float
        In (0, 1).
    conversion : {"improved", "paper"}
        Which theorem.

    Returns
    -------
    float
        Epsilon.
    """
    return min(_candidates(orders, rdp, delta, conversion))[0]


def best_order(
    orders: Sequence[float],
    rdp: Sequence[float] | npt.NDArray[np.float64],
    delta: float,
    conversion: Conversion = "improved",
) -> float:
    """Order at which `epsilon_from_rdp` has its minimum.

    Guarantee: none of its own; adjacency and assumptions as for `epsilon_from_rdp` (same theorems). A choice of
    alpha*, to be made from the plan and before the run.

    Parameters
    ----------
    orders : sequence of float
        Renyi orders.
    rdp : sequence of float
        Divergence at each order.
    delta : float
        In (0, 1).
    conversion : {"improved", "paper"}
        Which theorem.

    Returns
    -------
    float
        The order.
    """
    return min(_candidates(orders, rdp, delta, conversion))[1]


def epsilon_rdp(
    sampling_rate: float,
    noise_multiplier: float,
    steps: int,
    delta: float,
    orders: Sequence[float] = ORDERS,
    conversion: Conversion = "improved",
) -> float:
    """Epsilon of `steps` Poisson-subsampled Gaussian releases, through Renyi orders.

    Guarantee: the releases together are (returned epsilon, delta)-DP for the adjacency "one record replaced by the
    null record". Assumptions: as for `MechanismPlan`, and q, sigma and `steps` do not depend on outputs. Mironov,
    Talwar and Zhang 2019 with `privacy.conversion.epsilon_at_order`.

    Parameters
    ----------
    sampling_rate : float
        q in (0, 1].
    noise_multiplier : float
        sigma, above 0.
    steps : int
        At least 1.
    delta : float
        In (0, 1).
    orders : sequence of float
        Renyi orders.
    conversion : {"improved", "paper"}
        Which theorem.

    Returns
    -------
    float
        Epsilon.
    """
    return epsilon_from_rdp(orders, rdp(sampling_rate, noise_multiplier, steps, orders), delta, conversion)
