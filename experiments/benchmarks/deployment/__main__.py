"""Rounds over a real SuperLink by stage: `python -m experiments.benchmarks.deployment`.

The same apps train the same samples over the same SuperLink, with TLS and node keys, all on this machine: first with a
`flower-supernode` for each silo, which starts a process for each message, then with `fcfl silo run`. Other load on the
machine counts for the seconds, hardly for the CPU seconds.
"""

import argparse
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from data_prep.prepare import FederationSpec, prepare_synthetic
from experiments.benchmarks.deployment.federation import Kind, Measured, measure
from experiments.benchmarks.deployment.messages import Stages, stages

KINDS: Mapping[Kind, str] = {"flower": "flower-supernode", "fcfl": "fcfl silo run"}
WORDS = {
    "wait": "train: the message waits for its node",
    "work": "train: work of a silo",
    "upload": "train: upload",
    "slowest": "train: until the slowest silo is there",
    "unmask": "unmask",
    "coordinator": "coordinator",
}


def settings(silos: int, rounds: int) -> dict[str, Any]:
    """Settings that differ from the defaults."""
    return {
        "silos": silos,
        "rounds": rounds,
        "participation.cohort": float((silos + 1) // 2),
        "deadline.enrol": 600.0,
        "deadline.train": 900.0,
        "deadline.unmask": 600.0,
        "eval.final": False,
    }


def report(found: Mapping[Kind, Measured], silos: int, console: Console) -> None:
    """Print medians of the stages, and what a message costs."""
    table = Table(box=None, pad_edge=False)
    for heading, justify in (("", "left"), *((KINDS[kind], "right") for kind in found), ("ratio", "right")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]

    def row(name: str, values: Sequence[float], unit: str, ratio: bool = True) -> None:
        shown = f"{values[0] / values[-1]:.1f}" if ratio and len(values) > 1 and values[-1] > 0 else ""
        table.add_row(name, *(f"{value:,.2f} {unit}".rstrip() for value in values), shown)

    split = {kind: stages(one.messages, one.history) for kind, one in found.items()}
    for field in fields(Stages):
        row(WORDS[field.name], [median(getattr(s, field.name) for s in split[kind]) for kind in found], "s", False)
    row("round", [median(s.total for s in split[kind]) for kind in found], "s")
    row("CPU of a message, at the silo", [one.silo_cpu / len(one.messages) for one in found.values()], "s")
    row(
        "CPU of a message, at the coordinator",
        [one.coordinator_cpu / len(one.messages) for one in found.values()],
        "s",
    )
    counts = [len(one.messages) for one in found.values()]
    table.add_row("messages of the run", *map(str, counts), "")
    console.print(table)
    rounds = min(len(one) for one in split.values())
    load = os.getloadavg()[1]
    console.print(
        f"{silos} silos on {os.cpu_count()} cores, medians of {rounds} rounds after the first; "
        f"load average of the last five minutes {load:.1f}",
        highlight=False,
    )


def main(arguments: Sequence[str] | None = None, console: Console | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--silos", type=int, default=4, help="number of silos, at least 3")
    parser.add_argument("--rounds", type=int, default=6, help="training rounds, at least 2")
    parser.add_argument("--only", choices=KINDS, help="one kind of nodes only")
    given = parser.parse_args(arguments)
    if given.silos < 3:
        parser.error(f"--silos {given.silos}: a secure sum takes at least 3")
    if given.rounds < 2:
        parser.error(f"--rounds {given.rounds}: the first is not measured; give at least 2")
    console = console or Console(width=120)
    with tempfile.TemporaryDirectory(prefix="fcfl-bench-") as folder:
        root = Path(folder)
        shards = prepare_synthetic(root / "market", FederationSpec(silos=given.silos), tickers=16 * given.silos)
        kinds: Sequence[Kind] = (given.only,) if given.only else tuple(KINDS)
        chosen = settings(given.silos, given.rounds)
        found = {kind: measure(kind, root / kind, shards, chosen, Console(quiet=True)) for kind in kinds}
        report(found, given.silos, console)


if __name__ == "__main__":
    main()
