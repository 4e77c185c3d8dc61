"""Messages, and what children of a worker may do with them."""

import multiprocessing
import os
import signal
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

from flwr.app import ConfigRecord, Message, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.supercore.task_identity import TaskIdentity

NODE, RUN = 7, 3


def request(data: bytes = b"ask", *, kind: str = "query.enrol", ttl: float = 60.0, age: float = 0.0) -> Message:
    """A message as it arrives at the node."""
    metadata = Metadata(
        run_id=RUN,
        message_id="0" * 64,
        src_node_id=1,
        dst_node_id=NODE,
        reply_to_message_id="",
        group_id="",
        created_at=time.time() - age,
        ttl=ttl,
        message_type=kind,
    )
    return make_message(metadata, RecordDict({"body": ConfigRecord({"data": data})}))


def reply_to(message: Message, data: bytes) -> Message:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN, NODE, 0
    return Message(RecordDict({"body": ConfigRecord({"data": data})}), reply_to=message)


def data_of(message: Message) -> bytes:
    body = message.content["body"]
    assert isinstance(body, ConfigRecord)
    data = body["data"]
    assert isinstance(data, bytes)
    return data


def child(replies: Connection, message: Message, node_id: int, silo_home: str) -> None:
    """Do what the message says."""
    from client_app.node.task import _end_with_node

    _end_with_node()
    (Path(silo_home) / "child").write_text(str(os.getpid()))
    match data_of(message):
        case b"crash":
            os.kill(os.getpid(), signal.SIGKILL)
        case b"half":
            replies._send(b"\0\0\x0f\xff" + b"x" * 10)  # type: ignore[attr-defined]
            os._exit(0)
        case b"hang":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            threading.Event().wait()
        case b"no server":
            # Its parent is the fork server; the pause lets the worker see what is left.
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(0.5)
            replies.send(reply_to(message, b"alone"))
        case data:
            replies.send(reply_to(message, data + f" {os.environ['OMP_NUM_THREADS']}".encode()))
    assert multiprocessing.parent_process() is not None
