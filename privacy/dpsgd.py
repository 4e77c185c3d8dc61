"""One release of DP-SGD: Poisson sample, clipped sum, noise, public divisor (paper eq. 13)."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from privacy.ahead import DrawnAhead, Draws
from privacy.errors import PrivacyError
from privacy.model import ROWS, PerExampleModel
from privacy.plan import MechanismPlan
from privacy.randomness import RandomStream

_RECORDS = 1 << 21  # for which `RESERVE` covers the float64 roundings between calls


@dataclass(frozen=True, slots=True)
class PrivateGradient:
    """One release, and what stays in the silo.

    Attributes
    ----------
    mean : torch.Tensor
        The release: flat float32 vector (clipped sum + noise) / divisor.
    batch_size, zeroed : int
        Realised sample size and non-finite records. **Private**: for the silo's own log only, never in a message.
    variance : float or None
        Released estimate of the variance of the clipped gradients, `estimated_variance` clamped to [0, C^2]; None
        without a `variance_scale`.
    """

    mean: torch.Tensor
    batch_size: int = field(repr=False)
    zeroed: int = field(repr=False)
    variance: float | None = None


def _calls(rows: npt.NDArray[np.int64], start: int, stop: int) -> Iterator[npt.NDArray[np.int64]]:
    """Halve the range of indices until no more than `ROWS` of them were sampled."""
    if len(rows) > ROWS:
        middle = (start + stop) // 2
        cut = int(np.searchsorted(rows, middle))
        yield from _calls(rows[:cut], start, middle)
        yield from _calls(rows[cut:], middle, stop)
    elif len(rows) > 0:
        yield rows


def clipped_sum(
    model: PerExampleModel,
    params: torch.Tensor,
    features: npt.NDArray[Any],
    targets: npt.NDArray[Any],
    rows: npt.NDArray[np.int64],
    clip_norm: float,
    square_weight: float = 0.0,
) -> tuple[npt.NDArray[np.float64], int]:
    """Return the clipped gradient sum over `rows` in float64, and the number of zeroed records. **Private.**

    Guarantee: moves by at most `clip_norm` in L2 when one record is replaced by the null record, **whether the null
    record is a row of zeros or no row at all** (the proof of amplification by sampling compares both), rounding
    included; with a `square_weight` s one coordinate more, s times the sum of the squared norms of the clipped
    gradients, and then by at most sqrt(C^2 + s^2 C^4) (E9). Which rows share a call depends on their indices: the range
    of all indices is halved until at most `ROWS` are left, so a record's presence changes the calls of one such range
    only, at most `ROWS` + 1 rows with it and at most `ROWS` without it, and every other call is bit for bit the same.
    Adding c calls in float64 errs by at most 2^-53 c n C; for both sums of up to 2^21 rows that is below `RESERVE` C.
    Assumption: the model keeps the promise of `PerExampleModel`. Abadi et al. 2016, algorithm 1.

    Parameters
    ----------
    model : PerExampleModel
        The model.
    params : torch.Tensor
        Flat float32 vector.
    features, targets : ndarray
        All records, shapes (N, d) and (N,), N at most 2^21; may be memory-mapped.
    rows : ndarray of int64
        Sampled records, ascending; may be empty.
    clip_norm : float
        C, above 0.
    square_weight : float
        s, at least 0; 0 adds no coordinate.

    Raises
    ------
    PrivacyError
        If `square_weight` is above 0 and the model does not offer squared norms.
    """
    if len(features) > _RECORDS:
        raise PrivacyError(f"records: expected at most {_RECORDS}, for which the rounding of sums is proven")
    total, zeroed = _clipped_sum(model, params, features, targets, rows, clip_norm, square_weight)
    return total.astype(np.float64, copy=False), zeroed


def _clipped_sum(
    model: PerExampleModel,
    params: torch.Tensor,
    features: npt.NDArray[Any],
    targets: npt.NDArray[Any],
    rows: npt.NDArray[np.int64],
    clip_norm: float,
    square_weight: float,
) -> tuple[npt.NDArray[np.float32] | npt.NDArray[np.float64], int]:
    """As `clipped_sum`; that of a single call as the model gave it."""
    gradients, zeroed, squares = None, 0, 0.0
    for chosen in _calls(rows, 0, len(features)):
        part = model.clipped_gradient_sum(
            params,
            torch.from_numpy(np.ascontiguousarray(features[chosen], dtype=np.float32)),
            torch.from_numpy(np.ascontiguousarray(targets[chosen], dtype=np.float32)),
            clip_norm,
        )
        gradients = part.total if gradients is None else gradients.double() + part.total
        if square_weight > 0:
            if part.squares is None:
                raise PrivacyError("variance_scale: the model offers no squared norms; set it to 0")
            squares += part.squares
        zeroed += part.zeroed
    if gradients is None:
        gradients = torch.zeros(model.size)
    if square_weight > 0:
        return np.append(gradients.double().numpy(), square_weight * squares), zeroed
    total: npt.NDArray[np.float32] | npt.NDArray[np.float64] = gradients.numpy()
    return total, zeroed


def estimated_variance(
    mean: npt.NDArray[np.float64], mean_square: float, plan: MechanismPlan, noise_stddev: float
) -> float:
    """Variance of the clipped gradients, mean squared norm less squared norm of the mean, from one noisy release.

    Guarantee: post-processing of the release, so free of cost for its adjacency (one record replaced by the null
    record). Unbiased if `plan.records` is the number of records: the squared norm of `mean` has expectation
    ||g||^2 + (1 - q) / (q N) M + p sigma^2 C'^2 / (q N)^2, where M is the mean squared norm, and both terms are taken
    off. (The formula of E9 leaves the second, the sampling variance of the mean, in.) Assumptions: as for
    `private_gradient`. It may be negative; its standard deviation is about
    sqrt(2 p) sigma^2 C'^2 / (q N)^2 where noise dominates.

    Parameters
    ----------
    mean : ndarray of float64
        Noisy mean gradient, p values.
    mean_square : float
        Noisy mean of the squared norms.
    plan : MechanismPlan
        The mechanism of the release.
    noise_stddev : float
        Of the noise on the sum: `Grid.noise_stddev`, which includes what rounding to the grid costs.
    """
    noise = len(mean) * (noise_stddev / plan.divisor) ** 2
    sampling = (1.0 - plan.sampling_rate) / plan.divisor
    return mean_square * (1.0 + sampling) - float(mean @ mean) + noise


def drawn_ahead(model: PerExampleModel, records: int, plan: MechanismPlan, stream: RandomStream) -> DrawnAhead:
    """Draw the samples and the noise of all `plan.steps` releases of a contribution in one go, which is faster.

    Guarantee: `private_gradient` with it makes the same mechanism as with `stream`, for the same adjacency (one record
    replaced by the null record), as many times as planned and no more. Assumptions: those of `DrawnAhead`.

    Parameters
    ----------
    model : PerExampleModel
        The model.
    records : int
        Number of records that samples are drawn from.
    plan : MechanismPlan
        The mechanism.
    stream : RandomStream
        Source.
    """
    size = model.size + (plan.variance_scale > 0)
    noise = plan.grid(model.size, records).noise
    return DrawnAhead(stream, plan.steps, records, plan.sampling_rate, size, noise)


def private_gradient(
    model: PerExampleModel,
    params: torch.Tensor,
    features: npt.NDArray[Any],
    targets: npt.NDArray[Any],
    plan: MechanismPlan,
    stream: Draws,
) -> PrivateGradient:
    """Make one release of the planned mechanism: (clipped sum over a Poisson sample + N(0, sigma^2 C'^2 I)) / (q N_i).

    Guarantee: `mean` and `variance` together are one of the `plan.steps` releases accounted by `plan.event()`, for
    the adjacency "one record replaced by a null record with zero gradient". Assumptions: the caller makes at most
    `plan.steps` releases per charge of the filter, charged before they leave; `params` depend on the records through
    earlier accounted releases only; features and targets are per-record functions of public numbers and the record
    (E27); `stream` is not seeded. Paper eq. 13; E9; Abadi et al. 2016, algorithm 1; Mironov, Talwar and Zhang 2019.
    The noisy sum lives on a public grid (`privacy.grid.Grid`), so its low bits carry nothing about the records
    (Mironov 2012); the noise is larger by what rounding to the grid may add to the sensitivity, at most 2^-10 of it. An
    empty sample is a zero gradient plus full noise and counts as a release.

    Parameters
    ----------
    model : PerExampleModel
        The model.
    params : torch.Tensor
        Flat float32 vector.
    features, targets : ndarray
        All records of the silo, shapes (N, d) and (N,); may be memory-mapped.
    plan : MechanismPlan
        Sampling rate, clip, noise and divisor. `plan.records` may be a public bucket, so it need not be N.
    stream : Draws
        Source of the sample and the noise: a `RandomStream`, or the `drawn_ahead` of the contribution.

    Returns
    -------
    PrivateGradient
        The release and local diagnostics.
    """
    if len(features) != len(targets):
        raise PrivacyError("features and targets differ in length: expected one target per record")
    grid = plan.grid(model.size, len(features))
    rows = stream.poisson_sample(len(features), plan.sampling_rate)
    total, zeroed = _clipped_sum(model, params, features, targets, rows, plan.clip_norm, plan.square_weight)
    noisy = grid.release(total, stream, plan.divisor)
    variance = None
    if plan.variance_scale > 0:
        estimate = estimated_variance(noisy[:-1], float(noisy[-1]) / plan.square_weight, plan, grid.noise_stddev)
        variance = min(max(estimate, 0.0), plan.clip_norm**2)
    return PrivateGradient(torch.from_numpy(noisy[: model.size]).float(), len(rows), zeroed, variance)
