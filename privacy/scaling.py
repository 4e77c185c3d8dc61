"""Means and deviations of the features from one accounted release of every silo (E27).

By default features are scaled by public constants, and nothing here is needed. A scaler fitted on records makes every
gradient depend on every record; one computed from noisy sums that were released and charged is a public number.
"""

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from privacy.checks import real, whole
from privacy.errors import PrivacyError
from privacy.metrics import private_sums
from privacy.plan import MechanismPlan
from privacy.randomness import RandomStream

SCALING = "scaling"
"""Purpose of the ledger row: `Release.charge(..., purpose=SCALING)`, one for the whole vector."""

FLOOR = 0.1
"""Smallest deviation that features are divided by, in units of the features: about a tenth of what is usual."""

LIMIT = 4.0
"""Public range of a scaled feature, in deviations."""

_DOWN = 1.0 - 1e-12  # above the float64 rounding of a scaled row
_CLEAR = 2.0  # deviations of its noise that a variance must reach


@dataclass(frozen=True, slots=True)
class FeatureScale:
    """One mean and one scale for every feature, the same at every silo: (x - mean) / scale, clipped to a public range.

    Guarantee: `apply` maps each row on its own, by these numbers only; if they were released (or are public), a scaled
    record is a function of the record and public numbers, so whatever bounds the sensitivity of a mechanism for the
    adjacency "one record replaced by a null record" still does (E27). Assumption: the numbers come from
    `feature_scale` of charged releases, or from no records at all.

    Attributes
    ----------
    mean, scale : tuple of float
        One of each for every feature; scales above 0.
    bound : float
        R: features are clipped to [-R, R] first.
    limit : float
        Scaled features are clipped to [-limit, limit].
    """

    mean: tuple[float, ...]
    scale: tuple[float, ...]
    bound: float
    limit: float = LIMIT

    def __post_init__(self) -> None:
        """Validate by field name."""
        object.__setattr__(self, "mean", tuple(real("mean", value) for value in self.mean))
        object.__setattr__(self, "scale", tuple(real("scale", value, 0.0, low_open=True) for value in self.scale))
        object.__setattr__(self, "bound", real("bound", self.bound, 0.0, low_open=True))
        object.__setattr__(self, "limit", real("limit", self.limit, 0.0, low_open=True))
        if len(self.mean) != len(self.scale) or not self.mean:
            raise PrivacyError("mean, scale: expected one of each for every feature")

    @classmethod
    def public(cls, dimensions: int, bound: float) -> Self:
        """Return the scale that leaves features within [-bound, bound] as they are.

        Guarantee: uses no record, so it costs nothing for any adjacency. The default (E27).

        Parameters
        ----------
        dimensions : int
            d, number of features.
        bound : float
            Public range of the features.
        """
        count = whole("dimensions", dimensions, 1)
        return cls((0.0,) * count, (1.0,) * count, bound, bound)

    def apply(self, features: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Return scaled features, row by row.

        Guarantee, adjacency and assumptions: those of the class. Every operation is elementwise, so the bits of a row
        do not depend on its company. A value that is not finite stays so, or lies within the range; the mechanism makes
        a null record of a row with NaN.

        Parameters
        ----------
        features : ndarray
            Shape (n, d).

        Returns
        -------
        ndarray of float32
            Same shape, within [-limit, limit].
        """
        if features.ndim != 2 or features.shape[1] != len(self.mean):
            raise PrivacyError(f"features: expected rows of {len(self.mean)} values")
        rows = np.clip(np.asarray(features, dtype=np.float64), -self.bound, self.bound)
        rows = (rows - np.array(self.mean)) / np.array(self.scale)
        scaled: npt.NDArray[np.float32] = np.clip(rows, -self.limit, self.limit).astype(np.float32)
        return scaled


@dataclass(frozen=True, slots=True)
class ScaledRows:
    """Features of a silo that are scaled row by row as they are read, so that memory-mapped ones stay on disk.

    Guarantee, adjacency and assumptions: those of `FeatureScale`.

    Attributes
    ----------
    rows : ndarray
        Shape (n, d); may be memory-mapped.
    scale : FeatureScale
    """

    rows: npt.NDArray[Any]
    scale: FeatureScale

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, chosen: Any) -> npt.NDArray[np.float32]:
        return self.scale.apply(self.rows[chosen])


def largest_norm(dimensions: int) -> float:
    """Return sqrt(2 d), the norm of (u, u^2) for u at a corner of [-1, 1]^d: with this C nothing is ever clipped.

    Guarantee: a bound for every record, so for the adjacency "one record replaced by a null record" as well; uses no
    record. Ordinary records, with features of a third of their range, have a norm of about sqrt(0.15 d).

    Parameters
    ----------
    dimensions : int
        d, number of features.
    """
    return math.sqrt(2.0 * whole("dimensions", dimensions, 1))


def contributions(features: npt.NDArray[Any], bound: float, clip_norm: float) -> npt.NDArray[np.float64]:
    """Return (u, u^2) of every record, u = clip(x / R) to [-1, 1], scaled to an L2 norm of at most C. **Private.**

    Guarantee: row i is a function of record i and public numbers with norm at most C, so the sum of the rows moves by
    at most C when one record is replaced by a null record, which adds nothing, and by at most 2 C when it is replaced
    by another. A record with a value that is not finite is a null record.

    Parameters
    ----------
    features : ndarray
        Shape (n, d).
    bound, clip_norm : float
        R and C.

    Returns
    -------
    ndarray of float64
        Shape (n, 2 d).
    """
    rows = np.asarray(features, dtype=np.float64)
    rows = np.where(np.isfinite(rows).all(axis=1, keepdims=True), rows, 0.0)
    unit = np.clip(rows, -bound, bound) / bound
    both = np.concatenate([unit, unit * unit], axis=1)
    norm = np.sqrt(np.sum(both * both, axis=1, keepdims=True))
    both *= clip_norm * _DOWN / np.maximum(norm, clip_norm * _DOWN)
    return both


def private_moments(
    features: npt.NDArray[Any], plan: MechanismPlan, stream: RandomStream, bound: float
) -> npt.NDArray[np.float64]:
    """Release the sums of u and u^2 over a silo's records, u = x / R: (sum over a Poisson sample + noise) / q.

    Guarantee: one release accounted by `plan.event()`, for the adjacency "one record replaced by a null record",
    which adds nothing to the sum: its sensitivity is C (2 C if a record is replaced by another). Assumptions:
    `plan.clip_norm` and `bound` are public; features are functions of the record and public numbers; charged under the
    purpose `SCALING` before the result leaves; `stream` is not seeded. The mechanism is
    `privacy.metrics.private_sums` (Mironov, Talwar and Zhang 2019).

    The full data, q = 1, is the cheapest way to spend a given budget: what counts is the noise of the estimated sum,
    sigma C / q, and the smallest sigma / q that a budget allows falls with q (Räisä, Jälkö and Honkela 2024), while
    sampling adds its own variance, (1 - q) / q times the sum of squares. One pass over the records is no burden.

    Unbiased where no record is clipped to C (`largest_norm`); a smaller C has less noise and pulls means towards 0 and
    variances down.

    Parameters
    ----------
    features : ndarray
        All records of the silo, shape (n, d); may be memory-mapped.
    plan : MechanismPlan
        `clip_norm` bounds the vector of a record; `steps` must be 1 and `variance_scale` 0.
    stream : RandomStream
        Source of the sample and the noise.
    bound : float
        R, the public range of the features.

    Returns
    -------
    ndarray of float64, shape (2 d,)
        Sums of u, then of u^2; the noise of each has standard deviation `sums_stddev`. Vectors of several silos are
        to be added.
    """
    real("bound", bound, 0.0, low_open=True)
    if features.ndim != 2 or features.shape[1] < 1:
        raise PrivacyError("features: expected a matrix, one row per record")
    records, dimensions = features.shape
    sums = private_sums(
        lambda rows: contributions(features[rows], bound, plan.clip_norm), 2 * dimensions, records, plan, stream
    )
    return sums / plan.sampling_rate


def sums_stddev(plan: MechanismPlan, dimensions: int, records: int) -> float:
    """Return the standard deviation of the noise on each value of `private_moments`: that of the grid, over q.

    Guarantee: a function of public numbers (the number of records among them, E25), whatever the adjacency. Noises of
    several silos add in squares.

    Parameters
    ----------
    plan : MechanismPlan
        As released with.
    dimensions, records : int
        d and n of the silo.
    """
    return plan.grid(2 * dimensions, records).noise_stddev / plan.sampling_rate


def feature_scale(
    sums: npt.NDArray[np.float64],
    records: int,
    noise_stddev: float,
    bound: float,
    floor: float = FLOOR,
    limit: float = LIMIT,
) -> FeatureScale:
    """Turn noisy sums over all silos into means and deviations.

    Guarantee: post-processing of releases, so free of cost for their adjacency (one record replaced by a null record).
    Always a valid `FeatureScale`: means within the range of the features; a variance is mean square less square of the
    mean plus the known noise variance of the mean (unbiased), at least `floor` squared and at least twice the standard
    deviation of its own noise, so that a constant feature is not blown up; at most R^2.

    Parameters
    ----------
    sums : ndarray of float64, shape (2 d,)
        Sum of `private_moments` over the silos; finite.
    records : int
        Total of the enrolled N_i; public (E25).
    noise_stddev : float
        Standard deviation of the noise on each sum: root of the sum of squares of the silos' `sums_stddev`; at least 0.
    bound : float
        R, as given to `private_moments`.
    floor, limit : float
        Smallest deviation, in units of the features, and range of a scaled feature.

    Raises
    ------
    PrivacyError
        If a value is out of range or the sums are not finite.
    """
    real("bound", bound, 0.0, low_open=True)
    real("floor", floor, 0.0, bound, low_open=True)
    noise = real("noise_stddev", noise_stddev, 0.0) / whole("records", records, 1)
    if sums.ndim != 1 or len(sums) < 2 or len(sums) % 2 or not np.isfinite(sums).all():
        raise PrivacyError("sums: expected finite sums of u and of u^2, two for every feature")
    first, second = np.split(np.asarray(sums, dtype=np.float64) / records, 2)
    mean = np.clip(first, -1.0, 1.0)
    variance = np.clip(second, 0.0, 1.0) - mean**2 + noise**2
    # The noise of the mean enters as 2 mean noise - noise^2.
    unsure = _CLEAR * noise * np.sqrt(1.0 + 4.0 * mean**2 + 2.0 * noise**2)
    variance = np.minimum(np.maximum(np.maximum(variance, unsure), (floor / bound) ** 2), 1.0)
    return FeatureScale(
        tuple((bound * mean).tolist()), tuple((bound * np.sqrt(variance)).tolist()), float(bound), float(limit)
    )
