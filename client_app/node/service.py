"""The node's loop: take a message, answer it, look again."""

import json
import logging
import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from flwr.app import Message

from client_app.home import write_atomic
from client_app.node.fleet import Connection, FleetLink, RunOver, connect
from client_app.node.worker import Worker

STATUS = "node.json"
STATUS_SECONDS = 10.0

logger = logging.getLogger("fcfl.node")


@dataclass(frozen=True)
class Polling:
    """How often the node looks for a message.

    Attributes
    ----------
    busy, idle : float
        Seconds between two looks while messages come, and otherwise.
    patience : float
        Seconds without a message after which the node counts as idle.
    """

    busy: float = 0.3
    idle: float = 3.0
    patience: float = 120.0

    def wait(self, silence: float) -> float:
        """Seconds until the next look after ``silence`` seconds without a message."""
        return self.busy if silence < self.patience else self.idle


class Answering(Protocol):
    """What answers a message."""

    def answer(self, message: Message, node_id: int, seconds: float) -> Message | None:
        """Return the reply, or None if the node is being stopped."""


def run_node(home: Path, connection: Connection, polling: Polling) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises
    ------
    client_app.node.fleet.NodeError
        If the coordinator does not let the node in, or not any more.
    """
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    worker = Worker(home, stopping)
    with connect(connection, stopping) as link:
        logger.info("connected to %s as node %d", connection.superlink, link.node_id)
        serve(link, worker, polling, stopping, home / STATUS)
    logger.info("stopped")


def serve(link: FleetLink, worker: Answering, polling: Polling, stopping: threading.Event, status: Path) -> None:
    """Answer messages until ``stopping`` is set; ``status`` shows that the node is alive."""
    told = served = float("-inf")
    while not stopping.is_set():
        try:
            message = link.pull()
            if message is not None:
                served = time.monotonic()
                _serve_one(link, worker, message)
        except RunOver:
            message = None
            logger.info("the run of the message is over")
        now = time.monotonic()
        if message is not None or now - told >= STATUS_SECONDS:
            told = now
            _tell(status, link.node_id, message)
        if message is None:
            stopping.wait(polling.wait(now - served))


def _serve_one(link: FleetLink, worker: Answering, message: Message) -> None:
    began = time.monotonic()
    data = message.metadata
    left = data.created_at + data.ttl - time.time()
    if left <= 0:
        logger.info("%s: expired before it arrived", data.message_type)
        return
    reply = worker.answer(message, link.node_id, left)
    seconds = time.monotonic() - began
    if reply is None:
        logger.warning("%s: stopped before the reply", data.message_type)
        return
    link.push(reply, seconds)
    logger.info("%s: answered in %.2f s", data.message_type, seconds)


def _tell(path: Path, node_id: int, message: Message | None) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    state: Mapping[str, object] = {"node_id": node_id, "pid": os.getpid(), "contact": now}
    last = {"message": message.metadata.message_type, "message_at": now} if message is not None else _last(path)
    write_atomic(path, json.dumps({**state, **last}).encode())


def _last(path: Path) -> Mapping[str, object]:
    try:
        stored = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return {key: stored[key] for key in ("message", "message_at") if isinstance(stored, dict) and key in stored}
