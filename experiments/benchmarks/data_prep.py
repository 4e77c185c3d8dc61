"""Ticker-years per second of the check and of the preparation: `python -m experiments.benchmarks.data_prep`.

Price files in Yahoo's layout are written from the synthetic market into a temporary folder, then judged and prepared in
this process. The time is of the wall clock, so other load on the machine counts; the CPU time stands beside it.
"""

import argparse
import resource
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from data_prep.bars import Bars
from data_prep.check.folder import check_files
from data_prep.prepare import FederationSpec, prepare_files
from data_prep.readers.folder import list_price_files
from data_prep.synthetic import MarketSpec, simulate

TARGET = 1000.0
"""Goal in ticker-years per second of reading and judging, on two cores."""
_HEADER = "Date,Open,High,Low,Close,Adj Close,Volume\n"


@dataclass(frozen=True)
class Speed:
    """One stage.

    Attributes
    ----------
    stage : str
        What was done.
    seconds, cpu : float
        Wall clock and process time.
    ticker_years : float
        Work done: calendar years of bars over all tickers.
    """

    stage: str
    seconds: float
    cpu: float
    ticker_years: float

    @property
    def rate(self) -> float:
        """Ticker-years per second of the wall clock."""
        return self.ticker_years / self.seconds


def write_market(folder: Path, bars: Sequence[Bars]) -> float:
    """Write one file per ticker and return the ticker-years in them."""
    years = 0.0
    for item in bars:
        rows = zip(item.dates, item.open, item.high, item.low, item.close, item.close, item.volume, strict=True)
        lines = (f"{d},{o:.6f},{h:.6f},{low:.6f},{c:.6f},{a:.6f},{v:.0f}\n" for d, o, h, low, c, a, v in rows)
        (folder / f"{item.region}-{item.ticker}.csv").write_text(_HEADER + "".join(lines), encoding="utf-8")
        years += len(item.dates) / 252.0
    return years


def measure(tickers: int, silos: int) -> list[Speed]:
    """Time the check and the preparation of a folder of `tickers` files."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "market"
        folder.mkdir()
        years = write_market(folder, simulate(MarketSpec(tickers=tickers)))
        result = []

        def timed(stage: str, start: float, cpu: float) -> None:
            result.append(Speed(stage, time.perf_counter() - start, time.process_time() - cpu, years))

        start, cpu = time.perf_counter(), time.process_time()
        check_files(list_price_files(folder))
        timed("check", start, cpu)
        start, cpu = time.perf_counter(), time.process_time()
        prepare_files([folder], Path(name) / "samples", FederationSpec(silos=silos, min_samples=1))
        timed("prepare, check included", start, cpu)
    return result


def main(arguments: Sequence[str] | None = None, console: Console | None = None) -> None:
    """Print a table of speeds."""
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmarks.data_prep", description=__doc__)
    parser.add_argument("--tickers", type=int, default=200)
    parser.add_argument("--silos", type=int, default=4)
    given = parser.parse_args(arguments)
    table = Table("stage", "ticker-years", "seconds", "CPU seconds", "ticker-years / s")
    for speed in measure(given.tickers, given.silos):
        cells = (f"{speed.ticker_years:,.0f}", f"{speed.seconds:.2f}", f"{speed.cpu:.2f}", f"{speed.rate:,.0f}")
        table.add_row(speed.stage, *cells)
    out = console or Console()
    out.print(table)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
    out.print(f"goal: {TARGET:,.0f} ticker-years / s of the check; peak memory of the process {peak:,.0f} MiB")


if __name__ == "__main__":
    main()
