"""Flower's own processes take what provisioning makes: certificate, authority, node keys; and what revoking does."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from flwr.proto.control_pb2 import ListNodesRequest

from experiments.deployment.control import Coordinator, control
from experiments.flower import free_port, process
from experiments.provision import moments
from experiments.provision.enrolment import install, make_request, open_kit
from experiments.provision.federation import Federation, Server
from experiments.provision.project import Project
from tests.experiments.provision.conftest import Operator

SERVER = Server.of("127.0.0.1", 8000, ["localhost"], [], "server")
WAIT_SECONDS = 180.0


@dataclass(frozen=True)
class Flower:
    """Flower's command line against one SuperLink with TLS."""

    home: Path
    port: int
    environment: Mapping[str, str]

    def flwr(self, *arguments: object) -> tuple[int, str]:
        command = [tool("flwr"), *map(str, arguments), "fcfl", "--format", "json"]
        done = subprocess.run(command, env=dict(self.environment), capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    @contextmanager
    def superlink(self, folder: Path) -> Iterator[Path]:
        """Run a SuperLink with the certificate of a folder; gives its log."""
        command = [tool("flower-superlink"), "--host", "127.0.0.1", "--port", str(self.port), "--isolation", "process"]
        command += ["--ssl-ca-certfile", str(self.home / "ca.crt"), "--ssl-certfile", str(folder / "server.crt")]
        command += ["--ssl-keyfile", str(folder / "server.key"), "--enable-supernode-auth"]
        command += ["--database", str(self.home / "state.db"), "--disable-runtime-dependency-installation"]
        log = self.home / f"superlink-{folder.resolve().name}-{time.monotonic_ns()}.log"
        log.touch()
        with process(command, log, self.environment):
            wait(lambda: "startup complete" in log.read_text(), log)
            yield log

    def supernode(self, home: Path, log: Path, authority: Path | None = None) -> list[str]:
        log.touch()
        command = [tool("flower-supernode"), "--superlink", f"127.0.0.1:{self.port}", "--host", "127.0.0.1"]
        command += ["--port", str(free_port()), "--isolation", "process", "--root-certificates"]
        return [
            *command,
            str(authority or home / "ca.crt"),
            "--auth-supernode-private-key",
            str(home / "supernode.key"),
        ]

    def nodes(self) -> dict[int, str]:
        with control(Coordinator(f"127.0.0.1:{self.port}", self.home / "ca.crt")) as client:
            return {node.node_id: node.status for node in client.ListNodes(ListNodesRequest()).nodes_info}


def tool(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def wait(condition: Callable[[], bool], log: Path) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.3)
    raise AssertionError(log.read_text())


@pytest.fixture
def enrolled(tmp_path: Path) -> Operator:
    now = moments.now()
    operator = Operator(Project.create(tmp_path / "project", Federation("Trial", (SERVER,)), now), tmp_path)
    for name in ("bank-a", "bank-b"):
        key = operator.expect(name)
        # A code of the tests' own calendar has ended; give one for today.
        project = operator.project
        project.store(project.state().expect(name, key, now + moments.SKEW, now))
        request = make_request(operator.home(name), name, now, key)
        project.store(project.state().admit(request, now, "request"))
    for name in ("bank-a", "bank-b"):
        kit = open_kit(operator.home(name), operator.kit(name), operator.fingerprint, now, "kit")
        install(operator.home(name), kit)
    return operator


@pytest.mark.slow
def test_flower_takes_a_registered_silo_until_it_is_unregistered_and_across_a_renewal(
    enrolled: Operator, tmp_path: Path
) -> None:
    project = enrolled.project
    home = tmp_path / "flower"
    home.mkdir()
    (home / "ca.crt").write_bytes(project.ca_file.read_bytes())
    environment = {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "OMP_NUM_THREADS": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
    }
    flower = Flower(home, free_port(), environment)
    table = f"[superlink.fcfl]\naddress = '127.0.0.1:{flower.port}'\nroot-certificates = '{home / 'ca.crt'}'\n"
    (home / "config.toml").write_text(table)
    silo, log = enrolled.home("bank-a"), tmp_path / "bank-a.log"
    with flower.superlink(project.server_folder(SERVER)):
        code, text = flower.flwr("supernode", "register", project.public_key("bank-a"))
        assert code == 0, text
        node_id = int(json.loads(text[text.index("{") :])["node-id"])
        stranger = tmp_path / "bank-b.log"
        with process(flower.supernode(enrolled.home("bank-b"), stranger), stranger, environment) as refused:
            wait(lambda: refused.poll() is not None, stranger)
        assert refused.returncode != 0
        assert "2004" in stranger.read_text()
        # A server of another authority, as this silo sees it: its node stops instead of going on unsure.
        other = Project.create(tmp_path / "other", Federation("Trial", (SERVER,)), moments.now())
        astray = tmp_path / "astray.log"
        with process(flower.supernode(silo, astray, other.ca_file), astray, environment) as refused:
            wait(lambda: refused.poll() is not None, astray)
        assert refused.returncode != 0
        assert "CERTIFICATE_VERIFY_FAILED" in astray.read_text()
    with process(flower.supernode(silo, log), log, environment) as node:
        with flower.superlink(project.server_folder(SERVER)) as served:
            wait(lambda: f"Activated node_id={node_id}" in served.read_text(), log)
        before = project.server_folder(SERVER).resolve()
        project.renew(SERVER, moments.now())
        assert project.server_folder(SERVER).resolve() != before
        with flower.superlink(project.server_folder(SERVER)):
            # The same node goes on under the same id, with another server certificate.
            wait(lambda: log.read_text().count("Connection successful") == 2, log)
            assert node.poll() is None
            assert flower.nodes()[node_id] == "online"
            code, text = flower.flwr("supernode", "unregister", node_id)
            assert code == 0, text
            assert flower.nodes()[node_id] == "unregistered"
            wait(lambda: node.poll() is not None, log)
            code, text = flower.flwr("supernode", "register", project.public_key("bank-a"))
            assert "in use" in text, (code, text)
