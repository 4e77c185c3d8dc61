"""Cost of secure aggregation beside Flower's SecAgg+: `python -m experiments.benchmarks.secagg`.

CPU time of one process, both sides in one run, alternating. Flower's functions are called in the order in which its
mod and workflow call them, without messages. What Flower would need minutes for is extrapolated from some of its
parties and marked so.
"""

import argparse
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from flwr.common.secure_aggregation.ndarrays_arithmetic import parameters_addition
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from rich.console import Console
from rich.table import Table

from experiments.benchmarks.secagg import flower_round, our_round
from secagg import shamir
from secagg.graph_parameters import Degree, Rates
from secagg.prg import Mask, add_masks

LARGE = Degree(32, 18)
RATES = Rates(0.05, 0.05, active=False)


@dataclass(frozen=True)
class Line:
    """One comparison of the report.

    Attributes
    ----------
    name
        What is measured.
    ours, theirs
        Figures with their unit; ``theirs`` may be empty.
    ratio
        Theirs over ours, or None.
    target
        What was aimed at, or an empty text.
    met
        Whether it was reached; None without a target.
    """

    name: str
    ours: str
    theirs: str = ""
    ratio: float | None = None
    target: str = ""
    met: bool | None = None


def cpu(act: Callable[[], object], times: int) -> float:
    """Median CPU seconds of a call."""
    spent = []
    for _ in range(times):
        began = time.process_time()
        act()
        spent.append(time.process_time() - began)
    return median(spent)


def repeated(act: Callable[[], object], calls: int = 19) -> float:
    """CPU seconds of a call among as many as a silo of twenty makes in a row."""
    began = time.process_time()
    for _ in range(calls):
        act()
    return (time.process_time() - began) / calls


def mask_lines(length: int, least_ratio: float, times: int) -> list[Line]:
    """Expansion of a mask and its addition, of the 20 that a silo of twenty adds, beside Flower's and the addition."""
    total, floor_total = np.zeros(length, np.uint32), np.zeros(length, np.uint32)
    ones, theirs = np.ones(length, np.uint32), [np.zeros(length, np.int64)]
    key, masks = os.urandom(32), [Mask(os.urandom(32)) for _ in range(20)]
    rounds = [
        (
            cpu(lambda: add_masks(total, masks, "update"), 1) / len(masks),
            repeated(lambda: parameters_addition(theirs, pseudo_rand_gen(key, 1 << 32, [(length,)]))),
            repeated(lambda: np.add(floor_total, ones, out=floor_total)),
        )
        for _ in range(times)
    ]
    ours, flower, floor = (median(column) for column in zip(*rounds, strict=True))
    each = 1e9 / length
    name = f"mask of {length:,} values"
    return [
        Line(
            name,
            f"{ours * each:.2f} ns/value",
            f"{flower * each:.2f} ns/value",
            flower / ours,
            f"1.2 ns, {least_ratio:g} x Flower",
            ours * each <= 1.2 and flower / ours >= least_ratio,
        ),
        Line(f"{name}, bare addition", f"{floor * each:.2f} ns/value"),
    ]


def shamir_lines(times: int) -> list[Line]:
    """Split and combine 32 bytes, 14 of 20."""
    secret = os.urandom(32)
    shares = shamir.split(secret, 14, 20)
    chosen = {x + 1: share for x, share in enumerate(shares[:14])}
    theirs = create_shares(secret, 14, 20)
    split, combine = cpu(lambda: shamir.split(secret, 14, 20), times), cpu(lambda: shamir.combine(chosen, 14), times)
    their_split = cpu(lambda: create_shares(secret, 14, 20), times)
    their_combine = cpu(lambda: combine_shares(theirs), times)
    return [
        Line(
            "Shamir split, 14 of 20",
            f"{split * 1e3:.3f} ms",
            f"{their_split * 1e3:.1f} ms",
            their_split / split,
            "0.15 ms",
            split <= 0.15e-3,
        ),
        Line(
            "Shamir combine, 14 of 20",
            f"{combine * 1e3:.3f} ms",
            f"{their_combine * 1e3:.1f} ms",
            their_combine / combine,
            "0.1 ms",
            combine <= 0.1e-3,
        ),
    ]


