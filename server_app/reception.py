"""Flower's HTTP grid without its waits: a reply that never gets whole holds up no other, a lost one is asked for again.

Flower's own `pull_messages` claims every reply that has begun to arrive and then fetches their objects one after the
other; a sender whose line was cut between the two holds up all of them until the SuperLink gives its reply up, after
three minutes. And a message that a node had taken when it died is delivered to nobody again, and answered by nobody.
"""

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
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
    """A message under way.

    Attributes
    ----------
    message : Message
        As it was sent last; its id is not the first one's, by which it is asked for.
    activated : str
        Since when its node was connected as it was sent.
    """

    message: Message
    activated: str

    @property
    def node(self) -> int:
        return self.message.metadata.dst_node_id

    @property
    def left(self) -> float:
        """Seconds of its lifetime."""
        data = self.message.metadata
        return data.created_at + data.ttl - time.time()


class Reception(Grid):
    """An `HttpGrid` whose `pull_messages` returns the replies that are whole, and that delivers at least once.

    Sent again, to the byte and within its lifetime, is a message whose reply did not get whole within `WHOLE_SECONDS`,
    and one whose node has connected anew since. Whoever answers must be prepared for that: a silo's outbox is.

    Parameters
    ----------
    grid : HttpGrid
        Of the Flower version whose private names are used here.
    """

    def __init__(self, grid: HttpGrid) -> None:
        self._grid = grid
        self._pool = ThreadPoolExecutor(FETCHES, "reply")
        # By the id under which the message was sent first.
        self._asked: dict[str, _Asked] = {}
        self._fetching: dict[str, Future[Message | None]] = {}
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
        """Return whole replies; what has only begun to arrive, or is sent again, comes with a later call."""
        wanted = [identity for identity in message_ids if identity in self._asked]
        self._asked = {identity: self._asked[identity] for identity in wanted}
        self._fetching = {identity: fetch for identity, fetch in self._fetching.items() if identity in self._asked}
        self._claim({self._asked[i].message.metadata.message_id: i for i in wanted if i not in self._fetching})
        wait(self._fetching.values(), FETCH_SECONDS)
        done = [identity for identity in wanted if identity in self._fetching and self._fetching[identity].done()]
        fetched = {identity: self._fetching.pop(identity).result() for identity in done}
        lost = [identity for identity, reply in fetched.items() if reply is None or _unavailable(reply)]
        replies = [reply for identity, reply in fetched.items() if reply is not None and identity not in lost]
        now = time.monotonic()
        if lost or now - self._looked >= NODES_SECONDS:
            self._looked, since = now, self._activations()
            # Who has connected anew does not know what it had taken before.
            lost += [i for i in wanted if i not in {*fetched, *self._fetching} and self._anew(i, since)]
            replies += [gone for i in lost if (gone := self._send_again(i, since, fetched.get(i))) is not None]
        for reply in replies:
            del self._asked[reply.metadata.reply_to_message_id]
        return replies

    def _claim(self, ids: Mapping[str, str]) -> None:
        """Begin to fetch the replies that have begun to arrive; ``ids`` maps from a message's id to its first one."""
        if not ids:
            return
        response = self._grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=list(ids)))
        for head, tree in zip(response.messages_list, response.message_object_trees, strict=True):
            first = ids[head.metadata.reply_to_message_id]
            self._fetching[first] = self._pool.submit(self._fetch, first, head, tree)

    def _anew(self, identity: str, since: Mapping[int, str]) -> bool:
        """Whether a node has connected since it was asked."""
        asked = self._asked[identity]
        return since.get(asked.node, asked.activated) != asked.activated

    def _send_again(self, identity: str, since: Mapping[int, str], reply: Message | None) -> Message | None:
        """Send a message again; return the error that stands for its reply if its node is away, or its time is over."""
        asked = self._asked[identity]
        if asked.node in since and asked.left > 0:
            data = asked.message.metadata
            again = Message(
                asked.message.content, asked.node, data.message_type, ttl=asked.left, group_id=data.group_id
            )
            if list(self._grid.push_messages([again]))[0:1] not in ([], [None], [""]):
                logger.info("%s is sent to node %d again", data.message_type, asked.node)
                self._asked[identity] = _Asked(again, since[asked.node])
                return None
        if reply is None:
            reply = Message(Error(ErrorCode.MESSAGE_UNAVAILABLE, "the reply was lost"), reply_to=asked.message)
            reply.metadata.__dict__["_reply_to_message_id"] = identity
        return reply

    def _activations(self) -> dict[int, str]:
        return {node.node_id: node.last_activated_at for node in self._grid.get_nodes()}

    def _fetch(self, first: str, head: MessageProto, tree: ObjectTree) -> Message | None:
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
        message.metadata.__dict__["_reply_to_message_id"] = first
        return message


def _unavailable(reply: Message) -> bool:
    """Whether the SuperLink says that the node was not connected when it looked."""
    return reply.has_error() and reply.error.code == ErrorCode.NODE_UNAVAILABLE


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
