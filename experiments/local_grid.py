"""Run the very ServerApp and ClientApp objects in one process, without Ray or a SuperLink.

The semantics are those of Flower's simulation engine: every message and context crosses a protobuf
encoding, a handler that raises leaves its context unchanged and gives an error reply, a lost message
never gets one.
"""

import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.common.serde import context_from_proto, context_to_proto, message_from_proto, message_to_proto
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

FIRST_NODE_ID = 1000


@dataclass(frozen=True)
class Fault:
    """What happens to one message.

    Attributes
    ----------
    kind : {"lost", "reply_lost", "error", "delay"}
        ``lost``: never delivered. ``reply_lost``: handled, the reply vanishes. ``error``: not delivered,
        the sender gets an error reply. ``delay``: handled, the reply comes ``seconds`` later.
    seconds : float
    """

    kind: Literal["lost", "reply_lost", "error", "delay"]
    seconds: float = 0.0


def no_fault(message: Message) -> Fault | None:
    """Deliver everything."""
    return None


class LocalGrid(Grid):
    """An in-process Grid.

    Parameters
    ----------
    client_app : ClientApp
    nodes : int
        Number of SuperNodes; node ``i`` has ``partition-id`` ``i``.
    run_config : mapping
        The run configuration every node sees.
    fault : callable
        Called with each message before delivery; returns a `Fault` or None.
    observe : callable, optional
        Called with each message the coordinator sends or receives.
    """

    def __init__(
        self,
        client_app: ClientApp,
        nodes: int,
        run_config: Mapping[str, Any],
        *,
        fault: Callable[[Message], Fault | None] = no_fault,
        observe: Callable[[Message], None] | None = None,
    ) -> None:
        self._client_app = client_app
        self._fault = fault
        self._observe = observe or (lambda message: None)
        self._run = Run.create_empty(1)
        self._contexts = {
            FIRST_NODE_ID + i: Context(
                run_id=1,
                node_id=FIRST_NODE_ID + i,
                node_config={"partition-id": i, "num-partitions": nodes},
                state=RecordDict(),
                run_config=dict(run_config),
            )
            for i in range(nodes)
        }
        self._replies: dict[str, tuple[float, Message]] = {}
        # Message(...) stamps these class attributes into its metadata, as inside a Flower task.
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, SUPERLINK_NODE_ID, 1

    def set_run(self, run: Run) -> None:
        """Attach a run."""
        self._run = run

    @property
    def run(self) -> Run:
        """The attached run."""
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Create a message (kept for the abstract interface)."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Ids of all nodes."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Deliver each message at once and keep its reply for `pull_messages`."""
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        message_id = uuid.uuid4().hex
        message.metadata.__dict__["_message_id"] = message_id
        self._observe(message)
        fault = self._fault(message)
        if fault is not None and fault.kind == "lost":
            return message_id
        if fault is not None and fault.kind == "error":
            reply = Message(Error(ErrorCode.NODE_UNAVAILABLE, "node is offline"), reply_to=message)
        else:
            reply = self._handle(message)
        reply.metadata.__dict__["_message_id"] = uuid.uuid4().hex
        if fault is None or fault.kind != "reply_lost":
            delay = fault.seconds if fault is not None and fault.kind == "delay" else 0.0
            self._replies[message_id] = (time.monotonic() + delay, reply)
        return message_id

    def _handle(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        delivered = message_from_proto(message_to_proto(message))
        context = context_from_proto(context_to_proto(self._contexts[node]))
        try:
            reply = self._client_app(message=delivered, context=context)
        except Exception as error:  # noqa: BLE001 - Flower turns every exception of a ClientApp into an error reply
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, repr(error)), reply_to=delivered)
        self._contexts[node] = context
        return message_from_proto(message_to_proto(reply))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that have arrived."""
        now = time.monotonic()
        arrived = [i for i in list(message_ids) if i in self._replies and self._replies[i][0] <= now]
        replies = [self._replies.pop(i)[1] for i in arrived]
        for reply in replies:
            self._observe(reply)
        return replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Push, then pull until every reply is there or ``timeout`` seconds have passed."""
        waiting = set(self.push_messages(messages))
        end = time.monotonic() + (timeout if timeout is not None else 0)
        replies: list[Message] = []
        while waiting:
            arrived = list(self.pull_messages(waiting))
            replies += arrived
            waiting -= {reply.metadata.reply_to_message_id for reply in arrived}
            if not waiting or time.monotonic() >= end:
                break
            time.sleep(0.01)
        return replies


def empty_context(run_config: Mapping[str, Any]) -> Context:
    """Context of a ServerApp that runs in this process."""
    return Context(run_id=1, node_id=SUPERLINK_NODE_ID, node_config={}, state=RecordDict(), run_config=dict(run_config))
