"""Bars of many instruments on disk, so that memory holds one instrument at a time."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from data_prep.bars import Bars, Dates, Floats

__all__ = ["StoredBars", "store_bars"]

_COLUMNS = ("open", "high", "low", "close", "volume")


@dataclass(frozen=True)
class StoredBars:
    """Bars of one instrument in a file of their own.

    Attributes
    ----------
    path : Path
        Array of shape (6 or 7, n), float64: days since 1970-01-01, open, high, low, close, volume, and the truth where
        it is known.
    ticker, region, sector, basis
        As in `Bars`.
    breaks : tuple of int
        As in `Bars`, as days since 1970-01-01.
    without : tuple of int
        Days whose bars are left out on loading.
    checksum : int
        CRC-32 of the array.
    truth : bool
        Whether the truth is known.
    """

    path: Path
    ticker: str
    region: str
    sector: str | None
    basis: str
    breaks: tuple[int, ...]
    without: tuple[int, ...]
    checksum: int
    truth: bool

    @property
    def key(self) -> str:
        """Name that is unique over all regions."""
        return f"{self.region}/{self.ticker}"

    def is_whole(self) -> bool:
        """Tell whether the file is there and holds what was stored."""
        try:
            return zlib.crc32(self._array().tobytes()) == self.checksum
        except (OSError, ValueError):
            return False

    def dates(self) -> Dates:
        """Return the days only, shape (n,), datetime64[D]."""
        days = _days(np.load(self.path, mmap_mode="r", allow_pickle=False)[0])
        return days[self._kept(days)] if self.without else days

    def load(self) -> Bars:
        """Return the bars."""
        array = self._array()
        days = _days(array[0])
        if self.without:
            kept = self._kept(days)
            array, days = array[:, kept], days[kept]
        columns: dict[str, Floats] = dict(zip(_COLUMNS, array[1:], strict=False))
        return Bars(
            ticker=self.ticker,
            region=self.region,
            sector=self.sector,
            dates=days,
            basis=self.basis,
            breaks=np.array(self.breaks, dtype="datetime64[D]"),
            truth=array[6] if self.truth else None,
            **columns,
        )

    def leave_out(self, days: Dates) -> StoredBars:
        """Return the same without the bars of some days."""
        return replace(self, without=(*self.without, *map(int, days.astype(np.int64))))

    def _array(self) -> Floats:
        array: Floats = np.load(self.path, allow_pickle=False)
        return array

    def _kept(self, days: Dates) -> np.ndarray:
        return ~np.isin(days, np.array(self.without, dtype="datetime64[D]"))


def _days(numbers: Floats) -> Dates:
    return numbers.astype(np.int64).astype("datetime64[D]")


def store_bars(bars: Bars, path: Path) -> StoredBars:
    """Write the bars of one instrument to a file."""
    rows = [bars.dates.astype(np.float64), *(getattr(bars, name) for name in _COLUMNS)]
    if bars.truth is not None:
        rows.append(bars.truth)
    array = np.ascontiguousarray(np.stack(rows), dtype=np.float64)
    with path.open("wb") as stream:
        np.save(stream, array, allow_pickle=False)
    return StoredBars(
        path=path,
        ticker=bars.ticker,
        region=bars.region,
        sector=bars.sector,
        basis=bars.basis,
        breaks=tuple(map(int, bars.breaks.astype(np.int64))),
        without=(),
        checksum=zlib.crc32(array.tobytes()),
        truth=bars.truth is not None,
    )
