"""One file -> its tickers, judged, their bars on a shelf on disk; what a run finished is found there by the next."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from data_prep.bars import Bars
from data_prep.check.findings import Finding, Level
from data_prep.check.series import Figures, judge_series
from data_prep.errors import DataError, NoRowsError
from data_prep.files import fingerprint
from data_prep.readers.folder import PriceFile
from data_prep.readers.series import read_series
from data_prep.store import StoredBars, store_bars

__all__ = ["CHECK_VERSION", "CheckedFile", "CheckedTicker", "Shelf", "check_file"]

CHECK_VERSION = 2
"""Rises when a rule changes; prepared samples are made again then."""


@dataclass
class CheckedTicker:
    """A ticker that was read.

    Attributes
    ----------
    stored : StoredBars
        The usable rows, whatever the findings say.
    findings : list of Finding
        In the order of the rules.
    figures : Figures
        For the table.
    digest : str
        Equal for equal series; empty before the folder is judged.
    shelf : TemporaryDirectory or None
        Holds the bars, where the caller of the check gave no place for them; removed with the last ticker on it.
    """

    stored: StoredBars
    findings: list[Finding]
    figures: Figures
    digest: str = ""
    shelf: tempfile.TemporaryDirectory[str] | None = None

    @property
    def bars(self) -> Bars:
        """The usable rows, read from the shelf anew each time."""
        return self.stored.load()


@dataclass
class CheckedFile:
    """A file that was looked at.

    Attributes
    ----------
    tickers : list of CheckedTicker
        Those that could be read.
    refusal : Finding or None
        Why there are none.
    """

    tickers: list[CheckedTicker] = field(default_factory=list)
    refusal: Finding | None = None


@dataclass(frozen=True)
class Shelf:
    """Where the bars of judged tickers lie.

    Attributes
    ----------
    directory : Path
        Existing.
    layout : str or None
        Name of the layout of all text files, None to detect it for each.
    lasting : bool
        Whether a record is kept beside the bars, so that a later run finds what this one finished.
    """

    directory: Path
    layout: str | None
    lasting: bool


def check_file(shelf: Shelf, file: PriceFile) -> CheckedFile:
    """Read and judge one file, or take what an earlier run made of the same bytes under the same rules."""
    identity = (CHECK_VERSION, shelf.layout, file.name, file.region, fingerprint(file.path))
    place = shelf.directory / hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]
    record = place.with_suffix(".json")
    if shelf.lasting and (found := _recall(record)) is not None:
        return found
    result = CheckedFile()
    try:
        for number, raw in enumerate(read_series(file.path, file.name, layout=shelf.layout)):
            item = judge_series(raw, file.region)
            stored = store_bars(item.bars, place.with_name(f"{place.name}-{number}.npy"))
            result.tickers.append(CheckedTicker(stored, item.findings, item.figures))
    except NoRowsError as error:
        result.refusal = Finding(Level.TICKER, "empty", file.name, "", str(error))
    except DataError as error:
        result.refusal = Finding(Level.REFUSED, "unreadable", file.name, "", str(error))
    if shelf.lasting:
        # No fsync: after a power cut the checksum of the bars tells whether both reached the disk.
        beside = record.with_suffix(".part")
        beside.write_text(json.dumps(asdict(result), default=str), encoding="utf-8")
        beside.replace(record)
    return result


def _recall(record: Path) -> CheckedFile | None:
    """Return what a record says, None if it is missing or damaged or its bars are."""
    try:
        found = json.loads(record.read_text(encoding="utf-8"))
        tickers = [_ticker(entry) for entry in found["tickers"]]
        refusal = None if found["refusal"] is None else _finding(found["refusal"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return CheckedFile(tickers, refusal) if all(item.stored.is_whole() for item in tickers) else None


def _ticker(entry: Mapping[str, Any]) -> CheckedTicker:
    stored = entry["stored"]
    lists = {name: tuple(stored[name]) for name in ("breaks", "without")}
    return CheckedTicker(
        StoredBars(**{**stored, **lists, "path": Path(stored["path"])}),
        [_finding(finding) for finding in entry["findings"]],
        Figures(**entry["figures"]),
    )


def _finding(entry: Mapping[str, Any]) -> Finding:
    return Finding(**{**entry, "level": Level(entry["level"])})
