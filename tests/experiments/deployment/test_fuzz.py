"""Whatever is sent to the port that silos reach, the SuperLink goes on serving them."""

import os
import random
import socket
import ssl
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.proto.control_pb2 import RegisterNodeRequest
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    ActivateNodeResponse,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionMetadata
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE

from experiments.deployment.control import Coordinator, control, nodes
from experiments.flower import free_port, process
from experiments.provision import moments
from experiments.provision.federation import Federation, Server
from experiments.provision.project import Project
from tests.experiments.provision.test_flower import tool, wait

SERVER = Server.of("127.0.0.1", 8000, ["localhost"], [], "server")
PATHS = (
    "register-node",
    "activate-node",
    "deactivate-node",
    "unregister-node",
    "send-node-heartbeat",
    "pull-messages",
    "push-messages",
    "get-run",
    "get-fab",
    "push-object",
    "pull-object",
    "confirm-message-received",
)
REQUESTS, LARGEST = 400, 64 << 20
# The head of a TLS record that never comes.
HELLO = b"\x16\x03\x01\xff\xff"
# What one body of the largest size may leave behind, and what the process may grow by in all.
GROWTH = 6 * LARGEST


@dataclass(frozen=True)
class Door:
    """A SuperLink with TLS and node authentication, one registered node, and the means to speak to both."""

    port: int
    pid: int
    log: Path
    key: ec.EllipticCurvePrivateKey
    coordinator: Coordinator
    trusted: ssl.SSLContext

    @property
    def memory(self) -> int:
        return int(psutil.Process(self.pid).memory_info().rss)

    def signed(self) -> dict[str, str]:
        """Headers of a node that is registered."""
        moment = now().isoformat()
        signature = sign_message(self.key, moment.encode())
        return {
            "content-type": PROTOBUF_MEDIA_TYPE,
            FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(public_key_to_bytes(self.key.public_key())).decode(),
            TIMESTAMP_HEADER: moment,
            FLEET_HTTP_SIGNATURE_HEADER: b64encode(signature).decode(),
            **dict(RuntimeVersionMetadata.from_local_component("SuperNode").as_metadata()),
        }

    def send(
        self, path: str, body: bytes, headers: Mapping[str, str] | None = None, method: str = "POST"
    ) -> httpx.Response:
        with httpx.Client(verify=self.trusted, timeout=60) as client:
            url = f"https://127.0.0.1:{self.port}/v1/fleet/{path}"
            return client.request(method, url, content=body, headers=self.signed() if headers is None else headers)

    def check(self) -> None:
        """The SuperLink is healthy, and a node that behaves is served."""
        with httpx.Client(verify=self.trusted, timeout=60) as client:
            assert client.get(f"https://127.0.0.1:{self.port}/health").status_code == 200
        asked = ActivateNodeRequest(public_key=public_key_to_bytes(self.key.public_key()), heartbeat_interval=30.0)
        answer = self.send("activate-node", asked.SerializeToString())
        assert answer.status_code == 200, answer.text
        node_id = ActivateNodeResponse.FromString(answer.content).node_id
        pulled = self.send("pull-messages", PullMessagesRequest(node=Node(node_id=node_id)).SerializeToString())
        assert pulled.status_code == 200, pulled.text
        left = self.send("deactivate-node", DeactivateNodeRequest(node_id=node_id).SerializeToString())
        assert left.status_code == 200, left.text


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    home = tmp_path_factory.mktemp("superlink")
    project = Project.create(home / "project", Federation("Trial", (SERVER,)), moments.now())
    project.renew(SERVER, moments.now())
    folder, port, log = project.server_folder(SERVER), free_port(), home / "superlink.log"
    command = [tool("flower-superlink"), "--host", "127.0.0.1", "--port", str(port), "--isolation", "process"]
    command += ["--ssl-ca-certfile", str(project.ca_file), "--ssl-certfile", str(folder / "server.crt")]
    command += ["--ssl-keyfile", str(folder / "server.key"), "--enable-supernode-auth"]
    command += ["--database", str(home / "state.db"), "--disable-runtime-dependency-installation"]
    environment = {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "OMP_NUM_THREADS": "1",
    }
    log.touch()
    with process(command, log, environment) as running:
        wait(lambda: "startup complete" in log.read_text(), log)
        key = ec.generate_private_key(ec.SECP384R1())
        coordinator = Coordinator(f"127.0.0.1:{port}", project.ca_file)
        public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        with control(coordinator) as client:
            client.RegisterNode(RegisterNodeRequest(public_key=public, name="bank-a"))
        trusted = ssl.create_default_context(cafile=str(project.ca_file))
        made = Door(port, running.pid, log, key, coordinator, trusted)
        made.check()
        yield made
        made.check()


def valid_bodies() -> list[bytes]:
    """Bodies as a node sends them, of a node that does not exist."""
    node = Node(node_id=12345)
    return [
        ActivateNodeRequest(public_key=b"k" * 215, heartbeat_interval=30.0).SerializeToString(),
        SendNodeHeartbeatRequest(node=node, heartbeat_interval=1e300).SerializeToString(),
        PullMessagesRequest(node=node).SerializeToString(),
        PushMessagesRequest(node=node).SerializeToString(),
        PushObjectRequest(node=node, run_id=7, object_id="x" * 64, object_content=b"y" * 999).SerializeToString(),
    ]


