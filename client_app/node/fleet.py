"""The node's side of Flower's Fleet API over HTTPS: activate, heartbeat, pull messages, push replies."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from typing import Any

import httpx
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
from flwr.proto.message_pb2 import ObjectTree, PushObjectRequest
from flwr.proto.node_pb2 import Node
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
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    pull_and_inflate_object_from_tree,
    push_objects,
)
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from client_app.node.calls import ActivationRefused, Calls, restrict
from client_app.node.errors import MessageLost, NodeError, Stopped
from client_app.node.settings import Connection, load_authority, load_node_key

FLOWER = "1.42."
# A node that was killed counts as alive until its last heartbeat is twice the interval old.
ACTIVATION_SECONDS = 3.0 * HEARTBEAT_DEFAULT_INTERVAL
ACTIVATION_WAIT = 5.0
# Whatever the coordinator grants: a message that takes longer hangs.
LONGEST_SECONDS = 6 * 3600.0
MESSAGE_BYTES = 512 << 20
PUSH_ATTEMPTS = 3
LEAVING_SECONDS = 3.0


def check_flower() -> None:
    """Refuse another version of Flower than the one whose private names are used here.

    Raises
    ------
    NodeError
    """
    if not (found := version("flwr")).startswith(FLOWER):
        raise NodeError(f"flwr {found} is installed and this node needs {FLOWER}*; use flower-supernode with it")


def seconds_left(message: Message) -> float:
    """Seconds until nobody waits for the reply any more, by this machine's clock; at most `LONGEST_SECONDS`."""
    data = message.metadata
    left = data.created_at + data.ttl - time.time()
    return min(left, LONGEST_SECONDS) if math.isfinite(left) else 0.0


