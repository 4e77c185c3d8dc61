"""What is found in price files, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from data_prep.bars import Dates

__all__ = ["Finding", "Level", "exit_code", "span", "worst"]


class Level(StrEnum):
    """What follows from a finding, from harmless to decisive."""

    NOTE = "note"
    """Nothing is changed."""
    REPAIRED = "repaired"
    """The series is used in a changed form, as the text says."""
    ROWS = "rows left out"
    """Single rows are left out, the rest of the ticker is used."""
    TICKER = "ticker left out"
    """The ticker is not used, the rest of the folder is."""
    REFUSED = "refused"
    """The file cannot be read, or cannot be read in one way only; its owner has to decide."""


_ORDER = tuple(Level)


@dataclass(frozen=True)
class Finding:
    """One line of a check.

    Attributes
    ----------
    level : Level
        What follows.
    kind : str
        Short name of the rule.
    file : str
        File as the user knows it, or the region for what concerns several files.
    ticker : str
        Empty where the file could not be read.
    text : str
        What was found, what was expected and how to go on, in one line.
    rows : int
        Rows concerned, 0 where the finding is not about rows.
    """

    level: Level
    kind: str
    file: str
    ticker: str
    text: str
    rows: int = 0


def worst(findings: Iterable[Finding]) -> Level:
    """Return the gravest level, `NOTE` where there is none."""
    return max((finding.level for finding in findings), key=_ORDER.index, default=Level.NOTE)


def exit_code(findings: Sequence[Finding], *, usable: int, strict: bool = False) -> int:
    """Return 0 for clean, 1 for usable with something repaired or left out, 2 for refused.

    Parameters
    ----------
    findings : sequence of Finding
        All findings.
    usable : int
        Tickers that can be used; without one the input is refused.
    strict : bool
        Whether anything repaired or left out refuses the input.
    """
    level = worst(findings)
    if level is Level.REFUSED or not usable:
        return 2
    if level is Level.NOTE:
        return 0
    return 2 if strict else 1


def span(dates: Dates) -> str:
    """Return first and last of some days for a message."""
    first, last = np.min(dates), np.max(dates)
    return str(first) if first == last else f"{first} to {last}"
