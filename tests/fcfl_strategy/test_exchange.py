"""Sending and collecting over a Grid that misbehaves."""

import time
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import cbor2
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.task_identity import TaskIdentity

from fcfl_strategy import exchange
from fcfl_strategy.exchange import Answer, Mailbox, arrays_record, request
from secagg.arrays import dump


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Message(...) stamps these into its metadata, as inside a Flower task."""
    for name, value in (("_run_id", 1), ("_node_id", SUPERLINK_NODE_ID), ("_task_id", 1)):
        monkeypatch.setattr(TaskIdentity, name, value)


class FakeGrid:
    """Replies are given out at set times; `make` turns a request into replies with the seconds each takes."""

    def __init__(self, make: Any) -> None:
        self.make = make
        self.due: list[tuple[float, Message]] = []
        self.pulled: list[list[str]] = []

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            identity = f"message-{message.metadata.dst_node_id}"
            message.metadata.__dict__["_message_id"] = identity
            ids.append(identity)
            self.due += [(time.monotonic() + seconds, reply) for seconds, reply in self.make(message)]
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Like a server that has not noticed yet what was fetched before: replies come again."""
        asked = list(message_ids)
        self.pulled.append(asked)
        return [reply for due, reply in self.due if due <= time.monotonic()]


def reply_with(message: Message, fields: dict[str, Any], record: Any = None) -> Message:
    content = RecordDict({"body": ConfigRecord(fields)})
    if record is not None:
        content["arrays"] = record
    return Message(content, reply_to=message)


def ask(make: Any, nodes: Iterable[int] = (7, 8), timeout: float = 0.3) -> tuple[list[Answer], FakeGrid]:
    grid = FakeGrid(make)
    messages = [request("query.test", node, b"question", ttl=5.0, group="1") for node in nodes]
    return Mailbox(grid, 0.01).exchange(messages, timeout), grid  # type: ignore[arg-type]


def test_answers_come_in_order_of_arrival() -> None:
    answers, _ = ask(lambda m: [(0.1 if m.metadata.dst_node_id == 7 else 0.0, reply_with(m, {"data": b"x"}))])
    assert [answer.node for answer in answers] == [8, 7]


def test_a_request_carries_its_body_its_lifetime_and_shared_arrays() -> None:
    arrays = arrays_record(dump({"point": np.arange(3, dtype=np.float32)}))
    message = request("train", 9, b"body", ttl=12.0, group="4", arrays=arrays)
    assert message.metadata.dst_node_id == 9
    assert message.metadata.message_type == "train"
    assert message.metadata.ttl == 12.0
    assert message.metadata.group_id == "4"
    assert message.content["body"]["data"] == b"body"
    assert message.content["arrays"] is arrays
    assert list(message.content) == ["body", "arrays"]


def test_arrays_are_one_object_and_the_same_one_for_every_silo() -> None:
    """Flower pushes, confirms and fetches object by object, and one that it has is not pushed again."""
    arrays = arrays_record(dump({"point": np.zeros(2000, np.float32), "control": np.zeros(2000, np.float32)}))
    messages = [request("train", node, b"body %d" % node, ttl=12.0, group="4", arrays=arrays) for node in (7, 8)]
    objects = [get_all_nested_objects(message.content) for message in messages]
    large = [{name for name, inner in found.items() if len(inner.deflate()) > 1000} for found in objects]
    assert large[0] == large[1]
    assert len(large[0]) == 1
    assert [len(found) for found in objects] == [3, 3]


def test_it_ends_with_the_last_answer_and_does_not_wait_for_the_deadline() -> None:
    began = time.monotonic()
    answers, _ = ask(lambda m: [(0.0, reply_with(m, {"data": b"x"}))], timeout=30.0)
    assert len(answers) == 2
    assert time.monotonic() - began < 5.0


def test_a_late_answer_is_given_up_at_the_deadline() -> None:
    began = time.monotonic()
    answers, _ = ask(lambda m: [(0.0 if m.metadata.dst_node_id == 7 else 60.0, reply_with(m, {"data": b"x"}))])
    assert [answer.node for answer in answers] == [7]
    assert time.monotonic() - began < 5.0


def test_an_answer_to_an_earlier_question_is_taken_while_a_later_one_is_waited_for() -> None:
    late = {7: 0.1, 8: 0.3}
    grid = FakeGrid(lambda m: [(late[m.metadata.dst_node_id], reply_with(m, {"data": b"x"}))])
    mailbox, joins, shares = Mailbox(grid, 0.01), list[Answer](), list[Answer]()  # type: ignore[arg-type]
    mailbox.send([request("query.join", 7, b"", ttl=5.0, group="1")], joins.append)
    asked = mailbox.send([request("query.unmask", 8, b"", ttl=5.0, group="1")], shares.append)
    mailbox.wait(asked, 5.0)
    assert ([answer.node for answer in joins], [answer.node for answer in shares]) == ([7], [8])


