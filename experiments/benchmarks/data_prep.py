"""Ticker-years per second of the check and of the preparation: `python -m experiments.benchmarks.data_prep`.

Price files in Yahoo's layout are written from the synthetic market into a temporary folder, then judged and prepared in
one process, then in one per core. The time is of the wall clock, so other load on the machine counts; where one process
works, its CPU time stands beside it and says what an idle machine would give.
"""

import argparse
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from data_prep.bars import Bars
from data_prep.check.calendars import forget_sessions
from data_prep.prepare import FederationSpec, check_folders, prepare_files
from data_prep.synthetic import MarketSpec, simulate
from data_prep.workers import usable_cores

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
    seconds : float
        Wall clock.
    cpu : float or None
        Process time, None where other processes worked, too.
    ticker_years : float
        Work done: calendar years of bars over all tickers.
    """

    stage: str
    seconds: float
    cpu: float | None
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
        for workers in sorted({1, usable_cores()}):
            forget_sessions()
            number = "1 process" if workers == 1 else f"{workers} processes"

            def timed(stage: str, work: Callable[[], object], workers: int = workers, number: str = number) -> None:
                start, cpu = time.perf_counter(), time.process_time()
                work()
                seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
                result.append(Speed(f"{stage}, {number}", seconds, cpu if workers == 1 else None, years))

            spec = FederationSpec(silos=silos, min_samples=1)
            out = Path(name) / f"samples-{workers}"
            timed("check", partial(check_folders, [folder], workers=workers))
            timed("prepare, check included", partial(prepare_files, [folder], out, spec, workers=workers))
    return result


def main(arguments: Sequence[str] | None = None, console: Console | None = None) -> None:
    """Print a table of speeds."""
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmarks.data_prep", description=__doc__)
    parser.add_argument("--tickers", type=int, default=200)
    parser.add_argument("--silos", type=int, default=4)
    given = parser.parse_args(arguments)
    table = Table("stage", "ticker-years", "seconds", "ticker-years / s", "CPU seconds", "per CPU second")
    for speed in measure(given.tickers, given.silos):
        cpu = "" if speed.cpu is None else f"{speed.cpu:.2f}"
        per_cpu = "" if speed.cpu is None else f"{speed.ticker_years / speed.cpu:,.0f}"
        cells = (f"{speed.ticker_years:,.0f}", f"{speed.seconds:.2f}", f"{speed.rate:,.0f}", cpu, per_cpu)
        table.add_row(speed.stage, *cells)
    out = console or Console()
    out.print(table)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
    out.print(f"goal: {TARGET:,.0f} ticker-years / s on two cores; peak memory of the process {peak:,.0f} MiB")


if __name__ == "__main__":
    main()
