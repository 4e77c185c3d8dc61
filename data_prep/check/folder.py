"""Folders of price files -> what can be used and what was found: the one judgement behind check and preparation."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from data_prep.bars import Bars
from data_prep.check.calendars import best_market, fit, market_of, phantom_rows, sessions_between, union_of
from data_prep.check.findings import Finding, Level, exit_code, span
from data_prep.check.series import Judged, judge_series
from data_prep.errors import DataError, NoRowsError
from data_prep.readers.folder import PriceFile
from data_prep.readers.series import read_series
from data_prep.spec import Progress

__all__ = ["CHECK_VERSION", "Checked", "check_files"]

CHECK_VERSION = 1
"""Rises when a rule changes; prepared samples are made again then."""
_BETTER = 0.02
_LEAST_DAYS = 200


@dataclass
class Checked:
    """Files that were judged.

    Attributes
    ----------
    judged : list of Judged
        Per ticker that could be read.
    findings : list of Finding
        Of files, tickers and folders, those of a file together.
    files : int
        Number of files looked at.
    markets : dict of str to str
        Exchange per region whose days are known to be its sessions.
    """

    judged: list[Judged] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    files: int = 0
    markets: dict[str, str] = field(default_factory=dict)

    @property
    def unusable(self) -> set[tuple[str, str]]:
        """File and ticker of everything that is left out as a whole."""
        out = {Level.TICKER, Level.REFUSED}
        return {(finding.file, finding.ticker) for finding in self.findings if finding.level in out}

    @property
    def usable(self) -> list[Judged]:
        """Tickers that can be used, in the order of the files."""
        out = self.unusable
        return [item for item in self.judged if (item.figures.file, item.figures.ticker) not in out]

    def exit_code(self, *, strict: bool = False) -> int:
        """Return 0, 1 or 2 as `findings.exit_code` defines them."""
        return exit_code(self.findings, usable=len(self.usable), strict=strict)

    def require(self, *, strict: bool = False) -> list[Judged]:
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
    progress : callable, optional
        Called with "files", done, total.

    Raises
    ------
    DataError
        If every file is excluded, or a market or layout does not exist. What is wrong with files is in the findings.
    """
    result = Checked()
    seen: dict[str, str] = {}
    chosen = [file for file in files if not any(file.matches(pattern) for pattern in exclude)]
    if not chosen:
        raise DataError("every price file is named in exclude, expected at least one to be left; shorten exclude")
    result.files = len(chosen)
    for number, file in enumerate(chosen):
        try:
            for raw in read_series(file.path, file.name, layout=layout):
                item = judge_series(raw, file.region)
                key = item.bars.key
                if key in seen:
                    text = (
                        f"{file.name}: holds ticker {raw.ticker!r}, which {seen[key]} has already, expected one file "
                        "per ticker; name one of the two in exclude"
                    )
                    result.findings.append(Finding(Level.REFUSED, "ticker twice", file.name, raw.ticker, text))
                    continue
                seen[key] = file.name
                result.judged.append(item)
        except NoRowsError as error:
            result.findings.append(Finding(Level.TICKER, "empty", file.name, "", str(error)))
        except DataError as error:
            result.findings.append(Finding(Level.REFUSED, "unreadable", file.name, "", str(error)))
        if progress is not None:
            progress("files", number + 1, len(chosen))
    for region in dict.fromkeys(file.region for file in chosen):
        _judge_region(result, region, (markets or {}).get(region))
    _same_series(result)
    # The findings of files that could not be read come first, then those of every ticker.
    result.findings += [finding for item in result.judged for finding in item.findings]
    return result


def _judge_region(result: Checked, region: str, given: str | None) -> None:
    items = [item for item in result.judged if item.figures.region == region]
    dated = [item for item in items if len(item.bars.dates)]
    daily = [item for item in dated if not any(x.kind in ("not daily", "too short") for x in item.findings)]
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
    if not daily:
        return
    own = [given or market_of(item.figures.ticker) or best_market(item.bars.dates) or "" for item in dated]
    regular = {id(item) for item in daily}
    votes = Counter(code for item, code in zip(dated, own, strict=True) if id(item) in regular)
    market, number = votes.most_common(1)[0]
    if not market or number < len(daily) / 2:
        market = ""
    else:
        result.markets[region] = market
        _wrong_calendar(result, region, [item.bars for item in daily], market, given is not None)
    for item, code in zip(dated, own, strict=True):
        if code or market:
            _against_calendar(item, code or market)


def _wrong_calendar(result: Checked, region: str, items: Sequence[Bars], market: str, given: bool) -> None:
    days = union_of(items)
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


def _against_calendar(item: Judged, market: str) -> None:
    """Leave out filled holidays, and fill in the figures that need a calendar."""
    bars, figures = item.bars, item.figures
    sessions = sessions_between(market, bars.dates[0], bars.dates[-1])
    phantom, figures.off_calendar = phantom_rows(bars, sessions)
    if phantom.any():
        number = int(np.count_nonzero(phantom))
        shown = "1 row" if number == 1 else f"{number} rows"
        text = (
            f"{figures.file}, {figures.ticker}: repeats the day before without a trade on days without a session of "
            f"{market}; {shown}, {span(bars.dates[phantom])}, left out"
        )
        kind = "filled holiday"
        item.findings.append(Finding(Level.ROWS, kind, figures.file, figures.ticker, text, number))
        figures.left_out[kind] = number
        item.bars = _without(bars, ~phantom)
        figures.usable = len(item.bars.dates)
    if figures.off_calendar:
        text = f"{figures.file}, {figures.ticker}: {figures.off_calendar} rows on days without a session of {market}"
        item.findings.append(Finding(Level.NOTE, "off calendar", figures.file, figures.ticker, text))
    if len(sessions):
        figures.coverage = float(np.isin(sessions, item.bars.dates).mean())


def _without(bars: Bars, keep: np.ndarray) -> Bars:
    columns = {name: getattr(bars, name)[keep] for name in ("dates", "open", "high", "low", "close", "volume")}
    return replace(bars, **columns)


def _same_series(result: Checked) -> None:
    """Find one series under several tickers: at most one of the names can be right, and nothing says which."""
    groups: dict[str, list[Judged]] = {}
    for item in result.judged:
        bars = item.bars
        if len(bars.dates) > 1:
            digest = hashlib.sha256(bars.dates.tobytes() + bars.close.tobytes() + bars.volume.tobytes()).hexdigest()
            groups.setdefault(digest, []).append(item)
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
