"""One message in a process of its own: the parent's side.

Python's fork server imports the ClientApp and torch once and forks a child for every message: no state is left from
one message to the next, a crash or a full memory takes one message, and a message costs a fork instead of an
interpreter. A fork server that died is started again with the next message.
"""

import logging
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import forkserver
from multiprocessing.connection import Connection as PipeEnd
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from pickle import UnpicklingError

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.supercore.task_identity import TaskIdentity

from client_app.node.errors import NodeError
from client_app.node.task import WARM, answer, nothing

LOOK_SECONDS = 0.5
GRACE_SECONDS = 5.0
STARTS = 2
NO_PROCESS = "no process can be started for a message; look at memory and limits of processes, start again"

logger = logging.getLogger("fcfl.node")


class Worker:
    """Answers messages, one at a time.

    Parameters
    ----------
    silo_home : Path
        The silo's folder.
    stopping : threading.Event
        Ends the message that is under way.
    target : callable
        What the child runs; see `client_app.node.task.answer`.
    warm : sequence of str
        Modules that the fork server imports.
    """

    def __init__(
        self,
        silo_home: Path,
        stopping: threading.Event,
        *,
        target: Callable[[PipeEnd, Message, int, str], None] = answer,
        warm: Sequence[str] = WARM,
    ) -> None:
        self._home = silo_home
        self._stopping = stopping
        self._target = target
        # Before torch is loaded, or it takes all cores.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        self._context: ForkServerContext = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(warm))
        # Its imports take seconds, which the first message would wait for.
        forkserver.ensure_running()

    def warm_up(self) -> None:
        """Wait until the fork server has imported everything; a message that came earlier would wait for it.

        Raises
        ------
        NodeError
            If no process can be started.
        """
        process = self._context.Process(target=nothing, daemon=True)
        try:
            process.start()
        except (OSError, EOFError):
            raise NodeError(NO_PROCESS) from None
        process.join()
        process.close()

    def answer(self, message: Message, node_id: int, seconds: float) -> Message | None:
        """Return the reply; an error without a reason if the process died or took longer than ``seconds``.

        None if the node is being stopped.

        Raises
        ------
        NodeError
            If no process can be started.
        """
        end = time.monotonic() + seconds
        receiver, process = self._start(message, node_id)
        try:
            reply = self._reply(receiver, end)
            if reply is None and not self._stopping.is_set():
                logger.error("%s: no reply in time; the process is ended", message.metadata.message_type)
        except (EOFError, OSError, UnpicklingError):
            reply = None
            process.join(GRACE_SECONDS)
            if not self._stopping.is_set():
                logger.error("%s: the process died (exit code %s)", message.metadata.message_type, process.exitcode)
        finally:
            receiver.close()
            _end(process)
        if reply is None and not self._stopping.is_set():
            return _failed(message, node_id)
        return reply

    def _start(self, message: Message, node_id: int) -> tuple[PipeEnd, ForkServerProcess]:
        for _ in range(STARTS):
            receiver, sender = self._context.Pipe(duplex=False)
            # The child holds the only writing end: its death is the end of the pipe.
            with sender:
                process = self._context.Process(
                    target=self._target, args=(sender, message, node_id, str(self._home)), daemon=True
                )
                try:
                    process.start()
                except (OSError, EOFError) as error:
                    receiver.close()
                    logger.error("the fork server is gone (%s)", type(error).__name__)
                else:
                    return receiver, process
        raise NodeError(NO_PROCESS)

    def _reply(self, receiver: PipeEnd, end: float) -> Message | None:
        while not self._stopping.is_set() and (left := end - time.monotonic()) > 0:
            if receiver.poll(min(left, LOOK_SECONDS)):
                reply: Message = receiver.recv()
                return reply
        return None


def _failed(message: Message, node_id: int) -> Message:
    """Say that there will be no reply, so that nobody waits for it."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = message.metadata.run_id, node_id, 0
    return Message(Error(ErrorCode.CLIENT_APP_CRASHED, ""), reply_to=message)


def _end(process: ForkServerProcess) -> None:
    """End a child: one that has replied is about to go, another one is of no use any more."""
    process.join(0)
    if process.is_alive():
        process.join(LOOK_SECONDS)
    if process.is_alive():
        process.kill()
        process.join(GRACE_SECONDS)
    # Closing lets go of a child that a dead fork server cannot tell of: it ends by itself.
    if not process.is_alive():
        process.close()
