"""The very same apps give the same bits on Flower's simulation engine, on real SuperNodes and in this process."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from experiments.flower import superlink, supernodes
from experiments.silos import make_silos
from experiments.training import run_in_process, simulate
from tests.experiments.tiny import write_samples

SILOS = 3
SETTINGS: Mapping[str, Any] = {
    "silos": SILOS,
    "rounds": 2,
    "participation.cohort": 2.0,
    "noise-seed": 7,
}
WAIT_SECONDS = 500


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return sorted(write_samples(tmp_path_factory.mktemp("market") / "samples", SILOS).iterdir())


def federation(shards: list[Path], root: Path) -> Mapping[str, Any]:
    make_silos(shards, root / "silos", epsilon=1.0, delta=1e-5, allow_seeded=True)
    return {**SETTINGS, "simulation-root": str(root / "silos")}


def weights(run: Path) -> np.ndarray:
    with np.load(run / "model.npz") as stored:
        return np.array(stored["weights"])


@pytest.fixture(scope="module")
def in_process(shards: list[Path], tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    root = tmp_path_factory.mktemp("local")
    run_in_process(root / "run", federation(shards, root), console=Console(quiet=True))
    return weights(root / "run")


@pytest.mark.slow
def test_simulation_engine_gives_the_same_bits_as_one_process(
    shards: list[Path], in_process: np.ndarray, tmp_path: Path
) -> None:
    settings = federation(shards, tmp_path)
    simulate(tmp_path / "run", settings, tmp_path / "flower", processes=2, console=Console(quiet=True))
    assert weights(tmp_path / "run").tobytes() == in_process.tobytes()


@pytest.mark.slow
def test_real_supernodes_give_the_same_bits_as_one_process(
    shards: list[Path], in_process: np.ndarray, tmp_path: Path
) -> None:
    # Without the evaluation, which is no part of the weights: stock Flower starts a process for each message.
    settings = {**federation(shards, tmp_path), "eval.final": False}
    del settings["simulation-root"]
    homes = sorted((tmp_path / "silos").glob("silo-*"))
    with superlink(tmp_path / "flower", simulation=False) as flower, supernodes(flower, homes):
        run = flower.run({**settings, "run-dir": str(tmp_path / "run")}, tmp_path / "flower.log")
        assert run.wait(WAIT_SECONDS) == 0, (tmp_path / "flower.log").read_text(encoding="utf-8")[-4000:]
    assert weights(tmp_path / "run").tobytes() == in_process.tobytes()


def test_another_seed_gives_other_bits(shards: list[Path], in_process: np.ndarray, tmp_path: Path) -> None:
    settings = {**federation(shards, tmp_path), "noise-seed": 8}
    run_in_process(tmp_path / "run", settings, console=Console(quiet=True))
    assert weights(tmp_path / "run").tobytes() != in_process.tobytes()