def round_lines(n: int, length: int, lost: int, least_ratio: float | None) -> list[Line]:
    """A whole round on the complete graph, all parties, beside Flower's."""
    ours = our_round.play(our_round.Parties.enrol(n), length, lost)
    flower = flower_round.play(n, length, lost)
    name = f"round of {n} x {length:,}, {lost} lost"
    ratio = flower.total / ours.total
    return [
        Line(
            f"{name}: all parties",
            f"{ours.total:.3f} s",
            f"{flower.total:.2f} s",
            ratio,
            f"{least_ratio:g} x" if least_ratio else "",
            None if least_ratio is None else ratio >= least_ratio,
        ),
        Line(f"{name}: one silo", f"{ours.silo * 1e3:.1f} ms", f"{flower.silo * 1e3:.0f} ms", flower.silo / ours.silo),
        Line(
            f"{name}: coordinator",
            f"{ours.server * 1e3:.1f} ms",
            f"{flower.server * 1e3:.0f} ms",
            flower.server / ours.server,
        ),
        Line(
            f"{name}: upload / float32",
            f"{ours.upload_ratio:.3f}",
            f"{flower.upload_ratio:.3f}",
            flower.upload_ratio / ours.upload_ratio,
            "1.05",
            ours.upload_ratio <= 1.05,
        ),
        Line(f"{name}: download besides the model / float32", f"{ours.download_ratio:.3f}"),
    ]


def large_lines(n: int, length: int, lost: int) -> list[Line]:
    """A thousand parties on the regular graph; Flower's from some of its parties."""
    ours = our_round.play(our_round.Parties.enrol(n, LARGE, RATES), length, lost)
    flower = flower_round.extrapolate(n, length, LARGE.k, LARGE.t, lost)
    name = f"round of {n} x {length:,}, k = {LARGE.k}, t = {LARGE.t}, {lost} lost"
    return [
        Line(
            f"{name}: coordinator",
            f"{ours.server:.2f} s",
            f"{flower.server:.0f} s (extrapolated)",
            flower.server / ours.server,
            "1.5 s",
            ours.server <= 1.5,
        ),
        Line(
            f"{name}: one silo",
            f"{ours.silo * 1e3:.1f} ms",
            f"{flower.silo * 1e3:.0f} ms",
            flower.silo / ours.silo,
        ),
        Line(
            f"{name}: all parties",
            f"{ours.total:.1f} s",
            f"{flower.total:.0f} s (extrapolated)",
            flower.total / ours.total,
        ),
        Line(f"{name}: upload / float32", f"{ours.upload_ratio:.3f}", "", None, "1.05", ours.upload_ratio <= 1.05),
        Line(f"{name}: download besides the model / float32", f"{ours.download_ratio:.3f}"),
    ]


def report(lines: Sequence[Line], console: Console) -> None:
    """Print the lines."""
    table = Table(box=None, pad_edge=False)
    for heading, justify in (
        ("", "left"),
        ("ours", "right"),
        ("Flower", "right"),
        ("ratio", "right"),
        ("target", "left"),
    ):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    for line in lines:
        verdict = "" if line.met is None else f"{line.target}: {'met' if line.met else 'MISSED'}"
        table.add_row(line.name, line.ours, line.theirs, "" if line.ratio is None else f"{line.ratio:.1f}", verdict)
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="small sizes, in seconds; its figures say little")
    quick = parser.parse_args(arguments).quick
    console = Console(width=150)
    lines: list[Line] = []
    if quick:
        lines += mask_lines(10_000, 6, 3) + shamir_lines(5) + round_lines(5, 1000, 1, None)
    else:
        lines += mask_lines(121_281, 6, 11) + mask_lines(1_000_000, 4, 5) + shamir_lines(51)
        lines += round_lines(20, 121_281, 0, 15) + round_lines(20, 121_281, 2, 15) + round_lines(20, 1_000_000, 0, None)
        lines += large_lines(1000, 121_281, 50)
    if quick:
        lines = [replace(line, met=None) for line in lines]
    report(lines, console)


if __name__ == "__main__":
    main()
