"""A run that is killed and resumed ends like the run that was not, and nobody spends twice."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from client_app.app import app as client_app
from experiments.local_grid import Fault, LocalGrid, no_fault
from fcfl_strategy.errors import RunError
from fcfl_strategy.secure_epoch import SecureEpoch
from fcfl_strategy.strategy import FcflStrategy
from server_app.app import conduct
from server_app.config import RunConfig
from server_app.run_folder import stored_config
from tests.experiments.tiny import (
    SETTINGS,
    command,
    fcfl,
    history,
    model,
    released,
    seeded_rows,
    silos,
    write_samples,
)

ROOT = Path(__file__).resolve().parents[2]
Reached = Callable[[Path], bool]


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_samples(tmp_path_factory.mktemp("resume") / "samples")


@pytest.fixture(scope="module")
def unbroken(samples: Path) -> Path:
    run = samples.parent / "unbroken"
    with pytest.MonkeyPatch.context() as patch:
        assert fcfl(patch, "run", "start", samples, "--out", run, "--engine=local", **SETTINGS) == 0
    return run


def test_the_unbroken_run_is_one_that_can_tell(unbroken: Path) -> None:
    """Some silos sit out in some rounds, so that 'exactly the epochs it contributed in' says something."""
    rows = history(unbroken)
    assert [(row["epoch"], row["round"], row["purpose"]) for row in rows] == [
        (1, 1, "train"),
        (2, 2, "train"),
        (3, 3, "train"),
        (4, 3, "evaluate"),
    ]
    assert {row["status"] for row in rows} == {"completed"}
    spent = [released(silo) for silo in silos(unbroken)]
    assert 0 < sum(map(len, spent)) < 12
    assert sum(map(len, spent)) == sum(row["contributors"] or 0 for row in rows)


# --- SIGKILL ----------------------------------------------------------------------------------------


def journal(pattern: str, count: int = 1) -> Reached:
    """So many files of this name are in the coordinator's journal."""
    return lambda run: len([p for p in (run / "journal").glob(pattern) if p.suffix != ".tmp"]) >= count


def at_silo(pattern: str) -> Reached:
    """Some silo's folder of the run has a file of this name; the coordinator may not know yet."""
    return lambda run: any((run / "silos").glob(f"silo-*/runs/*/{pattern}"))


def after(seconds: float) -> Reached:
    """So long after the journal was made."""
    made: list[float] = []

    def reached(run: Path) -> bool:
        if not made and (run / "journal").exists():
            made.append(time.monotonic())
        return bool(made) and time.monotonic() - made[0] >= seconds

    return reached


def kill_when(reached: Reached, run: Path, *arguments: object, **settings: object) -> None:
    """Start `fcfl` in a process of its own and kill it, without warning, at a moment of the run."""
    log = run.with_name(f"{run.name}.log")
    with log.open("ab") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", "experiments.cli", *command(*arguments, **settings)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=output,
            stderr=output,
        )
    end = time.monotonic() + 180
    try:
        while time.monotonic() < end and child.poll() is None:
            # What is looked at may be erased meanwhile.
            with suppress(FileNotFoundError):
                if reached(run):
                    break
            time.sleep(0.001)
        child.send_signal(signal.SIGKILL)
    finally:
        child.kill()
    assert child.wait() == -signal.SIGKILL, log.read_text(encoding="utf-8", errors="replace")
    assert not (run / "summary.json").exists()


MOMENTS: dict[str, list[Reached]] = {
    "before anybody was asked, then while shares came in": [
        journal("00000001.announcement"),
        journal("00000002.survivors"),
    ],
    "after a silo's answer the coordinator does not have, then in the evaluation": [
        at_silo("contribute.2.reply"),
        journal("00000004.masked.*"),
    ],
    "at a random moment": [after(random.SystemRandom().uniform(0.0, 1.5))],
}


