"""Decisions of a sampler that float64 leaves open: as many digits and random bits as it takes to be sure."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache

from privacy.errors import PrivacyError

_CHANCE, _POSITION = 48, 64  # bits of each uniform that the fast path has used
_MORE = 64
_ROUNDS = 16
_GUARD = 25  # decimal digits beyond the resolution of the uniforms

Further = Callable[[int], tuple[int, int]]
"""The k-th 64 further bits of two uniforms, the same whenever they are asked."""


@lru_cache(maxsize=_ROUNDS)
def _pi(digits: int) -> Decimal:
    """Pi, by Machin's formula, to `digits` digits."""
    unit: int = 10 ** (digits + 10)

    def arctan_of_inverse(x: int) -> int:
        term, total, k = unit // x, unit // x, 1
        while term:
            term //= -x * x
            k += 2
            total += term // k
        return total

    with localcontext(Context(prec=digits + 15)):  # cached, so it must not depend on the caller's precision
        return Decimal(4 * (4 * arctan_of_inverse(5) - arctan_of_inverse(239))) / unit


@dataclass(frozen=True, slots=True)
class Cell:
    """A stretch of the real line, and two heights over it; all numbers exact.

    Attributes
    ----------
    left, width : float
        Its place, in steps.
    base : int
        The histogram's column has mass base / 2^16 under N(0, scale^2).
    bound : float
        A height that the density less the column does not pass, relative to the density at 0.
    factor : int
        The bound is `bound` times this.
    """

    left: float
    width: float
    base: int
    bound: float
    factor: int = 1


def _heights(scale: float, ends: tuple[Decimal, Decimal], digits: int) -> tuple[Decimal, Decimal]:
    """Least and largest value of exp(-y^2 / (2 scale^2)) between the ends, rounded outwards."""
    near, far = sorted(abs(end) for end in ends)
    near = near if ends[0].is_signed() == ends[1].is_signed() else Decimal(0)
    error = Decimal(10) ** (5 - digits)
    least, largest = ((-((end / Decimal(scale)) ** 2) / 2).exp() for end in (far, near))
    return least * (1 - error), largest * (1 + error)


def accepts(scale: float, cell: Cell, chance: int, position: int, further: Further) -> bool:
    """Whether U bound factor < exp(-y^2 / (2 scale^2)) - column height, for exact uniforms U and y in the cell.

    Guarantee: the decision for the real numbers U and V whose first 48 and 64 bits are `chance` and `position` and
    whose further bits are those of `further`, y being left + width V; without any error, so that accepted y have
    exactly the density less the column. Adjacency does not enter. Assumption: all bits are uniform. With b bits known,
    U and V lie in intervals of 2^-b; what this and the digits leave open is asked again with 64 more bits.

    Parameters
    ----------
    scale : float
        Standard deviation in steps.
    cell : Cell
        Where y lies.
    chance, position : int
        In [0, 2^48) and [0, 2^64).
    further : callable
        Further bits of U and V.
    """
    for attempt in range(_ROUNDS):
        bits = _CHANCE + _MORE * attempt
        digits = int((bits + _POSITION) * 0.302) + _GUARD
        with localcontext(Context(prec=digits + 15)):
            unit, step = Decimal(2) ** -bits, Decimal(cell.width) * Decimal(2) ** -(_POSITION + _MORE * attempt)
            start = Decimal(cell.left) + position * step
            least, largest = _heights(scale, (start, start + step), digits)
            column = cell.base * Decimal(scale) * (2 * _pi(digits)).sqrt() / (65536 * Decimal(cell.width))
            error = column * Decimal(10) ** (5 - digits)
            bound = Decimal(cell.bound) * cell.factor
            if (chance + 1) * unit * bound < least - column - error:
                return True
            if chance * unit * bound > largest - column + error:
                return False
        more = further(attempt)
        chance, position = (chance << _MORE) + more[0], (position << _MORE) + more[1]
    raise PrivacyError("noise: a thousand random bits do not decide; the random stream is broken")


def tail(scale: float, beyond: Cell, shift: int, chance: int, position: int, further: Further) -> int | None:
    """Propose a value beyond the cells, on either side; return its rounding if it is accepted.

    Guarantee: accepted values have exactly the density exp(-y^2 / (2 scale^2)) at y >= beyond.left and at
    y < -beyond.left - shift, where one proposal has height beyond.bound over beyond.width. The side is one bit, the
    stretch G = 0, 1, ... of 64 widths geometric with ratio 1/2, the place in it uniform: a density of
    beyond.bound 2^-(G + 8). The normal one stays below, as it is 2^-52 at most and falls by more than 2^-13 per
    stretch. Adjacency does not enter. Assumption: all bits are uniform; a stretch begins where roundings do, and is at
    least one scale wide.

    Parameters
    ----------
    scale : float
        Standard deviation in steps.
    beyond : Cell
        Where the tail begins, above 8 scale; width and height of a proposal.
    shift : int
        By how much further out the lower tail begins, 0 or 1.
    chance, position : int
        48 bits of the uniform that decides and 64 of the place in the stretch.
    further : callable
        Further bits.
    """
    stretch = asked = 0
    while (ones := _trailing_ones(further(asked)[0])) == _MORE:
        stretch, asked = stretch + ones, asked + 1
    stretch += ones
    lower = further(asked)[1] & 1
    left, width = beyond.left + 64 * stretch * beyond.width, 64 * beyond.width
    cell = Cell(left + lower * shift, width, 0, math.ldexp(beyond.bound, -stretch - 8))
    if not accepts(scale, cell, chance, position, lambda count: further(asked + 1 + count)):
        return None
    rounded = math.floor(Fraction(left) + Fraction(1, 2) + Fraction(width) * Fraction(position, 2**_POSITION))
    return -rounded - shift if lower else rounded


def _trailing_ones(word: int) -> int:
    return (~word & (word + 1)).bit_length() - 1
