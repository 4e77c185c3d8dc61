"""Daily bars of one instrument, as read."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["Bars", "Dates", "Floats"]

Floats = NDArray[np.float64]
Dates = NDArray[np.datetime64]


@dataclass(frozen=True)
class Bars:
    """Daily open, high, low, close and volume of one instrument on one price basis.

    Attributes
    ----------
    ticker : str
        Name within its region.
    region : str
        Region bucket, for files the name of their folder.
    sector : str or None
        Sector, None where unknown.
    dates : ndarray, shape (n,), datetime64[D]
        Strictly increasing.
    open, high, low, close : ndarray, shape (n,), float64
        Positive prices; all four adjusted when `basis` is "adjusted".
    volume : ndarray, shape (n,), float64
        Traded units, NaN where the source gives none.
    basis : str
        "adjusted" (scaled by adjusted close / close) or "as published".
    breaks : ndarray, shape (k,), datetime64[D]
        First days of stretches that nothing may reach into from before, as after a split that is not adjusted for.
    truth : ndarray, shape (n,), float64, or None
        Conditional mean of the next day's log return; only the synthetic market knows it.
    """

    ticker: str
    region: str
    sector: str | None
    dates: Dates
    open: Floats
    high: Floats
    low: Floats
    close: Floats
    volume: Floats
    basis: str = "as published"
    breaks: Dates = field(default_factory=lambda: np.array([], dtype="datetime64[D]"))
    truth: Floats | None = None

    @property
    def key(self) -> str:
        """Name that is unique over all regions."""
        return f"{self.region}/{self.ticker}"
