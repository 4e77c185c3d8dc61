"""fcfl silo check and status: every fault has its row and what to do, and nothing that is data is shown."""

import json
import shutil
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.proto.fleet_pb2 import ActivateNodeResponse, DeactivateNodeResponse
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatResponse
from flwr.supercore.error import ApiErrorCode
from hypothesis import given
from hypothesis import strategies as st

from client_app.home import SiloHome
from client_app.node.status import only_node
from experiments.provision.certificates import authority, pem
from experiments.provision.federation import Federation, Server
from experiments.provision.keys import new_key
from experiments.provision.project import Project
from experiments.silo_check import folder, network
from experiments.silo_check.dry_sum import check_sum
from experiments.silo_check.findings import Finding, Level, exit_code, guarded
from experiments.silo_check.network import Met, _clock
from experiments.silo_status import last_refusal
from experiments.silos import make_silo
from privacy.signing import SigningKey
from tests.experiments.provision.conftest import NOW, Operator
from tests.experiments.tiny import SETTINGS, fcfl, released, silos, write_samples

NAMES = ("bank-a", "bank-b", "bank-c")
Rows = dict[str, dict[str, str]]


@dataclass
class Coordinator:
    """A server with TLS that answers as a SuperLink does, or not."""

    port: int = 0
    ahead: timedelta = timedelta()
    refuses: bool = False
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


def serve(coordinator: Coordinator) -> HTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            return

        def date_time_string(self, timestamp: float | None = None) -> str:
            return format_datetime((datetime.now(UTC) + coordinator.ahead), usegmt=True)

        def answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            coordinator.asked.append("health")
            self.answer(200, b"up\n")

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            what = self.path.rpartition("/")[2]
            coordinator.asked.append(what)
            if what == "activate-node" and coordinator.refuses:
                code = int(ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED)
                self.answer(412, json.dumps({"code": code, "detail": "", "extra": None}).encode())
                return
            replies: dict[str, Any] = {
                "activate-node": ActivateNodeResponse(node_id=9),
                "deactivate-node": DeactivateNodeResponse(),
                "send-node-heartbeat": SendNodeHeartbeatResponse(success=True),
            }
            self.answer(200, replies[what].SerializeToString())

    class Quiet(HTTPServer):
        """Says nothing of a handshake that the client breaks off: that is what some tests are about."""

        def handle_error(self, *_: object) -> None:
            return

    server = Quiet(("127.0.0.1", 0), Handler)
    coordinator.port = server.server_port
    return server


@pytest.fixture
def home(tmp_path: Path, coordinator: Coordinator) -> Iterator[Path]:
    """A silo that is fit for a run, and its coordinator."""
    server = serve(coordinator)
    declared = Federation("Trial", (Server.of("localhost", coordinator.port, [], ["127.0.0.1"], "server"),))
    operator = Operator(Project.create(tmp_path / "project", declared, NOW), tmp_path)
    shards = write_samples(tmp_path / "samples", 1)
    for name in NAMES:
        home = operator.home(name)
        make_silo(home, name, shards / "silo-00", epsilon=1, delta=1e-5, min_cohort=2, min_enrolment=3)
        operator.enrol(name)
    operator.install("bank-a")
    served = operator.project.server_folder(declared.servers[0])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(served / "server.crt", served / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield operator.home("bank-a")
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def check(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, Rows]]:
    """Run the command with --json; return exit code and rows by check."""

    def run(*options: str) -> tuple[int, Rows]:
        capsys.readouterr()
        code = fcfl(monkeypatch, "silo", "check", home, "--json", *options)
        shown = capsys.readouterr()
        assert shown.err == ""
        return code, {row["check"]: row for row in json.loads(shown.out)}

    return run


Check = Callable[..., tuple[int, Rows]]


