"""Public linear coordinates in which a silo clips, adds noise and steps: the client metric (errata E28).

The parameters ``v`` of a run are coordinates of the network's weights ``w = P v`` with a public, invertible, block
diagonal ``P``. A per-example gradient in ``v`` is ``P^T`` times that in ``w``; it is clipped at ``C``, noised and
followed in ``v``, and the network sees the step times ``P``: the step of ``w`` is preconditioned by ``P P^T``, as
section 4.2's ``P^(-1/2)`` wants it, before the clip as in Algorithm 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from privacy.checks import real, whole

if TYPE_CHECKING:
    from privacy.mlp import Mlp

PROBES = 8192
"""Standard normal inputs that the second moments of the activations are taken over."""

MAX_EXPONENT = 10
"""Block scales lie in 2^-10 to 2^10, where float32 products with them are exact for all records that are not null."""


@dataclass(frozen=True)
class Metric:
    """Settings of ``P``. All of it is public and free of data.

    Guarantee: a run in these coordinates has the sensitivity of any other, because what is clipped is the gradient in
    ``v`` itself: replacing one record by the null record moves the clipped sum by at most C, whatever ``P`` is.
    Assumption: ``P`` does not depend on the records. It is a function of the layer sizes, these settings and the public
    seed.

    Attributes
    ----------
    exponents : tuple of int
        One for each linear map, the output last: ``P`` scales the map's weights and bias, and gain and shift of the
        normalisation behind it, by 2 to this power. Empty: all 0. Powers of two, because they round nothing.
    damping : float
        lambda of the right factors ``(A_l / lambda + I)^(-1/2)`` of all linear maps but the first, where ``A_l`` is the
        second moment of what enters map l when standard normal inputs pass through the initial model: the input
        factor of Kronecker-factored curvature (Martens and Grosse 2015) without data. Layers are normalised, so that
        the mean eigenvalue of ``A_l`` is 1. 0: no factors.
    seed : int
        Public seed of the initial model whose activations are measured.
    """

    exponents: tuple[int, ...] = ()
    damping: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Validate by field name."""
        for exponent in self.exponents:
            whole("metric.exponents", exponent, -MAX_EXPONENT, MAX_EXPONENT)
        real("metric.damping", self.damping, 0.0, 1e6)
        whole("metric.seed", self.seed, 0)

    @property
    def trivial(self) -> bool:
        """Whether ``P`` is the identity."""
        return not any(self.exponents) and self.damping == 0


WEIGHTS = Metric()
"""The identity: parameters are the weights themselves."""


@dataclass(frozen=True)
class Factors:
    """``P`` by layer.

    Attributes
    ----------
    scales : tuple of float
        One for each linear map and what follows it.
    right : tuple of ndarray of float64, each of shape (d_l, d_l), or None
        Symmetric factor of each linear map, on the side of its input; None is the identity.
    """

    scales: tuple[float, ...]
    right: tuple[npt.NDArray[np.float64] | None, ...]


@lru_cache(maxsize=8)
def factors_of(model: Mlp) -> Factors:
    """Return ``P`` of a model; a function of public settings (no data, so no privacy cost whatever the adjacency)."""
    metric, maps = model.metric, len(model.hidden) + 1
    scales = tuple(2.0**exponent for exponent in metric.exponents) or (1.0,) * maps
    if metric.damping == 0:
        return Factors(scales, (None,) * maps)
    from privacy.mlp_kernel import activations

    right: list[npt.NDArray[np.float64] | None] = [None]
    for entering in activations(model, metric.seed, PROBES)[1:]:
        moment = entering.T @ entering / len(entering)
        values, vectors = np.linalg.eigh(moment)
        right.append((vectors / np.sqrt(np.maximum(values, 0.0) / metric.damping + 1.0)) @ vectors.T)
    return Factors(scales, tuple(right))


def to_weights(model: Mlp, params: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """Return ``w = P v``, the weights of the plain network: post-processing of public or released ``params``.

    Guarantee, adjacency: those of `params`, of which it is a function. Assumption: float64 arithmetic.

    Parameters
    ----------
    model : Mlp
        The model with its metric.
    params : ndarray, shape (p,)
        ``v``.
    """
    return _through(model, params, inverse=False)


def from_weights(model: Mlp, weights: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """Return ``v = P^(-1) w``; guarantee, adjacency, assumption and parameters as for `to_weights`."""
    return _through(model, weights, inverse=True)


def _through(model: Mlp, vector: npt.NDArray[np.floating], *, inverse: bool) -> npt.NDArray[np.float64]:
    made, changed = factors_of(model), np.array(vector, dtype=np.float64)
    for index, block in enumerate(model.layout):
        of_map = min(index // 4, len(model.hidden))
        scale, right = made.scales[of_map], made.right[of_map]
        part: npt.NDArray[np.floating] = changed[block.span].reshape(block.shape)
        if right is not None and block.name.endswith(".weight"):
            part = np.linalg.solve(right, part.T).T if inverse else part @ right
        changed[block.span] = (part / scale if inverse else part * scale).reshape(-1)
    return changed
