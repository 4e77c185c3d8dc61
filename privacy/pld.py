"""Epsilon through the privacy loss distribution: tighter than Renyi, but only for runs that did not adapt."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from privacy.checks import real, whole
from privacy.event import sampled_gaussian_event, validate

_FINEST, _POINTS, _ROUGH_POINTS = 1e-3, 5000, 10**6


def epsilon_pld(
    sampling_rate: float, noise_multiplier: float, steps: int, delta: float, discretization: float = 1e-3
) -> float:
    """Epsilon of `steps` Poisson-subsampled Gaussian releases, through the privacy loss distribution.

    Guarantee: the releases together are (returned epsilon, delta)-DP for the adjacency "one record replaced by the
    null record" (pessimistic discretisation). Assumptions: as for `MechanismPlan`, and q, sigma and `steps` do
    **not** depend on outputs (or are at their planned maximum): never valid for a run that a filter stopped. Sommer
    et al. 2019; Koskela et al. 2020; Doroshenko et al. 2022, through dp-accounting.

    Parameters
    ----------
    sampling_rate : float
        q in (0, 1].
    noise_multiplier : float
        sigma, above 0.
    steps : int
        At least 1.
    delta : float
        In (0, 1).
    discretization : float
        Width of the grid of the privacy loss.

    Returns
    -------
    float
        Epsilon.
    """
    return _pld(sampled_gaussian_event(sampling_rate, noise_multiplier, steps), delta, discretization)


def epsilon_of_releases(
    releases: Mapping[tuple[float, float], int], delta: float, discretization: float = 1e-3
) -> float:
    """Epsilon of Poisson-subsampled Gaussian releases of several kinds, through the privacy loss distribution.

    Guarantee, adjacency (one record replaced by the null record), assumptions and theorems: those of `epsilon_pld`.

    Parameters
    ----------
    releases : mapping
        Number of releases by (sampling rate, noise multiplier); may be empty.
    delta : float
        In (0, 1).
    discretization : float
        Width of the grid of the privacy loss.
    """
    import dp_accounting

    if not releases:
        return 0.0
    events = [sampled_gaussian_event(rate, noise, count) for (rate, noise), count in releases.items()]
    return _pld(dp_accounting.ComposedDpEvent(events), delta, discretization)


def epsilon_group(
    sampling_rate: float,
    noise_multiplier: float,
    steps: int,
    delta: float,
    group: int,
    discretization: float | None = None,
    unsampled: Sequence[float] = (),
) -> float:
    """Epsilon for `group` records that change together, such as all windows that contain one price (E23).

    Guarantee: the releases together are (returned epsilon, delta)-DP for the adjacency "`group` records are replaced
    by null records". Assumptions: as for `epsilon_pld`; each record moves the sum by at most C, so j sampled records
    move it by at most j C and the pair is dominated by a mixture of Gaussians with means j C, j ~ Binomial(group, q).
    Schuchardt et al. 2024; dp-accounting's `MixtureOfGaussiansDpEvent`.

    Parameters
    ----------
    sampling_rate : float
        q in (0, 1].
    noise_multiplier : float
        sigma, above 0.
    steps : int
        At least 1.
    delta : float
        In (0, 1).
    group : int
        Number of records, at least 1.
    discretization : float, optional
        Width of the grid of the privacy loss. By default as fine as a second of work allows: a first, coarse pass
        says how large epsilon is, and the second uses 1/5000 of it, at least 1e-3. Every width gives an upper bound,
        so the smaller of the two is one.
    unsampled : sequence of float
        Noise multipliers of further releases over all records, without sampling: there the group moves the sum by at
        most `group` times C, so each is a Gaussian mechanism with a `group`-th of the noise.

    Returns
    -------
    float
        Epsilon.
    """
    import dp_accounting
    from scipy import stats  # type: ignore[import-untyped]

    validate(sampling_rate, noise_multiplier, steps)
    whole("group", group, 1)
    moved = np.arange(group + 1)
    chance = stats.binom.pmf(moved, group, sampling_rate)
    kept = chance > 0
    mixture = dp_accounting.dp_event.MixtureOfGaussiansDpEvent(
        noise_multiplier, moved[kept].astype(float).tolist(), (chance[kept] / chance[kept].sum()).tolist()
    )
    further = [dp_accounting.GaussianDpEvent(noise / group) for noise in unsampled]
    event = dp_accounting.ComposedDpEvent([dp_accounting.SelfComposedDpEvent(mixture, steps), *further])
    if discretization is not None:
        return _pld(event, delta, discretization)
    # About the loss without sampling.
    largest = (steps / noise_multiplier**2 + sum(1 / noise**2 for noise in unsampled)) * group**2 / 2
    rough = _pld(event, delta, max(1.0, largest / _ROUGH_POINTS))
    return min(rough, _pld(event, delta, max(_FINEST, rough / _POINTS)))


def _pld(event: Any, delta: float, discretization: float) -> float:
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    real("delta", delta, 0.0, 1.0, low_open=True, high_open=True)
    real("discretization", discretization, 0.0, low_open=True)
    accountant = PLDAccountant(
        dp_accounting.NeighboringRelation.REPLACE_SPECIAL, value_discretization_interval=discretization
    )
    accountant.compose(event)
    return float(accountant.get_epsilon(delta))
