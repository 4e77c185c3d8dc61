"""Errata E17 and E4 by Monte Carlo."""

import numpy as np
import pytest

from fcfl_strategy.divergence import MomentSums, divergence, update_noise_variance

SILOS, PARAMETERS, LENGTH = 8, 1500, 2.5
RNG = np.random.default_rng(20)
WEIGHTS = RNG.uniform(50.0, 400.0, SILOS)
MEANS = RNG.standard_normal((SILOS, PARAMETERS)) * np.sqrt(0.31 / PARAMETERS)
NOISE = RNG.uniform(0.01, 0.04, SILOS)


def truth() -> float:
    """D of the means g_i themselves, weighted, without noise."""
    share = WEIGHTS / WEIGHTS.sum()
    mean = share @ MEANS
    return float(share @ np.sum((MEANS - mean) ** 2, axis=1))


def draw(rng: np.random.Generator) -> tuple[MomentSums, float]:
    """The sums and ||u||^2 of one round: Delta_i = tau eta g_i plus noise whose energy eps_i is known."""
    noise = rng.standard_normal((SILOS, PARAMETERS)) * NOISE[:, None]
    deltas = LENGTH * (MEANS + noise)
    energy = LENGTH**2 * PARAMETERS * NOISE**2
    mean = WEIGHTS @ deltas / WEIGHTS.sum()
    sums = MomentSums(
        weight=float(WEIGHTS.sum()),
        squared_norm=float(WEIGHTS @ np.sum(deltas**2, axis=1)),
        noise_energy=float(WEIGHTS @ energy),
        weighted_noise_energy=float(WEIGHTS**2 @ energy),
    )
    return sums, float(mean @ mean)


@pytest.fixture(scope="module")
def rounds() -> list[tuple[MomentSums, float]]:
    rng = np.random.default_rng(21)
    return [draw(rng) for _ in range(400)]


def test_the_corrected_estimate_is_unbiased(rounds: list[tuple[MomentSums, float]]) -> None:
    found = np.array([divergence(sums, squared, LENGTH) for sums, squared in rounds])
    error = found.std() / np.sqrt(len(found))
    assert found.mean() == pytest.approx(truth(), abs=4 * error)
    assert error < 0.02 * truth()


def test_subtracting_only_the_mean_noise_energy_is_biased(rounds: list[tuple[MomentSums, float]]) -> None:
    found = np.array(
        [(s.squared_norm / s.weight - squared - s.noise_energy / s.weight) / LENGTH**2 for s, squared in rounds]
    )
    error = found.std() / np.sqrt(len(found))
    missing = rounds[0][0].weighted_noise_energy / rounds[0][0].weight ** 2 / LENGTH**2
    assert found.mean() < truth() - 10 * error
    assert found.mean() == pytest.approx(truth() - missing, abs=4 * error)


def test_equation_5_is_dominated_by_noise(rounds: list[tuple[MomentSums, float]]) -> None:
    found = np.mean([(s.squared_norm / s.weight - squared) / LENGTH**2 for s, squared in rounds])
    assert found > 3 * truth()


def test_it_is_never_negative() -> None:
    assert divergence(MomentSums(2.0, 1.0, 10.0, 1.0), 0.2, 1.0) == 0.0


def test_silos_that_agree_show_none() -> None:
    sums = MomentSums(weight=5.0, squared_norm=5.0 * 4.0, noise_energy=0.0, weighted_noise_energy=0.0)
    assert divergence(sums, 4.0, 2.5) == 0.0


def test_the_known_noise_variance_is_that_of_a_coordinate_of_the_mean_update() -> None:
    rng = np.random.default_rng(22)
    share = WEIGHTS / WEIGHTS.sum()
    sums, _ = draw(rng)
    noise = rng.standard_normal((60, SILOS, PARAMETERS)) * NOISE[:, None] * LENGTH
    means = np.einsum("i,kij->kj", share, noise)
    assert update_noise_variance(sums, PARAMETERS) == pytest.approx(float(means.var()), rel=0.03)
