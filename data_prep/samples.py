"""One instrument at a time: how many samples it has, and its samples into the arrays of its silo."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_prep.calendar import Aligned, align
from data_prep.features.compute import Context, compute_features
from data_prep.shard_writer import Arrays
from data_prep.shards import SPLIT_NAMES, Split, scale_targets
from data_prep.spec import FederationSpec
from data_prep.splits import SampleRows, sample_rows
from data_prep.store import StoredBars

__all__ = ["Counted", "Filled", "Journal", "Market", "Task", "count_samples", "fill_samples"]


@dataclass(frozen=True)
class Market:
    """What the instruments of a region share.

    Attributes
    ----------
    context : Context
        Trading days and shared features.
    day_split : ndarray, shape (n,), int64
        Split of each trading day, as `split_days` returns it.
    """

    context: Context
    day_split: NDArray[np.int64]


@dataclass(frozen=True)
class Counted:
    """An instrument with at least one bar on a trading day.

    Attributes
    ----------
    stored : StoredBars
        Its bars.
    sizes : Mapping of str to int
        Samples per split.
    left_out : Mapping of str to int
        Rows that are no samples, by reason.
    filled, off_calendar : int
        Rows filled forward, and bars on other days.
    first, last : date
        Days of the first and last sample; undefined without samples.
    """

    stored: StoredBars
    sizes: Mapping[str, int]
    left_out: Mapping[str, int]
    filled: int
    off_calendar: int
    first: date
    last: date


@dataclass(frozen=True)
class Filled:
    """An instrument whose samples are written: their CRC-32 per split, and how many targets were clipped."""

    checksums: Mapping[str, int]
    clipped: int


@dataclass(frozen=True)
class Task:
    """An instrument whose samples are to be written.

    Attributes
    ----------
    item : Counted
        The instrument.
    number : int
        Its place among the silo's tickers.
    arrays : Arrays
        Of its silo.
    first : Mapping of str to int
        Row of its first sample per split.
    finished : Filled or None
        What an earlier run says of it.
    """

    item: Counted
    number: int
    arrays: Arrays
    first: Mapping[str, int]
    finished: Filled | None


@dataclass(frozen=True)
class Journal:
    """The instruments whose samples are written, one line each; a torn last line is passed over."""

    path: Path

    def read(self) -> dict[str, Filled]:
        """Return what an earlier run finished, by key."""
        found: dict[str, Filled] = {}
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return found
        for line in lines:
            try:
                entry = json.loads(line)
                found[str(entry["key"])] = Filled(dict(entry["checksums"]), int(entry["clipped"]))
            except (ValueError, TypeError, KeyError):
                continue
        return found

    @contextmanager
    def append(self) -> Iterator[Callable[[str, Filled], None]]:
        """Give a function that adds an instrument.

        Lines are handed to the operating system at once but not forced to the disk: after a power cut the checksums
        tell whether the samples of a line are there.
        """
        with self.path.open("ab", buffering=0) as stream:
            stream.write(b"\n")

            def note(key: str, filled: Filled) -> None:
                stream.write(json.dumps({"key": key, **asdict(filled)}).encode() + b"\n")

            yield note


def _align(
    markets: Mapping[str, Market], spec: FederationSpec, stored: StoredBars
) -> tuple[Aligned, SampleRows] | None:
    market = markets[stored.region]
    aligned = align(stored.load(), market.context.days, limit=spec.fill_limit)
    return None if aligned is None else (aligned, sample_rows(aligned, market.context.days, market.day_split))


def count_samples(markets: Mapping[str, Market], spec: FederationSpec, stored: StoredBars) -> Counted | None:
    """Count the samples of an instrument; None if it has no bar on a trading day."""
    found = _align(markets, spec, stored)
    if found is None:
        return None
    aligned, samples = found
    rows = np.concatenate(list(samples.rows.values()))
    days = aligned.bars.dates[rows] if len(rows) else aligned.bars.dates[:1]
    return Counted(
        stored=stored,
        sizes={name: len(samples.rows[name]) for name in SPLIT_NAMES},
        left_out=samples.counts,
        filled=aligned.filled,
        off_calendar=aligned.off_calendar,
        first=days.min().astype(date),
        last=days.max().astype(date),
    )


def fill_samples(markets: Mapping[str, Market], spec: FederationSpec, task: Task) -> Filled:
    """Write the samples of an instrument into its silo's arrays, unless they are there."""
    item, arrays = task.item, task.arrays
    if task.finished is not None:
        there = {name: arrays.checksum(name, task.first[name], item.sizes[name]) for name in SPLIT_NAMES}
        if there == task.finished.checksums:
            return task.finished
    found = _align(markets, spec, item.stored)
    assert found is not None
    aligned, samples = found
    bars = aligned.bars
    features = compute_features(aligned, markets[item.stored.region].context)
    log_close = np.log(bars.close)
    clipped = 0
    checksums = {}
    for name, rows in samples.rows.items():
        returns = log_close[rows + 1] - log_close[rows]
        clipped += int(np.count_nonzero(np.abs(returns) > spec.target_scale * spec.target_clip))
        split = Split(
            features=features[rows],
            targets=scale_targets(returns, target_scale=spec.target_scale, target_clip=spec.target_clip),
            truth=None if bars.truth is None else bars.truth[rows].astype(np.float32),
            dates=bars.dates[rows].astype(np.int64).astype(np.int32),
            instruments=np.full(len(rows), task.number, dtype=np.int32),
        )
        checksums[name] = arrays.write(name, task.first[name], split)
    return Filled(checksums, clipped)
