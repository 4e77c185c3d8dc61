"""Rules about single rows: missing cells, prices that are none, ranges that contradict each other, repeated days.

Every rule looks at one row alone, repeated days excepted, so what it does to a sample depends on the bars of that
sample only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_prep.bars import Dates, Floats
from data_prep.check.findings import Finding, Level, span
from data_prep.readers.layouts import PRICES
from data_prep.readers.series import RawSeries

__all__ = ["Rows", "judge_rows"]

Mask = NDArray[np.bool_]
# Vendors round each column on its own, so the day's range may miss open or close by the last printed digit.
_RANGE_TOLERANCE = 1e-3
_BOUNDS = (
    ("high", "low", "at least the low"),
    ("high", "open", "at least the open"),
    ("high", "close", "at least the close"),
    ("low", "open", "at most the open"),
    ("low", "close", "at most the close"),
)


@dataclass(frozen=True)
class Rows:
    """The usable rows of a series, sorted by day.

    Attributes
    ----------
    dates : ndarray, shape (n,), datetime64[D]
        Strictly increasing.
    columns : dict of str to ndarray, shape (n,), float64
        As in `RawSeries`; open, high, low and close are positive and agree with each other.
    own_basis : ndarray, shape (n,), bool
        Rows whose open, high and low are on the basis of the adjusted close already.
    findings : list of Finding
        What was left out or repaired.
    priced : int
        Rows of the file that state a price.
    counts : dict of str to int
        Rows per kind of finding.
    """

    dates: Dates
    columns: dict[str, Floats]
    own_basis: Mask
    findings: list[Finding]
    priced: int
    counts: dict[str, int]


class _Ledger:
    """Which rows are out, and why."""

    def __init__(self, raw: RawSeries) -> None:
        self.raw = raw
        self.out = np.zeros(len(raw.dates), dtype=bool)
        self.findings: list[Finding] = []
        self.counts: dict[str, int] = {}

    def leave_out(self, mask: Mask, kind: str, field: str, expected: str) -> None:
        rows = np.flatnonzero(mask & ~self.out)
        if not rows.size:
            return
        error = self.raw.bad(int(rows[0]), field, expected)
        self.out |= mask
        self.note(Level.ROWS, kind, f"{error} ({_count(rows)}, {span(self.raw.dates[rows])}, left out)", rows)

    def note(self, level: Level, kind: str, text: str, rows: np.ndarray) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + len(rows)
        self.findings.append(Finding(level, kind, self.raw.file, self.raw.ticker, text, len(rows)))


def judge_rows(raw: RawSeries) -> Rows:
    """Sort out the rows of a series that no feature may be computed from.

    Parameters
    ----------
    raw : RawSeries
        As read.

    Returns
    -------
    Rows
        Without the rows that state no price, an incomplete or impossible one, or a day that another row states
        differently. Nothing is filled in.
    """
    ledger = _Ledger(raw)
    columns = raw.columns
    prices = [field for field in PRICES if field in columns]
    absent = np.all([np.isnan(columns[field]) for field in prices], axis=0)
    ledger.leave_out(absent, "no prices", "close", "a positive price")
    for field in prices:
        missing = np.isnan(columns[field])
        ledger.leave_out(missing, "missing cell", field, "a positive price")
    for field in prices:
        with np.errstate(invalid="ignore"):
            impossible = ~np.isfinite(columns[field]) | (columns[field] <= 0)
        ledger.leave_out(impossible, "no positive price", field, "a positive price")
    if "volume" in columns:
        with np.errstate(invalid="ignore"):
            impossible = np.isinf(columns["volume"]) | (columns["volume"] < 0)
        ledger.leave_out(impossible, "no volume", "volume", "a volume of zero or more")
    own_basis = _mixed_basis(ledger)
    for field, other, expected in _BOUNDS:
        larger, smaller = (field, other) if field == "high" else (other, field)
        with np.errstate(invalid="ignore"):
            crossed = (columns[larger] < columns[smaller] * (1.0 - _RANGE_TOLERANCE)) & ~own_basis
        rows = np.flatnonzero(crossed & ~ledger.out)
        bound = raw.cell(int(rows[0]), other) if rows.size else ""
        kind = "high below low" if other == "low" else f"{other} outside low to high"
        ledger.leave_out(crossed, kind, field, f"a {field} of {expected} {bound}")
    _repeated_days(ledger)
    kept = np.flatnonzero(~ledger.out)
    kept = kept[np.argsort(raw.dates[kept], kind="stable")]
    return Rows(
        dates=raw.dates[kept],
        columns={field: values[kept] for field, values in columns.items()},
        own_basis=own_basis[kept],
        findings=ledger.findings,
        priced=int(np.count_nonzero(~absent)),
        counts=ledger.counts,
    )


def _mixed_basis(ledger: _Ledger) -> Mask:
    """Find rows whose open, high and low agree with the adjusted close and contradict the close.

    Their returns come from the adjusted close as everywhere else in the file; open, high and low are taken as they are
    instead of being scaled a second time.
    """
    raw, columns = ledger.raw, ledger.raw.columns
    if "adjusted" not in columns:
        return np.zeros(len(raw.dates), dtype=bool)
    low, high = columns["low"] * (1.0 - _RANGE_TOLERANCE), columns["high"] * (1.0 + _RANGE_TOLERANCE)
    close, adjusted, opened = columns["close"], columns["adjusted"], columns["open"]
    with np.errstate(invalid="ignore"):
        outside = (close < low) | (close > high)
        apart = np.abs(np.log(adjusted / close)) > 10 * _RANGE_TOLERANCE
        inside = (adjusted >= low) & (adjusted <= high) & (opened >= low) & (opened <= high)
        found: Mask = outside & apart & inside & ~ledger.out
    rows = np.flatnonzero(found)
    if rows.size:
        first = int(rows[0])
        low_cell, high_cell = raw.cell(first, "low"), raw.cell(first, "high")
        error = raw.bad(first, "close", f"a close from {low_cell} to {high_cell}, where the adjusted close lies")
        text = (
            f"{error} ({_count(rows)}, {span(raw.dates[rows])}, repaired: open, high and low are on the basis of the "
            "adjusted close already and are not scaled again)"
        )
        ledger.note(Level.REPAIRED, "two bases in one row", text, rows)
    return found


def _repeated_days(ledger: _Ledger) -> None:
    raw = ledger.raw
    kept = np.flatnonzero(~ledger.out)
    order = kept[np.argsort(raw.dates[kept], kind="stable")]
    again = np.r_[False, raw.dates[order][1:] == raw.dates[order][:-1]]
    if not again.any():
        return
    number = np.cumsum(~again) - 1
    first = order[np.flatnonzero(~again)][number]
    same = np.ones(len(order), dtype=bool)
    for values in raw.columns.values():
        one, other = values[order], values[first]
        same &= (one == other) | (np.isnan(one) & np.isnan(other))
    differing = np.zeros(number[-1] + 1, dtype=bool)
    differing[number[~same]] = True

    def expected(row: int) -> str:
        return f"each date once (line {raw.line(int(first[row]))} has it already)"

    copies = again & ~differing[number]
    if copies.any():
        rows = order[copies]
        error = raw.bad(int(rows[0]), "date", expected(int(np.argmax(copies))), _REPEATED)
        text = f"{error} ({_count(rows)}, {span(raw.dates[rows])}, repaired: exact copies are dropped)"
        ledger.note(Level.REPAIRED, "repeated day", text, rows)
        ledger.out[rows] = True
    unclear = differing[number]
    if unclear.any():
        rows = order[unclear]
        place = int(np.argmax(unclear & again))
        error = raw.bad(int(order[place]), "date", expected(place), _REPEATED)
        text = f"{error} ({_count(rows)}, {span(raw.dates[rows])}, left out)"
        ledger.note(Level.ROWS, "repeated day", text, rows)
        ledger.out[rows] = True


_REPEATED = "remove one of the two rows, or name the file in exclude"


def _count(rows: np.ndarray) -> str:
    return "1 row" if len(rows) == 1 else f"{len(rows)} rows"
