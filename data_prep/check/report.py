"""A check for people and programs: a table for the terminal, JSON, and one self-contained page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from rich.table import Table
from rich.text import Text

from data_prep.check.figures import close_line
from data_prep.check.file import CheckedTicker
from data_prep.check.findings import Finding, Level
from data_prep.check.folder import Checked
from data_prep.check.template import PAGE
from data_prep.files import write_json

__all__ = ["VERDICTS", "as_mapping", "reading", "summary", "ticker_table", "write_html", "write_report_json"]

VERDICTS = ("clean", "usable, with something left out or repaired", "refused")
"""What the exit codes 0, 1 and 2 mean."""
_BY = {"given": "setting", "endings of the tickers": "the endings of the tickers", "days of the files": "its days"}
_TONES = ("good", "warn", "bad")
_COLUMNS = ("rows", "used", "first", "last", "coverage", "gaps", "stale", "no volume", "jumps", "left out")
_LEVELS = (
    (Level.REFUSED, "Refused", "bad"),
    (Level.TICKER, "Tickers left out", "bad"),
    (Level.ROWS, "Rows left out", "warn"),
    (Level.REPAIRED, "Repaired", "warn"),
    (Level.NOTE, "Notes", "muted"),
)


@dataclass(frozen=True)
class _Group:
    key: str
    title: str
    tone: str
    findings: list[Finding]


@dataclass(frozen=True)
class _Row:
    ticker: str
    verdict: str
    tone: str
    picture: Markup
    cells: tuple[str, ...]
    layout: str


def summary(checked: Checked, *, strict: bool = False) -> str:
    """Say in one sentence what can be used."""
    rows = sum(item.figures.rows for item in checked.judged)
    used = sum(item.figures.usable for item in checked.usable)
    tickers = len(checked.judged)
    code = checked.exit_code(strict=strict)
    return (
        f"{VERDICTS[code]}: {len(checked.usable)} of {tickers} tickers in {checked.files} files usable, "
        f"{used:,} of {rows:,} rows"
    )


def as_mapping(checked: Checked, *, strict: bool = False) -> dict[str, Any]:
    """Return everything a check says as JSON-able values."""
    code = checked.exit_code(strict=strict)
    unusable = checked.unusable
    return {
        "verdict": VERDICTS[code],
        "exit_code": code,
        "strict": strict,
        "files": checked.files,
        "usable_tickers": len(checked.usable),
        "markets": {region: {"market": m, "by": checked.market_by[region]} for region, m in checked.markets.items()},
        "layouts": dict(Counter(item.figures.layout for item in checked.judged)),
        "tickers": [
            {
                **asdict(item.figures),
                "usable_ticker": (item.figures.file, item.figures.ticker) not in unusable,
                "cuts": [str(np.datetime64(day, "D")) for day in item.stored.breaks],
            }
            for item in checked.judged
        ],
        "findings": [
            {**asdict(finding), "level": finding.level.value}
            for level, _, _ in _LEVELS
            for finding in checked.findings
            if finding.level is level
        ],
    }


def write_report_json(path: Path, checked: Checked, *, strict: bool = False) -> None:
    """Write `as_mapping` to a file."""
    write_json(path, as_mapping(checked, strict=strict))


def _verdict(item: CheckedTicker, unusable: set[tuple[str, str]]) -> tuple[str, str]:
    if (item.figures.file, item.figures.ticker) in unusable:
        return "left out", "bad"
    levels = {finding.level for finding in item.findings}
    if Level.ROWS in levels:
        return "rows left out", "warn"
    return ("repaired", "warn") if Level.REPAIRED in levels else ("clean", "good")


def _cells(item: CheckedTicker) -> tuple[str, ...]:
    figures = item.figures
    return (
        f"{figures.rows:,}",
        f"{figures.usable:,}",
        figures.first,
        figures.last,
        "" if figures.coverage is None else f"{figures.coverage:.1%}",
        str(figures.gaps),
        str(figures.longest_stale),
        str(figures.zero_volume),
        str(figures.jumps),
        str(sum(figures.left_out.values())),
    )


def ticker_table(checked: Checked) -> Table:
    """Return a table with one line per ticker for the terminal."""
    table = Table(box=None, padding=(0, 1, 0, 0))
    table.add_column("ticker", overflow="fold")
    for name in ("verdict", "used", "first", "last", "coverage", "jumps", "out"):
        table.add_column(name, justify="left" if name == "verdict" else "right", no_wrap=True)
    unusable = checked.unusable
    several = len({item.figures.region for item in checked.judged}) > 1
    styles = {"good": "green", "warn": "yellow", "bad": "red"}
    for item in checked.judged:
        verdict, tone = _verdict(item, unusable)
        _, used, first, last, coverage, *_, jumps, out = _cells(item)
        # File and ticker names are data: no markup in them.
        name = item.stored.key if several else item.stored.ticker
        cells = (used, first, last, coverage, jumps, out)
        table.add_row(Text(name), Text(verdict, style=styles[tone]), *map(Text, cells))
    return table


def reading(checked: Checked) -> list[str]:
    """Say in which layouts, encodings and price bases the files were read, and whose sessions their days are."""
    figures = [item.figures for item in checked.judged]
    lines = [
        "layouts: " + _counted(item.layout for item in figures),
        "encodings: " + _counted(item.encoding for item in figures),
        "prices: " + _counted(item.basis for item in figures),
    ]
    for region, code in sorted(checked.markets.items()):
        lines.append(f"{region}: days are sessions of {code}, by {_BY[checked.market_by[region]]}")
    return lines


def _counted(names: Iterable[str]) -> str:
    return ", ".join(f"{name} ({number})" for name, number in sorted(Counter(names).items())) or "none"


def write_html(path: Path, checked: Checked, *, title: str, strict: bool = False) -> None:
    """Write the page: verdict, findings by what follows from them, and a line and a picture per ticker.

    Parameters
    ----------
    path : Path
        Page to write; needs nothing beside it and loads nothing.
    checked : Checked
        A check.
    title : str
        Heading, for example the names of the folders.
    strict : bool
        Whether anything left out or repaired refuses the input.
    """
    code = checked.exit_code(strict=strict)
    unusable = checked.unusable
    rows = []
    for item in checked.judged:
        verdict, tone = _verdict(item, unusable)
        # The picture is made here and holds nothing of a file but coordinates.
        picture = Markup(close_line(item.bars))  # noqa: S704
        rows.append(_Row(item.stored.key, verdict, tone, picture, _cells(item), item.figures.layout))
    groups = []
    for level, heading, tone in _LEVELS:
        found = [finding for finding in checked.findings if finding.level is level]
        if found:
            groups.append(_Group(level.value.replace(" ", "-"), heading, tone, found))
    verdict, _, rest = summary(checked, strict=strict).partition(": ")
    page = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True).from_string(PAGE)
    text = page.render(
        title=title,
        verdict=verdict[0].upper() + verdict[1:] + ".",
        tone=_TONES[code],
        summary=rest + ".",
        facts=[f"{line}." for line in reading(checked)],
        decisive=[group for group in groups if group.tone == "bad"],
        others=[group for group in groups if group.tone != "bad"],
        columns=_COLUMNS,
        rows=rows,
    )
    beside = path.with_name(f".{path.name}.part")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)
