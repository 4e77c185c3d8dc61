"""Flower's HTTP grid without its waits: one reply that never gets whole holds up no other, one that was lost is told.

Flower's own `pull_messages` claims every reply that has begun to arrive and then fetches their objects one after the
other; a sender whose line was cut between the two holds up all of them until the SuperLink gives its reply up, after
three minutes. And a message that a node had taken when it died is delivered to nobody again, and answered by nobody.
"""

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import cast

import httpx
from flwr.app import Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, inflate_object_from_contents, pull_objects
from flwr.supercore.run import Run
from flwr.superlink.grid.http_grid import HttpGrid

FLOWER = "1.42."
# A reply whose objects stay away longer is asked for again: the silo's outbox has it. A slow line gets this long for
# a masked vector.
WHOLE_SECONDS = 60.0
# Between two tries for an object that is still on its way, at most.
OBJECT_SECONDS = 2.0
# How long a look waits for replies that are being fetched.
FETCH_SECONDS = 0.2
# Between two looks at who has come back.
NODES_SECONDS = 5.0
FETCHES = 32

logger = logging.getLogger("fcfl.coordinator")


@dataclass(frozen=True)
class _Asked:
    """A message under way, and since when its node was connected as it was sent."""

    message: Message
    activated: str


class Reception(Grid):
    """An `HttpGrid` whose `pull_messages` returns the replies that are whole, and errors for those that were lost.

    Lost is a reply whose objects did not come within `WHOLE_SECONDS`, and one of a node that has connected anew
    since it was asked. Whoever still needs it asks again, to the byte.

    Parameters
    ----------
    grid : HttpGrid
        Of the Flower version whose private names are used here.
    """

    def __init__(self, grid: HttpGrid) -> None:
        self._grid = grid
        self._pool = ThreadPoolExecutor(FETCHES, "reply")
        self._fetching: dict[str, Future[Message | None]] = {}
        self._asked: dict[str, _Asked] = {}
        self._looked = time.monotonic()
        self._closing = threading.Event()

    def close(self) -> None:
        """Give up replies that are not whole."""
        self._closing.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    # --- as Flower does it ------------------------------------------------------------------------

    def set_run(self, run: Run) -> None:
        """Attach a run."""
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        """The attached run."""
        return self._grid.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Create a message (kept for the abstract interface)."""
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        """Ids of the nodes that are connected."""
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Nodes that are connected."""
        return self._grid.get_nodes()

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send and wait, in Flower's own way."""
        return self._grid.send_and_receive(messages, timeout=timeout)

    # --- in its own -------------------------------------------------------------------------------

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages, and remember since when each of their nodes has been connected."""
        sent = list(messages)
        since = self._activations() if sent else {}
        ids = list(self._grid.push_messages(sent))
        for identity, message in zip(ids, sent, strict=False):
            if identity:
                self._asked[identity] = _Asked(message, since.get(message.metadata.dst_node_id, ""))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return whole replies and errors for lost ones; what has only begun to arrive comes with a later call."""
        wanted = list(message_ids)
        self._forget(wanted)
        if not_begun := [identity for identity in wanted if identity not in self._fetching]:
            response = self._grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=not_begun))
            for head, tree in zip(response.messages_list, response.message_object_trees, strict=True):
                answered = head.metadata.reply_to_message_id
                self._fetching[answered] = self._pool.submit(self._fetch, head, tree)
        wait(self._fetching.values(), FETCH_SECONDS)
        whole = [identity for identity in wanted if identity in self._fetching and self._fetching[identity].done()]
        lost = self._overtaken([identity for identity in not_begun if identity not in self._fetching])
        fetched = {identity: self._fetching.pop(identity).result() for identity in whole}
        replies = [reply or self._lost(identity) for identity, reply in fetched.items()]
        replies += [self._lost(identity) for identity in lost]
        for identity in (*whole, *lost):
            self._asked.pop(identity, None)
        return replies

    def _forget(self, wanted: list[str]) -> None:
        """Drop what nobody asks for any more."""
        kept = set(wanted)
        self._asked = {identity: asked for identity, asked in self._asked.items() if identity in kept}
        self._fetching = {identity: fetch for identity, fetch in self._fetching.items() if identity in kept}

    def _fetch(self, head: MessageProto, tree: ObjectTree) -> Message | None:
        """Fetch one reply; None if it does not get whole."""
        client, node, run_id = self._grid._runtime_client, self._grid.node, self.run.run_id
        pull = make_pull_object_fn_protobuf(client.PullObject, node, run_id)

        def pull_unless_closing(object_id: str) -> bytes:
            if self._closing.is_set():
                raise ObjectPullError(object_id, "nobody waits for it any more")
            return pull(object_id)

        try:
            contents = pull_objects(
                [part.object_id for part in iterate_object_tree(tree)],
                pull_unless_closing,
                max_time=WHOLE_SECONDS,
                initial_backoff=FETCH_SECONDS,
                backoff_cap=OBJECT_SECONDS,
            )
            identity = head.metadata.message_id
            client.ConfirmMessageReceived(
                ConfirmMessageReceivedRequest(node=node, run_id=run_id, message_object_id=identity)
            )
            message = cast(Message, inflate_object_from_contents(identity, contents))
        except (ObjectPullError, httpx.HTTPError) as error:
            logger.warning("a reply of node %d is not whole (%s)", head.metadata.src_node_id, type(error).__name__)
            return None
        except Exception as error:  # noqa: BLE001 - whatever one silo sends, the others' replies arrive
            logger.warning("a reply of node %d is malformed (%s)", head.metadata.src_node_id, type(error).__name__)
            return None
        message.metadata.__dict__["_message_id"] = identity
        return message

    def _lost(self, identity: str) -> Message:
        error = Error(ErrorCode.MESSAGE_UNAVAILABLE, "the reply was lost on its way")
        reply = Message(error, reply_to=self._asked[identity].message)
        reply.metadata.__dict__["_reply_to_message_id"] = identity
        return reply

    def _overtaken(self, waiting: list[str]) -> list[str]:
        """Messages of nodes that have connected anew since: what such a node had taken is answered by nobody."""
        now = time.monotonic()
        if not waiting or now - self._looked < NODES_SECONDS:
            return []
        self._looked, since = now, self._activations()
        overtaken = []
        for identity in waiting:
            asked = self._asked[identity]
            node = asked.message.metadata.dst_node_id
            if since.get(node, asked.activated) != asked.activated:
                logger.info("node %d has connected anew; %s is lost", node, asked.message.metadata.message_type)
                overtaken.append(identity)
        return overtaken

    def _activations(self) -> dict[int, str]:
        return {node.node_id: node.last_activated_at for node in self._grid.get_nodes()}


@contextmanager
def prompt(grid: Grid) -> Iterator[Grid]:
    """Put a `Reception` over an `HttpGrid` of the known Flower version until the block ends; leave others alone."""
    if not isinstance(grid, HttpGrid) or not version("flwr").startswith(FLOWER):
        yield grid
        return
    reception = Reception(grid)
    try:
        yield reception
    finally:
        reception.close()