@pytest.mark.slow
@pytest.mark.parametrize("moments", MOMENTS)
def test_a_killed_run_ends_like_the_unbroken_one(
    samples: Path, unbroken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moments: str
) -> None:
    run = tmp_path / "run"
    resume = "run", "resume", run, "--engine=local"
    for number, reached in enumerate(MOMENTS[moments]):
        if number == 0:
            kill_when(reached, run, "run", "start", samples, "--out", run, "--engine=local", **SETTINGS)
        else:
            kill_when(reached, run, *resume)
    assert fcfl(monkeypatch, *resume) == 0
    check_equal(run, unbroken)


def check_equal(run: Path, unbroken: Path) -> None:
    """The same model to the last bit, the same history, and in every ledger each epoch once."""
    assert model(run) == model(unbroken)
    assert seeded_rows(run) == seeded_rows(unbroken)
    assert released(run) == released(unbroken) == [1, 2, 3]
    assert len(silos(run)) == len(silos(unbroken)) == 4
    for silo, other in zip(silos(run), silos(unbroken), strict=True):
        assert released(silo) == released(other)
    assert (run / "report.html").exists()
    assert not list((run / "journal").glob("*.survivors"))


# --- deterministic crashes in this process ------------------------------------------------------------


class Crash(BaseException):
    """Goes through every handler, as a kill does."""


def config_of(run: Path, **changes: Any) -> RunConfig:
    return RunConfig.from_mapping({**SETTINGS, "silos": 4, "simulation-root": str(run / "silos"), **changes})


def start(
    samples: Path, run: Path, config: RunConfig, fault: Callable[[Message], Fault | None] = no_fault
) -> LocalGrid:
    from experiments.silos import make_silos

    make_silos(sorted(samples.iterdir()), run / "silos", epsilon=1.0, delta=1e-5, allow_seeded=True)
    return LocalGrid(client_app, 4, config.values, fault=fault)


def resumed(run: Path) -> RunConfig:
    return RunConfig.from_mapping({**stored_config(run)["config"], "resume": True})


@pytest.mark.parametrize("closed", [False, True], ids=["before the silos are told", "after the silos closed"])
def test_a_crash_at_the_very_end_does_not_cost_the_evaluation(
    samples: Path, unbroken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, closed: bool
) -> None:
    run = tmp_path / "run"
    config = config_of(run)
    grid = start(samples, run, config)
    close = FcflStrategy._close

    def crash(strategy: FcflStrategy) -> None:
        if closed:
            close(strategy)
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(FcflStrategy, "_close", crash)
        with pytest.raises(Crash):
            conduct(grid, config, run)
    conduct(LocalGrid(client_app, 4, config.values), resumed(run), run)
    check_equal(run, unbroken)
    assert len(history(run)) == 4


