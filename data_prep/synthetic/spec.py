"""The settings of a synthetic market."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import date

from data_prep.errors import DataError

__all__ = ["PLAIN_REGIONS", "MarketSpec", "Region", "Stress"]


@dataclass(frozen=True)
class Region:
    """One region bucket.

    Attributes
    ----------
    name : str
        Lower case; begins the tickers' names and names the folder of the region's files.
    share : float
        Share of the tickers.
    exchange : str
        Market identifier code whose sessions the region trades on, such as XNYS; empty for all weekdays but three
        holidays.
    """

    name: str
    share: float
    exchange: str = ""


PLAIN_REGIONS = (Region("us", 0.6), Region("eu", 0.4))


@dataclass(frozen=True)
class Stress:
    """A window of high volatility and high correlation.

    Attributes
    ----------
    start : date
        The window begins on the first trading day from here on.
    days : int
        Length in days on which at least one region trades.
    variance : float
        On every day of the window each instrument's conditional variance is this multiple of its mean over the
        calibration years outside the window.
    correlation : float
        Average pairwise correlation of the instruments' shocks in the window, in [0.1, 1).
    """

    start: date
    days: int = 60
    variance: float = 2.2
    correlation: float = 0.5

    def __post_init__(self) -> None:
        if self.days < 1 or not (math.isfinite(self.variance) and self.variance > 0.0):
            raise DataError(
                f"stress window: found days={self.days}, variance={self.variance}, expected days >= 1 and a positive "
                "finite variance; correct the setting"
            )
        if not 0.1 <= self.correlation < 1.0:
            raise DataError(
                f"stress window: found correlation={self.correlation}, expected 0.1 <= correlation < 1 (0.1 is about "
                "that of ordinary days); correct the setting"
            )


@dataclass(frozen=True)
class MarketSpec:
    """Settings of a synthetic market.

    Attributes
    ----------
    tickers : int
        Number of instruments.
    seed : int
        The only source of randomness.
    first, last : date
        Bounds of the simulated days.
    mse : float
        Mean squared error of the best forecast over `calibration_years` outside a stress window, in squared daily log
        returns.
    r_squared : float
        R^2 of the best forecast against the zero forecast.
    calibration_years : tuple of int
        First and last year over which `mse` holds.
    regions : tuple of Region
        With distinct names; their shares sum to 1.
    jumps : float
        Expected number of overnight jumps per instrument and year of 252 days.
    stress : Stress or None
        A stress window.
    """

    tickers: int = 320
    seed: int = 2025
    first: date = date(2014, 1, 1)
    last: date = date(2024, 12, 31)
    mse: float = 1.20e-4
    r_squared: float = 0.052
    calibration_years: tuple[int, int] = (2023, 2024)
    regions: tuple[Region, ...] = PLAIN_REGIONS
    jumps: float = 0.0
    stress: Stress | None = None

    def __post_init__(self) -> None:
        if self.tickers < 1 or self.seed < 0:
            raise DataError(
                f"synthetic market: found tickers={self.tickers}, seed={self.seed}, expected tickers >= 1 and "
                "seed >= 0; correct the setting"
            )
        if not 0.0 <= self.jumps <= 25.0:
            raise DataError(
                f"synthetic market: found jumps={self.jumps}, expected 0 to 25 a year per instrument; correct the "
                "setting"
            )
        names = [region.name for region in self.regions]
        shares = [region.share for region in self.regions]
        if not names or len(set(names)) < len(names) or min(shares) <= 0.0 or abs(sum(shares) - 1.0) > 1e-9:
            raise DataError(
                f"synthetic market: found regions {dict(zip(names, shares, strict=True))}, expected distinct names and "
                "positive shares that sum to 1; correct the setting"
            )
