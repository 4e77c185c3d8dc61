"""Rounded normals where float64 is too coarse to round them: as many digits and random bits as it takes to be sure."""

from collections.abc import Callable
from decimal import ROUND_FLOOR, Context, Decimal, localcontext
from functools import lru_cache

from privacy.errors import PrivacyError

_FIRST_BITS = 63  # bits of each uniform that the fast path has used
_MORE = 64
_ROUNDS = 16
_GUARD = 25  # decimal digits beyond the resolution of the uniforms


@lru_cache(maxsize=_ROUNDS)
def _quarter_turn(digits: int) -> Decimal:
    """Half of pi, by Machin's formula, to `digits` digits."""
    unit: int = 10 ** (digits + 10)

    def arctan_of_inverse(x: int) -> int:
        term, total, k = unit // x, unit // x, 1
        while term:
            term //= -x * x
            k += 2
            total += term // k
        return total

    with localcontext(Context(prec=digits + 15)):  # cached, so it must not depend on the caller's precision
        return Decimal(2 * (4 * arctan_of_inverse(5) - arctan_of_inverse(239))) / unit


def _cosine_and_sine(turns: Decimal, digits: int) -> tuple[Decimal, Decimal]:
    """Cosine and sine of 2 pi `turns`, by the series around the nearest quarter turn."""
    quarters = (4 * turns).to_integral_value()
    x = (4 * turns - quarters) * _quarter_turn(digits)
    square = -x * x
    sums, term = [Decimal(1), x], [Decimal(1), x]
    k = 1
    while any(abs(value) > Decimal(10) ** -digits for value in term):
        term = [term[0] * square / ((2 * k - 1) * (2 * k)), term[1] * square / ((2 * k) * (2 * k + 1))]
        sums = [sums[0] + term[0], sums[1] + term[1]]
        k += 1
    cosine, sine = sums
    return ((cosine, sine), (-sine, cosine), (-cosine, -sine), (sine, -cosine))[int(quarters) % 4]


def rounded_pair(u: int, v: int, scale: float, more: Callable[[int], tuple[int, int]]) -> tuple[int, int]:
    """Round scale R cos(2 pi V) and scale R sin(2 pi V), R = sqrt(-2 log U), for exact uniforms U and V.

    Guarantee: the nearest whole numbers of the ideal values (Box and Muller 1958), where U and V are the real numbers
    whose first 63 bits are `u` and `v` and whose further bits are those of `more`: the two are independent and
    distributed as rounded N(0, scale^2), without any error. Adjacency does not enter. Assumption: all bits are
    uniform. With b bits known, U and V are within 2^-(b+1) of the midpoints used, and the values within 4 scale
    2^-(b+1) (1 / (U R) + 2 pi R) of those at the midpoints (mean value theorem; 4 covers the change of the derivative
    over the interval when U is at least two intervals away from 0 and 1). A rounding that this leaves open is asked
    again with 64 more bits.

    Parameters
    ----------
    u, v : int
        In [0, 2^63).
    scale : float
        Standard deviation before rounding, above 0.
    more : callable
        Returns the k-th 64 further bits of U and of V.

    Returns
    -------
    tuple of int
        The two whole numbers.
    """
    bits, half = _FIRST_BITS, Decimal("0.5")
    for attempt in range(_ROUNDS):
        digits = int(bits * 0.302) + _GUARD
        with localcontext(Context(prec=digits + 15)):
            if 2 <= u <= 2**bits - 3:
                unit = Decimal(2) ** -bits
                uniform, turns, exact = (u + half) * unit, (v + half) * unit, Decimal(scale)
                radius = (-2 * uniform.ln()).sqrt()
                error = exact * (2 * unit * (1 / (uniform * radius) + 7 * radius) + Decimal(10) ** (5 - digits))
                found = []
                for part in _cosine_and_sine(turns, digits):
                    value = exact * radius * part + half
                    low, high = ((value + side).to_integral_value(ROUND_FLOOR) for side in (-error, error))
                    found += [int(low)] if low == high else []
                if len(found) == 2:
                    return found[0], found[1]
        further = more(attempt)
        u, v, bits = (u << _MORE) + further[0], (v << _MORE) + further[1], bits + _MORE
    raise PrivacyError("noise: a thousand random bits do not decide a rounding; the random stream is broken")
