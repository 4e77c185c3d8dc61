"""The accounting event of the mechanism, for dp-accounting."""

from typing import Any

from privacy.checks import real, whole


def validate(sampling_rate: float, noise_multiplier: float, steps: int) -> None:
    """Refuse values outside the theorems by name. No guarantee of its own; adjacency does not enter."""
    real("sampling_rate", sampling_rate, 0.0, 1.0, low_open=True)
    real("noise_multiplier", noise_multiplier, 0.0, low_open=True)
    whole("steps", steps, 1)


def sampled_gaussian_event(sampling_rate: float, noise_multiplier: float, steps: int) -> Any:
    """Accounting event of `steps` Poisson-subsampled Gaussian releases.

    Guarantee: under `NeighboringRelation.REPLACE_SPECIAL` (one record replaced by the null record) the event
    dominates the mechanism of `privacy.dpsgd`. Assumptions: as for `MechanismPlan`. Mironov, Talwar and Zhang 2019.

    Parameters
    ----------
    sampling_rate : float
        q in (0, 1].
    noise_multiplier : float
        sigma, above 0.
    steps : int
        At least 1.

    Returns
    -------
    dp_accounting.SelfComposedDpEvent
        The event.
    """
    import dp_accounting

    validate(sampling_rate, noise_multiplier, steps)
    gaussian = dp_accounting.GaussianDpEvent(noise_multiplier)
    return dp_accounting.SelfComposedDpEvent(dp_accounting.PoissonSampledDpEvent(sampling_rate, gaussian), steps)
