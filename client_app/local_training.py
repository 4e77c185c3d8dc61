"""One silo's local DP-SGD steps with drift correction and an implicit proximal term (eq. 13 of the paper).

All randomness and every touch of a record sits in `privacy.dpsgd.private_gradient` and, for backtracking, in
`privacy.metrics.private_mean_loss_difference`; what is computed here is post-processing of their noised output.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from privacy.dpsgd import drawn_ahead, private_gradient
from privacy.metrics import private_mean_loss_difference
from privacy.model import PerExampleModel
from privacy.plan import MechanismPlan
from privacy.randomness import RandomStream
from privacy.release import ReleasePlan


@dataclass(frozen=True)
class LocalUpdate:
    """Result of the local steps of one round; everything but the diagnostics is privatised.

    Attributes
    ----------
    delta : ndarray of float64, shape (p,)
        ``Delta_i = w_i - y``; where the plan says so, rescaled to ``tau`` steps of ``eta_0`` whatever steps were
        taken (FedNova normalisation, Wang et al. 2020), so that no silo is reweighted by its own pace.
    noise_energy : float
        ``eps_i``: expected squared norm of the privacy noise in ``delta``.
    mean_gradient : ndarray of float64, shape (p,)
        ``g_bar_i``, the mean noised gradient of the steps.
    drift : float
        ``||w_i - y||^2`` before rescaling (eq. 20).
    variance : float
        Mean of the released variances of the clipped gradients (errata E9); infinite where they are not measured.
    gradient_noise : float
        Expected squared norm of the privacy noise in ``mean_gradient``.
    direction : float
        Squared norm of the mean corrected direction less its known noise energy, at least 0.
    steps : int
        Steps taken; the ledger is charged ``tau`` in any case.
    zeroed : int
        Non-finite per-example gradients replaced by zero; stays in the silo's log.
    """

    delta: NDArray[np.float64]
    noise_energy: float
    mean_gradient: NDArray[np.float64]
    drift: float
    variance: float
    gradient_noise: float
    direction: float
    steps: int
    zeroed: int


def step_size(plan: ReleasePlan, mechanism: MechanismPlan, direction: float) -> float:
    """Largest ``eta <= eta_0`` whose expected squared drift stays within the drift budget (errata E19, E20).

    The bound is ``eta^2 (tau^2 direction + tau C^2 / (q N_i) + tau p (sigma C / (q N_i))^2)``, with the
    gradient variance at its bound ``C^2``.

    Parameters
    ----------
    plan, mechanism
        Public plan and the mechanism it binds for this silo.
    direction : float
        Last privatised ``||g_bar_i - c_i + c||^2`` without noise energy; 0 before the first.
    """
    if plan.drift_budget == 0 or not plan.adaptive_step:
        return plan.step_size
    noise = plan.parameters * (mechanism.noise_stddev / mechanism.divisor) ** 2
    bound = plan.steps**2 * direction + plan.steps * (plan.clip_norm**2 / mechanism.divisor + noise)
    return min(plan.step_size, math.sqrt(plan.drift_budget / bound))


def train_locally(
    model: PerExampleModel,
    features: NDArray[np.float32],
    targets: NDArray[np.float32],
    plan: ReleasePlan,
    mechanism: MechanismPlan,
    point: NDArray[np.float32],
    correction: NDArray[np.float32],
    eta: float,
    stream: RandomStream,
    looks: MechanismPlan | None = None,
) -> LocalUpdate:
    """Run up to ``tau`` private steps from ``y``, then backtrack if the plan has looks for it.

    Guarantee: the output is a post-processing of at most ``tau`` Poisson-subsampled Gaussian mechanisms with
    the parameters of ``mechanism``, and of at most ``looks.steps`` with those of ``looks`` (adjacency: one record
    replaced by the null record).

    Parameters
    ----------
    model
        Gives per-example clipped gradient sums.
    features, targets : ndarray of float32, shapes (n, d) and (n,)
        The silo's training split.
    plan, mechanism
        Public plan of the epoch and its mechanism for this silo.
    point : ndarray of float32, shape (p,)
        Broadcast ``y``.
    correction : ndarray of float32, shape (p,)
        ``gain (c - c_i)``, or with the plan's ``momentum`` (MIME) that share of the server's momentum; the gradient
        then has the remaining share.
    eta : float
        Step size from `step_size`.
    stream : RandomStream
        Source of Poisson sampling and noise.
    looks : MechanismPlan, optional
        Private looks at the mean loss difference that the length of the update may depend on (errata E8).
    """
    anchor = torch.from_numpy(point)
    shift = torch.from_numpy(correction)
    weights = anchor
    move = torch.zeros_like(anchor)
    gradients = torch.zeros(plan.parameters, dtype=torch.float64)
    shrink, own = 1 / (1 + eta * plan.proximal), 1 - plan.momentum
    taken = zeroed = 0
    variances = []
    draws = drawn_ahead(model, len(features), mechanism, stream)
    for _ in range(plan.steps):
        gradient = private_gradient(model, weights, features, targets, mechanism, draws)
        zeroed += gradient.zeroed
        gradients += gradient.mean
        if gradient.variance is not None:
            variances.append(gradient.variance)
        move -= torch.add(shift, gradient.mean, alpha=own).mul_(eta)
        if shrink < 1:
            move *= shrink
        weights = anchor + move
        taken += 1
        if 0 < plan.drift_budget < _square(move):
            break

    shares = shrink ** np.arange(taken, 0, -1)
    length = plan.step_size * plan.steps if plan.normalised else eta * shares.sum()
    delta = move.double().numpy() * (length / (eta * shares.sum()))
    noise = plan.parameters * (mechanism.noise_stddev / mechanism.divisor) ** 2
    mean_gradient = (gradients / taken).numpy()
    direction = max(float(np.sum((own * mean_gradient + correction) ** 2)) - own**2 * noise / taken, 0.0)
    part = 1.0
    if looks is not None:
        wanted = eta * shares.sum() * direction
        part = _backtrack(model, features, targets, anchor, move, wanted, looks, stream)
    return LocalUpdate(
        delta=part * delta,
        noise_energy=(part * length * own) ** 2 * noise * float(np.sum(shares**2) / shares.sum() ** 2),
        mean_gradient=mean_gradient,
        drift=part**2 * _square(move),
        variance=float(np.mean(variances)) if variances else math.inf,
        gradient_noise=noise / taken,
        direction=direction,
        steps=taken,
        zeroed=zeroed,
    )


def _square(move: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(move, dtype=torch.float64)) ** 2


def _backtrack(
    model: PerExampleModel,
    features: NDArray[np.float32],
    targets: NDArray[np.float32],
    anchor: torch.Tensor,
    move: torch.Tensor,
    wanted: float,
    looks: MechanismPlan,
    stream: RandomStream,
) -> float:
    """Share of the move to keep: halved until the released loss falls by a quarter of what is wanted (eq. 22).

    Unlike the literal rule it uses the squared norm of the direction less its noise energy, and the loss of a fresh
    Poisson sample with noise (errata E8). Looks not taken are charged all the same.
    """
    part, once = 1.0, replace(looks, steps=1)
    for _ in range(looks.steps):
        after = anchor + part * move
        difference = private_mean_loss_difference(model, anchor, after, features, targets, once, stream)
        if difference <= -part * wanted / 4:
            break
        part /= 2
    return part
