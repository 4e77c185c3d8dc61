"""The planted predictable part: loadings on quantities that the features show.

Five components of a day, each standard normal and independent of the others by construction:

0. shock: the day's return in units of its conditional volatility,
1. location: where the close sits in the day's range, given the day's move,
2. trend: exponentially weighted mean of the shocks before the day,
3. volume: the day's unusual volume,
4. gap: the part of the night in the day's return.

A sector's conditional mean, in units of the conditional volatility, is kappa times a unit-variance sum: loadings that
all sectors share, loadings of the sector's own at a right angle to them (so that the variance is the same in every
sector), and one product, location times volume, that is common and not linear.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_prep.bars import Floats

__all__ = ["COMPONENTS", "SECTORS", "Loadings", "sector_loadings"]

COMPONENTS: tuple[str, ...] = ("shock", "location", "trend", "volume", "gap")
SECTORS: tuple[str, ...] = (
    "energy",
    "materials",
    "industrials",
    "consumer",
    "health",
    "financials",
    "technology",
    "utilities",
)
# Shares of the variance of the predictable part; they sum to 1.
SECTOR_SHARE = 0.16
PRODUCT_SHARE = 0.03
_COMMON_SHARES = (0.28, 0.35, 0.05, 0.08, 0.05)
# Reversal of the day's move and of a close near the high, continuation of the trend, unusual volume pays.
_COMMON_SIGNS = (-1.0, -1.0, 1.0, 1.0, -1.0)


@dataclass(frozen=True)
class Loadings:
    """Loadings of the predictable part.

    Attributes
    ----------
    linear : ndarray, shape (sectors, 5), float64
        On the components, common and sector-specific parts added.
    product : float
        On location times volume.
    """

    linear: Floats
    product: float


def sector_loadings(rng: np.random.Generator) -> Loadings:
    """Draw the loadings of all sectors.

    Sectors come in pairs whose own parts are opposite, so the sector-specific part averages to zero over sectors.

    Parameters
    ----------
    rng : numpy Generator
        Source of the sectors' directions.

    Returns
    -------
    Loadings
        For every sector the squares of its linear loadings and of the product loading sum to 1.
    """
    common = np.sqrt(np.array(_COMMON_SHARES)) * np.array(_COMMON_SIGNS)
    unit = common / np.linalg.norm(common)
    directions = rng.standard_normal((len(SECTORS) // 2, len(COMPONENTS)))
    directions -= (directions @ unit)[:, None] * unit
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    own = np.sqrt(SECTOR_SHARE) * np.concatenate([directions, -directions])
    return Loadings(linear=common + own, product=float(np.sqrt(PRODUCT_SHARE)))
