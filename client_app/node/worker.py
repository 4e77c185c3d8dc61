"""One message in a process of its own: the parent's side.

Python's fork server is started before this process has threads, imports the ClientApp and torch once, and forks a
child for every message: no state is left from one message to the next, a crash or a full memory takes one message,
and a message costs a fork instead of an interpreter.
"""

import logging
import multiprocessing
import os
import threading
import time
from multiprocessing.connection import Connection as PipeEnd
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.supercore.task_identity import TaskIdentity

from client_app.node.task import WARM, answer

LOOK_SECONDS = 0.5
GRACE_SECONDS = 5.0

logger = logging.getLogger("fcfl.node")


class Worker:
    """Answers messages, one at a time.

    Parameters
    ----------
    silo_home : Path
        The silo's folder.
    stopping : threading.Event
        Ends the message that is under way.
    """

    def __init__(self, silo_home: Path, stopping: threading.Event) -> None:
        self._home = silo_home
        self._stopping = stopping
        # Before torch is loaded, or it takes all cores.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        self._context: ForkServerContext = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(WARM))

    def answer(self, message: Message, node_id: int, seconds: float) -> Message | None:
        """Return the reply; an error without a reason if the process died or took longer than ``seconds``.

        None if the node is being stopped.
        """
        receiver, sender = self._context.Pipe(duplex=False)
        process = self._context.Process(target=answer, args=(sender, message, node_id, str(self._home)), daemon=True)
        process.start()
        # The child holds the only writing end: its death is the end of the pipe.
        sender.close()
        try:
            if self._replied(receiver, time.monotonic() + seconds):
                reply: Message = receiver.recv()
                return reply
            return None if self._stopping.is_set() else _failed(message, node_id)
        except EOFError:
            process.join(GRACE_SECONDS)
            logger.error("the process of a %s message died (exit code %s)", _kind(message), process.exitcode)
            return _failed(message, node_id)
        finally:
            receiver.close()
            _end(process)

    def _replied(self, receiver: PipeEnd, end: float) -> bool:
        while not self._stopping.is_set():
            left = end - time.monotonic()
            if left <= 0:
                logger.error("no reply in time; the process is ended")
                return False
            if receiver.poll(min(left, LOOK_SECONDS)):
                return True
        return False


def _failed(message: Message, node_id: int) -> Message:
    """Say that there will be no reply, so that nobody waits for it."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = message.metadata.run_id, node_id, 0
    return Message(Error(ErrorCode.CLIENT_APP_CRASHED, ""), reply_to=message)


def _end(process: ForkServerProcess) -> None:
    process.join(GRACE_SECONDS if process.exitcode is None else 0)
    if process.is_alive():
        process.kill()
        process.join()
    process.close()


def _kind(message: Message) -> str:
    return message.metadata.message_type
