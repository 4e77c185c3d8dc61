"""Folders of price files -> what can be used and what was found: the one judgement behind check and preparation."""

from __future__ import annotations

import hashlib
import tempfile
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from pathlib import Path

import numpy as np

from data_prep.bars import Dates
from data_prep.calendar import common_days
from data_prep.check.calendars import (
    CALENDAR_FROM,
    best_market,
    fit,
    load_sessions,
    market_of,
    on_sessions,
    phantom_rows,
    sessions_between,
)
from data_prep.check.file import CheckedTicker, Shelf, check_file
from data_prep.check.findings import Finding, Level, exit_code, span
from data_prep.errors import DataError
from data_prep.readers.folder import PriceFile
from data_prep.spec import Progress
from data_prep.store import StoredBars
from data_prep.workers import Workers

__all__ = ["Checked", "check_files"]

_BETTER = 0.02
_LEAST_DAYS = 200


@dataclass
class Checked:
    """Files that were judged.

    Attributes
    ----------
    judged : list of CheckedTicker
        Per ticker that could be read; its bars lie on disk.
    findings : list of Finding
        Of files, tickers and folders, those of a file together.
    files : int
        Number of files looked at.
    markets : dict of str to str
        Exchange per region whose days are known to be its sessions.
    market_by : dict of str to str
        How each was found: "given", "endings of the tickers" or "days of the files".
    """

    judged: list[CheckedTicker] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    files: int = 0
    markets: dict[str, str] = field(default_factory=dict)
    market_by: dict[str, str] = field(default_factory=dict)

    @property
    def unusable(self) -> set[tuple[str, str]]:
        """File and ticker of everything that is left out as a whole."""
        out = {Level.TICKER, Level.REFUSED}
        return {(finding.file, finding.ticker) for finding in self.findings if finding.level in out}

    @property
    def usable(self) -> list[CheckedTicker]:
        """Tickers that can be used, in the order of the files."""
        out = self.unusable
        return [item for item in self.judged if (item.figures.file, item.figures.ticker) not in out]

    def exit_code(self, *, strict: bool = False) -> int:
        """Return 0, 1 or 2 as `findings.exit_code` defines them."""
        return exit_code(self.findings, usable=len(self.usable), strict=strict)

    def require(self, *, strict: bool = False) -> list[CheckedTicker]:
        """Return what can be used, or say why nothing may be.

        Raises
        ------
        DataError
            For a file that its owner has to decide about, with the names of the others; when nothing is left; and with
            `strict` for anything that is repaired or left out.
        """
        refusing = {Level.REFUSED} if not strict else set(Level) - {Level.NOTE}
        grave = [finding for finding in self.findings if finding.level in refusing]
        if grave:
            files = list(dict.fromkeys(finding.file for finding in grave))
            text = next((x for x in grave if x.level is Level.REFUSED), grave[0]).text
            if len(files) > 1:
                what = "cannot be used either" if not strict else "have something left out or repaired"
                text = f"{text} ({len(files) - 1} more files {what}: {', '.join(files[1:])})"
            raise DataError(text)
        usable = self.usable
        if not usable:
            texts = [finding.text for finding in self.findings if finding.level is not Level.NOTE]
            raise DataError(f"none of {self.files} files can be used: {' | '.join(texts[:8])}")
        return usable


