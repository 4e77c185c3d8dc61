"""The silo as unit of privacy (paper algorithm 2, E5, E6): one clipped, noised update a round."""

import math
from dataclasses import dataclass
from typing import Literal, Self, get_args

import numpy as np
import numpy.typing as npt

from privacy.checks import real
from privacy.errors import PrivacyError
from privacy.grid import Grid
from privacy.plan import MechanismPlan
from privacy.randomness import RandomStream
from privacy.records import SILO_REPLACE_ADJACENCY, SILO_ZERO_ADJACENCY

Neighbour = Literal["zero", "replace"]
PURPOSE = "silo update"
_ADJACENCY: dict[Neighbour, str] = {"zero": SILO_ZERO_ADJACENCY, "replace": SILO_REPLACE_ADJACENCY}
_DOWN = 1.0 - 1e-12


@dataclass(frozen=True, slots=True)
class SiloPlan:
    """One release of a whole silo: clip_C(Delta) + N(0, sigma^2 C^2 I).

    Guarantee: one round costs what `mechanism` costs, a Gaussian mechanism with noise sigma C over the sensitivity of
    the adjacency: C if the silo is replaced by zero, 2 C if it is replaced by another silo. Assumptions: what leaves
    the silo in the round is this release and numbers that depend on nothing private (drift control off, weight 1,
    participation uniform and independent of data, E6). No amplification is claimed, neither by sampling records, which
    protects records only, nor by drawing silos, which the server sees (E13). Dwork and Roth 2014, theorem A.1;
    Mironov 2017, corollary 3.

    Parameters
    ----------
    clip_norm : float
        C, above 0.
    noise_multiplier : float
        sigma, above 0, in units of C whatever the adjacency.
    neighbour : {"zero", "replace"}
        What a neighbouring federation has in the silo's place.
    """

    clip_norm: float
    noise_multiplier: float
    neighbour: Neighbour = "zero"

    @classmethod
    def of(cls, clip_norm: float, noise_multiplier: float, adjacency: str) -> Self:
        """Return the plan with a noise multiplier in units of the **sensitivity** of an adjacency of the ledger.

        Guarantee, adjacency and assumptions: those of the class.
        """
        neighbour = next((n for n, text in _ADJACENCY.items() if text == adjacency), None)
        if neighbour is None:
            raise PrivacyError(f"adjacency = {adjacency!r}: expected one of {', '.join(_ADJACENCY.values())}")
        return cls(clip_norm, noise_multiplier * (2.0 if neighbour == "replace" else 1.0), neighbour)

    def __post_init__(self) -> None:
        """Validate by field name."""
        real("clip_norm", self.clip_norm, 0.0, low_open=True)
        real("noise_multiplier", self.noise_multiplier, 0.0, low_open=True)
        if self.neighbour not in get_args(Neighbour):
            raise PrivacyError(f'neighbour = {self.neighbour!r}: expected "zero" or "replace"')

    @property
    def adjacency(self) -> str:
        """The adjacency as the ledger writes it; no guarantee of its own."""
        return _ADJACENCY[self.neighbour]

    @property
    def sensitivity(self) -> float:
        """C if a neighbour has zero in the silo's place, 2 C if it has another silo."""
        return self.clip_norm * (2.0 if self.neighbour == "replace" else 1.0)

    @property
    def noise_stddev(self) -> float:
        """Noise in every coordinate: sigma C."""
        return self.noise_multiplier * self.clip_norm

    @property
    def mechanism(self) -> MechanismPlan:
        """The plan to charge and to write to the ledger: no sampling, one step, noise relative to the sensitivity.

        Guarantee, adjacency and assumptions: those of the class. Its own words speak of a record; here that is the
        silo, and the run's `adjacency` in the ledger says so.
        """
        return MechanismPlan(1.0, self.clip_norm, self.noise_stddev / self.sensitivity, 1, 1)

    def noise_norm(self, parameters: int) -> float:
        """Expected norm of the noise, about sigma C sqrt(p), against a signal of norm at most C. A public number."""
        return self.noise_stddev * math.sqrt(parameters)


def clip_update(update: npt.NDArray[np.float64], clip_norm: float) -> npt.NDArray[np.float64]:
    """Return `update` scaled to an L2 norm of at most `clip_norm`; zero if any value is not finite. **Private.**

    Guarantee: the norm of the result is at most `clip_norm`, so it moves by at most C when the silo is replaced by
    zero and 2 C when it is replaced by another. Assumption: none, any float64 may occur.

    Parameters
    ----------
    update : ndarray of float64
        Delta.
    clip_norm : float
        C, above 0.
    """
    real("clip_norm", clip_norm, 0.0, low_open=True)
    largest = float(np.max(np.abs(update), initial=0.0))
    if not math.isfinite(largest) or largest == 0.0:
        return np.zeros_like(update)
    scaled = update / largest  # so that squares neither overflow nor vanish
    norm = float(np.linalg.norm(scaled))
    if norm * largest <= clip_norm * _DOWN:
        return update.copy()
    return np.asarray(scaled * (clip_norm * _DOWN / norm))


def release_update(update: npt.NDArray[np.float64], plan: SiloPlan, stream: RandomStream) -> npt.NDArray[np.float64]:
    """Make one release of a silo: its clipped update plus noise, on a public grid.

    Guarantee: the result is one release accounted by `plan.mechanism`, for the adjacency of the plan (one silo
    replaced by zero, or by another). Assumptions: those of `SiloPlan`; charged before it leaves; `stream` is not
    seeded. Paper algorithm 2, lines 5 to 8; floating point as in `Grid`.

    Parameters
    ----------
    update : ndarray of float64
        Delta, p values; a value that is not finite makes it zero.
    plan : SiloPlan
        Clip, noise and adjacency.
    stream : RandomStream
        Source of the noise.

    Returns
    -------
    ndarray of float64
        Noised update.
    """
    if update.ndim != 1 or update.dtype != np.float64:
        raise PrivacyError(f"update of shape {update.shape}, {update.dtype}: expected a float64 vector")
    grid = Grid.of(plan.sensitivity, plan.mechanism.noise_multiplier, len(update), plan.clip_norm)
    return grid.release(clip_update(update, plan.clip_norm), stream)