@pytest.mark.slow
def test_malformed_truncated_and_random_bodies_get_an_error_and_no_more(door: Door) -> None:
    """Signed by a registered node and not: an answer each, never one that gives something, and no growth."""
    chance, bodies, before = random.Random(1), valid_bodies(), door.memory
    unsigned = {"content-type": PROTOBUF_MEDIA_TYPE}
    for number in range(REQUESTS):
        body = bytearray(chance.choice([b"", chance.randbytes(chance.randrange(2000)), *bodies]))
        for _ in range(chance.randrange(4) if body else 0):
            body[chance.randrange(len(body))] = chance.randrange(256)
        sent = bytes(body[: chance.randrange(len(body) + 1)] if chance.random() < 0.3 else body)
        answer = door.send(PATHS[number % len(PATHS)], sent, unsigned if chance.random() < 0.3 else None)
        # 4xx for what cannot be; 5xx only where a handler refuses its own way, and never without an answer.
        assert 400 <= answer.status_code < 600, (PATHS[number % len(PATHS)], sent, answer.text)
        assert "Traceback" not in answer.text
    door.check()
    assert door.memory - before < GROWTH


@pytest.mark.slow
def test_bodies_beyond_any_message_s_size_leave_no_memory_behind(door: Door) -> None:
    """The proxy cuts bodies at 64 MiB; the SuperLink itself reads whatever it is sent before it knows by whom."""
    before = door.memory
    for headers in (None, {"content-type": PROTOBUF_MEDIA_TYPE}):
        for body in (bytes(LARGEST), b"\x0a\xff\xff\xff\xff\x0f" + bytes(LARGEST)):
            answer = door.send("push-object", body, headers)
            assert 400 <= answer.status_code < 600
    door.check()
    assert door.memory - before < GROWTH


@pytest.mark.slow
def test_other_content_types_methods_and_paths_are_refused(door: Door) -> None:
    body = valid_bodies()[2]
    for kind in ("application/json", "text/plain", "multipart/form-data; boundary=x", "", "application/protobuf2"):
        assert door.send("pull-messages", body, {**door.signed(), "content-type": kind}).status_code == 415
    for method in ("GET", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"):
        assert door.send("pull-messages", body, method=method).status_code in (404, 405)
    for path in ("", "nothing", "pull-messages/", "%2e%2e/nothing", "x" * 5000):
        assert 300 <= door.send(path, body).status_code < 500
    door.check()


@pytest.mark.slow
def test_the_superlink_s_own_port_asks_nobody_who_registers_nodes(door: Door) -> None:
    """Why nothing but the proxy may reach that port, and the proxy passes on no path of the control API."""
    with control(door.coordinator) as client:
        assert len(nodes(client)) == 1
    with httpx.Client(verify=door.trusted, timeout=60) as client:
        url = f"https://127.0.0.1:{door.port}/v1/control/list-nodes"
        answer = client.post(url, content=b"", headers={"content-type": PROTOBUF_MEDIA_TYPE})
    assert answer.status_code == 200


@pytest.mark.slow
def test_a_node_s_request_counts_only_with_its_own_key_and_in_time(door: Door) -> None:
    asked = ActivateNodeRequest(public_key=public_key_to_bytes(door.key.public_key()), heartbeat_interval=30.0)
    body, good = asked.SerializeToString(), door.signed()
    stranger = ec.generate_private_key(ec.SECP384R1())
    forged = b64encode(sign_message(stranger, good[TIMESTAMP_HEADER].encode())).decode()
    for changed in (
        {FLEET_HTTP_SIGNATURE_HEADER: forged},
        {FLEET_HTTP_SIGNATURE_HEADER: ""},
        {FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(public_key_to_bytes(stranger.public_key())).decode()},
        {TIMESTAMP_HEADER: "2020-01-01T00:00:00+00:00"},
        {TIMESTAMP_HEADER: "yesterday"},
    ):
        assert door.send("activate-node", body, {**good, **changed}).status_code == 401
    assert door.send("activate-node", body, {"content-type": PROTOBUF_MEDIA_TYPE}).status_code == 401
    # An id that is another node's, or nobody's, under a key that is registered.
    other = PullMessagesRequest(node=Node(node_id=12345)).SerializeToString()
    assert door.send("pull-messages", other).status_code == 401


@pytest.mark.slow
def test_bytes_that_are_no_tls_and_connections_that_say_nothing_do_not_disturb_others(door: Door) -> None:
    chance = random.Random(2)
    silent = []
    try:
        for number in range(100):
            link = socket.create_connection(("127.0.0.1", door.port), timeout=10)
            silent.append(link)
            with suppress(OSError):
                if number % 3:
                    link.sendall(
                        chance.choice([b"GET / HTTP/1.1\r\n\r\n", chance.randbytes(500), b"\x16\x03\x01\xff\xff"])
                    )
        door.check()
    finally:
        for link in silent:
            link.close()
    door.check()
