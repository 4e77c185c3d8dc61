"""The pooled network: the run's own network, trained by Adam on the records of all silos, without any privacy."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from client_app.contribution import Sample
from client_app.evaluation import metric_sums
from privacy.mlp import Mlp

RATES = (1e-3, 3e-4)
BATCH = 256
DECAY = 0.999
"""Of the average of the iterates, which is what is evaluated and kept."""
PATIENCE = 3
NO_CLIP = 1e6


def train_central(model: Mlp, silos: Sequence[Sample], *, passes: int, seed: int = 2025) -> NDArray[np.float32]:
    """Return the weights with the least validation error over all learning rates and passes.

    Parameters
    ----------
    model : Mlp
    silos : sequence of Sample
        With equal target scales.
    passes : int
        Most passes over the training records; a rate ends earlier after three without progress.
    seed : int
        Of the initial model and the order of the records.
    """
    torch.set_num_threads(1)
    features = torch.from_numpy(np.concatenate([silo.shard.train.features for silo in silos]))
    targets = torch.from_numpy(np.concatenate([silo.shard.train.targets for silo in silos]))
    best, least = model.initial_parameters(seed), np.inf
    for rate in RATES:
        weights = torch.from_numpy(model.initial_parameters(seed))
        average, steps, since = weights.clone(), 0, 0
        optimiser = torch.optim.Adam([weights], lr=rate)
        order = np.random.default_rng(seed)
        lowest = np.inf
        for _ in range(passes):
            for rows in torch.split(torch.from_numpy(order.permutation(len(targets))), BATCH):
                total = model.clipped_gradient_sum(weights, features[rows], targets[rows], NO_CLIP).total
                weights.grad = total / len(rows)
                optimiser.step()
                steps += 1
                # Early on the average is over what there is.
                average.lerp_(weights, max(1 - DECAY, 1 / steps))
            error = _validation_error(model, average.numpy(), silos)
            since = 0 if error < lowest else since + 1
            lowest = min(lowest, error)
            if error < least:
                best, least = average.numpy().copy(), error
            if since == PATIENCE:
                break
    return best


def _validation_error(model: Mlp, weights: NDArray[np.float32], silos: Sequence[Sample]) -> float:
    error = records = 0.0
    for silo in silos:
        split = silo.shard.validation
        if len(split.targets) > 0:
            sums = metric_sums(model, weights, split.features, split.targets, None, silo.shard.target_scale)
            error, records = error + sums["sse"], records + sums["count"]
    return error / records
