"""The loop, the settings, the lock and the status file of a node."""

import errno
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message
from hypothesis import given
from hypothesis import strategies as st

from client_app.node import command, status
from client_app.node.command import JsonLines, log_to_stderr
from client_app.node.errors import MessageLost, NodeError, Stopped
from client_app.node.service import Polling, serve
from client_app.node.settings import load_authority, load_connection, load_node_key
from client_app.node.status import Status, is_running, only_node, read
from experiments.provision.certificates import authority, pem
from experiments.provision.keys import new_key, openssh, pkcs8
from tests.client_app.node.messages import NODE, data_of, reply_to, request

KIT = {"federation": "Trial", "silo": "bank-a", "superlink": "fl.example.org:443", "root_certificates": "ca.crt"}


class Link:
    """Gives what it is told to, then stops the node."""

    node_id = NODE

    def __init__(self, stopping: threading.Event, *offers: Message | Exception | None, push: Exception | None = None):
        self.stopping, self.offers, self.refusal = stopping, list(offers), push
        self.replies: list[Message] = []

    def pull(self) -> Message | None:
        if not self.offers:
            self.stopping.set()
            return None
        offer = self.offers.pop(0)
        if isinstance(offer, Exception):
            raise offer
        return offer

    def push(self, reply: Message, seconds: float, until: float) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.replies.append(reply)


class Echo:
    def answer(self, message: Message, node_id: int, seconds: float) -> Message | None:
        return reply_to(message, data_of(message) + b"!")


