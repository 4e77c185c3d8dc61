"""Where the time of a whole run goes, without masks and with them: `python -m experiments.benchmarks.round`.

One process, one torch thread. The same configuration is run in the arena, whose sums are in the clear, and over Flower
messages in this process with secure aggregation, ledgers and their fsync. Stages are exclusive: what a stage calls of
another counts there.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import Any
from unittest import mock

import torch
from rich.console import Console
from rich.table import Table

from data_prep.prepare import prepare_synthetic
from data_prep.spec import FederationSpec
from experiments.arena.federation import conduct
from experiments.arena.markets import Data
from experiments.silos import make_silos
from experiments.training import run_in_process
from server_app.config import RunConfig
from server_app.run_settings import initial_weights, settings_of

BATCH = 256
TARGETS = {"in the clear": 30.0, "with secure aggregation": 60.0}
"""Wall seconds aimed at on two cores, for 65 rounds of 20 silos, 10 of which are expected to contribute."""
STAGES: Mapping[str, Sequence[str]] = {
    "gradients": ("privacy.dpsgd._clipped_sum",),
    "samples and noise": ("client_app.local_training.drawn_ahead", "privacy.dpsgd.DrawnAhead.poisson_sample"),
    "noise on the grid": ("privacy.grid.Grid.release",),
    "training, rest": ("client_app.local_training.train_locally",),
    "ring encoding": ("client_app.contribution.encode",),
    "contribution, rest": ("experiments.arena.federation.contribution", "client_app.silo.contribution"),
    "plan and broadcast": ("fcfl_strategy.rounds.plan_training", "fcfl_strategy.rounds.broadcast"),
    "upper bound of the spend": ("fcfl_strategy.rounds.announced", "fcfl_strategy.rounds.exhausted"),
    "server step": ("fcfl_strategy.rounds.absorb",),
    "masks": ("secagg.silo.mask_in_view",),
    "unmasking": ("secagg.coordinator.aggregate", "secagg.silo.answer_unmask"),
    "bundles, checks": ("secagg.silo.create_bundle", "secagg.silo.check_signed_view"),
    "ledgers": ("privacy.ledger.Ledger.append", "client_app.home.SiloHome.ledger"),
    "silos' files": ("client_app.home.write_atomic", "client_app.home.RunFolder.control"),
    "fsync": ("os.fsync",),
    "silo's answer, rest": ("experiments.local_grid.LocalGrid._handle",),
}
REST = "everything else"


@dataclass
class Clock:
    """Exclusive wall and CPU seconds by stage."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    _open: list[str] = field(default_factory=lambda: [REST])
    _last: tuple[float, float] = (0.0, 0.0)

    def start(self) -> None:
        """Begin with nothing."""
        self._last = _now()

    def turn(self) -> None:
        """Give the time since the last turn to the stage that is open."""
        now = _now()
        spent = self.seconds.setdefault(self._open[-1], [0.0, 0.0])
        for kind in (0, 1):
            spent[kind] += now[kind] - self._last[kind]
        self._last = now

    def timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its time taken."""

        def call(*arguments: Any, **named: Any) -> Any:
            self.turn()
            self._open.append(stage)
            try:
                return function(*arguments, **named)
            finally:
                self.turn()
                self._open.pop()

        return call

    @property
    def total(self) -> tuple[float, float]:
        """Wall and CPU seconds of everything."""
        wall, cpu = (sum(spent[kind] for spent in self.seconds.values()) for kind in (0, 1))
        return wall, cpu


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


@contextmanager
def clocked() -> Iterator[Clock]:
    """Take the times of all stages while inside."""
    clock = Clock()
    with ExitStack() as patches:
        for stage, places in STAGES.items():
            for place in places:
                patches.enter_context(mock.patch(place, clock.timed(stage, resolve_name(place))))
        clock.start()
        yield clock
        clock.turn()


def in_the_clear(data: Data, config: RunConfig) -> Clock:
    """Do the run in the arena."""
    with clocked() as clock:
        for _ in conduct(settings_of(config, bytes(16)), initial_weights(config), data.samples()):
            pass
    return clock


def with_secure_aggregation(data: Data, config: RunConfig, folder: Path) -> Clock:
    """Do the run with messages, masks, ledgers and files in a folder."""
    shards = sorted(data.folder.glob("silo-*"))
    settings = {"epsilon": config.real("dp.epsilon"), "delta": config.real("dp.delta")}
    make_silos(shards, folder / "silos", **settings, allow_seeded=True)
    given = {**config.values, "simulation-root": str(folder / "silos")}
    with clocked() as clock:
        run_in_process(folder / "run", given, console=Console(quiet=True))
    return clock


def main(arguments: Sequence[str] | None = None, console: Console | None = None) -> None:
    """Measure both runs and print their stages."""
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmarks.round", description=__doc__)
    parser.add_argument("--rounds", type=int, default=65, help="rounds")
    parser.add_argument("--silos", type=int, default=20, help="silos, of which half are expected to contribute")
    parser.add_argument("--tickers", type=int, default=120, help="stocks of the synthetic market")
    parser.add_argument("--batch", type=int, default=BATCH, help="expected batch of the mean silo")
    parser.add_argument("--arena-only", action="store_true", help="leave out the run with secure aggregation")
    chosen = parser.parse_args(arguments)
    if min(chosen.rounds, chosen.tickers, chosen.batch) < 1 or chosen.silos < 3:
        parser.error("--rounds, --tickers, --batch: expected at least 1; --silos: at least 3")
    console = console or Console()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            prepare_synthetic(folder / "data", FederationSpec(silos=chosen.silos), tickers=chosen.tickers)
            data = Data.open(folder / "data", chosen.silos)
            mean = sum(sample.records for sample in data.samples().values()) / chosen.silos
            config = RunConfig.from_mapping(
                {
                    "silos": chosen.silos,
                    "rounds": chosen.rounds,
                    "participation.cohort": chosen.silos / 2,
                    "dp.sampling-rate": min(1.0, chosen.batch / mean),
                    "noise-seed": 1,
                    "eval.metrics": False,
                    "eval.final": False,
                    "deadline.poll": 0.002,
                }
            )
            clocks = {"in the clear": in_the_clear(data, config)}
            if not chosen.arena_only:
                clocks["with secure aggregation"] = with_secure_aggregation(data, config, folder)
    finally:
        torch.set_num_threads(threads)
    console.print(
        f"{chosen.rounds} rounds, {chosen.silos} silos of {mean:,.0f} records on average, {chosen.silos / 2:g} "
        f"expected to contribute, expected batch {chosen.batch}, {config.whole('local.steps')} steps; one process, "
        "one thread",
        highlight=False,
        soft_wrap=True,
    )
    console.print(table(clocks))
    for label, clock in clocks.items():
        wall, cpu = clock.total
        aim = f"; aimed at: {TARGETS[label]:g} s for 65 rounds of 20 silos"
        console.print(f"{label}: {wall:.1f} s, {cpu:.1f} s of CPU{aim}", highlight=False, soft_wrap=True)


def table(clocks: Mapping[str, Clock]) -> Table:
    """Stages of all runs, those of no run left out."""
    drawn = Table("stage", box=None, pad_edge=False)
    for label in clocks:
        drawn.add_column(f"{label}, s", justify="right")
        drawn.add_column("CPU s", justify="right")
    for stage in (*STAGES, REST):
        times = [clock.seconds.get(stage) for clock in clocks.values()]
        if any(times):
            drawn.add_row(stage, *(f"{value:.2f}" if spent else "" for spent in times for value in spent or ("", "")))
    return drawn


if __name__ == "__main__":
    main()
