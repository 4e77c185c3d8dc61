"""The settings of a preparation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from data_prep.errors import DataError
from data_prep.readers.layouts import layout_named
from data_prep.splits import Splits

__all__ = ["HISTORY_DAYS", "FederationSpec", "Progress"]

# Called with the stage, the number of steps done and their total.
Progress = Callable[[str, int, int], None]
# Calendar days before the first training day from which bars are used; more than the features' memory in trading days.
HISTORY_DAYS = 300


@dataclass(frozen=True)
class FederationSpec:
    """Public settings of a preparation. Equal settings and equal input give equal bytes.

    Attributes
    ----------
    silos : int
        Number of silos.
    alpha : float
        Dirichlet concentration over tickers.
    seed : int
        Seed of the partition.
    min_samples : int
        Least number of training samples of a silo.
    floor : int
        Least number of tickers of a silo.
    min_share : float
        Wanted least training samples of a silo, as a share of the mean silo of its region (see `partition`).
    splits : Splits
        Years of train, validation and test.
    embargo_days : int
        Trading days left out after each boundary (see `split_days`).
    fill_limit : int
        Longest run of missing days that is filled forward.
    target_scale : float
        Public divisor of the raw log return.
    target_clip : float
        Public range of the scaled target, +- this value.
    tickers : int
        Most tickers to use, those with most training samples; 0 for all.
    layout : str
        Name of the layout of all text files; empty to detect it for each.
    strict : bool
        Whether anything a check would leave out or repair refuses the input.
    """

    silos: int = 20
    alpha: float = 0.2
    seed: int = 2025
    min_samples: int = 1000
    floor: int = 1
    min_share: float = 0.2
    splits: Splits = field(default_factory=Splits)
    embargo_days: int = 5
    fill_limit: int = 3
    target_scale: float = 0.01
    target_clip: float = 10.0
    tickers: int = 0
    layout: str = ""
    strict: bool = False

    def __post_init__(self) -> None:
        if self.layout:
            layout_named(self.layout)
        for name, value, low in (
            ("silos", self.silos, 1),
            ("floor", self.floor, 1),
            ("seed", self.seed, 0),
            ("min_samples", self.min_samples, 1),
            ("embargo_days", self.embargo_days, 0),
            ("fill_limit", self.fill_limit, 0),
            ("tickers", self.tickers, 0),
        ):
            if value < low:
                raise DataError(f"{name}: found {value}, expected {low} or more; correct the setting")
        for name, number in (
            ("alpha", self.alpha),
            ("target_scale", self.target_scale),
            ("target_clip", self.target_clip),
        ):
            if not (math.isfinite(number) and number > 0.0):
                raise DataError(f"{name}: found {number}, expected a positive finite number; correct the setting")
