"""A run over a deployment: where it is, and its end."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.experiments.deployment.parts import Part
from tests.experiments.deployment.stack import Stack
from tests.experiments.tiny import history

LAST = 3
"""The silo that most scenarios break."""


@dataclass(frozen=True)
class Run:
    """A run, conducted by ``fcfl run conduct`` in a process of its own."""

    stack: Stack
    path: Path
    conductor: Part

    @classmethod
    def begin(cls, stack: Stack, path: Path, **settings: Any) -> "Run":
        return cls(stack, path, stack.conductor(path, **settings).start())

    # --- where it is ----------------------------------------------------------------------------

    def journal(self, name: str) -> bool:
        return (self.path / "journal" / name).exists()

    def until_announced(self, epoch: int) -> None:
        """Wait until silos are asked for their vectors of an epoch."""
        self.stack.wait(lambda: self.journal(f"{epoch:08d}.announcement"), f"the announcement of epoch {epoch}")

    def until_unmasking(self, epoch: int) -> None:
        self.stack.wait(lambda: self.journal(f"{epoch:08d}.survivors"), f"the survivors of epoch {epoch}")

    def until_done(self, epoch: int) -> None:
        def done() -> bool:
            with suppress(FileNotFoundError):
                return len(history(self.path)) >= epoch
            return False

        self.stack.wait(done, f"the end of epoch {epoch}")

    def until_answering(self, silo: int, message: str, epoch: int | None = None) -> None:
        """Wait until a silo is at work on a message."""
        if epoch is not None:
            self.until_announced(epoch)
        status = self.home(silo) / "node.json"

        def answering() -> bool:
            with suppress(ValueError):
                told = json.loads(status.read_bytes())
                return bool(told.get("answering") and told.get("message") == message)
            return False

        self.stack.wait(answering, f"silo-{silo:02d} to answer {message}")

    def until_online(self, silo: int, times: int) -> None:
        """Wait until a silo's node has connected so many times since the deployment was made."""
        node = self.stack.nodes[silo]
        self.stack.wait(lambda: node.said().count("connected to") >= times, f"{node.name} to connect")

    def home(self, silo: int) -> Path:
        return self.stack.home(self.stack.names[silo])

    def charged(self, silo: int, epoch: int) -> bool:
        """Whether the silo's ledger has the epoch of this run, charged or not."""
        ledger = (self.home(silo) / "ledger.jsonl").read_text(encoding="utf-8")
        for line in ledger.splitlines():
            with suppress(ValueError):
                body: Mapping[str, Any] = json.loads(line)["body"]
                if body.get("epoch") == epoch and body.get("run") == self.run_id:
                    return True
        return False

    @property
    def run_id(self) -> str:
        from privacy.terms import RunTerms

        return RunTerms.from_bytes((self.path / "terms").read_bytes()).run_id.hex()

    # --- breaking it ----------------------------------------------------------------------------

    def kill_worker(self, silo: int) -> None:
        """Kill the process that answers the message a silo is at work on."""
        node = self.stack.nodes[silo]
        died = node.said().count("the process died")

        def killed() -> bool:
            # A child of the message before may still be on its way out.
            for child in node.family():
                with suppress(psutil.NoSuchProcess):
                    if child.ppid() != node.pid:
                        child.kill()
            return node.said().count("the process died") > died

        self.stack.wait(killed, f"a worker of {node.name} to die")

    # --- its end --------------------------------------------------------------------------------

    def finish(self, seconds: float = 600.0) -> None:
        """Wait until the conductor has brought the run to its end."""
        self.stack.wait(lambda: not self.conductor.running, f"the end of {self.path.name}", seconds)
        assert self.conductor.process is not None
        assert self.conductor.process.returncode == 0, self.conductor.said() + self.stack.logs()


def fcfl(*words: object) -> str:
    """Run a command of `fcfl` as its user does."""
    command = [sys.executable, "-m", "experiments.cli", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "200"})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
