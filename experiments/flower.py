"""Start and stop Flower's own processes: a SuperLink for a simulated or a deployed federation, and SuperNodes.

Everything is a child of this process and is ended with it. All of Flower's state lies in one folder
(``FLWR_HOME``); Ray's sockets need a short path and get a temporary folder that is removed.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from fcfl_strategy.errors import RunError

APP = Path(__file__).resolve().parents[1]
CONNECTION = "fcfl"
STARTUP_SECONDS = 60.0
# Ray detaches its workers; what carries this variable was started here.
MARK = "FCFL_SESSION"


@dataclass(frozen=True)
class Flower:
    """A running SuperLink.

    Attributes
    ----------
    home : Path
        ``FLWR_HOME``.
    port : int
        Port on the loopback address.
    environment : mapping
        Environment of every Flower process.
    """

    home: Path
    port: int
    environment: Mapping[str, str]

    def run(
        self, config: Mapping[str, Any], log: Path, *, nodes: int = 0, processes: int = 0
    ) -> subprocess.Popen[bytes]:
        """Submit the app with ``flwr run`` and follow it; the returned process ends with the run.

        Parameters
        ----------
        config : mapping
            Settings that differ from the defaults.
        log : Path
            Where Flower's output goes.
        nodes, processes : int
            SuperNodes and Ray actors of a simulated federation; 0 with real SuperNodes.
        """
        overrides = self.home / "run-config.toml"
        overrides.write_text(toml(config), encoding="utf-8")
        command = run_command(APP, overrides)
        if nodes:
            federation = (
                f"num-supernodes={nodes} client-resources-num-cpus=1 client-resources-num-gpus=0 "
                f"init-args-num-cpus={processes}"
            )
            command += ["--federation-config", federation]
        with log.open("ab") as output:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=dict(self.environment)
            )


@contextmanager
def superlink(home: Path, *, simulation: bool) -> Iterator[Flower]:
    """Run a SuperLink on a free loopback port until the block ends.

    Raises
    ------
    RunError
        If it does not come up.
    """
    if not (APP / "pyproject.toml").exists():
        raise RunError(f"{APP}: no pyproject.toml; Flower needs the app's source folder, run from a checkout")
    home.mkdir(parents=True, exist_ok=True)
    port = free_port()
    # Ray's Unix sockets must have paths of at most 107 bytes.
    scratch = Path(tempfile.mkdtemp(prefix="fcfl"))
    environment = {
        **os.environ,
        MARK: str(scratch),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TMPDIR": str(scratch),
        "OMP_NUM_THREADS": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
    }
    table = f"[superlink.{CONNECTION}]\naddress = '127.0.0.1:{port}'\ninsecure = true\n"
    (home / "config.toml").write_text(f"[superlink]\ndefault = '{CONNECTION}'\n{table}", encoding="utf-8")
    command = [_tool("flower-superlink"), "--insecure", "--isolation", "subprocess", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--disable-runtime-dependency-installation"]
    try:
        with process(command + (["--simulation"] if simulation else []), home / "superlink.log", environment) as link:
            _await_port(link, port, home / "superlink.log")
            yield Flower(home, port, environment)
    finally:
        _sweep(str(scratch))
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def supernodes(flower: Flower, homes: Sequence[Path]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run one real SuperNode for each silo folder until the block ends."""
    running: list[subprocess.Popen[bytes]] = []
    try:
        for number, home in enumerate(homes):
            settings = f"partition-id={number} num-partitions={len(homes)} silo-home='{home}'"
            command = [_tool("flower-supernode"), "--insecure", "--superlink", f"127.0.0.1:{flower.port}"]
            command += ["--host", "127.0.0.1", "--port", str(free_port()), "--isolation", "subprocess"]
            command += ["--node-config", settings]
            running.append(_start(command, flower.home / f"supernode-{number:02d}.log", flower.environment))
        yield running
    finally:
        for node in running:
            stop(node)


@contextmanager
def process(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command until the block ends, then end it and all its descendants."""
    running = _start(command, log, environment)
    try:
        yield running
    finally:
        stop(running)


def _start(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=dict(environment),
            start_new_session=True,
        )


def stop(running: subprocess.Popen[bytes], grace: float = 5.0) -> None:
    """End a process and all its descendants, politely first."""
    try:
        family = [*psutil.Process(running.pid).children(recursive=True), psutil.Process(running.pid)]
    except psutil.NoSuchProcess:
        family = []
    for member in family:
        _signal(member, polite=True)
    _, stubborn = psutil.wait_procs(family, timeout=grace)
    for member in stubborn:
        _signal(member, polite=False)
    running.wait()


def _sweep(session: str) -> None:
    """End every process of this session that outlived its parent."""
    for member in psutil.process_iter():
        try:
            ours = member.environ().get(MARK) == session
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if ours and member.pid != os.getpid():
            _signal(member, polite=False)


def _signal(member: psutil.Process, *, polite: bool) -> None:
    try:
        if polite:
            member.terminate()
        else:
            member.kill()
    except psutil.NoSuchProcess:
        return


def free_port() -> int:
    """Return a port of the loopback address that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_port(link: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + STARTUP_SECONDS
    while time.monotonic() < end and link.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
                return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            time.sleep(0.2)
    raise RunError(f"the SuperLink did not come up within {STARTUP_SECONDS:g} s; see {log}")


def _tool(name: str) -> str:
    """Path of one of Flower's commands in this environment."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise RunError(f"{path}: not found; install this package with its dependencies")
    return str(path)


def run_command(app: Path, run_config: Path) -> list[str]:
    """Command that submits the app in folder ``app`` and ends with the run; its output is Flower's log."""
    return [_tool("flwr"), "run", str(app), CONNECTION, "--stream", "--run-config", str(run_config)]


def toml(config: Mapping[str, Any]) -> str:
    """Write flat settings as nested tables, which Flower flattens again."""
    tables: dict[str, list[str]] = {}
    for name, value in config.items():
        table, _, key = name.rpartition(".")
        text = str(value).lower() if isinstance(value, bool) else repr(value)
        if isinstance(value, str):
            text = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        tables.setdefault(table, []).append(f"{key} = {text}")
    parts = ["\n".join(tables.pop("", []))]
    parts += [f"[{table}]\n" + "\n".join(lines) for table, lines in tables.items()]
    written = "\n".join(parts) + "\n"
    tomllib.loads(written)
    return written
