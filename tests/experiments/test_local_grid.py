"""The in-process grid keeps the promises of Flower's simulation engine that the protocol leans on."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from experiments.local_grid import FIRST_NODE_ID, Fault, LocalGrid
from fcfl_strategy.exchange import Answer, Mailbox, arrays_record, request
from secagg.arrays import dump


def echo(act: Callable[[Message, Context], RecordDict]) -> ClientApp:
    app = ClientApp()

    @app.query("ask")
    def ask(message: Message, context: Context) -> Message:
        return Message(act(message, context), reply_to=message)

    return app


def body(data: bytes = b"yes", **more: Any) -> RecordDict:
    return RecordDict({"body": ConfigRecord({"data": data, **more})})


def ask(grid: LocalGrid, nodes: int = 1, *, timeout: float = 5.0) -> list[Answer]:
    messages = [request("query.ask", FIRST_NODE_ID + i, b"q", ttl=60.0, group="1") for i in range(nodes)]
    return Mailbox(grid, 0.002).exchange(messages, timeout)


def test_each_node_has_its_partition_its_state_and_the_run_configuration() -> None:
    def act(message: Message, context: Context) -> RecordDict:
        seen = context.state.get("count")
        count = (seen["n"] if isinstance(seen, ConfigRecord) else 0) + 1
        context.state["count"] = ConfigRecord({"n": count})
        text = f"{context.node_config['partition-id']} {context.run_config['silos']} {count}"
        return body(text.encode())

    grid = LocalGrid(echo(act), 3, {"silos": 3})
    assert list(grid.get_node_ids()) == [FIRST_NODE_ID + i for i in range(3)]
    assert [answer.body for answer in ask(grid, 3)] == [b"0 3 1", b"1 3 1", b"2 3 1"]
    assert [answer.body for answer in ask(grid, 2)] == [b"0 3 2", b"1 3 2"]


def test_a_handler_that_raises_gives_an_error_reply_and_leaves_its_state() -> None:
    calls: list[int] = []

    def act(message: Message, context: Context) -> RecordDict:
        calls.append(len(context.state))
        context.state["mark"] = ConfigRecord({"n": 1})
        raise RuntimeError("inside")

    grid = LocalGrid(echo(act), 1, {})
    (answer,) = ask(grid)
    assert (answer.body, answer.code) == (None, None)
    ask(grid)
    assert calls == [0, 0]


@pytest.mark.parametrize(("kind", "handled", "answers"), [("lost", 0, 0), ("reply_lost", 1, 0), ("error", 0, 1)])
def test_faults_lose_what_they_say(kind: str, handled: int, answers: int) -> None:
    calls: list[int] = []

    def act(message: Message, context: Context) -> RecordDict:
        calls.append(1)
        return body()

    grid = LocalGrid(echo(act), 1, {}, fault=lambda message: Fault(kind))  # type: ignore[arg-type]
    found = ask(grid, timeout=0.02)
    assert (len(calls), len(found)) == (handled, answers)
    assert all(answer.body is None for answer in found)


def test_a_late_reply_is_never_seen_by_the_next_exchange() -> None:
    fates = iter([Fault("delay", 0.05), None])
    grid = LocalGrid(echo(lambda message, context: body()), 1, {}, fault=lambda message: next(fates))
    assert ask(grid, timeout=0.01) == []
    time.sleep(0.06)
    assert len(ask(grid)) == 1


def test_a_reply_in_time_is_seen_although_another_is_missing() -> None:
    lost = FIRST_NODE_ID + 1
    fault = lambda message: Fault("lost") if message.metadata.dst_node_id == lost else None  # noqa: E731
    grid = LocalGrid(echo(lambda message, context: body()), 3, {}, fault=fault)
    began = time.monotonic()
    assert [answer.node for answer in ask(grid, 3, timeout=0.03)] == [FIRST_NODE_ID, FIRST_NODE_ID + 2]
    assert time.monotonic() - began < 2


def test_a_refusal_carries_its_code_and_nothing_else_counts_as_an_answer() -> None:
    replies = [
        RecordDict({"body": ConfigRecord({"code": 2})}),
        RecordDict({"body": ConfigRecord({"data": "text"})}),
        RecordDict({"body": ArrayRecord()}),
        RecordDict(),
        RecordDict({"body": ConfigRecord({"code": "7"})}),
    ]
    for reply, code in zip(replies, [2, None, None, None, None], strict=True):
        (answer,) = ask(LocalGrid(echo(lambda message, context, reply=reply: reply), 1, {}))
        assert (answer.body, answer.code) == (None, code)


@pytest.mark.parametrize(
    "data", [b"", b"PK\x03\x04rubbish", b"\x80\x04rubbish", b"\x93NUMPY\x01\x00\xff", b"\x93NUMPY\x09\x09" + bytes(90)]
)
def test_bytes_of_a_silo_that_are_no_arrays_count_as_no_answer(data: bytes) -> None:
    def act(message: Message, context: Context) -> RecordDict:
        content = body()
        content["arrays"] = arrays_record(data)
        return content

    (answer,) = ask(LocalGrid(echo(act), 1, {}))
    assert answer.body is None


def test_flower_s_own_arrays_instead_of_bytes_count_as_no_answer() -> None:
    def act(message: Message, context: Context) -> RecordDict:
        content = body()
        content["arrays"] = ArrayRecord({"data": Array(np.zeros(3, np.uint32))})
        return content

    (answer,) = ask(LocalGrid(echo(act), 1, {}))
    assert answer.body is None


def test_arrays_arrive_bit_for_bit() -> None:
    sent = {"a": np.arange(5, dtype="<u4"), "b": np.array([2**63 + 1], dtype="<u8"), "c": np.array([-0.0, np.nan])}

    def act(message: Message, context: Context) -> RecordDict:
        content = body()
        content["arrays"] = arrays_record(dump(sent))
        return content

    (answer,) = ask(LocalGrid(echo(act), 1, {}))
    assert {name: array.tobytes() for name, array in answer.arrays.items()} == {
        name: array.tobytes() for name, array in sent.items()
    }
    assert answer.size == 3 + len(dump(sent))
