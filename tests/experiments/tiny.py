"""A federation so small that a whole run takes seconds, and what to read from a run's folder."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_prep.features.table import N_FEATURES
from data_prep.shard_writer import write_shard
from data_prep.shards import Split
from experiments import cli
from privacy.ledger import verify

SETTINGS = {
    "rounds": 3,
    "noise-seed": 1,
    "participation.cohort": 2,
    "dp.sampling-rate": 0.5,
    "local.steps": 1,
    "deadline.poll": 0.01,
}
# Fields of a history row that depend on the data and the seeds only.
SEEDED_FIELDS = (
    "epoch",
    "round",
    "purpose",
    "status",
    "contributors",
    "survivors",
    "enrolled",
    "sigma",
    "epsilon",
    "budget_fraction",
    "divergence",
    "update_norm",
    "validation",
    "test",
)


def split(rng: np.random.Generator, size: int, weights: np.ndarray) -> Split:
    features = rng.standard_normal((size, N_FEATURES)).astype(np.float32)
    truth = (0.003 * features @ weights).astype(np.float32)
    targets = (truth / 0.01 + rng.standard_normal(size)).astype(np.float32)
    return Split(features, targets, truth, np.arange(size, dtype=np.int32), np.zeros(size, dtype=np.int32))


def write_samples(folder: Path, silos: int = 4) -> Path:
    """Samples of a few hundred records a silo, as `fcfl data` leaves them."""
    rng = np.random.default_rng(1)
    weights = rng.standard_normal(N_FEATURES) / np.sqrt(N_FEATURES)
    for number in range(silos):
        shard = folder / f"silo-{number:02d}"
        shard.mkdir(parents=True)
        sizes = {"train": 120 + 90 * number, "validation": 40, "test": 40}
        splits = {name: split(rng, size, weights) for name, size in sizes.items()}
        manifest = {"target_scale": 0.01, "first_date": "2020-01-01", "last_date": "2021-01-01"}
        write_shard(shard, splits, manifest)
    return folder


def command(*arguments: object, **settings: object) -> list[str]:
    """Arguments of `fcfl`, settings as --set."""
    given = [f"--set={name}={json.dumps(value)}" for name, value in settings.items()]
    return [*map(str, arguments), *given]


def fcfl(monkeypatch: pytest.MonkeyPatch, *arguments: object, **settings: object) -> int:
    """Run the command line in this process and return its exit code."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "argv", ["fcfl", *command(*arguments, **settings)])
        try:
            cli.main()
        except SystemExit as stop:
            return int(stop.code or 0)
    return 0


Fcfl = Callable[..., int]


def history(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "history.jsonl").read_text(encoding="utf-8").splitlines()]


def seeded_rows(run: Path) -> list[dict[str, Any]]:
    return [{name: row[name] for name in SEEDED_FIELDS} for row in history(run)]


def model(run: Path) -> bytes:
    with np.load(run / "model.npz") as stored:
        weights = stored["weights"]
    assert weights.dtype == np.float32
    return bytes(weights.tobytes())


def released(folder: Path) -> list[int]:
    """Epochs charged in the ledger of a silo or a run, after checking the whole ledger."""
    ledger = folder / "ledger.jsonl"
    found = verify(ledger, folder / "ledger.anchor")
    assert found.notice is None
    assert len(found.runs) == 1
    assert found.runs[0].closed
    lines = [json.loads(line) for line in ledger.read_text(encoding="utf-8").splitlines()]
    return [line["body"]["epoch"] for line in lines if line["kind"] == "release"]


def silos(run: Path) -> list[Path]:
    return sorted((run / "silos").glob("silo-*"))
