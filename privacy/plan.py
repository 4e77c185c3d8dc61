"""One frozen object holds sampler, clip, noise, divisor and accounting event, so that they cannot disagree."""

import math
from dataclasses import dataclass
from typing import Any

from privacy.checks import real, whole
from privacy.grid import Grid


@dataclass(frozen=True, slots=True)
class MechanismPlan:
    """A DP-SGD contribution of `steps` Poisson-subsampled Gaussian releases (paper eq. 13; Abadi et al. 2016).

    Guarantee: a contribution executed as planned costs at most `rdp(order)` for the adjacency "one record is replaced
    by a null record with zero gradient" (E25). Assumptions: each record enters each step independently with
    probability `sampling_rate`, per-example gradients are clipped to `clip_norm`, the noise is N(0, noise_stddev^2 I)
    on their sum, and the sum is divided by the public constant `divisor`, never by a realised batch size. With a
    `variance_scale` the sum has one coordinate more, the squared norms of the clipped gradients, and the noise is
    relative to the sensitivity of both together (E9).

    Parameters
    ----------
    sampling_rate : float
        q, in (0, 1].
    clip_norm : float
        C, above 0.
    noise_multiplier : float
        sigma, above 0.
    steps : int
        tau, at least 1.
    records : int
        N_i, the number of records frozen at enrolment (or its public bucket), at least 1.
    variance_scale : float
        s C, the weight of the squared norms in units of 1 / C, so that its price does not depend on the clip: the
        noise variance grows by the factor 1 + variance_scale^2. 0 (the default) is off.
    """

    sampling_rate: float
    clip_norm: float
    noise_multiplier: float
    steps: int
    records: int
    variance_scale: float = 0.0

    def __post_init__(self) -> None:
        """Validate by field name."""
        object.__setattr__(self, "sampling_rate", real("sampling_rate", self.sampling_rate, 0.0, 1.0, low_open=True))
        object.__setattr__(self, "clip_norm", real("clip_norm", self.clip_norm, 0.0, low_open=True))
        object.__setattr__(
            self, "noise_multiplier", real("noise_multiplier", self.noise_multiplier, 0.0, low_open=True)
        )
        object.__setattr__(self, "steps", whole("steps", self.steps, 1))
        object.__setattr__(self, "records", whole("records", self.records, 1))
        object.__setattr__(self, "variance_scale", real("variance_scale", self.variance_scale, 0.0))

    @property
    def divisor(self) -> float:
        """The public constant q N_i. Dividing by it is post-processing for the null-record adjacency (E25)."""
        return self.sampling_rate * self.records

    @property
    def sensitivity(self) -> float:
        """C' = sqrt(C^2 + s^2 C^4) = C sqrt(1 + variance_scale^2), the L2 sensitivity of the noised sum.

        Guarantee: (clipped gradient, s times its squared norm) has norm at most C', because the second part is at
        most s C^2; so the sum moves by at most C' when one record is replaced by the null record (E9).
        """
        return self.clip_norm * math.hypot(1.0, self.variance_scale)

    @property
    def noise_stddev(self) -> float:
        """Noise sigma C' on the sum (paper eq. 13, E9), whose L2 sensitivity is C' for the null-record adjacency."""
        return self.noise_multiplier * self.sensitivity

    @property
    def square_weight(self) -> float:
        """s, the factor on the squared norms: variance_scale / C. No guarantee of its own."""
        return self.variance_scale / self.clip_norm

    def grid(self, parameters: int, records: int) -> Grid:
        """Return the public grid of a release.

        Guarantee and assumptions: see `Grid`. Its noise is larger than `noise_stddev` by what rounding may add to the
        sensitivity, at most 2^-10 of it unless sigma is in the thousands.

        Parameters
        ----------
        parameters : int
            p, values of a gradient.
        records : int
            Number of records the sum may run over; public (E25).
        """
        dimensions = parameters + (self.variance_scale > 0)
        return Grid.of(self.sensitivity, self.noise_multiplier, dimensions, records * self.sensitivity)

    def event(self) -> Any:
        """Return the accounting event of one contribution.

        Guarantee: composing this event under `NeighboringRelation.REPLACE_SPECIAL` (one record replaced by the null
        record) accounts for a contribution executed as planned; assumptions as for the class. Mironov, Talwar and Zhang
        2019 (sampled Gaussian mechanism), self-composed `steps` times.

        Returns
        -------
        dp_accounting.SelfComposedDpEvent
            `steps` times PoissonSampled(q, Gaussian(sigma)).
        """
        from privacy.event import sampled_gaussian_event

        return sampled_gaussian_event(self.sampling_rate, self.noise_multiplier, self.steps)

    def rdp(self, order: float) -> float:
        """Renyi cost of one contribution at one order; cached per process.

        Guarantee: the Renyi divergence at `order` between the outputs on two data sets that differ in one record
        replaced by the null record is at most the returned value, in both directions; assumptions as for the class.
        Mironov, Talwar and Zhang 2019, composed by Mironov 2017, proposition 1.

        Parameters
        ----------
        order : float
            Renyi order, above 1.

        Returns
        -------
        float
            The cost; infinite where the accountant has no bound.
        """
        from privacy.accounting import rdp_at

        return rdp_at(self.sampling_rate, self.noise_multiplier, self.steps, order)
