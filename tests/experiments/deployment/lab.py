"""A deployment on one machine: Flower's SuperLink and executor with TLS and node keys, and this project's nodes."""

import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from client_app.node.status import read
from experiments.deployment.control import Coordinator, control, nodes
from experiments.flower import APP, free_port, stop
from experiments.silos import make_silo
from tests.experiments.tiny import fcfl

WAIT_SECONDS = 240.0
BIN = Path(sys.executable).parent


def wait(condition: Callable[[], object], log: Path | None = None) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < end, log and log.read_text()[-4000:]
        time.sleep(0.02)


def told(text: str, what: str) -> str:
    found = re.search(rf"{what}\s+(\S+?):?(\s|$)", text)
    assert found, text
    return found[1]


def provision(root: Path, shards: Sequence[Path], port: int) -> list[Path]:
    """Take silos with samples through ``fcfl provision``; return their folders."""
    project = root / "project"

    def say(*arguments: object) -> str:
        printed = io.StringIO()
        with redirect_stdout(printed), pytest.MonkeyPatch.context() as patch:
            assert fcfl(patch, "provision", *arguments) == 0, printed.getvalue()
        return printed.getvalue()

    say("init", project, "--name", "Lab", "--server", "localhost", "--port", port, "--ip", "127.0.0.1")
    homes, authority = [], ""
    for number, shard in enumerate(shards):
        name = f"silo-{number:02d}"
        home = root / "silos" / name
        make_silo(
            home,
            name,
            shard,
            epsilon=3.0,
            delta=3e-5,
            min_cohort=1.0,
            min_enrolment=3,
            allow_seeded=True,
            allow_metrics=True,
        )
        spoken = say("add-silo", name, "--project", project)
        code = root / f"code-{name}"
        code.touch(mode=0o600)
        code.write_text(told(spoken, "enrolment code"))
        say("csr", home, "--silo", name, "--code-file", code, "--out", root / f"{name}.json")
        say("sign", root / f"{name}.json", "--project", project)
        authority = told(spoken, "authority")
        homes.append(home)
    for home in homes:
        kit = root / f"{home.name}.tar"
        say("export", home.name, "--out", kit, "--project", project)
        say("install", kit, "--home", home, "--fingerprint", authority)
    return homes


@dataclass
class Lab:
    """What runs."""

    root: Path
    port: int
    homes: list[Path]
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def coordinator(self) -> Coordinator:
        return Coordinator(f"localhost:{self.port}", self.root / "project" / "ca" / "ca.crt")

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": str(APP),
            "FLWR_HOME": str(self.root / "flower"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "OMP_NUM_THREADS": "1",
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
        }

    def start(self, name: str, *command: object) -> subprocess.Popen[bytes]:
        with self.log(name).open("ab") as log:
            self.running[name] = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(self.environment),
                cwd=self.root,
                start_new_session=True,
            )
        return self.running[name]

    def log(self, name: str) -> Path:
        return self.root / f"{name}.log"

    def superlink(self) -> None:
        keys = next((self.root / "project" / "servers" / "localhost").glob("current"))
        ca = self.coordinator.root_certificates
        self.start(
            "superlink",
            *(BIN / "flower-superlink", "--host", "127.0.0.1", "--port", self.port, "--isolation", "process"),
            *("--ssl-ca-certfile", ca, "--ssl-certfile", keys / "server.crt", "--ssl-keyfile", keys / "server.key"),
            *("--enable-supernode-auth", "--database", self.root / "state.db"),
        )
        seen = self.log("superlink").read_text().count("startup complete")
        wait(lambda: self.log("superlink").read_text().count("startup complete") > seen, self.log("superlink"))

    def executor(self) -> None:
        ca = self.coordinator.root_certificates
        address = f"localhost:{self.port}"
        self.start("executor", BIN / "flower-superexec", "--root-certificates", ca, "--runtime-api-address", address)

    def node(self, number: int) -> subprocess.Popen[bytes]:
        home = self.homes[number]
        hasty = Path(__file__).with_name("hasty.py")
        return self.start(home.name, sys.executable, hasty, home, "--busy", "0.5", "--idle", "0.5")

    def conduct(self, name: str, settings: Mapping[str, Any]) -> Path:
        """Conduct a run in a process of its own; return its folder."""
        run, at = self.root / name, self.coordinator
        given = [f"--set={key}={json.dumps(value)}" for key, value in settings.items()]
        where = ("--superlink", at.superlink, "--root-certificates", at.root_certificates, "--app", APP)
        self.start("conduct", sys.executable, "-m", "experiments.cli", "run", "conduct", run, *where, *given)
        return run

    def events(self, number: int) -> list[str]:
        """What a node's log says."""
        lines = self.log(self.homes[number].name).read_text().splitlines()
        # A process whose node is killed while it sends the message says so in Python's own words.
        return [json.loads(line)["event"] for line in lines if line.startswith("{")]

    def answering(self, number: int, kind: str) -> bool:
        said: Mapping[str, Any] = read(self.homes[number])
        return bool(said.get("answering")) and said.get("message") == kind

    def statuses(self) -> list[str]:
        with control(self.coordinator) as client:
            return sorted(nodes(client).values())


@contextmanager
def deployed(root: Path, shards: Sequence[Path]) -> Iterator[Lab]:
    """A SuperLink, an executor, and folders of silos; the nodes are started by the tests."""
    port = free_port()
    lab = Lab(root, port, provision(root, shards, port))
    try:
        lab.superlink()
        lab.executor()
        yield lab
    finally:
        for process in lab.running.values():
            stop(process)
