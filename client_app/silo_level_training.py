"""One silo's local steps where the whole silo is the unit of privacy (Algorithm 2 of the paper, errata E5, E6)."""

import numpy as np
import torch
from numpy.typing import NDArray

from privacy.dpsgd import clipped_sum
from privacy.model import PerExampleModel
from privacy.randomness import RandomStream
from privacy.release import ReleasePlan
from privacy.silo_unit import SiloPlan, release_update


def train_as_a_whole(
    model: PerExampleModel,
    features: NDArray[np.float32],
    targets: NDArray[np.float32],
    plan: ReleasePlan,
    release: SiloPlan,
    point: NDArray[np.float32],
    stream: RandomStream,
) -> NDArray[np.float64]:
    """Take ``tau`` ordinary clipped steps from ``y``; clip the move and add noise, once.

    Guarantee: the output is one release accounted by ``release`` (adjacency: one silo replaced by zero, or by
    another). The steps have no noise and nothing but the move leaves them; clipping their per-example gradients
    steadies them and has no part in the guarantee.

    Parameters
    ----------
    model
        Gives per-example clipped gradient sums.
    features, targets : ndarray of float32, shapes (n, d) and (n,)
        The silo's training split.
    plan : ReleasePlan
    release : SiloPlan
        Clip, noise and adjacency.
    point : ndarray of float32, shape (p,)
        Broadcast ``y``.
    stream : RandomStream
        Source of the batches and the noise.

    Returns
    -------
    ndarray of float64, shape (p,)
        The noised move, of expected squared norm of the noise ``release.noise_norm(p)^2``.
    """
    anchor = torch.from_numpy(point)
    weights = anchor.clone()
    expected = plan.sampling_rate * len(targets)
    for _ in range(plan.steps):
        rows = stream.poisson_sample(len(targets), plan.sampling_rate)
        total, _ = clipped_sum(model, weights, features, targets, rows, plan.clip_norm)
        step = plan.step_size / expected
        weights = anchor + (weights - anchor - step * torch.from_numpy(total).float()) / (
            1 + plan.step_size * plan.proximal
        )
    return release_update((weights - anchor).double().numpy(), release, stream)
