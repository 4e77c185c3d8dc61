"""A federation on the loopback address: SuperLink with TLS and node keys, executor, and nodes of either kind."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil
from rich.console import Console

from experiments.benchmarks.deployment.messages import Watched, watch, watched
from experiments.deployment.conduct import Patience, conduct_deployed
from experiments.deployment.control import ONLINE, Coordinator, control, nodes, register
from experiments.flower import APP, free_port, process
from experiments.provision import moments
from experiments.provision.federation import Federation, Server
from experiments.provision.keys import new_key, openssh, openssh_public
from experiments.provision.project import Project
from experiments.silos import make_silos
from server_app.run_folder import RunFolder

Kind = Literal["flower", "fcfl"]
WAIT_SECONDS = 300.0
CONNECTION = 'federation = "benchmark"\nsilo = "{silo}"\nsuperlink = "{link}"\nroot_certificates = "ca.crt"\n'


@dataclass(frozen=True)
class Measured:
    """One run over one kind of nodes.

    Attributes
    ----------
    messages : list of Watched
    history : list of mapping
        Rows of the run's history.
    silo_cpu, coordinator_cpu : float
        CPU seconds during the run: of all processes of all nodes; of SuperLink, executor and ServerApp.
    """

    messages: list[Watched]
    history: Sequence[Mapping[str, Any]]
    silo_cpu: float
    coordinator_cpu: float


def measure(kind: Kind, root: Path, shards: Sequence[Path], settings: Mapping[str, Any], console: Console) -> Measured:
    """Conduct a run of its own over fresh silos with the given samples."""
    root.mkdir(parents=True)
    server = Server.of("localhost", free_port(), [], ["127.0.0.1"], "server")
    project = Project.create(root / "project", Federation("Benchmark", (server,)), moments.now())
    project.renew(server, moments.now())
    coordinator = Coordinator(f"localhost:{server.port}", project.ca_file)
    environment = _environment(root)
    silos = [home.root for home in make_silos(shards, root / "silos", epsilon=1000.0, delta=0.01)]
    for home in silos:
        key = new_key()
        (home / "supernode.key").touch(mode=0o600)
        (home / "supernode.key").write_bytes(openssh(key))
        (home / "supernode.pub").write_text(openssh_public(key) + "\n", encoding="utf-8")
        (home / "ca.crt").write_bytes(project.ca_file.read_bytes())
        text = CONNECTION.format(silo=home.name, link=coordinator.superlink)
        (home / "connection.toml").write_text(text, encoding="utf-8")
    keys = [home / "supernode.pub" for home in silos]
    with _started(_link(server, project, root), root / "superlink.log", environment) as link:
        _until(lambda: "startup complete" in (root / "superlink.log").read_text(encoding="utf-8"), root)
        watch(root / "state.db")
        executor = [_tool("flower-superexec"), "--root-certificates", str(project.ca_file)]
        executor += ["--runtime-api-address", coordinator.superlink]
        with control(coordinator) as client:
            register(client, keys)
        commands = [_node(kind, home, coordinator) for home in silos]
        logs = [root / f"{home.name}.log" for home in silos]
        with (
            _started(executor, root / "executor.log", environment) as runner,
            _all(commands, logs, environment) as all_,
        ):
            _until(lambda: _online(coordinator) == len(silos), root)
            before = _cpu(all_), _cpu([link, runner])
            conduct_deployed(
                root / "run",
                settings,
                coordinator,
                keys,
                app=APP,
                home=root / "home",
                patience=Patience(),
                console=console,
            )
            after = _cpu(all_), _cpu([link, runner])
    return Measured(
        watched(root / "state.db"),
        RunFolder(root / "run").history(),
        after[0] - before[0],
        after[1] - before[1],
    )


def _environment(root: Path) -> Mapping[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(APP),
        "FLWR_HOME": str(root / "flower"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "OMP_NUM_THREADS": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
    }


def _tool(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def _link(server: Server, project: Project, root: Path) -> list[str]:
    keys = project.server_folder(server)
    command = [_tool("flower-superlink"), "--host", "127.0.0.1", "--port", str(server.port), "--isolation", "process"]
    command += ["--ssl-ca-certfile", str(project.ca_file), "--ssl-certfile", str(keys / "server.crt")]
    command += ["--ssl-keyfile", str(keys / "server.key")]
    return [*command, "--enable-supernode-auth", "--database", str(root / "state.db")]


def _node(kind: Kind, home: Path, coordinator: Coordinator) -> list[str]:
    if kind == "fcfl":
        return [sys.executable, "-m", "client_app.node", str(home)]
    command = [_tool("flower-supernode"), "--superlink", coordinator.superlink]
    command += [
        "--root-certificates",
        str(home / "ca.crt"),
        "--auth-supernode-private-key",
        str(home / "supernode.key"),
    ]
    command += ["--host", "127.0.0.1", "--port", str(free_port()), "--isolation", "subprocess"]
    return [*command, "--node-config", f"silo-home='{home}'"]


@contextmanager
def _started(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> Iterator[int]:
    log.touch()
    with process(command, log, environment) as running:
        yield running.pid


@contextmanager
def _all(
    commands: Sequence[Sequence[str]], logs: Sequence[Path], environment: Mapping[str, str]
) -> Iterator[list[int]]:
    if not commands:
        yield []
        return
    with (
        _started(commands[0], logs[0], environment) as first,
        _all(commands[1:], logs[1:], environment) as rest,
    ):
        yield [first, *rest]


def _online(coordinator: Coordinator) -> int:
    with control(coordinator) as client:
        return sum(status == ONLINE for status in nodes(client).values())


def _cpu(pids: Sequence[int]) -> float:
    """CPU seconds so far of processes, of their descendants, and of those that have ended."""
    spent = 0.0
    for pid in pids:
        parent = psutil.Process(pid)
        for member in (parent, *parent.children(recursive=True)):
            try:
                times = member.cpu_times()
            except psutil.NoSuchProcess:
                continue
            spent += times.user + times.system + times.children_user + times.children_system
    return spent


def _until(reached: Callable[[], bool], root: Path) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not reached():
        if time.monotonic() >= end:
            raise SystemExit(f"the federation does not come up; see the logs in {root}")
        time.sleep(0.2)
