"""Flower messages of the protocol: bodies, arrays, and a mailbox with its own deadlines and polling."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from secagg.arrays import Arrays, load
from secagg.errors import ProtocolError

BODY, ARRAYS = "body", "arrays"
# Seconds until a silo that could not be reached is asked again; doubled up to the second.
AGAIN_SECONDS, LONGEST_SECONDS = 1.0, 15.0


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
    size : int
        Bytes of body and arrays as they arrived.
    """

    node: int
    body: bytes | None
    arrays: Arrays
    code: int | None = None
    size: int = 0

    @property
    def unreachable(self) -> bool:
        """Whether not even a refusal came back: the node is offline, or its work broke off."""
        return self.body is None and self.code is None


def request(
    kind: str, node: int, body: bytes, *, ttl: float, group: str, arrays: ConfigRecord | None = None
) -> Message:
    """Build one message; ``arrays`` may be shared between messages, Flower sends it once."""
    content = RecordDict({BODY: ConfigRecord({"data": body})})
    if arrays is not None:
        content[ARRAYS] = arrays
    return Message(content, node, kind, ttl=ttl, group_id=group)


def arrays_record(encoded: bytes) -> ConfigRecord:
    """Wrap encoded vectors (`secagg.arrays`) as one object: Flower pushes every array of an ArrayRecord by itself."""
    return ConfigRecord({"data": encoded})


Receiver = Callable[[Answer], None]


@dataclass(frozen=True)
class _Outstanding:
    node: int
    expires: float
    received: Receiver


class Mailbox:
    """Messages that are under way, and what to do with their answers.

    Every answer is handed over as it arrives, so that it can be made durable at once. An answer that arrives
    while another stage is waited for is handed over then; one that is not there when its message is found expired
    is never seen.

    Parameters
    ----------
    grid : Grid
    poll : float
        Seconds between two looks; Flower's own loop looks every 3 s over HTTP.
    """

    def __init__(self, grid: Grid, poll: float) -> None:
        self._grid = grid
        self._poll = poll
        self._outstanding: dict[str, _Outstanding] = {}

    def send(self, messages: Iterable[Message], received: Receiver) -> set[str]:
        """Send messages and return their ids."""
        sent = list(messages)
        # Flower gives no id, or no list at all, for what it could not push: those silos do not answer.
        pushed = [pair for pair in zip(self._grid.push_messages(sent), sent, strict=False) if pair[0]]
        now = time.monotonic()
        for message_id, message in pushed:
            expires = now + message.metadata.ttl
            self._outstanding[message_id] = _Outstanding(message.metadata.dst_node_id, expires, received)
        return {message_id for message_id, _ in pushed}

    def wait(self, ids: set[str], timeout: float) -> None:
        """Hand over answers until all of ``ids`` are answered or ``timeout`` seconds have passed."""
        end = time.monotonic() + timeout
        while True:
            self._look()
            now = time.monotonic()
            if not ids & self._outstanding.keys() or now >= end:
                return
            time.sleep(min(self._poll, end - now))

    def _look(self) -> None:
        # Before anything expires: one reply whose line was cut in the middle holds up Flower's call for minutes, and
        # the whole ones that came with it must not be thrown away for that.
        if self._outstanding:
            for reply in self._grid.pull_messages(list(self._outstanding)):
                # Errors made by the SuperLink carry its own node id: the request tells who was asked.
                asked = self._outstanding.pop(reply.metadata.reply_to_message_id, None)
                if asked is not None:
                    asked.received(_answer(asked.node, reply))
        now = time.monotonic()
        self._outstanding = {i: kept for i, kept in self._outstanding.items() if kept.expires > now}

    def insist(
        self, messages: Iterable[Message], received: Receiver, timeout: float, short: Callable[[set[int]], bool]
    ) -> None:
        """Send messages, and unreachable nodes theirs again, until there is enough or ``timeout`` seconds have passed.

        A line that was cut must not cost an epoch while its deadline runs. The request stays the same to the byte, so
        that a silo which has answered gives the answer again, from its outbox, and spends nothing.

        Parameters
        ----------
        messages : iterable of Message
        received : callable
            Gets every answer; that of an unreachable node once nobody asks any more.
        timeout : float
            Seconds.
        short : callable
            Whether too few have answered, and the nodes given, if they did, would make them enough.
        """
        end, pause = time.monotonic() + timeout, AGAIN_SECONDS
        asked, lost = list(messages), dict[int, Answer]()

        def receive(answer: Answer) -> None:
            if answer.unreachable:
                lost[answer.node] = answer
            else:
                received(answer)

        self.wait(self.send(asked, receive), timeout)
        while lost and short(set(lost)) and (left := end - time.monotonic()) > pause:
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_SECONDS)
            asked = [_again(message, left) for message in asked if message.metadata.dst_node_id in lost]
            lost.clear()
            self.wait(self.send(asked, receive), end - time.monotonic())
        for answer in lost.values():
            received(answer)

    def exchange(self, messages: Iterable[Message], timeout: float) -> list[Answer]:
        """Send messages and return the answers that arrive within ``timeout`` seconds, in order of arrival."""
        answers: list[Answer] = []
        self.wait(self.send(messages, answers.append), timeout)
        return answers


def _again(message: Message, ttl: float) -> Message:
    data = message.metadata
    return Message(message.content, data.dst_node_id, data.message_type, ttl=ttl, group_id=data.group_id)


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
    if record is None:
        return Answer(node, data, {}, size=len(data))
    encoded = record.get("data")
    if not isinstance(encoded, bytes):
        return Answer(node, None, {})
    try:
        return Answer(node, data, load(encoded), size=len(data) + len(encoded))
    except ProtocolError:
        return Answer(node, None, {})
