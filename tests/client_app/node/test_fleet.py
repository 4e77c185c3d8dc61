"""What the node makes of every answer of the coordinator, and of everything else that answers in its place."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from flwr.app import RecordDict
from flwr.app.message import make_message
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeResponse,
    DeactivateNodeResponse,
    PullMessagesResponse,
    PushMessagesResponse,
)
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedResponse,
    ObjectTree,
    PullObjectResponse,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.supercore.error import ApiErrorCode
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supernode.fleet_http_client import FleetHttpClient

from client_app.node import calls, fleet
from client_app.node.calls import Calls, restrict
from client_app.node.errors import MessageLost, NodeError, Stopped
from client_app.node.fleet import FleetLink
from tests.client_app.node.messages import data_of, reply_to, request

Handler = Callable[[httpx.Request], httpx.Response]


def refusal(status: int, code: int) -> httpx.Response:
    return httpx.Response(status, json={"code": code, "detail": "no", "extra": None})


def proto(message: Any) -> httpx.Response:
    return httpx.Response(200, content=message.SerializeToString())


ENDED = refusal(403, ApiErrorCode.FLEET_RUN_STATUS_NOT_ALLOWED)
NOT_IN = refusal(412, ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED)


class Server:
    """Answers by path: a response, or several one after another; the last one stays."""

    def __init__(self) -> None:
        self.answers: dict[str, list[httpx.Response | Exception]] = {}
        self.asked: list[str] = []
        self.bodies: list[bytes] = []

    def says(self, path: str, *answers: httpx.Response | Exception) -> None:
        self.answers[path] = list(answers)

    def __call__(self, asked: httpx.Request) -> httpx.Response:
        path = asked.url.path.rpartition("/")[2]
        self.asked.append(path)
        self.bodies.append(asked.content)
        answers = self.answers[path]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        # A stream, as from a network: the client has not read it yet.
        body = httpx.ByteStream(answer.content)
        return httpx.Response(answer.status_code, headers=answer.headers, stream=body, request=asked)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def stopping() -> threading.Event:
    return threading.Event()


@pytest.fixture
def link(server: Server, stopping: threading.Event, monkeypatch: pytest.MonkeyPatch) -> Iterator[FleetLink]:
    monkeypatch.setattr(calls, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(calls, "LONGEST_WAIT", 0.01)
    monkeypatch.setattr(calls.random, "uniform", lambda low, high: 0.01)
    client = FleetHttpClient("https://coordinator.example")
    client._client = httpx.Client(transport=httpx.MockTransport(server))
    restrict(client._client, 1 << 20)
    with client:
        yield FleetLink(client, Calls(stopping))


def offer(server: Server, *, ttl: float = 60.0) -> None:
    """Put one message at the server."""
    message = request(b"a model", ttl=ttl)
    tree = get_object_tree(message)
    message.metadata.__dict__["_message_id"] = tree.object_id
    head = message_to_proto(make_message(message.metadata, RecordDict()))
    server.says("pull-messages", proto(PullMessagesResponse(messages_list=[head], message_object_trees=[tree])))
    objects = {key: value.deflate() for key, value in get_all_nested_objects(message).items()}
    server.says("confirm-message-received", proto(ConfirmMessageReceivedResponse()))
    server.answers["pull-object"] = _Objects(objects)  # type: ignore[assignment]


class _Objects(list):  # type: ignore[type-arg]
    """Gives every object once, in the order in which the tree is read."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        super().__init__(
            proto(PullObjectResponse(object_found=True, object_available=True, object_content=content))
            for content in objects.values()
        )


def until(seconds: float = 60.0) -> float:
    return time.monotonic() + seconds


@pytest.mark.parametrize("passing", [429, 500, 502, 503, 504])
def test_a_busy_or_absent_coordinator_is_asked_again(server: Server, link: FleetLink, passing: int) -> None:
    cut = httpx.ConnectError("refused")
    server.says("pull-messages", httpx.Response(passing), cut, httpx.ReadTimeout("slow"), proto(PullMessagesResponse()))
    server.says("activate-node", proto(ActivateNodeResponse(node_id=5)))
    server.says("deactivate-node", proto(DeactivateNodeResponse()))
    assert link.pull() is None
    assert server.asked[:4] == ["pull-messages"] * 4


