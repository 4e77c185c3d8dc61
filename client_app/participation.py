"""Self-thinning: the silo draws its own coin (eqs. 23-24 of the paper, errata E9, E10).

Everything here is computed from privatised quantities and the frozen ``N_i`` only.
"""

import math

from privacy.release import ReleasePlan


def score(records: int, drift: float, variance: float, clip_norm: float, drift_penalty: float) -> float:
    """Importance score ``N_i / (1 + beta d_i) / sqrt(1 + v_i)`` of eq. 23.

    Parameters
    ----------
    records : int
        ``N_i``.
    drift : float
        ``d_i``, the last privatised squared drift; 0 before the first measurement.
    variance : float
        ``v_i``, the last privatised variance of the clipped gradients (errata E9); infinite before the first, or where
        it is not measured.
    clip_norm : float
        ``C``; the variance is at most ``C^2``.
    drift_penalty : float
        ``beta``.
    """
    return records / (1 + drift_penalty * drift) / math.sqrt(1 + min(variance, clip_norm**2))


def probability(plan: ReleasePlan, own_score: float) -> float:
    """Participation probability ``clip(tau_sel score_i / Z, p_min, 1)``."""
    return min(max(plan.cohort * own_score / plan.score_total, plan.min_probability), 1.0)
