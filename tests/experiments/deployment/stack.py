"""A whole deployment on the loopback address, every part a process of its own, every part to be killed.

SuperLink (TLS, node authentication, SQLite, process isolation), the ServerApp's executor, a forwarder that stands for
the proxy and the network, the silos' nodes with keys and start-up kits as `fcfl provision` makes them, and
``fcfl run conduct``.
"""

import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psutil

from experiments.flower import free_port
from experiments.provision import kit as kits
from experiments.provision import moments
from experiments.provision.certificates import fingerprint
from experiments.provision.code import code_key, new_code
from experiments.provision.enrolment import install, make_request, open_kit
from experiments.provision.federation import Federation, Institution, Server
from experiments.provision.project import Project
from tests.experiments.deployment.parts import ROOT, Part
from tests.experiments.tiny import command, write_samples

SILOS = 4
PATIENCE = 300.0
SETTINGS: Mapping[str, Any] = {
    "silos": SILOS,
    "rounds": 2,
    "noise-seed": 1,
    "eval.final": False,
    "participation.cohort": 2.0,
    "dp.sampling-rate": 0.5,
    "local.steps": 1,
    "deadline.enrol": 120.0,
    "deadline.train": 120.0,
    "deadline.unmask": 90.0,
    "deadline.poll": 0.3,
}
POLICY = {
    "epsilon": "1000.0",
    "delta": "0.01",
    "min_cohort": "1.0",
    "min_enrolment": "3",
    "allow_seeded": "true",
    "allow_metrics": "true",
}


