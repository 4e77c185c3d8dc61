"""Differentially private means of per-record values: loss differences for backtracking (E8), metrics (E22)."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from privacy.errors import PrivacyError
from privacy.model import PerExampleModel
from privacy.plan import MechanismPlan
from privacy.randomness import RandomStream

BACKTRACKING = "backtracking"
EVALUATION = "evaluation"
"""Purposes of the ledger rows: `Release.charge(..., purpose=EVALUATION)`, one row for every value released."""

_CHUNK = 4096
_DOWN = 1.0 - 1e-12  # above the float64 rounding of a scaled row


def private_sums(
    values_of: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.float64]],
    width: int,
    records: int,
    plan: MechanismPlan,
    stream: RandomStream,
) -> npt.NDArray[np.float64]:
    """Release sums: over a fresh Poisson sample of vectors clipped to norm C, plus N(0, sigma^2 C^2 I).

    Guarantee: one release accounted by `plan.event()`, for the adjacency "one record replaced by a null record",
    which adds nothing to the sums. Assumptions: `plan.clip_norm` is a public bound; the values of a record are a
    function of that record, released parameters and public numbers; charged, under a purpose of its own, before the
    result leaves or steers anything; `stream` is not seeded. Mironov, Talwar and Zhang 2019; floating point as in
    `Grid`: values are rounded to it one by one, so that the sum is exact and no record touches another's rounding. A
    vector with a value that is not finite is a null record.

    Parameters
    ----------
    values_of : callable
        Given indices of sampled records, their values, shape (n, width). It is called on the sample only.
    width : int
        Values of a record.
    records : int
        Records to sample from; `plan.records` may be a public bucket.
    plan : MechanismPlan
        `clip_norm` bounds the norm of a record's values; `steps` must be 1 and `variance_scale` 0.
    stream : RandomStream
        Source of the sample and the noise.

    Returns
    -------
    ndarray of float64, shape (width,)
        The noisy sums.
    """
    if plan.steps != 1 or plan.variance_scale != 0:
        raise PrivacyError("steps, variance_scale: a metric is one release; expected steps = 1, variance_scale = 0")
    grid = plan.grid(width, records)
    rows = stream.poisson_sample(records, plan.sampling_rate)
    total = np.zeros(width)
    for start in range(0, len(rows), _CHUNK):
        chosen = rows[start : start + _CHUNK]
        values = np.asarray(values_of(chosen), dtype=np.float64)
        if values.shape != (len(chosen), width):
            raise PrivacyError(f"values_of: expected {width} values for each sampled record")
        values = _clipped(np.where(np.isfinite(values).all(axis=1, keepdims=True), values, 0.0), plan.clip_norm)
        total += np.sum(np.rint(values / grid.step), axis=0) * grid.step
    return grid.release(total, stream)


def _clipped(rows: npt.NDArray[np.float64], bound: float) -> npt.NDArray[np.float64]:
    """Scale rows to a norm of at most `bound`."""
    largest = np.max(np.abs(rows), axis=1, keepdims=True, initial=np.finfo(float).tiny)
    shapes = rows / largest  # so that squares neither overflow nor vanish
    norms = np.linalg.norm(shapes, axis=1, keepdims=True)
    over = norms * largest > bound * _DOWN
    return np.where(over, shapes * (bound * _DOWN / np.where(over, norms, 1.0)), rows)


def private_metric(
    values_of: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.float64]],
    records: int,
    plan: MechanismPlan,
    stream: RandomStream,
) -> float:
    """Release one mean: (sum over a fresh Poisson sample of values clipped to [-C, C] + N(0, sigma^2 C^2)) / (q N_i).

    Guarantee, adjacency (one record replaced by the null record), assumptions and theorem: those of `private_sums`.
    The mean is biased by what clipping cuts off, and by nothing else.

    Parameters
    ----------
    values_of : callable
        Given indices of sampled records, their values, shape (n,).
    records, plan, stream
        As in `private_sums`.

    Returns
    -------
    float
        The noisy mean; its noise has standard deviation `plan.noise_stddev / plan.divisor`.
    """

    def column(rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        values = np.asarray(values_of(rows), dtype=np.float64)
        if values.shape != rows.shape:
            raise PrivacyError("values_of: expected one value per sampled record")
        return values[:, None]

    return float(private_sums(column, 1, records, plan, stream)[0]) / plan.divisor


def _losses(model: PerExampleModel, params: Any, features: npt.NDArray[Any], targets: npt.NDArray[Any]) -> Any:
    import torch

    rows = torch.from_numpy(np.ascontiguousarray(features, dtype=np.float32))
    forecast = model.predict(params, rows).numpy().astype(np.float64)
    with np.errstate(all="ignore"):  # a record whose loss overflows becomes a null record
        return np.square(forecast - np.asarray(targets, dtype=np.float64)) / 2


def private_mean_loss(
    model: PerExampleModel,
    params: Any,
    features: npt.NDArray[Any],
    targets: npt.NDArray[Any],
    plan: MechanismPlan,
    stream: RandomStream,
) -> float:
    """Release the mean of (forecast - target)^2 / 2, each clipped at L_max = `plan.clip_norm` (E22).

    Guarantee, adjacency (one record replaced by the null record) and assumptions: those of `private_metric`.

    Parameters
    ----------
    model, params
        The model at released parameters, a flat float32 tensor.
    features, targets : ndarray
        All records, shapes (N, d) and (N,); may be memory-mapped.
    plan : MechanismPlan
        `clip_norm` is L_max.
    stream : RandomStream
        Source of the sample and the noise.
    """
    _same_length(features, targets)
    return private_metric(
        lambda rows: np.asarray(_losses(model, params, features[rows], targets[rows])), len(targets), plan, stream
    )


def private_mean_loss_difference(
    model: PerExampleModel,
    before: Any,
    after: Any,
    features: npt.NDArray[Any],
    targets: npt.NDArray[Any],
    plan: MechanismPlan,
    stream: RandomStream,
) -> float:
    """Release the mean of loss(after) - loss(before), each difference clipped to `plan.clip_norm` (E8).

    Guarantee, adjacency (one record replaced by the null record) and assumptions: those of `private_metric`; both
    parameter vectors depend on the records through accounted releases only. Differences of a step are far smaller
    than losses, so a small public bound loses little.

    Parameters
    ----------
    model : PerExampleModel
        The model.
    before, after : torch.Tensor
        Flat float32 vectors.
    features, targets : ndarray
        All records, shapes (N, d) and (N,); may be memory-mapped.
    plan : MechanismPlan
        `clip_norm` bounds a difference.
    stream : RandomStream
        Source of the sample and the noise; the sample is a fresh one.
    """
    _same_length(features, targets)

    def difference(rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        chosen, wanted = features[rows], targets[rows]
        with np.errstate(invalid="ignore"):
            return np.asarray(_losses(model, after, chosen, wanted) - _losses(model, before, chosen, wanted))

    return private_metric(difference, len(targets), plan, stream)


def _same_length(features: npt.NDArray[Any], targets: npt.NDArray[Any]) -> None:
    if len(features) != len(targets):
        raise PrivacyError("features and targets differ in length: expected one target per record")
