"""Sums over a validation or test split, in raw log-return units, for the secure sum.

These sums are **not** differentially private: they are exact sums over records, protected by secure
aggregation only (errata E22). Reports carry the label "validation split not protected".
"""

import numpy as np
import torch
from numpy.typing import NDArray

from privacy.model import PerExampleModel
from privacy.release import MAX_EVALUATION_RECORDS, MAX_SQUARED_ERROR, METRICS

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
        raw = model.predict(weights, batch).double().numpy() * target_scale
        # A diverged model must not stop the round: what is not finite counts as the largest error.
        forecast = np.nan_to_num(raw, nan=2.0, posinf=2.0, neginf=-2.0)
        actual = np.asarray(targets[rows], dtype=np.float64) * target_scale
        signs = np.nan_to_num(np.sign(forecast) * np.sign(actual), nan=-1.0)
        sums["count"] += len(actual)
        sums["sse"] += _squared(forecast - actual)
        sums["sae"] += float(np.sum(np.fmin(np.abs(forecast - actual), 1.0)))
        sums["hits"] += float(np.sum((signs + 1) / 2))
        sums["sse_zero"] += _squared(actual)
        if truth is not None:
            sums["count_optimal"] += len(actual)
            sums["sse_optimal"] += _squared(np.asarray(truth[rows], dtype=np.float64) - actual)
    return sums


def _squared(errors: NDArray[np.float64]) -> float:
    # fmin: an error that is not a number counts as the largest one.
    return float(np.sum(np.fmin(errors**2, MAX_SQUARED_ERROR)))