def test_waits_grow_and_are_spread(server: Server, stopping: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    spans: list[float] = []

    def spread(low: float, high: float) -> float:
        spans.append(high)
        return 0.0

    monkeypatch.setattr(calls.random, "uniform", spread)
    answers = iter([httpx.ConnectError("no")] * 8)

    def method(_: object) -> str:
        for error in answers:
            raise error
        return "there"

    assert Calls(stopping)(method, None) == "there"
    assert spans == [1, 2, 4, 8, 16, 20, 20, 20]


def test_a_key_that_is_no_longer_registered_ends_the_node_by_name(server: Server, link: FleetLink) -> None:
    server.says("pull-messages", httpx.Response(401, json={"detail": "Invalid SuperNode authentication"}))
    with pytest.raises(NodeError, match=r"not registered or was revoked, or the clocks"):
        link.pull()


def test_a_killed_node_waits_until_it_no_longer_counts_as_alive(server: Server, link: FleetLink) -> None:
    server.says("activate-node", NOT_IN, NOT_IN, proto(ActivateNodeResponse(node_id=5)))
    waited: list[float] = []
    link.activate(b"key", waited.append, 60.0)
    assert link.node_id == 5
    assert waited == [fleet.ACTIVATION_WAIT] * 2


def test_a_second_process_with_the_key_is_refused_in_words(server: Server, link: FleetLink) -> None:
    server.says("activate-node", NOT_IN)
    with pytest.raises(NodeError, match="another process uses it"):
        link.activate(b"key", lambda _: None, 0.0)


def test_stopping_ends_the_wait_for_an_absent_coordinator(
    server: Server, link: FleetLink, stopping: threading.Event
) -> None:
    def leave(_: httpx.Request) -> None:
        stopping.set()

    server.says("pull-messages", httpx.ConnectError("refused"))
    link._client._client.event_hooks["request"].append(leave)
    with pytest.raises(Stopped):
        link.pull()


@pytest.mark.parametrize("answer", [httpx.Response(403, text="<html>"), httpx.Response(404), httpx.Response(302)])
def test_somebody_else_who_answers_is_no_end_of_a_run(server: Server, link: FleetLink, answer: httpx.Response) -> None:
    server.says("pull-messages", answer)
    with pytest.raises(NodeError, match="not a Flower SuperLink"):
        link.pull()


def test_an_answer_that_is_no_flower_message_ends_the_node_by_name(server: Server, link: FleetLink) -> None:
    server.says("pull-messages", httpx.Response(200, text="<html>welcome to the hotel</html>"))
    with pytest.raises(NodeError, match="no Flower message"):
        link.pull()


def test_a_redirection_is_not_followed(server: Server, link: FleetLink) -> None:
    server.says("pull-messages", httpx.Response(307, headers={"location": "http://elsewhere.example/"}))
    with pytest.raises(NodeError, match="307"):
        link.pull()
    assert server.asked == ["pull-messages"]


@pytest.mark.parametrize(
    ("reason", "words"),
    [("certificate has expired", "certificate has expired"), ("unable to get local issuer certificate", "issuer")],
)
def test_a_certificate_that_does_not_fit_ends_a_node_that_starts(
    server: Server, link: FleetLink, reason: str, words: str
) -> None:
    text = f"[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: {reason} (_ssl.c:1006)"
    server.says("activate-node", httpx.ConnectError(text))
    with pytest.raises(NodeError, match=words):
        link.activate(b"key", lambda _: None, 0.0)


def test_a_certificate_that_expires_later_is_waited_for(server: Server, link: FleetLink) -> None:
    text = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: certificate has expired (_ssl.c:1006)"
    nothing = proto(PullMessagesResponse())
    server.says("pull-messages", nothing, httpx.ConnectError(text), httpx.ConnectError(text), nothing)
    assert link.pull() is None
    assert link.pull() is None
    assert len(server.asked) == 4


def test_a_message_comes_whole_and_is_confirmed(server: Server, link: FleetLink) -> None:
    offer(server)
    message = link.pull()
    assert message is not None
    assert data_of(message) == b"a model"
    assert server.asked[-1] == "confirm-message-received"
    assert message.metadata.message_id == get_object_tree(message).object_id


@pytest.mark.parametrize(
    "answer", [ENDED, proto(PullObjectResponse(object_found=False)), httpx.Response(413, text="<html>too large")]
)
def test_a_message_whose_run_ended_while_it_is_pulled_is_lost_and_the_node_goes_on(
    server: Server, link: FleetLink, answer: httpx.Response
) -> None:
    offer(server)
    server.says("pull-object", answer)
    with pytest.raises(MessageLost):
        link.pull()


def test_an_object_that_never_becomes_available_is_given_up_when_the_time_is_over(
    server: Server, link: FleetLink
) -> None:
    offer(server, ttl=2.0)
    server.says("pull-object", proto(PullObjectResponse(object_found=True, object_available=False)))
    with pytest.raises(MessageLost):
        link.pull()


@pytest.mark.parametrize("ttl", [-1.0, 0.0, float("nan"), float("-inf")])
def test_a_message_that_is_over_is_not_pulled(server: Server, link: FleetLink, ttl: float) -> None:
    offer(server, ttl=ttl)
    with pytest.raises(MessageLost, match="set the clock"):
        link.pull()
    assert server.asked == ["pull-messages"]


@pytest.mark.parametrize("content", [b"", b"ArrayRecord,,5\0hello", b"Message,,3\0abc", b"Unknown,,3\0abc", b"x" * 100])
def test_garbage_in_place_of_an_object_does_not_end_the_node(server: Server, link: FleetLink, content: bytes) -> None:
    offer(server, ttl=2.0)
    found = proto(PullObjectResponse(object_found=True, object_available=True, object_content=content))
    server.says("pull-object", found)
    with pytest.raises(MessageLost):
        link.pull()


def test_a_message_without_its_tree_does_not_end_the_node(server: Server, link: FleetLink) -> None:
    head = message_to_proto(request())
    server.says("pull-messages", proto(PullMessagesResponse(messages_list=[head])))
    with pytest.raises(MessageLost, match="IndexError"):
        link.pull()


def test_an_answer_larger_than_the_limit_is_not_read(server: Server, link: FleetLink) -> None:
    offer(server)
    big = PullObjectResponse(object_found=True, object_available=True, object_content=bytes(2 << 20))
    server.says("pull-object", proto(big))
    with pytest.raises(MessageLost, match="larger than 1 MiB"):
        link.pull()


def test_a_message_of_many_objects_is_bounded_as_a_whole(
    server: Server, link: FleetLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "MESSAGE_BYTES", 20)
    offer(server)
    with pytest.raises(MessageLost, match="it is larger than"):
        link.pull()


def test_a_compressed_answer_is_not_unpacked(server: Server, link: FleetLink) -> None:
    server.says("pull-messages", httpx.Response(200, headers={"content-encoding": "br"}, content=b""))
    with pytest.raises(NodeError, match="DecodingError"):
        link.pull()


def pushed(server: Server, *stored: bool) -> None:
    reply = reply_to(request(), b"masked")
    wanted = list(get_all_nested_objects(reply))
    server.says("push-messages", proto(PushMessagesResponse(objects_to_push=wanted, session_id="s")))
    server.says("push-object", *(proto(PushObjectResponse(stored=one)) for one in stored))


def test_a_reply_is_sent_with_all_its_objects(server: Server, link: FleetLink) -> None:
    reply = reply_to(request(), b"masked")
    wanted = list(get_all_nested_objects(reply))
    server.says("push-messages", proto(PushMessagesResponse(objects_to_push=wanted, session_id="s")))
    server.says("push-object", proto(PushObjectResponse(stored=True)))
    link.push(reply, 0.5, until())
    sent = [
        PushObjectRequest.FromString(body)
        for path, body in zip(server.asked, server.bodies, strict=True)
        if path == "push-object"
    ]
    assert {one.object_id for one in sent} == set(wanted)


def test_a_push_session_that_ran_out_is_opened_again(server: Server, link: FleetLink) -> None:
    server.says("push-messages", proto(PushMessagesResponse(objects_to_push=[reply_id()], session_id="s")))
    server.says("push-object", proto(PushObjectResponse(stored=False)), proto(PushObjectResponse(stored=True)))
    link.push(REPLY, 0.5, until())
    assert server.asked == ["push-messages", "push-object", "push-messages", "push-object"]


def test_objects_that_a_lost_session_still_wants_are_sent_without_one(server: Server, link: FleetLink) -> None:
    """The coordinator has begun to take the reply, so that the SuperLink opens no second session for it."""
    wanted = set(get_all_nested_objects(REPLY))
    server.says("push-messages", httpx.RemoteProtocolError("gone"), proto(PushMessagesResponse(session_id="new")))
    server.says("push-object", proto(PushObjectResponse(stored=False)), proto(PushObjectResponse(stored=True)))
    link.push(REPLY, 0.5, until())
    assert server.asked[:2] == ["push-messages"] * 2
    sent = [PushObjectRequest.FromString(body) for body in server.bodies[2:]]
    assert {one.object_id for one in sent} == wanted
    assert {one.session_id for one in sent} == {""}


def test_a_session_that_ends_after_the_coordinator_began_to_take_the_reply_is_gone_on_with(
    server: Server, link: FleetLink
) -> None:
    begun = proto(PushMessagesResponse(objects_to_push=[reply_id()], session_id="s"))
    server.says("push-messages", begun, proto(PushMessagesResponse(session_id="new")))
    server.says("push-object", proto(PushObjectResponse(stored=False)))
    link.push(REPLY, 0.5, until())
    sent = {PushObjectRequest.FromString(body).object_id for body in server.bodies[3:]}
    assert sent == set(get_all_nested_objects(REPLY))


@pytest.mark.parametrize(
    ("failure", "anew"),
    [
        (httpx.RemoteProtocolError("gone"), True),
        (httpx.ReadTimeout("slow"), True),
        (httpx.Response(502), True),
        (httpx.ConnectError("refused"), False),
        (httpx.Response(503), False),
    ],
)
def test_a_pull_whose_answer_may_have_been_lost_is_told_by_connecting_anew(
    server: Server, link: FleetLink, failure: httpx.Response | Exception, *, anew: bool
) -> None:
    """A message that was in the answer is delivered to nobody again unless the coordinator sends it once more."""
    server.says("activate-node", proto(ActivateNodeResponse(node_id=5)))
    server.says("deactivate-node", proto(DeactivateNodeResponse()))
    link.activate(b"key", lambda _: None, 0.0)
    server.says("pull-messages", failure, proto(PullMessagesResponse()))
    assert link.pull() is None
    assert server.asked[3:] == (["deactivate-node", "activate-node"] if anew else [])
    assert server.bodies[-1 if anew else 0] == server.bodies[0]
    assert link.node_id == 5


def test_a_node_that_could_not_leave_stays_connected_as_it_was(server: Server, link: FleetLink) -> None:
    server.says("activate-node", proto(ActivateNodeResponse(node_id=5)), NOT_IN)
    server.says("deactivate-node", httpx.ReadTimeout("slow"))
    link.activate(b"key", lambda _: None, 0.0)
    server.says("pull-messages", httpx.ReadTimeout("slow"), proto(PullMessagesResponse()))
    assert link.pull() is None
    assert link.node_id == 5


REPLY = reply_to(request(), b"masked")


def reply_id() -> str:
    return str(get_object_tree(REPLY).object_id)


@pytest.mark.parametrize(
    ("path", "answer", "words"),
    [
        ("push-object", proto(PushObjectResponse(stored=False)), "does not store"),
        ("push-object", httpx.Response(413, text="<html>"), "raise the proxy's limit"),
        ("push-object", ENDED, "its run has ended"),
        ("push-messages", ENDED, "its run has ended"),
    ],
)
def test_a_reply_that_is_refused_is_lost_and_the_node_goes_on(
    server: Server, link: FleetLink, path: str, answer: httpx.Response, words: str
) -> None:
    server.says("push-messages", proto(PushMessagesResponse(objects_to_push=[reply_id()], session_id="s")))
    server.says(path, answer)
    with pytest.raises(MessageLost, match=words):
        link.push(REPLY, 0.5, until())


def test_a_reply_is_given_up_once_nobody_waits_for_it(server: Server, link: FleetLink) -> None:
    server.says("push-messages", httpx.Response(503))
    with pytest.raises(MessageLost, match="its time is over"):
        link.push(REPLY, 0.5, until(0.0))


def test_a_heartbeat_never_raises(server: Server, link: FleetLink) -> None:
    for answer in (httpx.ConnectError("no"), httpx.Response(401), httpx.Response(200, text="<html>"), ENDED):
        server.says("send-node-heartbeat", answer)
        assert link.heartbeat() is False


def test_refusals_carry_no_text_of_the_server(server: Server, link: FleetLink) -> None:
    server.says("pull-messages", httpx.Response(418, text=json.dumps({"detail": "secret"})))
    with pytest.raises(NodeError) as error:
        link.pull()
    assert "secret" not in str(error.value)


def test_a_tree_that_is_deep_does_not_end_the_node(server: Server, link: FleetLink) -> None:
    offer(server)
    tree = ObjectTree(object_id="0" * 64)
    for _ in range(90):
        tree = ObjectTree(object_id="0" * 64, children=[tree])
    head = message_to_proto(request())
    server.says("pull-messages", proto(PullMessagesResponse(messages_list=[head], message_object_trees=[tree])))
    server.says("pull-object", proto(PullObjectResponse(object_found=False)))
    with pytest.raises(MessageLost):
        link.pull()