def check_files(
    files: Sequence[PriceFile],
    *,
    exclude: Collection[str] = (),
    layout: str | None = None,
    markets: Mapping[str, str] | None = None,
    workers: Workers | None = None,
    shelf: Path | None = None,
    progress: Progress | None = None,
) -> Checked:
    """Read and judge price files.

    Parameters
    ----------
    files : sequence of PriceFile
        Of one or several regions.
    exclude : collection of str
        Files to pass over.
    layout : str, optional
        Name of the layout of all text files, instead of detecting one for each.
    markets : Mapping of str to str, optional
        Exchange code per region. Without one the endings of the tickers tell the exchange, or else the days themselves
        if they agree with one to 98.5 %.
    workers : Workers, optional
        By default one process per core.
    shelf : Path, optional
        Directory for the bars; files that are on it already, unchanged, are not read again. By default a temporary
        one.
    progress : callable, optional
        Called with "files", done, total.

    Raises
    ------
    DataError
        If every file is excluded, or a market or layout does not exist. What is wrong with files is in the findings.
    """
    result = Checked()
    chosen = [file for file in files if not any(file.matches(pattern) for pattern in exclude)]
    if not chosen:
        raise DataError("every price file is named in exclude, expected at least one to be left; shorten exclude")
    result.files = len(chosen)
    passing = tempfile.TemporaryDirectory(prefix="fcfl-check-") if shelf is None else None
    place = Shelf(Path(passing.name) if passing is not None else Path(str(shelf)), layout, shelf is not None)
    with Workers() if workers is None else nullcontext(workers) as pool:
        _judge_files(result, chosen, place, pool, progress)
        for region in dict.fromkeys(file.region for file in chosen):
            _judge_region(result, region, (markets or {}).get(region), pool)
    _same_series(result)
    for item in result.judged:
        item.shelf = passing
    # The findings of files that could not be read come first, then those of every ticker.
    result.findings += [finding for item in result.judged for finding in item.findings]
    return result


def _judge_files(
    result: Checked, files: Sequence[PriceFile], shelf: Shelf, workers: Workers, progress: Progress | None
) -> None:
    seen: dict[str, str] = {}
    for number, (file, found) in enumerate(zip(files, workers.map(partial(check_file, shelf), files), strict=True)):
        if found.refusal is not None:
            result.findings.append(found.refusal)
        for item in found.tickers:
            key, ticker = item.stored.key, item.stored.ticker
            if key in seen:
                text = (
                    f"{file.name}: holds ticker {ticker!r}, which {seen[key]} has already, expected one file "
                    "per ticker; name one of the two in exclude"
                )
                result.findings.append(Finding(Level.REFUSED, "ticker twice", file.name, ticker, text))
                continue
            seen[key] = file.name
            result.judged.append(item)
        if progress is not None:
            progress("files", number + 1, len(files))


def _judge_region(result: Checked, region: str, given: str | None, workers: Workers) -> None:
    items = [item for item in result.judged if item.figures.region == region]
    encodings = Counter(item.figures.encoding for item in items)
    if len(encodings) > 1:
        shown = ", ".join(f"{name} ({number})" for name, number in sorted(encodings.items()))
        text = f"{region}: mixed encodings: {shown}; each file is read in its own"
        result.findings.append(Finding(Level.NOTE, "mixed encodings", region, "", text))
    layouts = Counter(item.figures.layout for item in items)
    if len(layouts) > 1:
        shown = ", ".join(f"{name} ({number})" for name, number in sorted(layouts.items()))
        text = f"{region}: several layouts: {shown}"
        result.findings.append(Finding(Level.NOTE, "several layouts", region, "", text))
    dated = [item for item in items if item.figures.usable]
    daily = [item for item in dated if not any(x.kind in ("not daily", "too short") for x in item.findings)]
    market = ""
    own = [given or market_of(item.figures.ticker) or "" for item in dated]
    if daily:
        unknown = [number for number, code in enumerate(own) if not code]
        if unknown:
            load_sessions(dated[unknown[0]].stored.dates(), workers)
        for number in unknown:
            own[number] = best_market(dated[number].stored.dates()) or ""
        regular = {id(item) for item in daily}
        votes = Counter(code for item, code in zip(dated, own, strict=True) if id(item) in regular)
        market, number = votes.most_common(1)[0]
        if not market or number < len(daily) / 2:
            market = ""
        else:
            result.markets[region] = market
            ended = any(market_of(item.figures.ticker) == market for item in daily)
            result.market_by[region] = "given" if given else "endings of the tickers" if ended else "days of the files"
            _wrong_calendar(result, region, daily, market, given is not None)
    codes = [code or market for code in own]
    last = max((np.datetime64(item.figures.last) for item in dated), default=CALENDAR_FROM)
    sessions = {code: sessions_between(code, CALENDAR_FROM, last) for code in set(codes) if code}
    pairs = [(item.stored, code) for item, code in zip(dated, codes, strict=True)]
    compared = workers.map(partial(_compare, sessions), pairs)
    for item, code, found in zip(dated, codes, compared, strict=True):
        _account_for(item, code, found)


