"""One release of DP-SGD: Poisson sample, clipped sum, noise, public divisor (paper eq. 13)."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from privacy.errors import PrivacyError
from privacy.model import PerExampleModel
from privacy.plan import MechanismPlan
from privacy.randomness import RandomStream

_CHUNK = 4096  # rows in memory at once: a memory-mapped silo never loads its whole Poisson sample's activations


@dataclass(frozen=True, slots=True)
class PrivateGradient:
    """One release, and what stays in the silo.

    Attributes
    ----------
    mean : torch.Tensor
        The release: flat float32 vector (clipped sum + noise) / divisor.
    batch_size, zeroed : int
        Realised sample size and non-finite records. **Private**: for the silo's own log only, never in a message.
    """

    mean: torch.Tensor
    batch_size: int = field(repr=False)
    zeroed: int = field(repr=False)


def clipped_sum(
    model: PerExampleModel,
    params: torch.Tensor,
    features: npt.NDArray[Any],
    targets: npt.NDArray[Any],
    rows: npt.NDArray[np.int64],
    clip_norm: float,
) -> tuple[npt.NDArray[np.float64], int]:
    """Return the clipped gradient sum over `rows` in float64, and the number of zeroed records. **Private.**

    Guarantee: moves by at most `clip_norm` in L2 when one record is replaced by the null record. Assumption: the
    model keeps the promise of `PerExampleModel`. Abadi et al. 2016, algorithm 1.

    Parameters
    ----------
    model : PerExampleModel
        The model.
    params : torch.Tensor
        Flat float32 vector.
    features, targets : ndarray
        All records, shapes (N, d) and (N,); may be memory-mapped.
    rows : ndarray of int64
        Sampled records; may be empty.
    clip_norm : float
        C, above 0.
    """
    total = np.zeros(model.size, dtype=np.float64)
    zeroed = 0
    for start in range(0, len(rows), _CHUNK):
        chosen = rows[start : start + _CHUNK]
        part = model.clipped_gradient_sum(
            params,
            torch.from_numpy(np.ascontiguousarray(features[chosen], dtype=np.float32)),
            torch.from_numpy(np.ascontiguousarray(targets[chosen], dtype=np.float32)),
            clip_norm,
        )
        total += part.total.numpy()
        zeroed += part.zeroed
    return total, zeroed


def private_gradient(
    model: PerExampleModel,
    params: torch.Tensor,
    features: npt.NDArray[Any],
    targets: npt.NDArray[Any],
    plan: MechanismPlan,
    stream: RandomStream,
) -> PrivateGradient:
    """Make one release of the planned mechanism: (clipped sum over a Poisson sample + N(0, sigma^2 C^2 I)) / (q N_i).

    Guarantee: `mean` is one of the `plan.steps` releases accounted by `plan.event()`, for the adjacency "one record
    replaced by a null record with zero gradient". Assumptions: the caller makes at most `plan.steps` releases per
    charge of the filter, charged before they leave; `params` depend on the records through earlier accounted releases
    only; features and targets are per-record functions of public numbers and the record (E27); `stream` is not
    seeded; floating-point attacks (Mironov 2012) are not addressed. Paper eq. 13; Abadi et al. 2016, algorithm 1;
    Mironov, Talwar and Zhang 2019. An empty sample is a zero gradient plus full noise and counts as a release. Noise
    is added in float64, then the result is rounded to float32.

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
    stream : RandomStream
        Source of the sample and the noise.

    Returns
    -------
    PrivateGradient
        The release and local diagnostics.
    """
    if len(features) != len(targets):
        raise PrivacyError("features and targets differ in length: expected one target per record")
    rows = stream.poisson_sample(len(features), plan.sampling_rate)
    total, zeroed = clipped_sum(model, params, features, targets, rows, plan.clip_norm)
    noise = stream.normal(model.size)
    noise *= plan.noise_stddev
    noise += total
    noise /= plan.divisor
    return PrivateGradient(torch.from_numpy(noise).float(), len(rows), zeroed)
