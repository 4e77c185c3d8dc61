"""One ticker -> its usable bars, what was found on the way, and figures for the table."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from data_prep.bars import Bars, Dates, Floats
from data_prep.check.findings import Finding, Level, span
from data_prep.check.jumps import JUMP, adjustment_steps, find_jumps, other_basis
from data_prep.check.rows import Rows, judge_rows
from data_prep.features.table import MEMORY_ROWS
from data_prep.readers.series import RawSeries

__all__ = ["Figures", "Judged", "judge_series"]

_STALE_DAYS = 5
_GAP_DAYS = 10
_ERRATIC_SHARE, _ERRATIC_LEAST = 0.02, 10
_UNUSABLE_SHARE = 0.5
_FREQUENCIES = ((2, "daily"), (10, "weekly"), (45, "monthly"), (100, "quarterly"))
_SHOWN_JUMPS = 3


@dataclass
class Figures:
    """What the table of a check shows of a ticker.

    Attributes
    ----------
    file, ticker, region, layout, encoding, basis : str
        Where it is from and how it was read; `basis` is "adjusted" or "as published".
    rows, usable : int
        Rows of the file, and those that are used.
    first, last : str
        Days of the usable rows.
    coverage : float or None
        Share of the trading days from first to last that have a usable row.
    off_calendar : int
        Usable rows on other days.
    gaps, longest_gap : int
        Runs of more than ten calendar days without a row, and the longest in days.
    longest_stale : int
        Longest run of rows with the same close and no volume.
    zero_volume, jumps : int
        Rows with volume 0, and moves of more than 40 %.
    left_out : dict of str to int
        Rows left out or repaired per kind.
    """

    file: str
    ticker: str
    region: str
    layout: str
    encoding: str
    basis: str
    rows: int
    usable: int = 0
    first: str = ""
    last: str = ""
    coverage: float | None = None
    off_calendar: int = 0
    gaps: int = 0
    longest_gap: int = 0
    longest_stale: int = 0
    zero_volume: int = 0
    jumps: int = 0
    left_out: dict[str, int] = field(default_factory=dict)


@dataclass
class Judged:
    """A ticker that was read.

    Attributes
    ----------
    bars : Bars
        The usable rows, whatever the findings say.
    findings : list of Finding
        In the order of the rules.
    figures : Figures
        For the table.
    """

    bars: Bars
    findings: list[Finding]
    figures: Figures


def judge_series(raw: RawSeries, region: str) -> Judged:
    """Judge one ticker by itself.

    Returns come from the adjusted close where the file has one, else from the close: one of the two for all rows of a
    series, never both. Open, high and low are scaled to the same basis.

    Parameters
    ----------
    raw : RawSeries
        As read.
    region : str
        Region bucket.
    """
    rows = judge_rows(raw)
    found = list(rows.findings)
    counts = dict(rows.counts)

    def add(level: Level, kind: str, text: str, number: int = 0) -> None:
        found.append(Finding(level, kind, raw.file, raw.ticker, f"{raw.file}, {raw.ticker}: {text}", number))
        if number and level in (Level.ROWS, Level.REPAIRED):
            counts[kind] = counts.get(kind, 0) + number

    keep = np.ones(len(rows.dates), dtype=bool)
    if "adjusted" in rows.columns and len(keep):
        broken = bool((raw.columns["adjusted"] <= 0).any())
        wrong = adjustment_steps(rows.columns["close"], rows.columns["adjusted"], broken=broken)
        if wrong.any():
            text = (
                f"the adjusted close steps by more than {JUMP:.0%} where the close hardly moves, expected steps only "
                f"where a dividend lowers the close; {_rows(wrong)}, {span(rows.dates[wrong])}, left out"
            )
            add(Level.ROWS, "adjustment without a reason", text, int(wrong.sum()))
            keep &= ~wrong
    bars = _bars(raw, rows, keep, region)
    off = other_basis(bars.close)
    mended: set[int] = set()
    if off.any():
        ends = np.flatnonzero(off & ~np.r_[off[1:], False]) + 1
        mended = set((ends - np.cumsum(off)[ends - 1]).tolist())
        text = (
            f"prices jump to another level and back, expected one basis over all rows; {_rows(off)}, "
            f"{span(bars.dates[off])}, left out"
        )
        add(Level.ROWS, "other price basis", text, int(off.sum()))
        keep[np.flatnonzero(keep)[off]] = False
        bars = _bars(raw, rows, keep, region)
    jumps = find_jumps(bars.dates, bars.open, bars.close, plain=_plain(rows, keep), mended=mended)
    for jump in jumps[:_SHOWN_JUMPS]:
        add(Level.NOTE, "jump", f"{jump.change:+.0%} on {bars.dates[jump.row]}: {jump.cause}")
    if len(jumps) > _SHOWN_JUMPS:
        add(Level.NOTE, "jump", f"{len(jumps) - _SHOWN_JUMPS} more moves of over {JUMP:.0%}")
    cuts = [jump for jump in jumps if jump.cut]
    if cuts:
        shown = ", ".join(f"{bars.dates[x.row]} ({x.change:+.0%}, {x.cause})" for x in cuts[:_SHOWN_JUMPS])
        more = f" and {len(cuts) - _SHOWN_JUMPS} more days" if len(cuts) > _SHOWN_JUMPS else ""
        add(Level.REPAIRED, "cut", f"cut before {shown}{more}; no sample reaches across")
    bars = _bars(raw, rows, keep, region, breaks=bars.dates[[jump.row for jump in cuts]])
    figures = _figures(raw, rows, bars, len(jumps), counts)
    _judge_whole(add, raw, rows, bars, figures)
    return Judged(bars, found, figures)


def _rows(mask: NDArray[np.bool_]) -> str:
    number = int(np.count_nonzero(mask))
    return "1 row" if number == 1 else f"{number} rows"


def _plain(rows: Rows, keep: NDArray[np.bool_]) -> Floats | None:
    return rows.columns["close"][keep] if "adjusted" in rows.columns else None


def _bars(raw: RawSeries, rows: Rows, keep: NDArray[np.bool_], region: str, breaks: Dates | None = None) -> Bars:
    """Bring the four prices onto the basis of the returns.

    High and low are widened to contain open and close where rounded columns miss them by the last digit.
    """
    columns = {name: values[keep] for name, values in rows.columns.items()}
    close = columns["close"]
    scale: Floats | float = 1.0
    if "adjusted" in columns:
        scale = np.where(rows.own_basis[keep], 1.0, columns["adjusted"] / close)
    opened, high, low = (columns[name] * scale for name in ("open", "high", "low"))
    close = columns.get("adjusted", close)
    return Bars(
        ticker=raw.ticker,
        region=region,
        sector=None,
        dates=rows.dates[keep],
        open=opened,
        high=np.maximum(high, np.maximum(opened, close)),
        low=np.minimum(low, np.minimum(opened, close)),
        close=close,
        volume=columns.get("volume", np.full(len(close), np.nan)),
        basis="adjusted" if "adjusted" in columns else "as published",
        breaks=np.array([], dtype="datetime64[D]") if breaks is None else breaks,
    )


def _figures(raw: RawSeries, rows: Rows, bars: Bars, jumps: int, counts: dict[str, int]) -> Figures:
    figures = Figures(
        file=raw.file,
        ticker=raw.ticker,
        region=bars.region,
        layout=raw.layout,
        encoding=raw.encoding,
        basis=bars.basis,
        rows=len(raw.dates),
        usable=len(bars.dates),
        jumps=jumps,
        zero_volume=int(np.count_nonzero(bars.volume == 0.0)),
        left_out=counts,
    )
    if len(bars.dates):
        figures.first, figures.last = str(bars.dates[0]), str(bars.dates[-1])
        missing = np.diff(bars.dates).astype(np.int64)
        figures.gaps = int(np.count_nonzero(missing > _GAP_DAYS))
        figures.longest_gap = int(missing.max(initial=0))
        figures.longest_stale = _longest_stale(bars)
    return figures


def _longest_stale(bars: Bars) -> int:
    """Return the longest run of rows that repeat the close before them and saw no trade."""
    silent = np.isnan(bars.volume) | (bars.volume == 0.0)
    same = np.r_[False, bars.close[1:] == bars.close[:-1]] & silent
    ends = np.flatnonzero(~np.r_[same, False])
    return int(np.diff(np.r_[-1, ends]).max(initial=1)) - 1


def _judge_whole(add: object, raw: RawSeries, rows: Rows, bars: Bars, figures: Figures) -> None:
    """Rules about a series as a whole."""
    assert callable(add)
    number = len(bars.dates)
    step = float(np.median(np.diff(bars.dates).astype(np.int64))) if number > 1 else 1.0
    frequency = next((name for limit, name in _FREQUENCIES if step <= limit), "yearly")
    if raw.monthly or frequency != "daily":
        line = raw.line(0)
        shown = "monthly" if raw.monthly else frequency
        add(
            Level.TICKER,
            "not daily",
            f"line {line}, column {raw.headers['date']}: found {raw.cell(0, 'date')!r} and {shown} rows after it, "
            "expected daily rows; use a daily file, or name it in exclude",
        )
    elif rows.priced and number < _UNUSABLE_SHARE * rows.priced:
        text = f"{number} of {rows.priced} rows with prices are usable, expected at least half; use another file"
        add(Level.TICKER, "mostly unusable", text)
    elif number <= MEMORY_ROWS:
        text = f"{number} usable rows, expected more than {MEMORY_ROWS}, which a sample needs; use a longer file"
        add(Level.TICKER, "too short", f"{text}, or name it in exclude")
    elif figures.jumps >= _ERRATIC_LEAST and figures.jumps > _ERRATIC_SHARE * number:
        text = f"{figures.jumps} moves of more than {JUMP:.0%} in {number} rows, expected prices of a traded stock"
        add(Level.TICKER, "erratic", f"{text}; use another file, or name it in exclude")
    if raw.monthly or frequency != "daily":
        return
    sparse = _sparse_start(bars)
    if sparse:
        add(Level.NOTE, "not daily at first", f"rows are daily from {bars.dates[sparse]} on, {sparse} rows before it")
    if figures.gaps:
        text = f"{figures.gaps} gaps of more than {_GAP_DAYS} days, the longest {figures.longest_gap} days"
        add(Level.NOTE, "gap", text)
    if figures.longest_stale >= _STALE_DAYS:
        add(Level.NOTE, "stale", f"{figures.longest_stale} rows in a row repeat a close without a trade")
    if figures.zero_volume:
        add(Level.NOTE, "zero volume", f"{figures.zero_volume} rows with volume 0")


def _sparse_start(bars: Bars) -> int:
    """Return how many first rows come before the rows are daily, 0 where they are from the start.

    Rows are daily from a day on if the median step of the 20 rows after every later day is three days or less.
    """
    steps = np.diff(bars.dates).astype(np.int64)
    # A median of 20 over three days takes ten steps of more than three days.
    longer = np.cumsum(np.r_[0, steps > 3])
    if len(steps) < 40 or (longer[20:] - longer[:-20]).max() < 10:
        return 0
    medians = np.median(np.lib.stride_tricks.sliding_window_view(steps, 20), axis=1)
    slow = np.flatnonzero(medians > 3)
    return int(slow[-1]) + 11 if slow.size and slow[-1] + 11 < len(bars.dates) else 0
