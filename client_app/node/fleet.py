"""The node's side of Flower's Fleet API over HTTPS: activate, heartbeat, pull messages, push replies."""

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree, push_objects
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.retry import RetryInvoker, exponential
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

FLOWER = "1.42."
LONGEST_WAIT = 20
# A node that was killed counts as alive until its last heartbeat is twice the interval old.
ACTIVATION_SECONDS = 3.0 * HEARTBEAT_DEFAULT_INTERVAL
PASSING = frozenset({429, 500, 502, 503, 504})

T = TypeVar("T")


class NodeError(Exception):
    """The node cannot go on; the text says what to do."""


class RunOver(Exception):  # noqa: N818 - a state, not a defect
    """The run of a message has ended; nobody waits for the reply."""


@dataclass(frozen=True)
class Connection:
    """Where the coordinator is and how to trust it.

    Attributes
    ----------
    superlink : str
        ``host:port``.
    root_certificates : Path or None
        PEM file with the authority that signed the coordinator's certificate; None for an unencrypted
        connection, inside one machine only.
    node_key : Path or None
        ECDSA P-384 key in OpenSSH form, registered at the SuperLink.
    """

    superlink: str
    root_certificates: Path | None
    node_key: Path | None


def check_flower() -> None:
    """Refuse another version of Flower than the one whose private names are used here.

    Raises
    ------
    NodeError
    """
    if not (found := version("flwr")).startswith(FLOWER):
        raise NodeError(f"flwr {found} is installed and this node needs {FLOWER}*; use flower-supernode with it")


