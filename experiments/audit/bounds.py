"""From guesses about canaries to lower bounds on epsilon. Pure arithmetic; every bound has a stated confidence."""

import math
from collections.abc import Callable

import numpy as np
from scipy import optimize, stats  # type: ignore[import-untyped]

LARGEST = 50.0
"""Bounds above this are reported as this."""


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Chance of at least `correct` right guesses if the mechanism is (epsilon, delta)-DP, or a bound on it.

    Steinke, Nasr and Jagielski 2023, theorem 5.2 with a fixed number of guesses (their corollary 5.4 and the program
    of their appendix D). With W ~ Binomial(guesses, e^eps / (1 + e^eps)) the chance is at most
    P[W >= v] + 2 m delta max_i P[v > W >= v - i] / i. The mechanism must be DP for the inclusion bit of every single
    canary, whatever the others: here "the canary is replaced by the null record".

    Parameters
    ----------
    canaries : int
        m, each included independently with probability 1/2.
    guesses : int
        r, fixed before the outputs are seen; the others are abstentions.
    correct : int
        v.
    epsilon, delta : float
        The hypothesis.
    """
    if not 0 <= correct <= guesses <= canaries:
        raise ValueError(f"{correct} correct of {guesses} guesses on {canaries} canaries: expected an ascending order")
    if epsilon < 0 or not 0 <= delta <= 1:
        raise ValueError(f"epsilon = {epsilon}, delta = {delta}: expected epsilon >= 0 and delta in [0, 1]")
    chance = 1.0 / (1.0 + math.exp(-epsilon))
    tail = float(stats.binom.sf(correct - 1, guesses, chance))
    slack = 0.0
    if delta > 0 and correct > 0:
        below = np.cumsum(stats.binom.pmf(np.arange(correct - 1, -1, -1), guesses, chance))  # P[v > W >= v - i]
        slack = float(np.max(below / np.arange(1, correct + 1)))
    return min(1.0, tail + 2.0 * canaries * delta * slack)


def _largest(rejected: Callable[[float], bool]) -> float:
    """Largest epsilon that is rejected, rounded down to 1e-6; 0 where none is."""
    if not rejected(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while rejected(high):
        if high >= LARGEST:
            return LARGEST
        low, high = high, min(LARGEST, 2.0 * high)
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low


def one_run(canaries: int, guesses: int, correct: int, delta: float, confidence: float = 0.95) -> float:
    """Lower bound on epsilon from one training run: the largest epsilon whose `p_value` is below 1 - confidence.

    Holds with the stated confidence over coins and mechanism, for guesses fixed in number beforehand.
    """
    return _largest(lambda epsilon: p_value(canaries, guesses, correct, epsilon, delta) < 1.0 - confidence)


def rates(hits: int, present: int, alarms: int, absent: int, confidence: float = 0.95) -> tuple[float, float]:
    """Lower bound on the true, upper bound on the false positive rate, jointly (Clopper and Pearson 1934, halved)."""
    error = (1.0 - confidence) / 2
    true_rate = float(stats.beta.ppf(error, hits, present - hits + 1)) if hits > 0 else 0.0
    false_rate = float(stats.beta.ppf(1 - error, alarms + 1, absent - alarms)) if alarms < absent else 1.0
    return true_rate, false_rate


def two_world(hits: int, present: int, alarms: int, absent: int, delta: float, confidence: float = 0.95) -> float:
    """Lower bound on epsilon from independent runs with and without one canary, for a test fixed beforehand.

    (epsilon, delta)-DP needs TPR <= e^eps FPR + delta and TNR <= e^eps FNR + delta (Kairouz, Oh and Viswanath 2015;
    used for audits by Jagielski, Ullman and Oprea 2020 and Nasr et al. 2021).

    Parameters
    ----------
    hits, present : int
        Runs with the canary in which the test said so, of how many.
    alarms, absent : int
        Runs without it in which the test said it was there, of how many.
    delta, confidence : float
        As for the claim.
    """
    true_rate, false_rate = rates(hits, present, alarms, absent, confidence)
    bounds = [0.0]
    for gain, cost in ((true_rate, false_rate), (1 - false_rate, 1 - true_rate)):
        if gain > delta:
            bounds.append(math.log((gain - delta) / cost) if cost > 0 else LARGEST)
    return min(LARGEST, max(bounds))


def gaussian_mu(hits: int, present: int, alarms: int, absent: int, confidence: float = 0.95) -> float:
    """Lower bound on mu if the mechanism is mu-GDP: the trade-off curve of N(0, 1) against N(mu, 1) (Dong et al. 2022).

    Much stronger than `two_world` and only for releases without subsampling, which are exactly Gaussian (Nasr et al.
    2023, "Tight auditing").
    """
    true_rate, false_rate = rates(hits, present, alarms, absent, confidence)
    if true_rate <= 0 or false_rate >= 1:
        return 0.0
    return max(0.0, float(stats.norm.ppf(true_rate) - stats.norm.ppf(false_rate)))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Epsilon of a mu-GDP mechanism at delta (Balle and Wang 2018, theorem 8)."""
    if mu <= 0:
        return 0.0

    def excess(epsilon: float) -> float:
        log_second = epsilon + float(stats.norm.logcdf(-epsilon / mu - mu / 2))
        return float(stats.norm.cdf(-epsilon / mu + mu / 2)) - math.exp(log_second) - delta

    if excess(0.0) <= 0:
        return 0.0
    return float(optimize.brentq(excess, 0.0, mu * mu / 2 + mu * 40.0))