class Waits(threading.Event):
    """Remembers how long the loop wanted to wait, and does not."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout or 0.0)
        return self.is_set()


@pytest.fixture
def stopping() -> Waits:
    return Waits()


def run(link: Link, home: Path, worker: Echo | None = None) -> None:
    serve(link, worker or Echo(), Polling(0.3, 3.0, jitter=0.0), link.stopping, Status(home))


def test_messages_are_answered_one_after_the_other(stopping: Waits, tmp_path: Path) -> None:
    link = Link(stopping, request(b"a"), None, request(b"b"))
    run(link, tmp_path)
    assert [data_of(reply) for reply in link.replies] == [b"a!", b"b!"]
    assert read(tmp_path)["message"] == "query.enrol"
    assert read(tmp_path)["answering"] is False


def test_the_node_looks_often_while_messages_come_and_seldom_otherwise(stopping: Waits, tmp_path: Path) -> None:
    run(Link(stopping, None, request(), None), tmp_path)
    assert stopping.waits[:2] == [3.0, 0.3]


@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_a_pause_stays_in_its_bounds_and_adds_little_to_a_long_wait(silence: float, usual: float) -> None:
    pause = Polling().wait(silence, usual)
    assert 0.3 <= pause <= 3.0
    assert pause <= max(0.3, 0.1 * silence, usual / 2 - silence)
    assert pause <= Polling().wait(silence, 2 * usual)


@given(st.floats(0, 60), st.floats(1, 60))
def test_rounds_of_one_length_are_met_with_few_looks_and_little_delay(early: float, usual: float) -> None:
    """The message of the next round comes somewhat earlier or later than that of the last one."""
    comes, now, looks = usual * (0.6 + early / 75), 0.0, 0
    while now < comes:
        now, looks = now + Polling().wait(now, usual), looks + 1
    assert now - comes <= max(0.3, 0.1 * comes)
    without, blind = 0.0, 0
    while without < comes:
        without, blind = without + Polling().wait(without), blind + 1
    assert looks <= blind


def test_pauses_are_spread(stopping: Waits, tmp_path: Path) -> None:
    serve(Link(stopping, *[None] * 50), Echo(), Polling(1.0, 1.0), stopping, Status(tmp_path))
    assert len(set(stopping.waits)) > 40
    assert all(0.9 <= pause <= 1.1 for pause in stopping.waits)


def test_a_lost_message_or_reply_does_not_end_the_node(
    stopping: Waits, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    link = Link(stopping, MessageLost("its run has ended"), request(), push=MessageLost("a proxy refuses its size"))
    with caplog.at_level(logging.INFO, "fcfl.node"):
        run(link, tmp_path)
    assert "a message is lost: its run has ended" in caplog.text
    assert "the reply is lost: a proxy refuses its size" in caplog.text
    assert stopping.is_set()


@pytest.mark.parametrize("end", [NodeError("revoked"), Stopped()])
def test_what_ends_the_node_leaves_the_loop(stopping: Waits, tmp_path: Path, end: Exception) -> None:
    with pytest.raises(type(end)):
        run(Link(stopping, end), tmp_path)


def test_a_node_that_is_stopped_in_a_message_sends_nothing(stopping: Waits, tmp_path: Path) -> None:
    class Stopping(Echo):
        def answer(self, message: Message, node_id: int, seconds: float) -> Message | None:
            stopping.set()
            return None

    link = Link(stopping, request())
    run(link, tmp_path, Stopping())
    assert link.replies == []


def test_a_full_disk_stops_the_status_file_and_not_the_node(
    stopping: Waits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(status, "write_atomic", full)
    link = Link(stopping, request(), request())
    with caplog.at_level(logging.WARNING, "fcfl.node"):
        run(link, tmp_path)
    assert len(link.replies) == 2
    assert caplog.text.count("No space left") == 1


def test_the_status_is_written_while_a_message_takes_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Status(tmp_path)
    told.answering("train")
    assert read(tmp_path)["answering"] is True
    monkeypatch.setattr(status, "TELL_SECONDS", 0.0)
    monkeypatch.setattr(status, "_now", lambda: "later")
    told.contact(NODE)
    assert (read(tmp_path)["contact"], read(tmp_path)["answering"]) == ("later", True)


def test_the_last_message_is_remembered_over_a_restart_and_damage_is_none(tmp_path: Path) -> None:
    told = Status(tmp_path)
    told.answering("train")
    told.answering(None)
    again = Status(tmp_path)
    again.contact(NODE)
    assert read(tmp_path)["message"] == "train"
    for damage in (b"", b"[]", b"{", b"\xff", b"[" * 100_000):
        (tmp_path / status.FILE).write_bytes(damage)
        assert read(tmp_path) == {}
        Status(tmp_path).contact(NODE)


HOLDER = "import sys; from pathlib import Path; from client_app.node.status import only_node\n"
HOLDER += "with only_node(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    arguments = [sys.executable, "-c", HOLDER, str(tmp_path)]
    root = Path(__file__).resolve().parents[3]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_node_of_a_folder_is_refused_until_the_first_one_is_gone_even_if_it_was_killed(
    holder: subprocess.Popen[str], tmp_path: Path
) -> None:
    assert is_running(tmp_path)
    with pytest.raises(NodeError, match="another node of this silo is running"), only_node(tmp_path):
        pass
    holder.kill()
    holder.wait()
    assert not is_running(tmp_path)
    with only_node(tmp_path):
        assert is_running(tmp_path)


def test_a_folder_that_cannot_hold_the_lock_is_named(tmp_path: Path) -> None:
    assert not is_running(tmp_path / "nowhere")
    with pytest.raises(NodeError, match=r"node\.lock: cannot be made"), only_node(tmp_path / "nowhere"):
        pass


def written(home: Path, **changes: object) -> Path:
    table = {**KIT, **changes}
    lines = [f"{key} = {json.dumps(value)}" for key, value in table.items() if value is not None]
    (home / "connection.toml").write_text("\n".join(lines))
    return home


def test_the_connection_of_a_kit_is_read(tmp_path: Path) -> None:
    found = load_connection(written(tmp_path))
    assert (found.host, found.port) == ("fl.example.org", 443)
    assert (found.root_certificates, found.node_key) == (tmp_path / "ca.crt", tmp_path / "supernode.key")
    assert load_connection(written(tmp_path, superlink="[2001:db8::1]:8443")).host == "2001:db8::1"


@pytest.mark.parametrize(
    "address",
    ["fl.example.org", ":443", "a:0", "a:65536", "a:x", "https://a:1", "a b:1", "a:١", "a/b:1", "", "[x]:1", 7],
)
def test_an_address_that_is_none_is_named(tmp_path: Path, address: object) -> None:
    with pytest.raises(NodeError, match=r"connection\.toml: superlink = "):
        load_connection(written(tmp_path, superlink=address))


def test_a_missing_unknown_or_malformed_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="start-up kit"):
        load_connection(tmp_path)
    with pytest.raises(NodeError, match="silo"):
        load_connection(written(tmp_path, silo=None))
    with pytest.raises(NodeError, match="proxy"):
        load_connection(written(tmp_path, proxy="x"))
    for text in (b"= 1", b"\xff", b"a = " + b"[" * 5000):
        (tmp_path / "connection.toml").write_bytes(text)
        with pytest.raises(NodeError, match="not valid TOML"):
            load_connection(tmp_path)


def test_a_node_key_is_taken_only_if_flower_takes_it_and_others_cannot_read_it(tmp_path: Path) -> None:
    path = tmp_path / "supernode.key"
    with pytest.raises(NodeError, match="cannot be read"):
        load_node_key(path)
    key = new_key()
    path.write_bytes(openssh(key))
    path.chmod(0o644)
    with pytest.raises(NodeError, match="chmod 600"):
        load_node_key(path)
    path.chmod(0o600)
    assert load_node_key(path).private_numbers() == key.private_numbers()
    for wrong in (b"", b"-----BEGIN OPENSSH PRIVATE KEY-----", openssh(ec.generate_private_key(ec.SECP256R1()))):
        path.write_bytes(wrong)
        with pytest.raises(NodeError, match="not a"):
            load_node_key(path)


def test_an_authority_that_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ca.crt"
    with pytest.raises(NodeError, match="cannot be read"):
        load_authority(path)
    key = new_key()
    for wrong in (b"", b"\xff", b"-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n", pkcs8(key)):
        path.write_bytes(wrong)
        with pytest.raises(NodeError, match=r"ca\.crt: no certificate"):
            load_authority(path)
    path.write_bytes(pem(authority(key, "Trial", datetime.now(UTC) - timedelta(days=1), 30)))
    assert load_authority(path)


def test_log_lines_are_json_without_the_text_of_exceptions() -> None:
    try:
        raise ValueError("price 17.25")
    except ValueError:
        record = logging.LogRecord("fcfl.node", logging.ERROR, "", 0, "failed in %s", ("train",), sys.exc_info())
    line = json.loads(JsonLines().format(record))
    assert (line["level"], line["event"]) == ("error", "failed in train")
    assert "17.25" not in json.dumps(line)


def test_an_unforeseen_error_is_named_by_place_and_not_by_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: Path) -> None:
        raise RuntimeError("price 17.25")

    monkeypatch.setattr(command.SiloHome, "open", broken)
    before = logging.getLogger().handlers[:]
    try:
        assert command.main([str(tmp_path)]) == command.FAILED
    finally:
        logging.basicConfig(handlers=before, force=True)
    err = capsys.readouterr().err
    assert "RuntimeError in broken" in json.loads(err)["event"]
    assert "17.25" not in err


def test_the_lines_of_flower_and_httpx_stay_out_of_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    before = logging.getLogger().handlers[:]
    try:
        log_to_stderr()
        logging.getLogger("httpx").info("HTTP Request: POST https://fl.example.org")
        logging.getLogger("flwr").info("Pulling object")
        logging.getLogger("flwr").warning("something")
        logging.getLogger("fcfl.node").info("connected")
    finally:
        logging.basicConfig(handlers=before, force=True)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["event"] for line in lines] == ["something", "connected"]