def test_an_answer_after_its_message_expired_is_never_seen() -> None:
    grid = FakeGrid(lambda m: [(0.15, reply_with(m, {"data": b"x"}))])
    mailbox, seen = Mailbox(grid, 0.01), list[Answer]()  # type: ignore[arg-type]
    asked = mailbox.send([request("query.join", 7, b"", ttl=0.05, group="1")], seen.append)
    time.sleep(0.1)
    mailbox.wait(asked, 0.0)
    time.sleep(0.1)
    mailbox.wait(asked, 1.0)
    assert seen == []


def test_answers_that_a_cut_off_one_held_up_beyond_their_lifetime_are_not_thrown_away() -> None:
    """Flower's call waits for the rest of a reply whose sender is gone, and then returns all that there is."""
    grid = FakeGrid(lambda m: [(0.0, reply_with(m, {"data": b"x"}))])
    pull = grid.pull_messages

    def held_up(message_ids: Iterable[str]) -> list[Message]:
        time.sleep(0.2)
        return pull(message_ids)

    grid.pull_messages = held_up  # type: ignore[method-assign]
    mailbox, seen = Mailbox(grid, 0.01), list[Answer]()  # type: ignore[arg-type]
    mailbox.wait(mailbox.send([request("train", 7, b"", ttl=0.1, group="1")], seen.append), 0.1)
    assert [answer.node for answer in seen] == [7]


def test_a_reply_that_comes_twice_counts_once_and_an_unasked_one_never() -> None:
    def make(message: Message) -> list[tuple[float, Message]]:
        stray = reply_with(message, {"data": b"stray"})
        stray.metadata.__dict__["_reply_to_message_id"] = "message-of-somebody-else"
        slow = 0.05 if message.metadata.dst_node_id == 8 else 0.0
        return [(0.0, stray), (slow, reply_with(message, {"data": b"x"})), (slow, reply_with(message, {"data": b"y"}))]

    answers, grid = ask(make)
    assert [(answer.node, answer.body) for answer in answers] == [(7, b"x"), (8, b"x")]
    assert grid.pulled[-1] == ["message-8"]


def test_an_error_made_by_the_superlink_is_charged_to_the_node_that_was_asked() -> None:
    """Such replies carry the SuperLink's own id, 1, as their source."""

    def make(message: Message) -> list[tuple[float, Message]]:
        reply = Message(Error(ErrorCode.NODE_UNAVAILABLE, "node is offline"), reply_to=message)
        reply.metadata.__dict__["_src_node_id"] = SUPERLINK_NODE_ID
        assert reply.metadata.src_node_id == 1
        return [(0.0, reply)]

    answers, _ = ask(make)
    assert [(answer.node, answer.body, answer.code) for answer in answers] == [(7, None, None), (8, None, None)]


class Line(FakeGrid):
    """Node 7 is offline for its first requests; node 8 answers, node 9 declines."""

    def __init__(self, offline: int) -> None:
        super().__init__(self.reply)
        self.left = offline
        self.asked: list[tuple[int, bytes, float]] = []

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        self.due.clear()
        return super().push_messages(messages)

    def reply(self, message: Message) -> list[tuple[float, Message]]:
        node = message.metadata.dst_node_id
        self.asked.append((node, message.content["body"]["data"], message.metadata.ttl))
        if node == 7 and self.left > 0:
            self.left -= 1
            return [(0.0, Message(Error(ErrorCode.NODE_UNAVAILABLE, "node is offline"), reply_to=message))]
        return [(0.0, reply_with(message, {"code": 1} if node == 9 else {"data": b"x"}))]


def insist(line: Line, timeout: float, short: Callable[[set[int]], bool]) -> list[tuple[int, bytes | None]]:
    answers: list[Answer] = []
    messages = [request("train", node, b"question %d" % node, ttl=timeout, group="1") for node in (7, 8, 9)]
    Mailbox(line, 0.01).insist(messages, answers.append, timeout, short)  # type: ignore[arg-type]
    return [(answer.node, answer.body) for answer in answers]


