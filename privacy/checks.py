"""Validation of numbers by field name. NaN, infinities and booleans are never numbers here."""

import math
from numbers import Integral, Real

from privacy.errors import PrivacyError


def real(
    name: str,
    value: object,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    low_open: bool = False,
    high_open: bool = False,
) -> float:
    """Return `value` as a finite float of the stated range.

    No privacy guarantee of its own (adjacency does not enter): it keeps the assumptions of the theorems true.

    Parameters
    ----------
    name : str
        The field named in the error.
    value : object
        What was given; bool, NaN, infinities and non-numbers are refused.
    low, high : float
        The range.
    low_open, high_open : bool
        Whether the end of the range itself is refused.

    Raises
    ------
    PrivacyError
        With the field, the value and the expected range.
    """
    interval = f"{'(' if low_open else '['}{low:g}, {high:g}{')' if high_open or math.isinf(high) else ']'}"
    expected = f"expected a finite number in {interval}"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise PrivacyError(f"{name} = {value!r}: {expected}")
    number = float(value)
    if (
        not math.isfinite(number)
        or number < low
        or number > high
        or (low_open and number == low)
        or (high_open and number == high)
    ):
        raise PrivacyError(f"{name} = {number!r}: {expected}")
    return number


def whole(name: str, value: object, low: int, high: int | None = None) -> int:
    """Return `value` as an int of the stated range; bool and floats are refused.

    No privacy guarantee of its own (adjacency does not enter): it keeps the assumptions of the theorems true.

    Parameters
    ----------
    name : str
        The field named in the error.
    value : object
        What was given.
    low, high : int
        The range, both ends included; `high` None is unbounded.

    Raises
    ------
    PrivacyError
        With the field, the value and the expected range.
    """
    bound = f">= {low}" if high is None else f"in [{low}, {high}]"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise PrivacyError(f"{name} = {value!r}: expected a whole number {bound}")
    number = int(value)
    if number < low or (high is not None and number > high):
        raise PrivacyError(f"{name} = {number}: expected a whole number {bound}")
    return number