class Stack:
    """A deployment. Made once, used for one run after another."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.samples = write_samples(root / "samples", SILOS)
        self.link_port, self.door_port = free_port(), free_port()
        self.server = Server.of("localhost", self.door_port, [], ["127.0.0.1"], "server")
        self.project = Project.create(root / "project", Federation("Recovery", (self.server,)), moments.now())
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("FCFL_")},
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "FLWR_HOME": str(root / "flower"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        }
        (root / "flower").mkdir()
        self.names = [f"silo-{number:02d}" for number in range(SILOS)]
        for name in self.names:
            self._enrol(name)
        for name in self.names:
            self._install(name)
        door = [sys.executable, Path(__file__).with_name("forwarder.py"), self.door_port, self.link_port]
        self.door = self._part("door", door)
        self.link = self._part("link", self._link_command())
        ca = self.project.ca_file
        executor = [tool("flower-superexec"), "--root-certificates", ca, "--runtime-api-address", self.link_address]
        self.executor = self._part("executor", executor)
        self.nodes = [self.node(name, self.home(name)) for name in self.names]

    # --- how it is made -------------------------------------------------------------------------

    @property
    def link_address(self) -> str:
        return f"127.0.0.1:{self.link_port}"

    def home(self, name: str) -> Path:
        return self.root / "silos" / name

    def _part(self, name: str, words: list[Any]) -> Part:
        return Part(name, words, self.root / f"{name}.log", self.environment)

    def _link_command(self) -> list[Any]:
        folder = self.project.server_folder(self.server)
        words: list[Any] = [tool("flower-superlink"), "--host", "127.0.0.1", "--port", self.link_port]
        words += ["--isolation", "process", "--enable-supernode-auth", "--database", self.root / "state.db"]
        words += ["--ssl-ca-certfile", self.project.ca_file, "--ssl-certfile", folder / "server.crt"]
        return [*words, "--ssl-keyfile", folder / "server.key"]

    def node(self, name: str, home: Path, *, skew: float = 0.0) -> Part:
        """A silo's node, not started yet."""
        wrapper = [Path(__file__).with_name("skewed.py"), skew] if skew else ["-m", "client_app.node"]
        return self._part(name, [sys.executable, *wrapper, home, "--busy", "0.5", "--idle", "0.5"])

    def _enrol(self, name: str) -> None:
        key, now = code_key(new_code(), name, "code"), moments.now()
        self.project.add(Institution(name, ""))
        self.project.store(self.project.state().expect(name, key, now + timedelta(days=1), now))
        request = make_request(self.home(name), name, now, key)
        request.verify(now, "request")
        self.project.store(self.project.state().admit(request, now, "request"))

    def _install(self, name: str) -> None:
        key, issuer = self.project.authority()
        kit = kits.build(self.project.declared(), self.project.state(), name, issuer, key)
        home = self.home(name)
        install(home, open_kit(home, kit, fingerprint(self.project.ca()), moments.now(), "kit"))
        lines = (home / "silo.example.toml").read_text(encoding="utf-8").splitlines()
        own = {**POLICY, "data": json.dumps(str(self.samples / name))}
        for number, line in enumerate(lines):
            word = line.partition(" = ")[0]
            if word in own:
                lines[number] = f"{word} = {own[word]}"
        (home / "silo.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")

    # --- life -----------------------------------------------------------------------------------

    @property
    def parts(self) -> list[Part]:
        return [self.link, self.door, self.executor, *self.nodes]

    def start_link(self) -> None:
        self.link.start()
        self.wait(lambda: answers(self.link_port), "the SuperLink")

    def up(self) -> None:
        """Start what does not run."""
        if not self.link.running:
            self.start_link()
        for part in self.parts:
            if not part.running:
                part.start()

    def down(self) -> None:
        for part in reversed(self.parts):
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                if part.running:
                    part.go_on()
            part.terminate()

    def supervise(self) -> None:
        """Start again what ended by itself, as a restart policy does."""
        for part in self.parts:
            if part.wanted and not part.running:
                part.start()

    def wait(self, reached: Callable[[], Any], what: str, seconds: float = PATIENCE) -> None:
        """Wait for something, looking every few milliseconds, while the supervisor does its work.

        Raises
        ------
        AssertionError
            With the ends of all logs, after ``seconds``.
        """
        end, looked = time.monotonic() + seconds, 0.0
        while True:
            with suppress(FileNotFoundError):
                if reached():
                    return
            now = time.monotonic()
            assert now < end, f"waited for {what}\n{self.logs()}"
            if now - looked > 2.0:
                looked = now
                self.supervise()
            time.sleep(0.003)

    def logs(self, characters: int = 2500) -> str:
        found = [*sorted(self.root.glob("*.log")), *sorted(self.root.glob("silos/*/silo.log"))]
        found += sorted(self.root.glob("runs/*/flower.log"))
        tails = ((path, path.read_text(encoding="utf-8", errors="replace")[-characters:]) for path in found)
        return "\n".join(f"--- {path.relative_to(self.root)}\n{tail}" for path, tail in tails)

    # --- a run ----------------------------------------------------------------------------------

    def conductor(self, run: Path, **settings: Any) -> Part:
        """``fcfl run conduct``, not started yet."""
        run.parent.mkdir(exist_ok=True)
        pubs = self.root / "nodes"
        pubs.mkdir(exist_ok=True)
        for name in self.names:
            shutil.copyfile(self.project.public_key(name), pubs / f"{name}.pub")
        words = ["run", "conduct", run, "--superlink", self.link_address]
        words += ["--root-certificates", self.project.ca_file, "--nodes", pubs]
        given = command(*words, **{**SETTINGS, **settings})
        return self._part(f"conduct-{run.name}", [sys.executable, "-m", "experiments.cli", *given])

    def server_app(self) -> psutil.Process:
        """The process of the ServerApp that is under way."""
        found: list[psutil.Process] = []

        def there() -> bool:
            found[:] = [child for child in self.executor.family() if "serverapp" in " ".join(child.cmdline())]
            return bool(found)

        self.wait(there, "the ServerApp")
        return found[0]

    def renewed(self, days: int | None = None, at: datetime | None = None) -> None:
        """Give the server another certificate; it takes effect when the SuperLink starts again."""
        key, issuer = self.project.authority()
        now = at or moments.now()
        self.project._issue(self.server, key, issuer, days or self.project.declared().server_days, now)


def tool(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@contextmanager
def deployed(root: Path) -> Iterator[Stack]:
    """A deployment that runs until the block ends."""
    stack = Stack(root)
    try:
        stack.up()
        yield stack
    finally:
        stack.down()