def _wrong_calendar(result: Checked, region: str, items: Sequence[CheckedTicker], market: str, given: bool) -> None:
    last = max(date.fromisoformat(item.figures.last) for item in items)
    days = common_days((item.stored.dates() for item in items), first=CALENDAR_FROM.astype(date), last=last)
    share = fit(days, market)
    best = best_market(days)
    if len(days) < _LEAST_DAYS or best is None or fit(days, best) < share + _BETTER:
        return
    text = (
        f"{region}: its days agree with the sessions of {market} to {share:.1%} and with those of {best} to "
        f"{fit(days, best):.1%}, expected the calendar of its own exchange; name another market"
    )
    level = Level.REFUSED if given else Level.NOTE
    result.findings.append(Finding(level, "wrong calendar", region, "", text))


@dataclass(frozen=True)
class _Compared:
    """A ticker beside the sessions of its exchange: days of filled holidays, other days off, share of sessions.

    `digest` stands for its days, closes and volumes without the filled holidays.
    """

    phantom: Dates
    off_calendar: int
    coverage: float | None
    digest: str


def _compare(sessions: Mapping[str, Dates], item: tuple[StoredBars, str]) -> _Compared:
    stored, market = item
    bars = stored.load()
    open_days = sessions.get(market, bars.dates[:0])
    open_days = open_days[(open_days >= bars.dates[0]) & (open_days <= bars.dates[-1])]
    phantom, off = phantom_rows(bars, open_days)
    days = bars.dates[~phantom]
    content = days.tobytes() + bars.close[~phantom].tobytes() + bars.volume[~phantom].tobytes()
    return _Compared(
        phantom=bars.dates[phantom],
        off_calendar=off,
        coverage=float(on_sessions(open_days, days).mean()) if len(open_days) else None,
        digest=hashlib.sha256(content).hexdigest(),
    )


def _account_for(item: CheckedTicker, market: str, found: _Compared) -> None:
    """Leave out filled holidays, and fill in the figures that need a calendar."""
    figures = item.figures
    if number := len(found.phantom):
        shown = "1 row" if number == 1 else f"{number} rows"
        text = (
            f"{figures.file}, {figures.ticker}: repeats the day before without a trade on days without a session of "
            f"{market}; {shown}, {span(found.phantom)}, left out"
        )
        kind = "filled holiday"
        item.findings.append(Finding(Level.ROWS, kind, figures.file, figures.ticker, text, number))
        figures.left_out[kind] = number
        item.stored = item.stored.leave_out(found.phantom)
        figures.usable -= number
    figures.off_calendar, figures.coverage = found.off_calendar, found.coverage
    if figures.off_calendar:
        text = f"{figures.file}, {figures.ticker}: {figures.off_calendar} rows on days without a session of {market}"
        item.findings.append(Finding(Level.NOTE, "off calendar", figures.file, figures.ticker, text))
    item.digest = found.digest


def _same_series(result: Checked) -> None:
    """Find one series under several tickers: at most one of the names can be right, and nothing says which."""
    groups: dict[str, list[CheckedTicker]] = {}
    for item in result.judged:
        if item.figures.usable > 1:
            groups.setdefault(item.digest, []).append(item)
    for group in groups.values():
        if len(group) < 2:
            continue
        names = ", ".join(item.figures.file for item in group)
        for item in group:
            text = (
                f"{item.figures.file}, {item.figures.ticker}: the same series as in {len(group) - 1} other files "
                f"({names}), expected one per ticker; name all but the right one in exclude"
            )
            item.findings.append(Finding(Level.TICKER, "same series", item.figures.file, item.figures.ticker, text))