def test_a_silo_that_is_fit_has_only_good_rows_and_leaves_nothing_behind(
    check: Check, home: Path, coordinator: Coordinator
) -> None:
    before = {path.name for path in home.iterdir()}
    code, rows = check()
    assert code == 0, rows
    assert {row["level"] for row in rows.values()} == {"ok"}
    assert "node 9" in rows["registration"]["text"]
    assert coordinator.asked[0] == "health"
    assert coordinator.asked[1] == "activate-node"
    assert coordinator.asked[-1] == "deactivate-node"
    assert {path.name for path in home.iterdir()} - before == {"node.lock"}


def test_offline_the_coordinator_is_not_asked(check: Check, coordinator: Coordinator) -> None:
    code, rows = check("--offline")
    assert code == 0
    assert not {"server", "clock", "registration"} & rows.keys()
    assert coordinator.asked == []


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


FAULTS: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "no settings": ("settings", lambda home: (home / "silo.toml").unlink(), "not found"),
    "bad policy": (
        "settings",
        lambda home: (home / "silo.toml").write_text((home / "silo.toml").read_text() + "x = 1\n"),
        "unknown key policy.x",
    ),
    "key for all": ("identity", lambda home: (home / "identity.key").chmod(0o644), "identity.key"),
    "no key": ("identity", lambda home: (home / "identity.key").unlink(), "identity.key"),
    "cut ledger": ("ledger", lambda home: (home / "ledger.jsonl").write_bytes(b""), "ledger"),
    "no anchor": ("ledger", lambda home: (home / "ledger.anchor").unlink(), "anchor"),
    "no roster": ("roster", lambda home: (home / "roster.toml").unlink(), "roster.toml: not found"),
    "small roster": (
        "roster",
        lambda home: (home / "silo.toml").write_text(
            (home / "silo.toml").read_text().replace("min_enrolment = 3", "min_enrolment = 4")
        ),
        "policy.min_enrolment is 4",
    ),
    "changed sample": (
        "samples",
        lambda home: _flip(SiloHome.open(home).settings.data / "train.targets.npy"),
        "SHA-256 differs",
    ),
    "no samples": ("samples", lambda home: shutil.rmtree(SiloHome.open(home).settings.data), "manifest.json"),
    "no connection": ("connection", lambda home: (home / "connection.toml").unlink(), "start-up kit"),
    "no authority": ("authority", lambda home: (home / "ca.crt").unlink(), "ca.crt"),
    "cut authority": ("authority", lambda home: _cut(home / "ca.crt"), "PEM"),
    "node key for all": ("node key", lambda home: (home / "supernode.key").chmod(0o640), "chmod 600"),
    "cut node key": ("node key", lambda home: _cut(home / "supernode.key"), "OpenSSH"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_has_its_own_row_with_what_to_do(check: Check, home: Path, fault: str) -> None:
    where, damage, words = FAULTS[fault]
    damage(home)
    code, rows = check("--offline")
    assert code == 2
    assert rows[where]["level"] == "failed"
    assert words in rows[where]["text"] + rows[where]["advice"]
    # What has nothing to do with it is still looked at.
    assert {"disk", "software", "secure sum"} <= rows.keys()


def test_a_policy_that_allows_more_than_usual_is_a_warning(check: Check, home: Path) -> None:
    text = (home / "silo.toml").read_text()
    (home / "silo.toml").write_text(text.replace("allow_seeded = false", "allow_seeded = true"))
    code, rows = check("--offline")
    assert (code, rows["settings"]["level"]) == (1, "warning")
    assert "not private" in rows["settings"]["text"]


@pytest.mark.parametrize(("free", "level"), [(10 << 30, "ok"), (1 << 30, "warning"), (1 << 20, "failed")])
def test_room_on_the_disk(check: Check, monkeypatch: pytest.MonkeyPatch, free: int, level: str) -> None:
    usage = shutil.disk_usage("/")._replace(free=free)
    monkeypatch.setattr(folder.shutil, "disk_usage", lambda _: usage)
    assert check("--offline")[1]["disk"]["level"] == level


def test_another_flower_is_named(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("client_app.node.fleet.version", lambda _: "1.43.0")
    rows = check("--offline")[1]
    assert rows["software"]["level"] == "failed"
    assert "1.43.0" in rows["software"]["text"]


def test_a_key_that_is_not_let_in_is_named(check: Check, coordinator: Coordinator) -> None:
    coordinator.refuses = True
    code, rows = check()
    assert code == 2
    assert "not registered" in rows["registration"]["text"]


def test_a_server_of_another_authority_is_named_and_nothing_is_sent_to_it(
    check: Check, home: Path, coordinator: Coordinator
) -> None:
    (home / "ca.crt").write_bytes(pem(authority(new_key(), "Other", datetime.now(UTC), 100)))
    code, rows = check()
    assert code == 2
    assert "certificate is not accepted" in rows["server"]["text"]
    assert coordinator.asked == []


def test_no_server_at_all_is_named(check: Check, home: Path, coordinator: Coordinator) -> None:
    file = home / "connection.toml"
    file.write_text(file.read_text().replace(str(coordinator.port), "1"))
    code, rows = check()
    assert code == 2
    assert "no answer" in rows["server"]["text"]
    assert "outbound" in rows["server"]["advice"]
    assert "registration" not in rows


def test_a_clock_that_is_far_ahead_is_named(check: Check, coordinator: Coordinator) -> None:
    coordinator.ahead = timedelta(seconds=-60)
    code, rows = check()
    assert code == 2
    assert "requests are refused" in rows["clock"]["text"]


def test_the_key_of_a_running_node_is_left_alone(check: Check, home: Path, coordinator: Coordinator) -> None:
    now = datetime.now(UTC)
    with only_node(home):
        (home / "node.json").write_text(json.dumps({"contact": now.isoformat()}))
        assert check()[1]["registration"]["level"] == "ok"
        (home / "node.json").write_text(json.dumps({"contact": (now - timedelta(hours=1)).isoformat()}))
        assert check()[1]["registration"]["level"] == "warning"
        (home / "node.json").write_text("{}")
        assert check()[1]["registration"]["level"] == "warning"
    assert "activate-node" not in coordinator.asked


def met(offset: float, took: float) -> Met:
    """A server whose clock is behind this one by ``offset`` seconds, asked over a way of ``took`` seconds."""
    sent = datetime(2026, 1, 1, 12, 0, 0, 250_000, tzinfo=UTC)
    date = (sent + timedelta(seconds=took / 2 - offset)).replace(microsecond=0)
    certificate = authority(new_key(), "Trial", sent, 30)
    return Met(certificate, "TLSv1.3", date, sent, sent + timedelta(seconds=took))


@given(st.floats(-1e4, 1e4), st.floats(0, 5))
def test_a_clock_is_never_refused_that_flower_would_take(offset: float, took: float) -> None:
    found = _clock(met(offset, took))
    if found.level is Level.FAILED:
        # Flower takes a request that was signed less than 5 s after, and less than 305 s before it arrives.
        assert offset > 5 - 1e-3 or offset < -305 + 1e-3
    if found.level is Level.OK:
        assert -305 < offset - took - 1 < 5


def test_a_server_that_does_not_tell_its_time_is_a_warning() -> None:
    for header in (None, "", "yesterday", "Thu, 32 Jan 2026 00:00:00 GMT"):
        assert network._date(header) is None
    known = met(0, 0)
    assert _clock(Met(known.certificate, known.tls, None, known.sent, known.received)).level is Level.WARNING


def test_nothing_that_is_data_is_shown(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = SiloHome.open(home).settings.data
    manifest = json.loads((data / "manifest.json").read_text())
    (data / "manifest.json").write_text(json.dumps({**manifest, "tickers": ["SECRET"], "first_date": "1999-SECRET"}))
    fcfl(monkeypatch, "silo", "check", home, "--offline", "--json")
    fcfl(monkeypatch, "silo", "check", home, "--offline")
    shown = capsys.readouterr()
    assert "samples" in shown.out
    assert "SECRET" not in shown.out + shown.err
    secret = (home / "identity.key").read_text().splitlines()[1]
    assert secret not in shown.out + shown.err


def test_an_error_that_was_not_foreseen_is_a_row_without_its_text() -> None:
    def broken() -> Finding:
        raise RuntimeError("price 17.25")

    found = guarded("samples", broken)
    assert found.level is Level.FAILED
    assert "17.25" not in found.text + found.advice


def test_exit_codes_follow_the_worst_row() -> None:
    rows = {level: Finding("x", level, "") for level in Level}
    assert exit_code([]) == 0
    assert exit_code([rows[Level.OK]]) == 0
    assert exit_code([rows[Level.OK], rows[Level.WARNING]]) == 1
    assert exit_code([rows[Level.WARNING], rows[Level.FAILED]]) == 2


def test_a_sum_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    identity = SigningKey.generate()
    assert check_sum(identity).level is Level.OK
    monkeypatch.setattr("secagg.coordinator.aggregate", lambda *_: {"v": np.zeros(1000, dtype=np.int64)})
    assert check_sum(identity).level is Level.FAILED


def test_status_before_the_first_run(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fcfl(monkeypatch, "silo", "status", home) == 0
    shown = capsys.readouterr().out
    for words in ("node not running", "no message yet", "nothing refused", "1 of 1 left"):
        assert words in shown


def test_status_counts_what_the_ledger_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    arguments = ("run", "start", write_samples(tmp_path / "samples", 3), "--out", run, "--engine", "local")
    assert fcfl(monkeypatch, *arguments, **{**SETTINGS, "rounds": 2}) == 0
    for home in silos(run):
        capsys.readouterr()
        assert fcfl(monkeypatch, "silo", "status", home, "--json") == 0
        found = json.loads(capsys.readouterr().out)
        (shown,) = found["runs"]
        assert shown["rounds"] == len(released(home))
        assert shown["closed"]
        assert found["granted"] == (1.0 if shown["rounds"] else 0.0)
        assert found["left"] == found["total"] - found["granted"]
        assert 0 <= found["spent"] <= found["granted"]
        assert (shown["epsilon"] > 0) == bool(shown["rounds"])
        assert found["private"] is (shown["rounds"] == 0)  # the run was seeded


def test_the_last_refusal_is_found_among_other_lines_and_in_a_long_log(tmp_path: Path) -> None:
    log = tmp_path / "silo.log"
    assert last_refusal(log) == (None, None)
    log.write_text(
        "2026-01-01 10:00:00,123 WARNING declined: epsilon 2.0 too much\n"
        "2026-01-02 10:00:00,123 ERROR stopped: bank-a: no roster\n"
        "2026-01-03 10:00:00,123 INFO run ab: enrolled with 7 records\n"
        "Traceback (most recent call last):\n" + "x" * 100_000 + "\n"
    )
    assert last_refusal(log) == ("2026-01-02 10:00:00", "stopped: bank-a: no roster")
    with log.open("a") as more:
        more.write("2026-01-04 10:00:00,123 INFO nothing\n" * 50_000)
    assert last_refusal(log) == (None, None)


def test_status_of_a_running_node(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = {"contact": "2026-01-01T10:00:00+00:00", "message": "train", "message_at": "now", "answering": True}
    (home / "node.json").write_text(json.dumps(said))
    with only_node(home):
        assert fcfl(monkeypatch, "silo", "status", home) == 0
        assert "node running, answering; last contact 2026-01-01" in capsys.readouterr().out
    assert fcfl(monkeypatch, "silo", "status", home) == 0
    assert "node not running" in capsys.readouterr().out
