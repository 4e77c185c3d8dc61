"""The node's loop: take a message, answer it, look again."""

import logging
import random
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from flwr.app import Message

from client_app.node.errors import MessageLost, Stopped
from client_app.node.fleet import connect, seconds_left
from client_app.node.settings import Connection
from client_app.node.status import Status, only_node
from client_app.node.worker import Worker

logger = logging.getLogger("fcfl.node")


@dataclass(frozen=True)
class Polling:
    """How often the node looks for a message: often when one is due, the less often the longer none came.

    Every look costs the coordinator a signature check and its database. Rounds resemble each other: until half of the
    time has passed that it took the last time, no message is expected.

    Attributes
    ----------
    busy, idle : float
        Seconds of the shortest and the longest pause.
    share : float
        Length of a pause against the time since the last message: what a pause adds to a round is at most that share of
        what the node waited anyway.
    jitter : float
        By how much of itself a pause is longer or shorter, so that silos that were answered together do not stay so.
    """

    busy: float = 0.3
    idle: float = 3.0
    share: float = 0.1
    jitter: float = 0.1

    def wait(self, silence: float, usual: float = 0.0) -> float:
        """Seconds until the next look.

        Parameters
        ----------
        silence : float
            Seconds since the last message.
        usual : float
            Seconds after which the next one came the last time; 0 if that is not known.
        """
        pause = max(self.busy, min(self.idle, self.share * silence))
        return max(pause, min(self.idle, usual / 2 - silence))

    def spread(self, seconds: float) -> float:
        """Return a pause somewhat longer or shorter."""
        return seconds * random.uniform(1 - self.jitter, 1 + self.jitter)  # noqa: S311 - spreads load, hides nothing


class Answering(Protocol):
    """What answers a message."""

    def answer(self, message: Message, node_id: int, seconds: float) -> Message | None:
        """Return the reply, or None if the node is being stopped."""


class Link(Protocol):
    """Where messages come from and replies go to; see `client_app.node.fleet.FleetLink`."""

    @property
    def node_id(self) -> int:
        """Id of this node."""

    def pull(self) -> Message | None:
        """Take the next message."""

    def push(self, reply: Message, seconds: float, until: float) -> None:
        """Send a reply."""


def run_node(home: Path, connection: Connection, polling: Polling) -> None:
    """Serve until SIGTERM or SIGINT; a second signal ends the process at once.

    Raises
    ------
    client_app.node.errors.NodeError
        If the coordinator does not let the node in, or not any more, or another node of the folder runs.
    """
    stopping = threading.Event()

    def stop(number: int, _: object) -> None:
        stopping.set()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    with only_node(home):
        status, worker = Status(home), Worker(home, stopping)
        # Before the coordinator counts on this silo.
        worker.warm_up()
        try:
            with connect(connection, stopping, status.contact) as link:
                status.contact(link.node_id)
                logger.info("connected to %s as node %d", connection.superlink, link.node_id)
                serve(link, worker, polling, stopping, status)
        except Stopped:
            pass
    logger.info("stopped")


def serve(link: Link, worker: Answering, polling: Polling, stopping: threading.Event, status: Status) -> None:
    """Answer messages until ``stopping`` is set.

    Raises
    ------
    NodeError
    Stopped
    """
    served, last, usual = float("-inf"), "", dict[str, float]()
    while not stopping.is_set():
        message = _pull(link)
        status.contact()
        silence = time.monotonic() - served
        if message is None:
            stopping.wait(polling.spread(polling.wait(silence, usual.get(last, 0.0))))
            continue
        # After what kind of message it came.
        usual[last] = silence
        last = message.metadata.message_type
        status.answering(last)
        try:
            _serve_one(link, worker, message)
        finally:
            status.answering(None)
        served = time.monotonic()


def _pull(link: Link) -> Message | None:
    try:
        return link.pull()
    except MessageLost as reason:
        logger.warning("a message is lost: %s", reason)
        return None


def _serve_one(link: Link, worker: Answering, message: Message) -> None:
    kind, left, began = message.metadata.message_type, seconds_left(message), time.monotonic()
    reply = worker.answer(message, link.node_id, left)
    seconds = time.monotonic() - began
    if reply is None:
        logger.warning("%s: stopped before the reply", kind)
        return
    try:
        link.push(reply, seconds, began + left)
    except MessageLost as reason:
        logger.warning("%s: the reply is lost: %s", kind, reason)
    else:
        logger.info("%s: answered in %.2f s", kind, seconds)
