"""What a deployed run must have done: the same, bit for bit, as the same apps in one process with the same losses."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from flwr.app import Message

from client_app.app import app as client_app
from experiments.local_grid import FIRST_NODE_ID, Fault, LocalGrid
from experiments.silos import make_silos
from privacy.ledger import verify
from server_app.app import conduct
from server_app.config import RunConfig
from tests.experiments.deployment.stack import SETTINGS, SILOS, Stack
from tests.experiments.tiny import SEEDED_FIELDS, history, model, seeded_rows

Losses = frozenset[tuple[int, int]]
"""Pairs of epoch and silo whose vector did not get into the sum."""
# A silo that is lost in an abandoned epoch may have been counted before or after the others were missed.
COMPARED = tuple(name for name in SEEDED_FIELDS if name not in ("survivors", "sigma"))


@dataclass(frozen=True)
class Reference:
    """A run in this process."""

    weights: bytes
    rows: Sequence[Mapping[str, Any]]
    spent: Mapping[str, tuple[int, ...]]


@lru_cache(maxsize=32)
def reference(samples: Path, rounds: int, losses: Losses = frozenset()) -> Reference:
    """Run the apps in this process over fresh silos, without the vectors of ``losses``."""
    run = Path(mkdtemp(dir=samples.parent, prefix="reference-")) / "run"
    homes = make_silos(sorted(samples.iterdir()), run / "silos", epsilon=1000.0, delta=0.01, allow_seeded=True)

    def fault(message: Message) -> Fault | None:
        data = message.metadata
        if data.message_type != "train" or (int(data.group_id), data.dst_node_id - FIRST_NODE_ID) not in losses:
            return None
        return Fault("error")

    quick = {
        **SETTINGS,
        "rounds": rounds,
        "deadline.train": 0.5,
        "deadline.unmask": 5.0,
        "deadline.poll": 0.01,
        "simulation-root": str(run / "silos"),
    }
    config = RunConfig.from_mapping({**quick, "simulation-root": str(run / "silos")})
    conduct(LocalGrid(client_app, SILOS, config.values, fault=fault), config, run)
    (run_id,) = runs_of(homes[0].root)
    spent = {home.settings.name: releases(home.root, run_id) for home in homes}
    return Reference(model(run), history(run), spent)


def lines(folder: Path) -> list[Mapping[str, Any]]:
    """Entries of a ledger after checking it whole: chain, signatures, anchor, totals."""
    found = verify(folder / "ledger.jsonl", folder / "ledger.anchor")
    assert found.notice is None
    return [json.loads(line) for line in (folder / "ledger.jsonl").read_text(encoding="utf-8").splitlines()]


def runs_of(folder: Path) -> list[str]:
    return [line["body"]["run"] for line in lines(folder) if line["kind"] == "run_opened"]


def releases(folder: Path, run_id: str) -> tuple[int, ...]:
    """Epochs charged for one run; none is charged twice, and each epoch is in the ledger once."""
    own = [line for line in lines(folder) if line["body"].get("run") == run_id]
    entered = [line["body"]["epoch"] for line in own if line["kind"] in ("release", "abstention")]
    assert entered == sorted(set(entered)), f"{folder}: {entered}"
    return tuple(line["body"]["epoch"] for line in own if line["kind"] == "release")


@dataclass(frozen=True)
class Found:
    """What a deployed run did.

    Attributes
    ----------
    lost : frozenset
        Pairs of epoch and silo that the sums went without.
    abandoned : tuple of int
        Epochs.
    spent_for_nothing : mapping
        Epochs for which a silo was charged although its vector did not count.
    """

    lost: Losses = frozenset()
    abandoned: tuple[int, ...] = ()
    spent_for_nothing: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [f"epoch {e} without silo-{s:02d}" for e, s in sorted(self.lost) if e not in self.abandoned]
        parts += [f"epoch {e} abandoned" for e in self.abandoned]
        return ", ".join(parts) or "as the unbroken run"


def unheard(run: Path, epoch: int) -> list[int]:
    """Silos of whose vector the coordinator's log says that it did not come."""
    log = (run / "flower.log").read_text(encoding="utf-8", errors="replace")
    return sorted({int(silo) for silo in re.findall(rf"epoch {epoch}: silo-(\d+) gave no vector", log)})


def check(stack: Stack, run: Path, *, faulty: Iterable[int] | None = (), may_abandon: bool = False) -> Found:
    """Check a run that has ended, and say what it lost.

    Promise: every epoch is in the history once; all ledgers verify and charge an epoch at most once; the weights are
    bit for bit those of a run in one process in which the same silos were lost in the same epochs; every silo was
    charged exactly as there, but for vectors that it had made when it was lost.

    Parameters
    ----------
    stack : Stack
    run : Path
    faulty : iterable of int
        Silos that may have been lost, all together where fewer survived than enrolled; None for whichever the
        coordinator's log names, where a cut line may cost any of them.
    may_abandon : bool
        Whether epochs may have been abandoned.
    """
    rows = history(run)
    assert (run / "summary.json").exists()
    assert [row["epoch"] for row in rows] == list(range(1, len(rows) + 1))
    done = [row["round"] for row in rows if row["purpose"] == "train" and row["status"] != "abandoned"]
    assert done == list(range(1, len(done) + 1))
    abandoned = tuple(row["epoch"] for row in rows if row["status"] == "abandoned")
    assert may_abandon or not abandoned, f"epochs {abandoned} were abandoned\n{stack.logs()}"
    lost = set()
    for row in rows:
        if row["status"] == "abandoned":
            # Whoever was missing: two of four are always too many.
            lost |= {(row["epoch"], 0), (row["epoch"], 1)}
        elif row["survivors"] < SILOS:
            suspects = unheard(run, row["epoch"]) if faulty is None else list(faulty)
            assert row["survivors"] == SILOS - len(suspects), f"epoch {row['epoch']}\n{stack.logs()}"
            lost |= {(row["epoch"], silo) for silo in suspects}
    rounds = json.loads((run / "config.json").read_bytes())["config"]["rounds"]
    other = reference(stack.samples, rounds, frozenset(lost))
    assert model(run) == other.weights
    compared = [{name: row[name] for name in COMPARED} for row in other.rows]
    mine = [{name: row[name] for name in COMPARED} for row in seeded_rows(run)]
    if not abandoned:
        assert mine == compared
    assert [(r["epoch"], r["round"], r["status"]) for r in mine] == [
        (r["epoch"], r["round"], r["status"]) for r in compared
    ]
    (run_id,) = runs_of(run)
    assert list(releases(run, run_id)) == sorted(set(releases(run, run_id)))
    spare: dict[str, tuple[int, ...]] = {}
    for number, name in enumerate(stack.names):
        spent, expected = releases(stack.home(name), run_id), other.spent[name]
        missed = {epoch for epoch, silo in lost if silo == number or epoch in abandoned}
        assert set(expected) - missed <= set(spent), name
        assert set(spent) - set(expected) <= missed, name
        if more := tuple(sorted(set(spent) & missed)):
            spare[name] = more
    return Found(frozenset(lost), abandoned, spare)
