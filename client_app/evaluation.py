"""Sums over a validation or test split, in raw log-return units, for the secure sum (errata E22).

Exact sums are **not** differentially private: they are protected by secure aggregation only, and reports carry the
label "validation split not protected". Noised sums are one accounted release of an epoch.
"""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from data_prep.shards import Split
from privacy.metrics import private_sums
from privacy.model import PerExampleModel
from privacy.plan import MechanismPlan
from privacy.randomness import RandomStream
from privacy.release import MAX_EVALUATION_RECORDS, MAX_SQUARED_ERROR, METRICS, noised_metric_scales

BATCH = 8192


def metric_sums(
    model: PerExampleModel,
    point: NDArray[np.float32],
    features: NDArray[np.float32],
    targets: NDArray[np.float32],
    truth: NDArray[np.float32] | None,
    target_scale: float,
) -> dict[str, float]:
    """Sum the metrics named in `privacy.release.METRICS` over one split.

    Parameters
    ----------
    model, point
        Model and its weights, shape (p,).
    features, targets : ndarray of float32, shapes (n, d) and (n,)
        ``targets`` are log-returns divided by ``target_scale``.
    truth : ndarray of float32, shape (n,), optional
        The optimal forecast in raw log-return units, where the data know it.
    target_scale : float
        Public scale of the targets.

    Returns
    -------
    dict
        ``hits`` counts equal signs; a forecast or a return of exactly zero counts one half. A squared or
        absolute error above 1 saturates there, and so does one that is not a number.

    Raises
    ------
    ValueError
        If the split holds more records than the public bound.
    """
    if len(targets) > MAX_EVALUATION_RECORDS:
        raise ValueError(f"{len(targets)} records in one split, the public bound is {MAX_EVALUATION_RECORDS}")
    sums = dict.fromkeys(METRICS, 0.0)
    weights = torch.from_numpy(point)
    for start in range(0, len(targets), BATCH):
        rows = slice(start, start + BATCH)
        batch = torch.from_numpy(np.array(features[rows], dtype=np.float32))
        forecast = _forecasts(model, weights, batch, target_scale)
        actual = np.asarray(targets[rows], dtype=np.float64) * target_scale
        part = forecast_sums(forecast, actual, None if truth is None else truth[rows])
        sums = {name: value + part[name] for name, value in sums.items()}
    return sums


def forecast_sums(
    forecast: NDArray[np.float64], actual: NDArray[np.float64], truth: NDArray[np.float32] | None
) -> dict[str, float]:
    """Sum the metrics of forecasts, whatever made them: as `metric_sums`.

    Parameters
    ----------
    forecast, actual : ndarray of float64, shape (n,)
        Finite, in raw log-return units.
    truth : ndarray of float32, shape (n,), optional
        The optimal forecast.
    """
    known = truth is not None
    return {
        "count": float(len(actual)),
        "sse": _squared(forecast - actual),
        "sae": float(np.sum(np.fmin(np.abs(forecast - actual), 1.0))),
        "hits": float(np.sum(_hits(forecast, actual))),
        "sse_zero": _squared(actual),
        "count_optimal": float(len(actual)) if known else 0.0,
        "sse_optimal": _squared(np.asarray(truth, dtype=np.float64) - actual) if known else 0.0,
    }


def noised_sums(
    model: PerExampleModel,
    point: NDArray[np.float32],
    splits: Mapping[str, Split],
    target_scale: float,
    bound: float,
    plan: MechanismPlan,
    stream: RandomStream,
) -> dict[str, float]:
    """Release the metrics of some splits together, with noise.

    Guarantee: everything but the counts is one release accounted by ``plan.event()``, for the adjacency "one record
    replaced by a null record", which adds nothing; a record is in one split, so the release covers all of them at the
    price of one (`privacy.metrics.private_sums`). The counts are exact: the number of records is not protected
    (errata E25).

    Parameters
    ----------
    model, point
        Model and its weights, shape (p,).
    splits : mapping of str to Split
        Splits by name.
    target_scale : float
        Public scale of the targets.
    bound : float
        Public bound on a squared error, in squared raw units; its root bounds an absolute error. Larger errors
        saturate, so a mean is biased downwards by what is beyond.
    plan : MechanismPlan
        With ``clip_norm`` `privacy.release.METRIC_NORM`.
    stream : RandomStream
        Source of the noise.

    Returns
    -------
    dict
        ``split.metric`` for every metric of `privacy.release.METRICS`; those of the optimal forecast are 0.
    """
    scales = noised_metric_scales(bound)
    weights, width = torch.from_numpy(point), len(scales)
    starts = np.cumsum([0, *(len(split.targets) for split in splits.values())])

    def values(rows: NDArray[np.int64]) -> NDArray[np.float64]:
        found = np.zeros((len(rows), width * len(splits)))
        for number, split in enumerate(splits.values()):
            mine = (rows >= starts[number]) & (rows < starts[number + 1])
            chosen = rows[mine] - starts[number]
            batch = torch.from_numpy(np.array(split.features[chosen], dtype=np.float32))
            forecast = _forecasts(model, weights, batch, target_scale)
            actual = np.asarray(split.targets[chosen], dtype=np.float64) * target_scale
            error = np.abs(forecast - actual)
            columns = (error**2 / bound, error / np.sqrt(bound), _hits(forecast, actual), actual**2 / bound)
            # fmin: what is not a number counts as the largest error.
            found[mine, width * number : width * (number + 1)] = np.fmin(np.stack(columns, axis=1), 1.0)
        return found

    released = private_sums(values, width * len(splits), int(starts[-1]), plan, stream).reshape(-1, width)
    sums = {f"{split}.{metric}": 0.0 for split in splits for metric in METRICS}
    for (name, split), row in zip(splits.items(), released, strict=True):
        sums[f"{name}.count"] = float(len(split.targets))
        sums |= {f"{name}.{metric}": float(v) * scales[metric] for metric, v in zip(scales, row, strict=True)}
    return sums


def _forecasts(
    model: PerExampleModel, weights: torch.Tensor, features: torch.Tensor, target_scale: float
) -> NDArray[np.float64]:
    raw = model.predict(weights, features).double().numpy() * target_scale
    # A diverged model must not stop the round: what is not finite counts as the largest error.
    return np.asarray(np.nan_to_num(raw, nan=2.0, posinf=2.0, neginf=-2.0))


def _hits(forecast: NDArray[np.float64], actual: NDArray[np.float64]) -> NDArray[np.float64]:
    signs = np.nan_to_num(np.sign(forecast) * np.sign(actual), nan=-1.0)
    return np.asarray((signs + 1) / 2)


def _squared(errors: NDArray[np.float64]) -> float:
    # fmin: an error that is not a number counts as the largest one.
    return float(np.sum(np.fmin(errors**2, MAX_SQUARED_ERROR)))
