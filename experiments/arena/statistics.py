"""Effect sizes of few seeds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

import numpy as np

_POINTS = 2001
_BISECTIONS = 40


@dataclass(frozen=True)
class Effect:
    """Standardised difference of two means with its confidence interval."""

    g: float
    low: float
    high: float


def hedges_g(ours: Sequence[float], theirs: Sequence[float], level: float = 0.95) -> Effect | None:
    """Hedges' g of two independent samples, ours less theirs, with the exact interval of the noncentral t.

    ``g = J d`` with ``d`` the difference of the means over the pooled standard deviation and the exact small-sample
    correction ``J = Gamma(m/2) / (sqrt(m/2) Gamma((m-1)/2))``, ``m = n1 + n2 - 2`` (Hedges 1981, eq. 6e). The interval
    inverts the noncentral t distribution of ``d sqrt(n1 n2 / (n1 + n2))`` (Steiger and Fouladi 1997; Cumming and Finch
    2001) and is scaled by ``J``. Assumption: both samples normal with equal variance.

    Parameters
    ----------
    ours, theirs : sequence of float
        At least two values each.
    level : float
        Confidence, in (0, 1).

    Returns
    -------
    Effect or None
        None if there are too few values, or none of them varies.
    """
    sizes = len(ours), len(theirs)
    if min(sizes) < 2:
        return None
    freedom = sum(sizes) - 2
    pooled = math.sqrt(((sizes[0] - 1) * variance(ours) + (sizes[1] - 1) * variance(theirs)) / freedom)
    if pooled == 0:
        return None
    distance = (fmean(ours) - fmean(theirs)) / pooled
    scale = math.sqrt(sizes[0] * sizes[1] / sum(sizes))
    correction = math.exp(math.lgamma(freedom / 2) - math.lgamma((freedom - 1) / 2)) / math.sqrt(freedom / 2)
    tail = (1 - level) / 2
    low, high = (correction * _noncentrality(distance * scale, freedom, p) / scale for p in (1 - tail, tail))
    return Effect(correction * distance, low, high)


def _noncentrality(statistic: float, freedom: int, probability: float) -> float:
    """Return the shift at which a noncentral t variable is below ``statistic`` with this probability."""
    # T <= t is Z + shift <= t S with S the root of a chi-square variable over its degrees of freedom.
    root = np.linspace(0.0, 1 + 12 / math.sqrt(freedom), _POINTS)[1:]
    density = np.exp((freedom - 1) * np.log(root) - freedom * root**2 / 2)
    density /= density.sum()

    def below(shift: float) -> float:
        return math.fsum(
            weight * math.erfc((shift - statistic * at) / math.sqrt(2)) / 2
            for weight, at in zip(density.tolist(), root.tolist(), strict=True)
        )

    reach = 10 + abs(statistic) * float(root[-1])
    low, high = -reach, reach
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) > probability else (low, middle)
    return (low + high) / 2
