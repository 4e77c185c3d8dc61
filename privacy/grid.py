"""The public grid a release lives on, so that its low bits say nothing (answer to Mironov 2012)."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np
import numpy.typing as npt

from privacy.ahead import Draws
from privacy.checks import real, whole
from privacy.errors import PrivacyError

_SHARE = 2.0**-10  # of the sensitivity that rounding to the grid may add
_FINE = 2.0**-19  # of the sensitivity: noise of up to 8 times it takes 32 random bits a value
_FLOOR = 0.25  # of the noise: a step is never much longer than the noise
_COARSE = 2.0**-28  # of the noise: what the sampler's bits allow
_EXACT = 2.0**51  # whole numbers up to here, and their sum with the noise, are exact in float64
_LARGEST_SHARE = 0.125
_UP = 1.0 + 1e-12


@dataclass(frozen=True, slots=True)
class Grid:
    """Grid of step g for a vector of d values: round(f / g) + rounded noise, in whole numbers.

    Guarantee: let f be a vector with L2 sensitivity D. Then g round(f / g) has sensitivity at most D + sqrt(d) g,
    because rounding moves a value by at most half a step, and the noise is `noise_multiplier` times **that**. Since
    round(f / g) is whole, round(f / g) + round(N(0, s^2 I)) = round(round(f / g) + N(0, s^2 I)): a post-processing of
    the Gaussian mechanism with that noise multiplier. So every bound for the continuous mechanism (Renyi, privacy
    loss distribution, subsampled, adaptive, group) holds unchanged, for any adjacency (here one record replaced by
    the null record). Assumptions: the noise comes from `RandomStream.rounded_normal`, no value of f is above the norm
    given to `of`, and that norm is public as all other numbers that determine the step.

    Attributes
    ----------
    step : float
        g, a power of two, so that scaling by it is exact.
    noise : float
        Standard deviation of the noise in steps.
    """

    step: float
    noise: float

    @classmethod
    @lru_cache(maxsize=16, typed=True)
    def of(cls, sensitivity: float, noise_multiplier: float, dimensions: int, norm: float) -> Self:
        """Return the grid of a vector.

        Guarantee, adjacency and assumptions: those of the class. The step is 2^-19 of the sensitivity, finer if
        sqrt(d) steps would pass 2^-10 of it or the noise is tiny, coarser if the noise is enormous or whole numbers
        would become inexact.

        Parameters
        ----------
        sensitivity : float
            D, above 0.
        noise_multiplier : float
            Noise in units of the sensitivity, above 0.
        dimensions : int
            d, at least 1.
        norm : float
            Public bound on the values, such as the number of records times the clip; at least 0.

        Raises
        ------
        PrivacyError
            If no step fits.
        """
        real("sensitivity", sensitivity, 0.0, low_open=True)
        real("noise_multiplier", noise_multiplier, 0.0, low_open=True)
        real("norm", norm, 0.0)
        root = math.sqrt(whole("dimensions", dimensions, 1))
        fine = min(_FINE, _SHARE / root, _FLOOR * noise_multiplier)
        longest = max(sensitivity * max(fine, _COARSE * noise_multiplier), norm / _EXACT)
        step = 2.0 ** math.floor(math.log2(longest))
        if step < norm / _EXACT:
            step *= 2.0
        share = root * step / sensitivity
        if not share <= _LARGEST_SHARE:
            raise PrivacyError(
                f"noise_multiplier = {noise_multiplier:g}, {dimensions} values of up to {norm:g} for sensitivity "
                f"{sensitivity:g}: rounding would cost {share:.2g} of it; lower the noise multiplier"
            )
        return cls(step, noise_multiplier * sensitivity * (1.0 + share) * _UP / step)

    @property
    def noise_stddev(self) -> float:
        """Standard deviation of the noise: the multiplier times (D + sqrt(d) g), at most 9/8 of that times D."""
        return self.noise * self.step

    def release(
        self, values: npt.NDArray[np.float32] | npt.NDArray[np.float64], stream: Draws, divisor: float = 1.0
    ) -> npt.NDArray[np.float64]:
        """Return `values` rounded to the grid plus rounded normal noise, over a public divisor.

        Guarantee, adjacency and assumptions: those of the class. Scaling by a power of two and adding whole numbers
        below 2^53 are exact in float64, so the result is a function of the noisy whole numbers only; without a divisor
        it is a multiple of `step`. So they are in float32, where a value below the normal range rounds to 0.

        Parameters
        ----------
        values : ndarray of float32 or float64
            Finite, none above the norm the grid was made for. **Private.**
        stream : Draws
            Source of the noise: a `RandomStream` or what was drawn ahead from one.
        divisor : float
            Public.
        """
        whole_steps = values * values.dtype.type(1.0 / self.step)
        np.rint(whole_steps, out=whole_steps)
        noisy = stream.rounded_normal(len(values), self.noise)
        noisy += whole_steps
        noisy *= self.step / divisor
        return noisy
