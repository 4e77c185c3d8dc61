"""Flower messages of the protocol: bodies, arrays, and an exchange with its own deadline and polling."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

BODY, ARRAYS = "body", "arrays"


@dataclass(frozen=True)
class Answer:
    """A silo's reply, or the fact that there is none.

    Attributes
    ----------
    node : int
        The node that was asked.
    body : bytes or None
        None if the silo declined, failed or is unreachable.
    arrays : mapping of str to ndarray
    code : int or None
        The silo's refusal code; None for an unreachable node.
    """

    node: int
    body: bytes | None
    arrays: Mapping[str, NDArray[np.generic]]
    code: int | None = None

    @property
    def size(self) -> int:
        """Bytes of body and arrays."""
        return len(self.body or b"") + sum(array.nbytes for array in self.arrays.values())


def request(kind: str, node: int, body: bytes, *, ttl: float, group: str, arrays: ArrayRecord | None = None) -> Message:
    """Build one message; ``arrays`` may be shared between messages, Flower sends it once."""
    content = RecordDict({BODY: ConfigRecord({"data": body})})
    if arrays is not None:
        content[ARRAYS] = arrays
    return Message(content, node, kind, ttl=ttl, group_id=group)


def array_record(arrays: Mapping[str, NDArray[np.generic]]) -> ArrayRecord:
    """Pack named arrays."""
    return ArrayRecord({name: Array(value) for name, value in arrays.items()})


def exchange(
    grid: Grid,
    messages: Iterable[Message],
    *,
    timeout: float,
    poll: float,
    received: Callable[[Answer], None] = lambda answer: None,
) -> list[Answer]:
    """Send messages and collect the answers that arrive in time.

    Parameters
    ----------
    grid : Grid
    messages : iterable of Message
    timeout : float
        Seconds after which missing answers are given up.
    poll : float
        Seconds between two looks; Flower's own loop looks every 3 s over HTTP.
    received : callable
        Called with each answer as it arrives, so that it can be made durable at once.

    Returns
    -------
    list of Answer
        In order of arrival. A late answer is never seen again.
    """
    sent = list(messages)
    # Flower gives no id, or no list at all, for what it could not push: those silos do not answer.
    waiting = {made: message for made, message in zip(grid.push_messages(sent), sent, strict=False) if made}
    end = time.monotonic() + timeout
    answers: list[Answer] = []
    while waiting:
        for reply in grid.pull_messages(list(waiting)):
            # Errors made by the SuperLink carry its own node id: the request tells who was asked.
            asked = waiting.pop(reply.metadata.reply_to_message_id, None)
            if asked is not None:
                answers.append(_answer(asked.metadata.dst_node_id, reply))
                received(answers[-1])
        if not waiting or time.monotonic() >= end:
            break
        time.sleep(min(poll, max(end - time.monotonic(), 0.0)))
    return answers


def _answer(node: int, reply: Message) -> Answer:
    """Read a reply; anything malformed counts as no answer."""
    if reply.has_error():
        return Answer(node, None, {})
    body = reply.content.get(BODY)
    if not isinstance(body, ConfigRecord):
        return Answer(node, None, {})
    data, code = body.get("data"), body.get("code")
    if not isinstance(data, bytes):
        return Answer(node, None, {}, code if isinstance(code, int) else None)
    record = reply.content.get(ARRAYS)
    try:
        arrays = {name: array.numpy() for name, array in record.items()} if isinstance(record, ArrayRecord) else {}
        if not all(isinstance(array, np.ndarray) for array in arrays.values()):
            return Answer(node, None, {})
    except Exception:  # noqa: BLE001 - numpy raises a dozen kinds of errors for bytes that are no array
        return Answer(node, None, {})
    return Answer(node, data, arrays)
