"""Exact rounded normals from whole numbers: a table decides nearly all of them, rejection from the rest of the density.

Cut the real line into cells of 2^m steps. Under the density of N(0, s^2) lies a histogram whose column over cell J has
mass t_J / 2^16 with t_J whole. With probability t_J / 2^16 the sample is uniform in cell J, and its rounding is J 2^m
plus m random bits: no arithmetic that could round. Else it comes from the density less the histogram, by rejection. (If
a step is wider than a cell, m is below 0 and a cell lies within one rounding.)
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Self

import numpy as np
import numpy.typing as npt

from privacy.exact_normal import Cell, accepts, tail

_TABLE = 1 << 16
_NARROWEST = 2.0**-6  # of the scale: cells are one to two of these wide
_REACH = 8.5  # of the scale: the tail beyond is one cell more
_DOWN, _UP = 1.0 - 2.0**-30, 1.0 + 2.0**-30  # far above the float64 errors of a column's height
_MARGIN = 2.0**-42  # float64 decides a rejection by at least this share of the heights; it errs by less than 2^-45
_AT_ONCE = 1 << 17  # values, so that what is between them and the keystream stays in the cache
_LOW = 16  # bits below the column's number in a word of 32

Words = Callable[[int], npt.NDArray[np.uint64]]
Further = Callable[[int, int], tuple[int, int]]
"""Further bits of a place in a call: the k-th 64 bits of two uniforms, the same whenever they are asked."""


@dataclass(frozen=True, slots=True, eq=False)
class NormalTable:
    """Sampler of round(N(0, scale^2)).

    Guarantee: `draw` returns independent whole numbers **exactly** distributed as round(N(0, scale^2)), if the words
    are independent uniform bits: a mixture of uniform columns below the density and of what they leave, every decision
    of which is that of the ideal real numbers. Adjacency does not enter. Assumption: float64 arithmetic of IEEE 754 and
    an exponential that errs by less than 8 units in the last place; only where it decides by less than `_MARGIN` are
    decimals and further bits asked. The numbers are a function of the words and of the table; the table is the same
    on every machine unless the last digit of an exponential moves one of its whole numbers, a chance below 1e-8.

    Attributes
    ----------
    scale : float
        Standard deviation before rounding.
    bits : int
        m.
    columns : ndarray
        2^16 entries: the first rounding in cell J, t_J times each, then unused ones.
    used : int
        Sum of t_J.
    lefts, counts, heights : ndarray of float64
        Per cell: where it begins, t_J, and the column's height over the density's at 0.
    proposals : ndarray of int16
        2^16 entries: the place of a cell as often as its bound needs, then the tail once, then what is never accepted.
    weights : ndarray of int64
        How often a cell is among them; 1 for the tail.
    unit : float
        Height of one of them over its cell.
    """

    scale: float
    bits: int
    columns: npt.NDArray[np.int32] | npt.NDArray[np.int64]
    used: int
    lefts: npt.NDArray[np.float64]
    counts: npt.NDArray[np.float64]
    heights: npt.NDArray[np.float64]
    proposals: npt.NDArray[np.int16]
    weights: npt.NDArray[np.int64]
    unit: float

    @classmethod
    def of(cls, scale: float) -> Self:
        """Return the table of a scale; guarantee and assumptions: those of the class.

        Parameters
        ----------
        scale : float
            In (0, 2^36].
        """
        bits = math.floor(math.log2(scale * 2.0 * _NARROWEST))
        width = math.ldexp(1.0, bits)
        reach = math.ceil(_REACH * scale / width) + 1
        lefts = np.arange(-reach, reach + 1) * width - (0.5 if bits >= 0 else 0.0)  # the last is that of the tail
        left, right = np.abs(lefts[:-1]), np.abs(lefts[1:])
        near = np.where((lefts[:-1] < 0) & (lefts[1:] > 0), 0.0, np.minimum(left, right))
        lowest, highest = (np.exp(-((edge / scale) ** 2) / 2) for edge in (np.maximum(left, right), near))
        entry = scale * math.sqrt(2 * math.pi) / (_TABLE * width)
        counts = np.floor(lowest / entry * _DOWN)
        heights = counts * entry
        room = (highest - heights * _DOWN) * _UP
        # A few bits, so that the last digits of a machine's exponential hardly ever show in a table.
        unit = math.ceil(float(room.sum()) / (_TABLE - len(room) - 2) * 2.0**30) * 2.0**-30
        weights = np.append(np.maximum(np.ceil(room / unit), 1.0), 1.0).astype(np.int64)
        used = int(counts.sum())
        firsts = np.append(np.floor(lefts[:-1] + 0.5), 0.0).astype(np.int32 if bits <= _LOW else np.int64)
        columns = np.repeat(firsts, np.append(counts, _TABLE - used).astype(np.int64))
        weights = np.append(weights, _TABLE - weights.sum())
        proposals = np.repeat(np.arange(len(weights), dtype=np.int16), weights)
        heights = np.concatenate([heights, [0.0, np.inf]])
        return cls(
            scale,
            bits,
            columns,
            used,
            np.append(lefts, 0.0),
            np.append(counts, [0.0, 0.0]),
            heights,
            proposals,
            weights,
            unit,
        )

    def draw(self, n: int, words: Words, further: Further) -> npt.NDArray[np.float64]:
        """Return `n` whole numbers; guarantee and assumptions: those of the class.

        Parameters
        ----------
        n : int
            At least 0.
        words : callable
            Returns that many fresh 64-bit words.
        further : callable
            Returns further bits of a place: the same whenever it is asked.
        """
        result = np.empty(n)
        left = [start + self._most(result[start : start + _AT_ONCE], words) for start in range(0, n, _AT_ONCE)]
        places = np.concatenate(left) if left else np.empty(0, dtype=np.int64)
        result[places] = self._rest(len(places), words, further)
        return result

    def _most(self, result: npt.NDArray[np.float64], words: Words) -> npt.NDArray[np.int64]:
        """Fill in what the table decides; return the places of what it leaves."""
        n = len(result)
        low = _LOW if self.columns.dtype == np.int32 else 3 * _LOW
        drawn: npt.NDArray[np.unsignedinteger] = words((n + 1) // 2).view("<u4")[:n] if low == _LOW else words(n)
        kind = drawn.dtype.type
        left = np.flatnonzero(drawn >= kind(self.used << low)) if self.used < _TABLE else np.empty(0, dtype=np.int64)
        values = np.take(self.columns, drawn.view("<u2")[low // _LOW :: low // _LOW + 1], mode="clip")
        if self.bits > 0:
            drawn &= kind((1 << self.bits) - 1)
            np.add(values, drawn.view(values.dtype), out=values)
        result[:] = values
        return left

    def _rest(self, n: int, words: Words, further: Further) -> npt.NDArray[np.float64]:
        """Draw from the density less its histogram: proposals until `n` are accepted."""
        found, place = np.empty(0), 0
        while len(found) < n:
            size = 2 * (n - len(found)) + 32
            found = np.append(found, self._accepted(words(2 * size), partial(_shifted, further, place)))
            place += size
        return found[:n]

    def _accepted(self, drawn: npt.NDArray[np.uint64], further: Further) -> npt.NDArray[np.float64]:
        """Return the roundings of the accepted among the proposals that the words make, two words each."""
        choices, positions = drawn[: len(drawn) // 2], drawn[len(drawn) // 2 :]
        cells = self.proposals[choices >> np.uint64(48)].astype(np.int64)
        choices &= np.uint64(2**48 - 1)
        bounds, lefts = self.weights[cells] * self.unit, self.lefts[cells]
        offsets = (positions >> np.uint64(1)).view(np.int64) * 2.0 ** (self.bits - 63)
        offsets += lefts
        offsets /= self.scale
        density = np.exp(offsets * offsets * -0.5)
        spare = density - self.heights[cells] - (choices.view(np.int64) + 0.5) * 2.0**-48 * bounds
        accepted = spare > 0
        roundings = np.floor(lefts + 0.5)
        if self.bits > 0:
            roundings += positions >> np.uint64(64 - self.bits)
        # The margin also covers the bits of the chance that were not drawn, 2^-49 of the bound.
        undecided = np.abs(spare) <= _MARGIN * (density + bounds)
        undecided |= cells == len(self.lefts) - 2
        for at in np.flatnonzero(undecided):
            bits = partial(further, int(at))
            rounding = self._decide(int(cells[at]), int(choices[at]), int(positions[at]), bits)
            accepted[at] = rounding is not None
            roundings[at] = roundings[at] if rounding is None else rounding
        found: npt.NDArray[np.float64] = roundings[accepted]
        return found

    def _decide(self, place: int, chance: int, position: int, further: Callable[[int], tuple[int, int]]) -> int | None:
        """Return the rounding of a proposal if it is accepted, without floating-point error."""
        left, width = float(self.lefts[place]), math.ldexp(1.0, self.bits)
        cell = Cell(left, width, int(self.counts[place]), self.unit, int(self.weights[place]))
        if place == len(self.lefts) - 2:
            return tail(self.scale, cell, int(self.bits >= 0), chance, position, further)
        if not accepts(self.scale, cell, chance, position, further):
            return None
        return math.floor(left + 0.5) + (position >> (64 - self.bits) if self.bits > 0 else 0)


def _shifted(further: Further, by: int, place: int, count: int) -> tuple[int, int]:
    return further(by + place, count)
