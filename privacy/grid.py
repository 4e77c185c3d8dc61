"""The public grid a release lives on, so that its low bits say nothing (answer to Mironov 2012)."""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from privacy.checks import real, whole
from privacy.errors import PrivacyError
from privacy.randomness import RandomStream

_SHARE = 2.0**-13  # of the sensitivity that rounding to the grid may take
_FINEST = 2.0**-28  # of the noise: what the sampler's error analysis needs
_LARGEST_SHARE = 0.125
_EXACT = 2.0**52  # whole numbers below it are exact in float64, and so are their sums
_UP = 1.0 + 1e-12


@dataclass(frozen=True, slots=True)
class Grid:
    """Grid of step g for a vector of `dimensions` values: round(S / g) + rounded noise, in whole numbers.

    Guarantee: let f be a vector whose L2 norm moves by at most `clip_share` times the sensitivity between neighbours.
    Then round(f / g) moves by at most sensitivity / g, because rounding adds at most sqrt(dimensions) steps, and
    round(f / g) + round(N(0, (noise_stddev / g)^2 I)) = round(round(f / g) + N(0, (noise_stddev / g)^2 I)) is a
    post-processing of the Gaussian mechanism with that sensitivity and noise: every bound for the continuous
    mechanism (Renyi, privacy loss distribution, subsampled, adaptive, group) holds unchanged, for any adjacency (here
    one record replaced by the null record). Assumptions: the noise comes from `RandomStream.rounded_normal`, whole
    numbers stay below 2^52 (`check_range`), and the step depends on public numbers only.

    Attributes
    ----------
    step : float
        g, a power of two, so that scaling by it is exact.
    noise : float
        Standard deviation of the noise in steps, at most 2^29.
    clip_share : float
        What is left of the sensitivity for the values themselves, at least 7/8 and 1 - 2^-13 unless the noise is
        thousands of times the sensitivity.
    """

    step: float
    noise: float
    clip_share: float

    @classmethod
    def of(cls, sensitivity: float, noise_stddev: float, dimensions: int) -> Self:
        """Return the finest grid that costs 2^-13 of the sensitivity, coarser only if the noise is enormous.

        Guarantee, adjacency and assumptions: those of the class (rounding is post-processing).

        Parameters
        ----------
        sensitivity : float
            L2 sensitivity, above 0.
        noise_stddev : float
            Standard deviation of the noise, above 0, in the same unit.
        dimensions : int
            Values in the vector, at least 1.

        Raises
        ------
        PrivacyError
            If the noise is so large that no grid fits.
        """
        real("sensitivity", sensitivity, 0.0, low_open=True)
        real("noise_stddev", noise_stddev, 0.0, low_open=True)
        root = math.sqrt(whole("dimensions", dimensions, 1))
        step = 2.0 ** math.floor(math.log2(max(sensitivity * _SHARE / root, noise_stddev * _FINEST)))
        share = root * step / sensitivity * _UP
        if not 0 < share <= _LARGEST_SHARE:
            raise PrivacyError(
                f"noise_stddev = {noise_stddev:g} for sensitivity {sensitivity:g}: expected a ratio below "
                f"{_LARGEST_SHARE / root / _FINEST:.3g} at {dimensions} values; lower the noise multiplier"
            )
        return cls(step, noise_stddev / step, (1.0 - share) / _UP)

    def release(self, values: npt.NDArray[np.float64], stream: RandomStream) -> npt.NDArray[np.float64]:
        """Return `values` rounded to the grid plus rounded normal noise; every result is a multiple of `step`.

        Guarantee, adjacency and assumptions: those of the class. Scaling by a power of two and adding whole numbers
        below 2^52 are exact in float64, so the result is a function of the noisy whole numbers only.

        Parameters
        ----------
        values : ndarray of float64
            Finite, within the range of `check_range`. **Private.**
        stream : RandomStream
            Source of the noise.
        """
        whole_steps = stream.rounded_normal(len(values), self.noise)
        whole_steps += np.rint(values / self.step)
        whole_steps *= self.step
        return whole_steps

    def check_range(self, norm: float) -> None:
        """Refuse a vector whose largest possible norm leaves the range of exact whole numbers.

        No guarantee of its own (adjacency does not enter): it keeps the assumption of the class. `norm` must be a
        public bound, such as the number of records times the clip.
        """
        if not norm / self.step < _EXACT:
            raise PrivacyError(f"a sum of norm up to {norm:g} on a grid of step {self.step:g}: too many records")