class FleetLink:
    """An activated node's connection.

    Parameters
    ----------
    client : FleetHttpClient
    calls : Calls
    alive : callable
        Called after every heartbeat that arrived, from another thread.
    """

    def __init__(self, client: FleetHttpClient, calls: Calls, alive: Callable[[], None] = lambda: None) -> None:
        self._client = client
        self._calls = calls
        self._alive = alive
        self._node = Node()
        self._activation = ActivateNodeRequest()

    @property
    def node_id(self) -> int:
        """Id that the SuperLink gave the node's key."""
        return int(self._node.node_id)

    def activate(self, public_key: bytes, wait: Callable[[float], object], patience: float) -> None:
        """Tell the SuperLink that the node is there.

        Parameters
        ----------
        public_key : bytes
        wait : callable
            Waits that many seconds, or less if the node is being stopped.
        patience : float
            Seconds for which an earlier process with the same key may count as alive.

        Raises
        ------
        NodeError
            If the key is not registered or in use, or the server is not the one expected.
        Stopped
        """
        self._activation = ActivateNodeRequest(public_key=public_key, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
        end = time.monotonic() + patience
        while True:
            try:
                self._node = Node(node_id=self._calls(self._client.ActivateNode, self._activation).node_id)
            except ActivationRefused:
                if time.monotonic() >= end:
                    raise NodeError(
                        "the coordinator does not let this node in: its key is not registered or was revoked, or "
                        "another process uses it; compare the key with the coordinator's, and stop the other process"
                    ) from None
                wait(ACTIVATION_WAIT)
            else:
                return

    def heartbeat(self) -> bool:
        """Send one heartbeat; False if it did not arrive."""
        asked = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
        try:
            arrived = bool(self._client.SendNodeHeartbeat(asked).success)
        except (httpx.HTTPError, httpx.InvalidURL, MessageLost, ValueError, RuntimeError):
            # Whether it is for good shows with the next pull, which says why.
            return False
        if arrived:
            self._alive()
        return arrived

    def deactivate(self) -> None:
        """Tell the SuperLink that the node leaves; without an answer the heartbeats run out."""
        try:
            self._client.DeactivateNode(DeactivateNodeRequest(node_id=self._node.node_id))
        except (httpx.HTTPError, httpx.InvalidURL, MessageLost, ValueError):
            return

    def pull(self) -> Message | None:
        """Take the next message, with all its objects; None if there is none.

        Raises
        ------
        NodeError
            If the SuperLink no longer accepts the node.
        MessageLost
            If the run ended meanwhile, or the message is malformed or too large.
        Stopped
        """
        pulling = _Tried(self._client.PullMessages)
        response = self._calls(pulling, PullMessagesRequest(node=self._node))
        if pulling.unknown:
            self._connect_anew()
        if not response.messages_list:
            return None
        try:
            return self._inflate(message_from_proto(response.messages_list[0]), response.message_object_trees[0])
        except (NodeError, MessageLost, Stopped):
            raise
        except ObjectPullError:
            raise MessageLost("its run has ended, or the coordinator has lost it") from None
        except Exception as error:  # noqa: BLE001 - whatever the coordinator sends, the node does not fall over it
            raise MessageLost(f"it is no Flower message ({type(error).__name__})") from None

    def _connect_anew(self) -> None:
        """Tell the coordinator to send again what the SuperLink gave to an answer that was lost.

        It gives a message to nobody twice; but the coordinator sees when a node has connected since it was asked.
        """
        self.deactivate()
        # Still connected if the SuperLink did not get that.
        with suppress(ActivationRefused):
            self._node = Node(node_id=self._calls(self._client.ActivateNode, self._activation).node_id)

    def _inflate(self, head: Message, tree: ObjectTree) -> Message:
        left = seconds_left(head)
        if left <= 0:
            raise MessageLost("its time is over by this machine's clock; if it was sent just now, set the clock")
        run_id, until = head.metadata.run_id, time.monotonic() + left
        message = pull_and_inflate_object_from_tree(
            tree,
            _counted(make_pull_object_fn_protobuf(self._within(self._client.PullObject, until), self._node, run_id)),
            make_confirm_message_received_fn_protobuf(
                self._within(self._client.ConfirmMessageReceived, until), self._node, run_id
            ),
            return_type=Message,
            max_time=left,
            backoff_cap=2,
        )
        # A message without its content, as it is sent, does not carry its own id.
        message.metadata.__dict__["_message_id"] = tree.object_id
        return message

    def push(self, reply: Message, seconds: float, until: float) -> None:
        """Send a reply with its objects.

        Parameters
        ----------
        reply : Message
        seconds : float
            How long it took.
        until : float
            Monotonic time after which nobody waits for it.

        Raises
        ------
        NodeError
            If the SuperLink no longer accepts the node.
        MessageLost
            If the run ended meanwhile, or the coordinator or a proxy refuses the reply.
        Stopped
        """
        reply.metadata.__dict__["_message_id"] = reply.object_id
        head = message_to_proto(remove_content_from_message(reply))
        for attempt in range(PUSH_ATTEMPTS):
            try:
                self._push(reply, head, seconds, until, again=attempt > 0)
            except ObjectPushError:
                # The session to which the objects belong lasts minutes; another one takes what is missing.
                continue
            else:
                return
        raise MessageLost("the coordinator does not store its reply")

    def _push(self, reply: Message, head: Any, seconds: float, until: float, *, again: bool) -> None:
        run_id, pushing = reply.metadata.run_id, _Tried(self._client.PushMessages)
        with no_object_id_recompute():
            asked = PushMessagesRequest(
                node=self._node,
                messages_list=[head],
                message_object_trees=[get_object_tree(reply)],
                clientapp_runtime_list=[seconds],
            )
            response = self._calls(pushing, asked, until)
            objects, push_object = get_all_nested_objects(reply), self._within(self._client.PushObject, until)
            if (again or pushing.unknown) and not response.objects_to_push:
                # Once the coordinator has begun to take a reply, the SuperLink opens no other session for it. Without
                # one it takes what the session whose answer was lost still wants, and refuses the rest.
                for name, part in objects.items():
                    content = part.deflate()
                    push_object(
                        PushObjectRequest(node=self._node, run_id=run_id, object_id=name, object_content=content)
                    )
                return
            push_objects(
                objects,
                make_push_object_fn_protobuf(push_object, self._node, run_id, response.session_id),
                object_ids_to_push=set(response.objects_to_push),
            )

    def _within(self, method: Callable[[Any], Any], until: float) -> Callable[[Any], Any]:
        return lambda request: self._calls(method, request, until)


class _Tried:
    """A call that notes whether it may have been answered without the answer arriving."""

    def __init__(self, method: Callable[[Any], Any]) -> None:
        self._method = method
        self.unknown = False

    def __call__(self, request: Any) -> Any:
        try:
            return self._method(request)
        except httpx.HTTPStatusError as error:
            # A proxy that lost the answer.
            self.unknown |= error.response.status_code in (httpx.codes.BAD_GATEWAY, httpx.codes.GATEWAY_TIMEOUT)
            raise
        except httpx.TransportError as error:
            self.unknown |= not isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout))
            raise


def _counted(pull: Callable[[str], bytes]) -> Callable[[str], bytes]:
    """Stop pulling a message that fills the memory."""
    lock, taken = threading.Lock(), 0

    def counted(object_id: str) -> bytes:
        nonlocal taken
        content = pull(object_id)
        with lock:
            taken += len(content)
            if taken > MESSAGE_BYTES:
                raise MessageLost(f"it is larger than {MESSAGE_BYTES >> 20} MiB")
        return content

    return counted


@contextmanager
def connect(
    connection: Connection,
    stopping: threading.Event,
    alive: Callable[[], None] = lambda: None,
    *,
    patience: float = ACTIVATION_SECONDS,
) -> Iterator[FleetLink]:
    """Activate the node and keep its heartbeat going until the block ends.

    Raises
    ------
    NodeError
        If a file cannot be used, or the coordinator refuses the node or cannot be trusted.
    Stopped
    """
    check_flower()
    private = load_node_key(connection.node_key)
    client = FleetHttpClient.from_server_address(
        connection.superlink,
        False,
        load_authority(connection.root_certificates),
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="SuperNode"),
            NodeAuthHttpInterceptor(private, private.public_key()),
        ],
    )
    restrict(client._client)
    with client:
        link = FleetLink(client, Calls(stopping), alive)
        link.activate(public_key_to_bytes(private.public_key()), stopping.wait, patience)
        heartbeat = HeartbeatSender(link.heartbeat)
        heartbeat.start()
        try:
            yield link
        finally:
            client._client.timeout = httpx.Timeout(LEAVING_SECONDS)
            if heartbeat.is_running:
                heartbeat.stop()
            link.deactivate()