def test_an_unreachable_node_is_asked_the_same_again_while_too_few_have_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exchange, "AGAIN_SECONDS", 0.01)
    line, lost = Line(offline=3), list[set[int]]()
    assert insist(line, 20.0, lambda missing: bool(lost.append(missing) or True)) == [(8, b"x"), (9, None), (7, b"x")]
    assert lost == [{7}] * 3
    again = [(body, ttl) for node, body, ttl in line.asked if node == 7]
    assert [body for body, _ in again] == [b"question 7"] * 4
    # Nobody waits for the answer longer than for the first question's.
    assert sorted((ttl for _, ttl in again), reverse=True) == [ttl for _, ttl in again]
    # Who answered, a refusal included, is left alone.
    assert [node for node, _, _ in line.asked].count(8) == [node for node, _, _ in line.asked].count(9) == 1


def test_once_there_are_enough_nobody_is_asked_again() -> None:
    line = Line(offline=1)
    assert insist(line, 20.0, lambda missing: False) == [(8, b"x"), (9, None), (7, None)]
    assert len(line.asked) == 3


def test_asking_again_ends_with_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "AGAIN_SECONDS", 0.01)
    line = Line(offline=10**6)
    assert insist(line, 0.3, lambda missing: True)[-1] == (7, None)
    assert len(line.asked) > 4


def test_a_refusal_keeps_its_code() -> None:
    answers, _ = ask(lambda m: [(0.0, reply_with(m, {"code": 2}))], nodes=[7])
    assert answers == [Answer(7, None, {}, 2)]


GOOD = dump({"update": np.arange(3, dtype=np.uint32)})


def carrying(record: Any) -> Any:
    return lambda message: reply_with(message, {"data": b"x"}, record)


def raw(data: bytes) -> Any:
    return carrying(arrays_record(data))


MALFORMED = {
    "no body": lambda m: Message(RecordDict({}), reply_to=m),
    "a body of another kind": lambda m: Message(RecordDict({"body": MetricRecord({"data": 1.0})}), reply_to=m),
    "data of another kind": lambda m: reply_with(m, {"data": "text"}),
    "a code of another kind": lambda m: reply_with(m, {"code": "text"}),
    "no arrays": carrying(ConfigRecord()),
    "arrays that are text": carrying(ConfigRecord({"data": "text"})),
    "arrays that are a list": carrying(ConfigRecord({"data": [GOOD]})),
    "arrays of another kind": carrying(MetricRecord({"data": 1.0})),
    "arrays of Flower": carrying(ArrayRecord({"data": Array(np.arange(3, dtype=np.uint32))})),
    "empty bytes": raw(b""),
    "garbage": raw(b"\x00\x01garbage"),
    "a truncated archive": raw(b"PK\x03\x04oops"),
    "a .npy file": raw(b"\x93NUMPY\x01\x00" + bytes(130)),
    "arrays cut off": raw(GOOD[:-1]),
    "bytes behind the arrays": raw(GOOD + b"\x00"),
    "a header that is no header": raw(b"\x01\x00\x00\x00\xff"),
    "more values than memory": raw(b"\x12\x00\x00\x00" + cbor2.dumps([["update", "<u4", 2**31]])),
    "objects": raw(GOOD.replace(b"<u4", b"|O4")),
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_reply_is_no_answer_and_stops_nobody_else(kind: str) -> None:
    good = arrays_record(GOOD)

    def make(message: Message) -> list[tuple[float, Message]]:
        bad = message.metadata.dst_node_id == 7
        return [(0.0, MALFORMED[kind](message) if bad else reply_with(message, {"data": b"fine"}, good))]

    answers, _ = ask(make)
    assert answers[0] == Answer(7, None, {})
    assert answers[1].body == b"fine"
    assert answers[1].arrays["update"].tolist() == [0, 1, 2]
    assert answers[1].size == 4 + len(GOOD)


@pytest.mark.parametrize("pushed", [[None, "message-8"], ["", "message-8"], []])
def test_a_message_that_flower_could_not_push_is_never_answered(pushed: list[str | None]) -> None:
    """Flower gives None for it, or an empty list when the whole payload was too large."""
    grid = FakeGrid(lambda m: [(0.0, reply_with(m, {"data": b"x"}))])
    push = grid.push_messages
    fake = SimpleNamespace(
        push_messages=lambda messages: push(messages) and pushed,
        pull_messages=lambda ids: [reply for reply in grid.pull_messages(ids) if "message-8" in pushed],
    )
    messages = [request("query.test", node, b"question", ttl=5.0, group="1") for node in (7, 8)]
    answers = Mailbox(fake, 0.01).exchange(messages, 0.1)  # type: ignore[arg-type]
    assert [answer.node for answer in answers] == ([8] if pushed else [])
    assert all(None not in asked and "" not in asked for asked in grid.pulled)


def test_nobody_to_ask_is_no_wait() -> None:
    answers, grid = ask(lambda m: [], nodes=[], timeout=30.0)
    assert answers == []
    assert grid.pulled == []
