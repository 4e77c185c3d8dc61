"""How the report says things: numbers as text, and the sentences that judge a run.

Bounds are rounded up, so that the page never shows a smaller epsilon than was spent.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from decimal import ROUND_CEILING, Decimal

from server_app.report.data import Metrics, Run

MISSING = "–"
THIN = "\u202f"
MINUS = "\u2212"
SEEDED = "not private: seeded"
UNPROTECTED_VALIDATION = "validation split not protected"

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_NOTHING = 5e-5
"""Differences in R^2 below this would show as 0.00 % and are called no difference."""


def plain(value: float | None, digits: int) -> str:
    """Return a number with fixed digits, a true minus sign, and thousands separated; an en dash for None."""
    if value is None:
        return MISSING
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    if value != 0 and abs(value) >= 1e7:
        return power(value)
    text = f"{value:,.{digits}f}"
    if not text.strip("-0.,"):
        text = text.lstrip("-")
    return text.replace(",", THIN).replace("-", MINUS)


def whole(value: int | None) -> str:
    """Return an integer with thousands separated, or an en dash for None."""
    return MISSING if value is None else f"{value:,}".replace(",", THIN)


def percent(value: float | None, digits: int = 2) -> str:
    """Return a share as a percentage, without the sign."""
    return plain(None if value is None else 100 * value, digits)


def mse(value: float | None) -> str:
    """Return a squared error in units of 1e-4."""
    return plain(None if value is None else value * 1e4, 4)


def mae(value: float | None) -> str:
    """Return an absolute error in units of 1e-2."""
    return plain(None if value is None else value * 1e2, 4)


def significant(value: float | None) -> str:
    """Return a number with three significant digits, trailing zeros kept."""
    if value is None or value == 0 or not 1e-3 <= abs(value) < 1000:
        return general(value)
    return f"{value:#.3g}".rstrip(".").replace("-", MINUS)


def general(value: float | None, digits: int = 3) -> str:
    """Return a number with some significant digits, whatever its size."""
    if value is None:
        return MISSING
    if value != 0 and math.isfinite(value) and not 1e-3 <= abs(value) < 1e6:
        return power(value, digits)
    return f"{value:.{digits}g}".replace("-", MINUS) if abs(value) < 10**digits else plain(value, 0)


def power(value: float, digits: int = 3) -> str:
    """Return a number as a mantissa and a power of ten."""
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    if "." in mantissa:
        mantissa = mantissa.rstrip("0").rstrip(".")
    return f"{mantissa.replace('-', MINUS)}{THIN}×{THIN}10{str(int(exponent)).translate(_SUPERSCRIPT)}"


def bound(value: float, digits: int = 3) -> str:
    """Return an upper bound, rounded up."""
    if math.isinf(value):
        return "∞"
    up = Decimal(repr(value)).quantize(Decimal(1).scaleb(-digits), rounding=ROUND_CEILING)
    return f"{up:,f}".replace(",", THIN)


def used(share: float) -> str:
    """Return a share of the budget as a percentage, rounded up."""
    return bound(float(Decimal(repr(share)) * 100), 1)


def size(count: int) -> str:
    """Return a number of bytes in decimal units."""
    if count < 1000:
        return f"{count}{THIN}B"
    for unit, scale in (("kB", 1e3), ("MB", 1e6), ("GB", 1e9)):
        if count < 999.5 * scale:
            return f"{count / scale:.3g}{THIN}{unit}"
    return f"{count / 1e12:.3g}{THIN}TB"


def duration(span: timedelta) -> str:
    """Return a time span in its two largest units."""
    seconds = int(span.total_seconds())
    for unit, length, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if seconds >= length:
            return f"{seconds // length}{THIN}{unit} {seconds % length // part}{THIN}{smaller}"
    return f"{seconds}{THIN}s"


def hidden(adjacency: str) -> str:
    """Say what differential privacy hides for an adjacency."""
    if "record" in adjacency:
        return "What is hidden, up to epsilon and delta, is whether one (ticker, day) sample took part in training."
    return "What is hidden, up to epsilon and delta, is what one silo’s samples taught the model in training."


def moment(value: datetime) -> str:
    """Return a date and time to the minute, with its time zone if it has one."""
    zone = value.tzname()
    return f"{value:%Y-%m-%d %H:%M}" + (f" {zone}" if zone else "")


def counted(count: int, noun: str) -> str:
    """Return a count with its noun in the right number."""
    return f"{whole(count)} {noun}" + ("" if count == 1 else "s")


def verdict(metrics: Metrics) -> str:
    """Return how a model compares with the zero forecast: wins, loses, equal or unknown."""
    r2 = metrics.r2
    if r2 is None:
        return "unknown"
    if abs(r2) < _NOTHING:
        return "equal"
    return "wins" if r2 > 0 else "loses"


def headline(run: Run) -> str:
    """Say in one sentence what was learned, against the zero forecast; a loss is called a loss."""
    attempts = len(run.history)
    if run.trained_rounds == 0:
        if attempts == 0:
            return "Nothing was learned: no round was started."
        return f"Nothing was learned: no training round completed in {counted(attempts, 'attempt')}."
    judged = run.judged
    if judged is None:
        done = counted(run.trained_rounds, "round")
        return f"The model was trained for {done} but never evaluated: whether it beats the zero forecast is not known."
    split, metrics = judged
    r2 = metrics.r2
    match verdict(metrics):
        case "wins":
            return (
                f"The model beats the zero forecast on the {split} split: "
                f"its mean squared error is {percent(r2)}{THIN}% lower."
            )
        case "loses":
            return (
                f"The model loses against the zero forecast on the {split} split: "
                f"its mean squared error is {percent(None if r2 is None else -r2)}{THIN}% higher."
            )
        case "equal":
            return f"The model is no better than the zero forecast on the {split} split: the errors are equal."
        case _:
            return f"On the {split} split the zero forecast makes no error at all; nothing can be compared with it."


def lede(run: Run) -> list[str]:
    """Return the sentences under the headline."""
    sentences: list[str] = []
    judged = run.judged
    if run.trained_rounds == 0:
        if judged is not None:
            sentences.append("The metrics below are those of the untrained starting point.")
        return sentences
    if judged is None:
        return sentences
    split, metrics = judged
    state = verdict(metrics)
    if state == "loses":
        sentences.append("Forecasting no move at all would have been better.")
    sentences.append(
        f"It called the direction right for {percent(metrics.directional_accuracy, 1)}{THIN}% of "
        f"{counted(metrics.count, 'record')}."
    )
    if metrics.skill is not None and state == "wins":
        sentences.append(
            f"Of what was there to be predicted in this synthetic market it learned "
            f"{percent(metrics.skill, 0)}{THIN}% (skill)."
        )
    if run.summary.evaluation is not None:
        other = run.summary.evaluation.validation
        if verdict(other) != state:
            said = {
                "wins": f"beats it: {percent(other.r2)}{THIN}% lower",
                "loses": f"loses against it: {percent(None if other.r2 is None else -other.r2)}{THIN}% higher",
                "equal": "is no better than it: equal errors",
                "unknown": "cannot be compared with it",
            }
            sentences.append(f"On the validation split the same model {said[verdict(other)]}.")
    elif split == "validation":
        sentences.append(
            "There was no final evaluation: this is the last broadcast point on the validation split, "
            "not the served model on unseen data."
        )
    return sentences
