"""Replies over Flower's HTTP grid: whole ones at once, lost ones asked for again, whatever else is under way."""

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ConfirmMessageReceivedResponse,
    ObjectTree,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.runtime_pb2 import (
    GetNodesRequest,
    GetNodesResponse,
    PullAppMessagesRequest,
    PullAppMessagesResponse,
    PushAppMessagesRequest,
    PushAppMessagesResponse,
)
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
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
        self.heads: list[tuple[MessageProto, ObjectTree]] = []
        self.contents: dict[str, bytes] = {}
        self.answering = 10**6
        self.answered: set[str] = set()
        self.ready: dict[str, Message] = {}
        self.objects: dict[str, bytes | None] = {}
        self.activated = {7: "monday", 8: "monday", 9: "monday"}
        self.confirmed: list[str] = []
        self.pulls = 0
        self.claimed: list[Message] = []

    def PushMessages(self, asked: PushAppMessagesRequest) -> PushAppMessagesResponse:  # noqa: N802 - Flower's names
        # All objects are wanted: the contents of messages are read back from them.
        trees = asked.message_object_trees
        self.heads += zip(asked.messages_list, trees, strict=True)
        wanted = {part.object_id for tree in trees for part in iterate_object_tree(tree)}
        return PushAppMessagesResponse(message_ids=[tree.object_id for tree in trees], objects_to_push=wanted)

    def PushObject(self, asked: PushObjectRequest) -> PushObjectResponse:  # noqa: N802
        self.contents[asked.object_id] = asked.object_content
        for number, message in enumerate(self.sent, 1):
            if number >= self.answering and message.metadata.message_id not in self.answered:
                self.reply(message)
        return PushObjectResponse(stored=True)

    def GetNodes(self, asked: GetNodesRequest) -> GetNodesResponse:  # noqa: N802
        found = [NodeInfo(node_id=node, last_activated_at=since) for node, since in self.activated.items()]
        return GetNodesResponse(nodes=found)

    @property
    def sent(self) -> list[Message]:
        """Messages that are whole, in the order in which they were sent."""
        found = []
        for _, tree in self.heads:
            parts = {p.object_id: self.contents.get(p.object_id) for p in iterate_object_tree(tree)}
            if all(content is not None for content in parts.values()):
                message = inflate_object_from_contents(tree.object_id, parts)  # type: ignore[arg-type]
                message.metadata.__dict__["_message_id"] = tree.object_id  # type: ignore[attr-defined]
                found.append(message)
        return found  # type: ignore[return-value]

    def answers_from(self, number: int) -> None:
        """Answer every message from that one on as soon as it is sent."""
        self.answering = number

    def put(self, reply: Message) -> dict[str, bytes]:
        """Have a reply with all its objects; return these."""
        reply.metadata.__dict__["_message_id"] = reply.object_id
        self.answered.add(reply.metadata.reply_to_message_id)
        self.ready[reply.metadata.reply_to_message_id] = reply
        contents = {name: part.deflate() for name, part in get_all_nested_objects(reply).items()}
        self.objects |= contents
        return contents

    def reply(self, message: Message, *, whole: bool = True) -> list[str]:
        """Have a reply; return the ids of the objects that are still on their way."""
        contents = self.put(Message(RecordDict({"body": ConfigRecord({"data": b"fine"})}), reply_to=message))
        if whole:
            return []
        self.objects |= dict.fromkeys(contents)
        return list(contents)

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


def test_a_reply_that_never_gets_whole_is_asked_for_again_with_the_same_bytes(
    grid: Reception, link: SuperLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reception, "WHOLE_SECONDS", 0.3)
    (message,) = send(grid, 7)
    link.reply(message, whole=False)
    link.answers_from(2)
    (reply,) = eventually(grid, [message])
    assert reply.content["body"]["data"] == b"fine"
    assert reply.metadata.reply_to_message_id == message.metadata.message_id
    first, again = link.sent
    assert again.content["body"]["data"] == first.content["body"]["data"]
    assert (again.metadata.message_type, again.metadata.group_id) == ("train", "1")
    # Nobody waits for the second longer than for the first.
    assert first.metadata.ttl - 1.0 < again.metadata.ttl + (again.metadata.created_at - first.metadata.created_at)
    assert again.metadata.created_at + again.metadata.ttl <= first.metadata.created_at + first.metadata.ttl + 0.01