class FleetLink:
    """An activated node's connection.

    Parameters
    ----------
    client : FleetHttpClient
    stopping : threading.Event
        Ends every wait.
    """

    def __init__(self, client: FleetHttpClient, stopping: threading.Event) -> None:
        self._client = client
        self._stopping = stopping
        self._node = Node()
        self._retry = RetryInvoker(
            lambda: exponential(max_delay=LONGEST_WAIT),
            (httpx.TransportError, httpx.HTTPStatusError),
            max_tries=None,
            max_time=None,
            should_giveup=lambda error: self._stopping.is_set() or not _passes(error),
            wait_function=self._wait,
        )

    @property
    def node_id(self) -> int:
        """Id that the SuperLink gave the node's key."""
        return int(self._node.node_id)

    def activate(self, public_key: bytes) -> None:
        """Tell the SuperLink that the node is there; waits for as long as an earlier process may count as alive.

        Raises
        ------
        NodeError
            If the key is not registered or in use, or the server is not the one expected.
        """
        asked = ActivateNodeRequest(public_key=public_key, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
        waited = 0.0
        while True:
            try:
                self._node = Node(node_id=self._call(self._client.ActivateNode, asked).node_id)
            except _ActivationRefused:
                if waited >= ACTIVATION_SECONDS or self._stopping.is_set():
                    raise NodeError(
                        "the coordinator does not let this node in: its key is not registered, or another process "
                        "uses it; compare the key with the coordinator's, and stop the other process"
                    ) from None
                self._wait(5.0)
                waited += 5.0
            else:
                return

    def heartbeat(self) -> bool:
        """Send one heartbeat; False if it did not arrive."""
        asked = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
        try:
            return bool(self._client.SendNodeHeartbeat(asked).success)
        except (httpx.HTTPError, ValueError):
            # Whether it is for good shows with the next pull, which says why.
            return False

    def deactivate(self) -> None:
        """Tell the SuperLink that the node leaves; without an answer the heartbeats run out."""
        try:
            self._client.DeactivateNode(DeactivateNodeRequest(node_id=self._node.node_id))
        except (httpx.HTTPError, ValueError):
            return

    def pull(self) -> Message | None:
        """Take the next message, with all its objects; None if there is none.

        Raises
        ------
        NodeError
            If the SuperLink no longer accepts the node.
        RunOver
            If the run ended meanwhile.
        """
        response = self._call(self._client.PullMessages, PullMessagesRequest(node=self._node))
        if not response.messages_list:
            return None
        head, tree = message_from_proto(response.messages_list[0]), response.message_object_trees[0]
        return self._inflate(tree, head.metadata.run_id)

    def _inflate(self, tree: ObjectTree, run_id: int) -> Message:
        message = pull_and_inflate_object_from_tree(
            tree,
            make_pull_object_fn_protobuf(self._retried(self._client.PullObject), self._node, run_id),
            make_confirm_message_received_fn_protobuf(
                self._retried(self._client.ConfirmMessageReceived), self._node, run_id
            ),
            return_type=Message,
        )
        # A message without its content, as it is sent, does not carry its own id.
        message.metadata.__dict__["_message_id"] = tree.object_id
        return message

    def push(self, reply: Message, seconds: float) -> None:
        """Send a reply with its objects; ``seconds`` is how long it took.

        Raises
        ------
        NodeError
            If the SuperLink no longer accepts the node.
        RunOver
            If the run ended meanwhile.
        """
        reply.metadata.__dict__["_message_id"] = reply.object_id
        head = message_to_proto(remove_content_from_message(reply))
        with no_object_id_recompute():
            asked = PushMessagesRequest(
                node=self._node,
                messages_list=[head],
                message_object_trees=[get_object_tree(reply)],
                clientapp_runtime_list=[seconds],
            )
            response = self._call(self._client.PushMessages, asked)
            push_objects(
                get_all_nested_objects(reply),
                make_push_object_fn_protobuf(
                    self._retried(self._client.PushObject), self._node, reply.metadata.run_id, response.session_id
                ),
                object_ids_to_push=set(response.objects_to_push),
            )

    def _retried(self, method: Callable[[Any], T]) -> Callable[[Any], T]:
        return lambda request: self._call(method, request)

    def _call(self, method: Callable[[Any], T], request: Any) -> T:
        try:
            answer: T = self._retry.invoke(method, request)
        except httpx.HTTPStatusError as error:
            raise _meaning(error) from None
        except httpx.TransportError as error:
            raise NodeError(f"no connection to the coordinator: {error}") from None
        except ValueError as error:
            raise NodeError(f"the coordinator's answer is no Flower message ({error}); is the address right?") from None
        return answer

    def _wait(self, seconds: float) -> None:
        self._stopping.wait(seconds)


class _ActivationRefused(Exception):  # noqa: N818 - never leaves this module
    pass


def _passes(error: Exception) -> bool:
    """Whether trying again may help."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in PASSING and _flower_code(error) is None
    # A certificate that does not fit stays so, and an answer by somebody else is no reason to go on asking.
    return not _is_certificate_error(error)


def _is_certificate_error(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError) or "CERTIFICATE_VERIFY_FAILED" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _flower_code(error: httpx.HTTPStatusError) -> int | None:
    found = FlowerError.from_json(error.response.text)
    return None if found is None else int(found.code)


def _meaning(error: httpx.HTTPStatusError) -> Exception:
    status, code = error.response.status_code, _flower_code(error)
    if code == ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED:
        return _ActivationRefused()
    if status == httpx.codes.UNAUTHORIZED:
        return NodeError(
            "the coordinator does not accept this node's key: it is not registered or was revoked, or the clocks are "
            "more than some seconds apart; compare the key with the coordinator's, and set the clock"
        )
    if status == httpx.codes.FORBIDDEN:
        return RunOver()
    return NodeError(f"the coordinator answered {status} (Flower code {code}); is it Flower {FLOWER}*?")


@contextmanager
def connect(connection: Connection, stopping: threading.Event) -> Iterator[FleetLink]:
    """Activate the node and keep its heartbeat going until the block ends.

    Raises
    ------
    NodeError
        If a file cannot be used, or the coordinator refuses the node or cannot be trusted.
    """
    check_flower()
    private = load_node_key(connection)
    certificates = _root_certificates(connection)
    client = FleetHttpClient.from_server_address(
        connection.superlink,
        certificates is None,
        certificates,
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="SuperNode"),
            NodeAuthHttpInterceptor(private, private.public_key()),
        ],
    )
    with client:
        link = FleetLink(client, stopping)
        link.activate(public_key_to_bytes(private.public_key()))
        heartbeat = HeartbeatSender(link.heartbeat)
        heartbeat.start()
        try:
            yield link
        finally:
            heartbeat.stop()
            link.deactivate()


def load_node_key(connection: Connection) -> ec.EllipticCurvePrivateKey:
    """Read the node's key.

    Raises
    ------
    NodeError
        If it is missing, readable by others, or no ECDSA P-384 key.
    """
    path = connection.node_key
    if path is None:
        raise NodeError("no node key: name the ECDSA P-384 key that is registered at the coordinator")
    try:
        if path.stat().st_mode & 0o077:
            raise NodeError(f"{path}: others may read it; chmod 600 {path}")
        key = load_ssh_private_key(path.read_bytes(), None)
    except OSError as error:
        raise NodeError(f"{path}: cannot be read ({error.strerror}); restore the node's key") from None
    except (ValueError, TypeError):
        raise NodeError(f"{path}: not a private key in OpenSSH form without a passphrase") from None
    if not (isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP384R1)):
        raise NodeError(f"{path}: not an ECDSA P-384 key, which Flower's SuperLink wants")
    return key


def _root_certificates(connection: Connection) -> bytes | None:
    path = connection.root_certificates
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise NodeError(f"{path}: cannot be read ({error.strerror}); it comes with the start-up kit") from None
