"""Rules about jumps: which are no return of an investor, and what becomes of the rows beside them."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_prep.bars import Dates, Floats

__all__ = ["JUMP", "Jump", "adjustment_steps", "find_jumps", "other_basis"]

JUMP = 0.4
"""A simple return of more than this, up or down, is looked at."""
_CALM = 0.15
_RATIOS = (*range(2, 11), 12, 15, 20, 25, 30, 40, 50)
_RATIO_TOLERANCE = 0.03
_UNIT = 100.0
_TURNED_BACK = 0.1
_SHORT_BLOCK = 10
_LONG_BLOCK = 250
_FAR = np.log(2.0)
_BEYOND = np.log(4.0)


@dataclass(frozen=True)
class Jump:
    """One move of more than `JUMP` between two rows that follow each other.

    Attributes
    ----------
    row : int
        The later row.
    change : float
        Simple return.
    cause : str
        Likely cause, for the reader.
    cut : bool
        Whether the series is divided before `row`, so that nothing reaches across.
    """

    row: int
    change: float
    cause: str
    cut: bool


def _moves(values: Floats) -> Floats:
    return np.asarray(np.r_[0.0, np.diff(np.log(values))])


def _large(moves: Floats) -> NDArray[np.int64]:
    return np.flatnonzero((moves > np.log1p(JUMP)) | (moves < np.log1p(-JUMP)))


def adjustment_steps(close: Floats, adjusted: Floats, *, broken: bool) -> NDArray[np.bool_]:
    """Find rows whose adjusted close cannot be used because its ratio to the close steps without a reason.

    A dividend lowers the close and leaves the adjusted close's return an ordinary one. Where the adjusted close jumps
    while the close hardly moves, the adjustment is wrong: between two such steps within ten rows, and in everything
    before the last one if the adjustment is `broken`.
    (A single step between two sound stretches is a jump: `find_jumps`.)

    Parameters
    ----------
    close, adjusted : ndarray, shape (n,)
        Of the same rows.
    broken : bool
        Whether the file has adjusted closes that are not positive, as where dividends were subtracted.

    Returns
    -------
    ndarray, shape (n,), bool
        Rows to leave out.
    """
    out = np.zeros(len(close), dtype=bool)
    moved, plain = _moves(adjusted), _moves(close)
    steps = [int(row) for row in _large(moved) if _hardly(plain[row])]
    while steps:
        last = steps.pop()
        if steps and last - steps[-1] <= _SHORT_BLOCK and moved[last] * moved[steps[-1]] < 0:
            out[steps.pop() : last] = True
        elif broken:
            out[:last] = True
            break
    return out


def _hardly(move: float) -> bool:
    return bool(abs(np.expm1(move)) < _CALM)


def other_basis(close: Floats) -> NDArray[np.bool_]:
    """Find stretches on another price basis than the rows around them: a jump there, calm days, a jump back.

    Returns
    -------
    ndarray, shape (n,), bool
        Rows of the stretches, the latest rows taken as the right basis. A stretch has up to 250
        rows where the way back is the way there to within a tenth, and up to ten after
        a jump of a factor of four. A single row is one only if it is off by a factor of a hundred, as after a change of
        units: an ordinary spike of a day may be real.
    """
    out = np.zeros(len(close), dtype=bool)
    moves = _moves(close)
    jumps = [int(row) for row in _large(moves)]
    while len(jumps) > 1:
        back, there = jumps[-1], jumps[-2]
        jumps.pop()
        away, home = moves[there], moves[back]
        if away * home > 0 or max(abs(away), abs(home)) < _FAR or back - there > _LONG_BLOCK:
            continue
        inside = moves[there + 1 : back]
        if inside.size and np.abs(np.expm1(inside)).max() >= _CALM:
            continue
        turned_back = abs(away + home) < _TURNED_BACK
        if back - there == 1:
            found = turned_back and _is_unit(abs(away))
        else:
            found = turned_back or (back - there <= _SHORT_BLOCK and max(abs(away), abs(home)) > _BEYOND)
        if found:
            out[there:back] = True
            jumps.pop()
    return out


def find_jumps(
    dates: Dates, opened: Floats, close: Floats, *, plain: Floats | None, mended: Container[int] = ()
) -> list[Jump]:
    """Find the jumps of a series and their likely causes.

    Parameters
    ----------
    dates, opened, close : ndarray, shape (n,)
        Days, opens and closes, all on the basis of the returns.
    plain : ndarray, shape (n,), or None
        The close without adjustment where `close` is adjusted.
    mended : container of int
        Rows before which rows on another basis were left out.

    Returns
    -------
    list of Jump
        Those of `close`, and those of `plain` that the adjustment takes away.
    """
    moves = _moves(close)
    gap = np.r_[1, np.diff(dates).astype(np.int64)]
    large = set(_large(moves).tolist())
    found = []
    for row in sorted(large):
        change = float(np.expm1(moves[row]))
        back = row + 1 < len(close) and row + 1 in large and abs(moves[row] + moves[row + 1]) < 3 * _TURNED_BACK
        returned = row - 1 in large and abs(moves[row] + moves[row - 1]) < 3 * _TURNED_BACK
        split = _split(opened, close, row) if plain is None else None
        if back or returned:
            found.append(Jump(row, change, "spike of one day, the way back included", cut=False))
        elif row in mended:
            found.append(Jump(row, change, "another level after the rows left out", cut=True))
        elif plain is not None and _hardly(_moves(plain)[row]):
            found.append(Jump(row, change, "the adjusted close steps and the close hardly moves", cut=True))
        elif gap[row] > _SHORT_BLOCK:
            found.append(Jump(row, change, f"{gap[row]} days without a row before it", cut=abs(moves[row]) > _BEYOND))
        elif _is_unit(abs(moves[row])):
            found.append(Jump(row, change, "factor of a hundred, as after a change of units", cut=True))
        elif split is not None:
            found.append(Jump(row, change, f"split {split} that the prices are not adjusted for", cut=True))
        elif abs(moves[row]) > _BEYOND:
            found.append(Jump(row, change, "more than a factor of four, as after a change of basis", cut=True))
        else:
            found.append(Jump(row, change, "market move, or a payment the prices are not adjusted for", cut=False))
    if plain is not None:
        for row in _large(_moves(plain)):
            if int(row) not in large:
                text = f"special dividend or spin-off, {np.expm1(moves[row]):+.0%} in the adjusted close"
                found.append(Jump(int(row), float(np.expm1(_moves(plain)[row])), text, cut=False))
    return sorted(found, key=lambda jump: jump.row)


def _is_unit(move: float) -> bool:
    return bool(abs(move - np.log(_UNIT)) < _RATIO_TOLERANCE)


def _split(opened: Floats, close: Floats, row: int) -> str | None:
    """Return the ratio of a split that both the open and the close of a day agree with."""
    for ratio in _RATIOS:
        for factor, shown in ((1.0 / ratio, f"{ratio}:1"), (ratio, f"1:{ratio}")):
            both = (opened[row] / close[row - 1] / factor, close[row] / close[row - 1] / factor)
            if all(abs(np.log(value)) < _RATIO_TOLERANCE for value in both):
                return shown
    return None
