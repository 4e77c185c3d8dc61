"""The sampled Gaussian mechanism at integer orders, in plain arithmetic.

A silo charges its filter in a process that lives for one message; loading the accountant there would cost it seconds.
The audit recomputes the same figures with dp-accounting.
"""

import math

_UP = 1.0 + 1e-11  # above the float64 error of the logarithms of gamma, so that the bound stays one


def _log_sum(terms: list[float]) -> float:
    largest = max(terms)
    return largest + math.log(math.fsum(math.exp(term - largest) for term in terms))


def one_step(sampling_rate: float, noise_multiplier: float, order: int) -> float:
    """Renyi divergence of one Poisson-subsampled Gaussian release at an integer order.

    Guarantee: an upper bound, in both directions, for the adjacency "one record replaced by the null record" with
    noise sigma times the sensitivity. Assumptions: 0 < q <= 1, sigma > 0, order >= 2 (checked by the callers).
    Mironov, Talwar and Zhang 2019, section 3.3: (order - 1) D = log sum_i C(order, i) (1 - q)^(order - i) q^i
    exp((i^2 - i) / (2 sigma^2)). The binomial weights add up to 1, so the sum is 1 + sum over i >= 2 of weight
    (exp(...) - 1), which keeps full relative precision for costs near 0.

    Parameters
    ----------
    sampling_rate : float
        q in (0, 1].
    noise_multiplier : float
        sigma, above 0.
    order : int
        At least 2.

    Returns
    -------
    float
        The divergence.
    """
    variance = noise_multiplier**2
    if sampling_rate == 1:
        return order / (2 * variance)
    log_in, log_out = math.log(sampling_rate), math.log1p(-sampling_rate)
    terms = []
    for i in range(2, order + 1):
        weight = (
            math.lgamma(order + 1)
            - math.lgamma(i + 1)
            - math.lgamma(order - i + 1)
            + i * log_in
            + (order - i) * log_out
        )
        exponent = (i * i - i) / (2 * variance)
        # Both branches are log(exp(exponent) - 1); the first is exact near 0, the second does not overflow.
        excess = math.log(math.expm1(exponent)) if exponent < 1 else exponent + math.log1p(-math.exp(-exponent))
        terms.append(weight + excess)
    total = _log_sum(terms)
    log_moment = math.log1p(math.exp(total)) if total < 30 else total + math.exp(-total)
    return log_moment / (order - 1) * _UP
