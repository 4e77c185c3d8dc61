"""What a node shows of itself in its silo's folder: a lock while it runs, and when it last had contact."""

import fcntl
import json
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from client_app.home import write_atomic
from client_app.node.errors import NodeError

LOCK, FILE = "node.lock", "node.json"
TELL_SECONDS = 10.0

logger = logging.getLogger("fcfl.node")


@contextmanager
def only_node(home: Path) -> Iterator[None]:
    """Be the only node of a silo's folder until the block ends; the lock falls with the process.

    Raises
    ------
    NodeError
        If another one runs, or the file cannot be made.
    """
    path = home / LOCK
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise NodeError(
            f"{path}: cannot be made ({error.strerror}); check the folder, its rights and the disk"
        ) from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise NodeError(f"{home}: another node of this silo is running (process {_pid(home)}); stop it first") from None
    except OSError as error:
        os.close(handle)
        raise NodeError(f"{path}: cannot be locked ({error.strerror}); use a disk of this machine") from None
    try:
        yield
    finally:
        os.close(handle)


def is_running(home: Path) -> bool:
    """Whether a node of this folder runs, on this machine."""
    try:
        handle = os.open(home / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def _pid(home: Path) -> object:
    return read(home).get("pid", "unknown")


def read(home: Path) -> Mapping[str, Any]:
    """What the node last said; empty if it never did."""
    try:
        told = json.loads((home / FILE).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


class Status:
    """Writes ``node.json``, from two threads; a disk that is full does not stop the node.

    Parameters
    ----------
    home : Path
        The silo's folder.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._lock = threading.Lock()
        known = read(home)
        self._said: dict[str, Any] = {key: known[key] for key in ("message", "message_at") if key in known}
        self._said["pid"] = os.getpid()
        self._told = float("-inf")
        self._failing = False

    def contact(self, node_id: int | None = None) -> None:
        """The coordinator has answered; written every `TELL_SECONDS`."""
        with self._lock:
            self._said["contact"] = _now()
            if node_id is not None:
                self._said["node_id"] = node_id
            if time.monotonic() - self._told >= TELL_SECONDS:
                self._write()

    def answering(self, message: str | None) -> None:
        """A message of a type is being answered; None once it is done."""
        with self._lock:
            if message is not None:
                self._said |= {"message": message, "message_at": _now(), "contact": _now()}
            self._said["answering"] = message is not None
            self._write()

    def _write(self) -> None:
        self._told = time.monotonic()
        try:
            write_atomic(self._home / FILE, json.dumps(self._said).encode())
        except OSError as error:
            if not self._failing:
                logger.warning("%s: cannot be written (%s)", self._home / FILE, error.strerror)
            self._failing = True
        else:
            self._failing = False


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
