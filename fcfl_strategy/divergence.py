"""Cross-silo dispersion from securely summed scalars (eq. 5 of the paper, errata E17)."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class MomentSums:
    """Sums over the contributors of one round; no per-silo value is among them.

    Attributes
    ----------
    weight : float
        ``S_1 = sum omega_i``.
    squared_norm : float
        ``S_D2 = sum omega_i ||Delta_i||^2``.
    noise_energy : float
        ``S_e = sum omega_i eps_i`` with ``eps_i = E||noise of Delta_i||^2``, known from the plan.
    weighted_noise_energy : float
        ``S_ee = sum omega_i^2 eps_i``.
    """

    weight: float
    squared_norm: float
    noise_energy: float
    weighted_noise_energy: float


def divergence(sums: MomentSums, update_squared_norm: float, step_length: float) -> float:
    """Estimate ``D = sum_i omega_i ||g_i - g||^2 / sum_i omega_i`` without its noise energy.

    ``E[S_D2/S_1 - ||u||^2]`` holds the noise energy ``S_e/S_1 - S_ee/S_1^2`` besides the dispersion
    of the means: the second term because ``||u||^2`` carries the noise of the mean itself.

    Parameters
    ----------
    sums : MomentSums
    update_squared_norm : float
        ``||u||^2``.
    step_length : float
        ``tau eta``, the length that turns a mean gradient into ``Delta``.

    Returns
    -------
    float
        At least 0. With drift control on it is the dispersion of the corrected directions.
    """
    noise = sums.noise_energy / sums.weight - sums.weighted_noise_energy / sums.weight**2
    dispersion = sums.squared_norm / sums.weight - update_squared_norm - noise
    return max(dispersion, 0.0) / step_length**2


def update_noise_variance(sums: MomentSums, parameters: int) -> float:
    """Known privacy-noise variance of one coordinate of ``u``: ``sum omega_i^2 eps_i / (p S_1^2)`` (E4)."""
    return sums.weighted_noise_energy / (parameters * sums.weight**2)


def difference_noise(noise: float, records: Iterable[int]) -> float:
    """Noise energy of ``c - c_i``, weighted mean over the silos, from that of ``c_i``.

    ``c`` holds the part ``p_i = N_i / sum N`` of the noise of ``c_i``, so the mean is ``sum p_i (1 - p_i) V_i`` instead
    of ``sum p_i V_i``. With the energies ``V_i`` in proportion to ``1 / N_i^2``, as a public sampling rate makes them,
    that is less by the factor ``1 - N / (sum N_i sum 1 / N_i)``.

    Parameters
    ----------
    noise : float
        ``sum p_i V_i``.
    records : iterable of int
        ``N_i`` of every enrolled silo.
    """
    counts = tuple(records)
    return noise * (1 - len(counts) / (sum(counts) * sum(1 / count for count in counts)))


def control_gain(spread: float, noise: float) -> float:
    """Gain of the correction ``c - c_i`` by its signal to noise: ``D / (D + V)``.

    ``c - c_i`` estimates ``grad F - grad F_i`` with privacy noise of known energy ``V``. The mean squared error of
    ``gamma (c - c_i)`` is ``(1 - gamma)^2 D + gamma^2 V`` with ``D`` the dispersion of the gradients, and least at
    ``gamma = D / (D + V)``. What is measured is ``D + V``, so the gain is ``1 - V / (D + V)``, at least 0: the
    shrinkage of James and Stein. One gain for all silos, because then the corrections still add up to zero.

    Parameters
    ----------
    spread : float
        Weighted mean of ``||c - c_i||^2``, from released values only.
    noise : float
        Privacy-noise energy of ``c - c_i``; see `difference_noise`.
    """
    if spread <= 0:
        return 0.0
    return min(max(1 - noise / spread, 0.0), 1.0)