def test_whoever_was_lost_before_the_survivors_were_fixed_is_not_asked_again(
    samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its vector could not count any more: asking would only cost its budget."""
    run = tmp_path / "run"
    config = config_of(run, **{"participation.cohort": 4.0, "participation.min-probability": 1.0, "deadline.train": 1})
    first = 1000

    def lose(message: Message) -> Fault | None:
        lost = message.metadata.message_type == "train" and message.metadata.dst_node_id == first
        return Fault("lost") if lost and message.metadata.group_id == "2" else None

    grid = start(samples, run, config, lose)
    ask = SecureEpoch.unmask_requests

    def crash(epoch: SecureEpoch, *arguments: Any) -> list[Message]:
        if epoch.number == 2:
            raise Crash
        return ask(epoch, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(SecureEpoch, "unmask_requests", crash)
        with pytest.raises(Crash):
            conduct(grid, config, run)
    asked: list[tuple[str, int]] = []
    observed = LocalGrid(
        client_app,
        4,
        config.values,
        observe=lambda m: asked.append((m.metadata.message_type + m.metadata.group_id, m.metadata.dst_node_id)),
    )
    conduct(observed, resumed(run), run)
    assert ("train2", first) not in asked
    assert ("train3", first) in asked
    assert released(silos(run)[0]) == [1, 3]
    assert released(silos(run)[1]) == [1, 2, 3]
    assert [row["survivors"] for row in history(run)] == [4, 3, 4, 4]


class Away(LocalGrid):
    """A node is offline until the coordinator has announced an epoch."""

    def __init__(self, node: int, until: int, config: RunConfig) -> None:
        super().__init__(client_app, 4, config.values, fault=self._offline, observe=self._see)
        self.node, self.until, self.there = node, until, False

    def get_node_ids(self) -> list[int]:
        return [node for node in super().get_node_ids() if node != self.node or self.there]

    def _see(self, message: Message) -> None:
        self.there |= message.metadata.message_type == "train" and int(message.metadata.group_id) >= self.until

    def _offline(self, message: Message) -> Fault | None:
        if self.there:
            return None
        if message.metadata.dst_node_id == self.node:
            return Fault("error")
        # The others need a moment, also after some time was spent on waiting for the one.
        return Fault("delay", 0.3) if message.metadata.message_type == "query.enrol" else None


def test_a_silo_that_is_away_when_the_run_is_taken_up_joins_in_once_it_is_back(
    samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    config = config_of(run, **{"rounds": 5, "deadline.enrol": 2})
    grid = start(samples, run, config)

    def crash(epoch: SecureEpoch, *arguments: Any) -> list[Message]:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(SecureEpoch, "unmask_requests", crash)
        with pytest.raises(Crash):
            conduct(grid, config, run)
    conduct(Away(1003, 3, config), resumed(run), run)
    assert [(row["status"], row["survivors"]) for row in history(run)] == [
        ("completed", 4),
        ("completed", 3),
        ("completed", 3),
        ("completed", 4),
        ("completed", 4),
        ("completed", 4),
    ]
    assert released(run) == [1, 2, 3, 4, 5]


def test_a_run_that_gave_up_goes_on_once_its_silos_are_back(samples: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    config = config_of(run, **{"max-abandoned": 2, "rounds": 4, "deadline.train": 1})

    def away(message: Message) -> Fault | None:
        lost = message.metadata.message_type == "train" and message.metadata.dst_node_id >= 1002
        return Fault("error") if lost else None

    with pytest.raises(RunError, match=r"too few survivors in 2 epochs in a row: at least 3 of 4 silos must answer"):
        conduct(start(samples, run, config, away), config, run)
    assert [row["status"] for row in history(run)] == ["abandoned", "abandoned"]
    conduct(LocalGrid(client_app, 4, config.values), resumed(run), run)
    assert [row["status"] for row in history(run)] == ["abandoned"] * 2 + ["completed"] * 3
    # The two abandoned epochs stay paid for, so two of the four planned rounds are left.
    assert [(row["epoch"], row["round"]) for row in history(run)] == [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2)]
    assert json.loads((run / "summary.json").read_text(encoding="utf-8"))["outcome"] == "budget exhausted"
    assert released(run) == [1, 2, 3, 4]


def test_a_run_whose_last_training_epoch_was_abandoned_still_has_its_report(samples: Path, tmp_path: Path) -> None:
    """The evaluation then bears a smaller round than the epoch before it."""
    run = tmp_path / "run"
    config = config_of(run, **{"rounds": 2, "deadline.train": 1})

    def away(message: Message) -> Fault | None:
        lost = message.metadata.message_type == "train" and message.metadata.group_id == "2"
        return Fault("error") if lost else None

    report = conduct(start(samples, run, config, away), config, run)
    rows = [(row["round"], row["purpose"], row["status"]) for row in history(run)]
    assert rows == [(1, "train", "completed"), (2, "train", "abandoned"), (1, "evaluate", "completed")]
    assert report.exists()