def test_a_reply_of_a_node_that_is_away_is_told_as_lost(
    grid: Reception, link: SuperLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reception, "WHOLE_SECONDS", 0.3)
    (message,) = send(grid, 7)
    link.reply(message, whole=False)
    link.activated.clear()
    (reply,) = eventually(grid, [message])
    assert reply.has_error()
    assert reply.metadata.reply_to_message_id == message.metadata.message_id
    assert link.confirmed == []
    assert len(link.sent) == 1


def test_a_message_whose_time_is_over_is_not_sent_again(
    grid: Reception, link: SuperLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reception, "WHOLE_SECONDS", 0.3)
    message = request("train", 7, b"question", ttl=0.1, group="1")
    grid.push_messages([message])
    link.reply(message, whole=False)
    (reply,) = eventually(grid, [message])
    assert reply.has_error()
    assert len(link.sent) == 1


def test_a_reply_whose_objects_are_gone_or_no_objects_is_asked_for_again(grid: Reception, link: SuperLink) -> None:
    gone, odd = send(grid, 7, 8)
    for name in link.reply(gone, whole=False):
        del link.objects[name]
    for name in link.reply(odd, whole=False):
        link.objects[name] = b"no object"
    link.answers_from(3)
    found: list[Message] = []
    while len(found) < 2:
        found += eventually(grid, [m for m in (gone, odd) if m.metadata.message_id not in answered(found)])
    assert [reply.content["body"]["data"] for reply in found] == [b"fine"] * 2
    assert len(link.sent) == 4


def answered(replies: list[Message]) -> set[str]:
    return {reply.metadata.reply_to_message_id for reply in replies}


def test_what_a_node_had_taken_before_it_connected_anew_is_sent_to_it_again_and_nothing_else(
    grid: Reception, link: SuperLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reception, "NODES_SECONDS", 0.0)
    messages = send(grid, 7, 8, 9)
    assert pull(grid, messages) == []
    # One starts again, another is away: of that one the SuperLink tells by itself.
    link.activated = {7: "tuesday", 8: "monday"}
    assert pull(grid, messages) == []
    assert [message.metadata.dst_node_id for message in link.sent] == [7, 8, 9, 7]
    assert pull(grid, messages) == []
    link.reply(link.sent[3])
    assert answered(eventually(grid, messages)) == {messages[0].metadata.message_id}
    assert len(link.sent) == 4


@pytest.mark.parametrize("back", [True, False])
def test_a_node_that_was_away_for_a_moment_is_asked_again_and_one_that_stays_away_is_told(
    grid: Reception, link: SuperLink, *, back: bool
) -> None:
    (message,) = send(grid, 7)
    error = Message(Error(ErrorCode.NODE_UNAVAILABLE, "offline"), reply_to=message)
    link.put(error)
    if not back:
        link.activated.clear()
    link.answers_from(2)
    (reply,) = eventually(grid, [message])
    assert reply.has_error() is not back
    assert reply.metadata.reply_to_message_id == message.metadata.message_id
    assert len(link.sent) == (2 if back else 1)


def test_other_errors_are_passed_on(grid: Reception, link: SuperLink) -> None:
    (message,) = send(grid, 7)
    link.put(Message(Error(ErrorCode.CLIENT_APP_CRASHED, ""), reply_to=message))
    (reply,) = eventually(grid, [message])
    assert reply.error.code == ErrorCode.CLIENT_APP_CRASHED
    assert len(link.sent) == 1


def test_the_mailbox_gets_the_answer_of_a_node_that_starts_again_while_it_is_waited_for(
    grid: Reception, link: SuperLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reception, "NODES_SECONDS", 0.0)
    link.answers_from(2)
    seen = list[Answer]()
    timer = threading.Timer(0.1, lambda: link.activated.update({7: "tuesday"}))
    timer.start()
    Mailbox(grid, 0.01).insist(
        [request("train", 7, b"question", ttl=30.0, group="1")], seen.append, 30.0, lambda lost: False
    )
    timer.join()
    assert [(answer.node, answer.body) for answer in seen] == [(7, b"fine")]


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
