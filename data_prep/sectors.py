"""Sector labels: a file of the user that says which sector each ticker belongs to.

A CSV file in UTF-8 with the header `ticker,sector` or `ticker,sector,region`. Names are compared as written. A row with
a region holds for the ticker of that region only, and comes before one without. A ticker that no row names is an error,
since a missing label would silently change the partition; a row `*,unknown` says in so many words that all others are
of unknown sector. Rows for tickers that are not there are no mistake: such files list whole indices.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from data_prep.bars import Bars
from data_prep.errors import DataError
from data_prep.store import StoredBars

__all__ = ["EVERY_OTHER", "UNKNOWN", "Sectors", "label", "read_sectors", "sectors_text"]

UNKNOWN = "unknown"
"""How a sector that nobody stated is shown."""
EVERY_OTHER = "*"
_HEADERS = (("ticker", "sector"), ("ticker", "sector", "region"))
_SHOWN = 5

Labelled = TypeVar("Labelled", Bars, StoredBars)


@dataclass(frozen=True)
class Sectors:
    """Labels as read.

    Attributes
    ----------
    file : str
        Name for messages.
    labels : Mapping of (str, str) to str
        (region, ticker) -> sector; the region is empty where the file states none.
    """

    file: str
    labels: Mapping[tuple[str, str], str]

    def of(self, region: str, ticker: str) -> str | None:
        """Return the sector of a ticker, None if no row holds for it."""
        for key in ((region, ticker), ("", ticker), (region, EVERY_OTHER), ("", EVERY_OTHER)):
            if key in self.labels:
                return self.labels[key]
        return None


def read_sectors(path: Path) -> Sectors:
    """Read a file of sector labels.

    Raises
    ------
    DataError
        Another header, text that is not UTF-8, a row with too few or too many cells, a blank ticker or sector, or a
        ticker with two sectors.
    """
    labels: dict[tuple[str, str], str] = {}
    lines: dict[tuple[str, str], int] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            rows = csv.reader(stream)
            header = tuple(cell.strip().lower() for cell in next(rows, []))
            if header not in _HEADERS:
                raise DataError(
                    f"{path}, line 1: found header {','.join(header)[:80]!r}, expected 'ticker,sector' or "
                    "'ticker,sector,region'; correct the header"
                )
            for row in rows:
                if not row:
                    continue
                cells = [cell.strip() for cell in row]
                line = rows.line_num
                if len(cells) != len(header) or not cells[0] or not cells[1]:
                    raise DataError(
                        f"{path}, line {line}: found {','.join(cells)[:80]!r}, expected {','.join(header)} with "
                        "neither ticker nor sector blank; correct the row"
                    )
                key = (cells[2] if len(cells) > 2 else "", cells[0])
                if labels.setdefault(key, cells[1]) != cells[1]:
                    raise DataError(
                        f"{path}, line {line}: found {cells[0]} in sector {cells[1]!r}, which line {lines[key]} puts "
                        f"into {labels[key]!r}, expected one sector; remove one of the two rows"
                    )
                lines.setdefault(key, line)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({error.reason}), expected a CSV file; convert it") from None
    except csv.Error as error:
        raise DataError(f"{path}: not a readable CSV file ({error}); correct it") from None
    if not labels:
        raise DataError(f"{path}: no row after the header, expected one per ticker; add them")
    return Sectors(str(path), labels)


def label(bars: Sequence[Labelled], sectors: Sectors) -> list[Labelled]:
    """Put sectors on instruments.

    Raises
    ------
    DataError
        Naming tickers that no row holds for.
    """
    found = [sectors.of(item.region, item.ticker) for item in bars]
    missing = [item.key for item, sector in zip(bars, found, strict=True) if sector is None]
    if missing:
        shown = ", ".join(missing[:_SHOWN]) + (f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else "")
        raise DataError(
            f"{sectors.file}: no sector for {shown}, expected one for every ticker in use; add rows, or one row "
            f"'{EVERY_OTHER},{UNKNOWN}' for all others"
        )
    return [
        replace(item, sector=None if sector == UNKNOWN else sector) for item, sector in zip(bars, found, strict=True)
    ]


def sectors_text(bars: Sequence[Bars]) -> str:
    """Return the file of labels that instruments have."""
    rows = [f"{item.ticker},{item.sector or UNKNOWN},{item.region}" for item in sorted(bars, key=lambda item: item.key)]
    return "\n".join(["ticker,sector,region", *rows]) + "\n"
