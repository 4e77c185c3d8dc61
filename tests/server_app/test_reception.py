"""Replies over Flower's HTTP grid: the whole ones at once, the lost ones as lost, whatever else is under way."""

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ConfirmMessageReceivedResponse,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.runtime_pb2 import (
    GetNodesRequest,
    GetNodesResponse,
    PullAppMessagesRequest,
    PullAppMessagesResponse,
    PushAppMessagesRequest,
    PushAppMessagesResponse,
)
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid

from experiments.local_grid import LocalGrid
from fcfl_strategy.exchange import Answer, Mailbox, request
from server_app import reception
from server_app.reception import Reception, prompt


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Message(...) stamps these into its metadata, as inside a Flower task."""
    for name, value in (("_run_id", 1), ("_node_id", SUPERLINK_NODE_ID), ("_task_id", 1)):
        monkeypatch.setattr(TaskIdentity, name, value)


class SuperLink:
    """The Runtime API as a ServerApp sees it: replies are claimed once, objects may come later or never."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.ready: dict[str, Message] = {}
        self.objects: dict[str, bytes | None] = {}
        self.activated: dict[int, str] = {}
        self.confirmed: list[str] = []
        self.pulls = 0
        self.claimed: list[Message] = []

    def PushMessages(self, asked: PushAppMessagesRequest) -> PushAppMessagesResponse:  # noqa: N802 - Flower's names
        ids = [tree.object_id for tree in asked.message_object_trees]
        self.asked += ids
        return PushAppMessagesResponse(message_ids=ids, objects_to_push=[])

    def PushObject(self, asked: PushObjectRequest) -> PushObjectResponse:  # noqa: N802
        return PushObjectResponse(stored=True)

    def GetNodes(self, asked: GetNodesRequest) -> GetNodesResponse:  # noqa: N802
        found = [NodeInfo(node_id=node, last_activated_at=since) for node, since in self.activated.items()]
        return GetNodesResponse(nodes=found)

    def reply(self, message: Message, *, whole: bool = True) -> list[str]:
        """Have a reply; return the ids of the objects that are still on their way."""
        reply = Message(RecordDict({"body": ConfigRecord({"data": b"fine"})}), reply_to=message)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        self.ready[message.metadata.message_id] = reply
        contents = {name: part.deflate() for name, part in get_all_nested_objects(reply).items()}
        self.objects |= contents if whole else dict.fromkeys(contents)
        return [] if whole else list(contents)

    def deliver(self, message: Message) -> None:
        reply = next(r for r in self.claimed if r.metadata.reply_to_message_id == message.metadata.message_id)
        self.objects |= {name: part.deflate() for name, part in get_all_nested_objects(reply).items()}

    def PullMessages(self, asked: PullAppMessagesRequest) -> PullAppMessagesResponse:  # noqa: N802
        self.pulls += 1
        replies = [self.ready.pop(i) for i in asked.message_ids if i in self.ready]
        self.claimed += replies
        heads = [message_to_proto(remove_content_from_message(reply)) for reply in replies]
        return PullAppMessagesResponse(messages_list=heads, message_object_trees=[get_object_tree(r) for r in replies])

    def PullObject(self, asked: PullObjectRequest) -> PullObjectResponse:  # noqa: N802
        content = self.objects.get(asked.object_id)
        found = asked.object_id in self.objects
        return PullObjectResponse(
            object_found=found, object_available=content is not None, object_content=content or b""
        )

    def ConfirmMessageReceived(  # noqa: N802
        self, asked: ConfirmMessageReceivedRequest
    ) -> ConfirmMessageReceivedResponse:
        self.confirmed.append(asked.message_object_id)
        return ConfirmMessageReceivedResponse()


@pytest.fixture
def link() -> SuperLink:
    return SuperLink()


@pytest.fixture
def grid(link: SuperLink) -> Iterator[Reception]:
    inner = HttpGrid(token="any")
    inner._client = link  # type: ignore[assignment]
    inner.set_run(Run.create_empty(1))
    with prompt(inner) as made:
        assert isinstance(made, Reception)
        yield made


def send(grid: Reception, *nodes: int) -> list[Message]:
    messages = [request("train", node, b"question %d" % node, ttl=60.0, group="1") for node in nodes]
    assert list(grid.push_messages(messages)) == [message.metadata.message_id for message in messages]
    return messages


def pull(grid: Reception, messages: list[Message]) -> list[Message]:
    return list(grid.pull_messages([message.metadata.message_id for message in messages]))


def eventually(grid: Reception, messages: list[Message]) -> list[Message]:
    for _ in range(1000):
        if replies := pull(grid, messages):
            return replies
        time.sleep(0.01)
    raise AssertionError("no reply and no error")


def test_a_whole_reply_comes_with_its_content_and_is_confirmed(grid: Reception, link: SuperLink) -> None:
    (message,) = send(grid, 7)
    assert pull(grid, [message]) == []
    link.reply(message)
    (reply,) = pull(grid, [message])
    assert reply.content["body"]["data"] == b"fine"
    assert reply.metadata.reply_to_message_id == message.metadata.message_id
    assert link.confirmed == [reply.metadata.message_id]


def test_a_reply_whose_objects_stay_away_holds_up_no_other_and_arrives_when_it_is_whole(
    grid: Reception, link: SuperLink
) -> None:
    cut, good, late = send(grid, 7, 8, 9)
    link.reply(cut, whole=False)
    link.reply(good)
    assert [r.metadata.reply_to_message_id for r in pull(grid, [cut, good, late])] == [good.metadata.message_id]
    link.reply(late)
    assert [r.metadata.reply_to_message_id for r in pull(grid, [cut, late])] == [late.metadata.message_id]
    link.deliver(cut)
    assert [r.content["body"]["data"] for r in eventually(grid, [cut])] == [b"fine"]
    # It was claimed once, and nothing asked for it while it was fetched.
    assert link.pulls <= 3


def test_a_reply_that_never_gets_whole_is_told_as_lost(
    grid: Reception, link: SuperLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reception, "WHOLE_SECONDS", 0.3)
    (message,) = send(grid, 7)
    link.reply(message, whole=False)
    (reply,) = eventually(grid, [message])
    assert reply.has_error()
    assert reply.metadata.reply_to_message_id == message.metadata.message_id
    assert link.confirmed == []


def test_a_reply_whose_objects_are_gone_or_no_objects_is_told_as_lost(grid: Reception, link: SuperLink) -> None:
    gone, odd = send(grid, 7, 8)
    for name in link.reply(gone, whole=False):
        del link.objects[name]
    for name in link.reply(odd, whole=False):
        link.objects[name] = b"no object"
    found: list[Message] = []
    while len(found) < 2:
        found += eventually(grid, [m for m in (gone, odd) if m.metadata.message_id not in answered(found)])
    assert all(reply.has_error() for reply in found)


def answered(replies: list[Message]) -> set[str]:
    return {reply.metadata.reply_to_message_id for reply in replies}


def test_what_a_node_had_taken_before_it_connected_anew_is_told_as_lost(
    grid: Reception, link: SuperLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reception, "NODES_SECONDS", 0.0)
    link.activated = {7: "monday", 8: "monday", 9: "monday"}
    messages = send(grid, 7, 8, 9)
    assert pull(grid, messages) == []
    # One starts again, another is away: of that one the SuperLink tells by itself.
    link.activated = {7: "tuesday", 8: "monday"}
    assert answered(pull(grid, messages)) == {messages[0].metadata.message_id}
    (again,) = send(grid, 7)
    assert pull(grid, [again]) == []
    link.reply(again)
    assert [reply.has_error() for reply in pull(grid, [again])] == [False]


def test_the_mailbox_asks_a_restarted_node_again_and_takes_the_answer_to_that(
    grid: Reception, link: SuperLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reception, "NODES_SECONDS", 0.0)
    monkeypatch.setattr("fcfl_strategy.exchange.AGAIN_SECONDS", 0.01)
    link.activated = {7: "monday"}
    pushed, push = list[Message](), grid.push_messages

    def pushing(messages: Any) -> Any:
        sent = list(messages)
        pushed.extend(sent)
        if len(pushed) > 1:
            ids = list(push(sent))
            link.reply(sent[0])
            return ids
        return push(sent)

    monkeypatch.setattr(grid, "push_messages", pushing)
    seen = list[Answer]()

    def restart() -> None:
        link.activated = {7: "tuesday"}

    timer = threading.Timer(0.1, restart)
    timer.start()
    Mailbox(grid, 0.01).insist(
        [request("train", 7, b"question", ttl=30.0, group="1")], seen.append, 30.0, lambda lost: bool(lost)
    )
    timer.join()
    assert [answer.body for answer in seen] == [b"fine"]
    assert [message.content["body"]["data"] for message in pushed] == [b"question"] * 2


def test_the_end_of_a_run_does_not_wait_for_half_a_reply(link: SuperLink) -> None:
    inner = HttpGrid(token="any")
    inner._client = link  # type: ignore[assignment]
    inner.set_run(Run.create_empty(1))
    with prompt(inner) as grid:
        assert isinstance(grid, Reception)
        (message,) = send(grid, 7)
        link.reply(message, whole=False)
        assert pull(grid, [message]) == []
        began = time.monotonic()
    assert time.monotonic() - began < reception.WHOLE_SECONDS / 2


def test_other_grids_and_other_versions_of_flower_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    local = LocalGrid(SimpleNamespace(), 1, {})  # type: ignore[arg-type]
    with prompt(local) as same:
        assert same is local
    monkeypatch.setattr(reception, "version", lambda name: "1.43.0")
    http = HttpGrid(token="any")
    with prompt(http) as same:
        assert same is http
