"""What a silo's ClientApp lets out: a reply, or a code. Never a text, never a Flower error."""

import dataclasses
import io
import logging
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cbor2
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

import client_app.app
import client_app.silo
from client_app.errors import Code, SiloError
from experiments.local_grid import FIRST_NODE_ID, LocalGrid
from fcfl_strategy.exchange import arrays_record
from secagg import silo as protocol
from secagg.arrays import Arrays, dump
from secagg.envelopes import CloseRequest, JoinRequest
from tests.client_app.federation import RUN_ID, Desk, releases_of

MakeDesk = Callable[..., Desk]
FIRST = "silo-00"
STAGES = ("query.enrol", "query.join", "train", "query.unmask", "query.close")


def content(data: Any, arrays: Arrays | bytes | None = None) -> RecordDict:
    """A request with these vectors, or these bytes in their place."""
    made = RecordDict({"body": ConfigRecord({"data": data})})
    if arrays is not None:
        made["arrays"] = arrays_record(arrays if isinstance(arrays, bytes) else dump(arrays))
    return made


def sent(grid: LocalGrid, stage: str, what: RecordDict) -> Message:
    """Send one message to the first silo through Flower's encodings and return the reply."""
    (reply,) = grid.send_and_receive([Message(what, FIRST_NODE_ID, stage, ttl=60.0)], timeout=60.0)
    return reply


def code_of(reply: Message) -> int:
    """The code of a refusal, after checking that there is nothing else in the reply."""
    assert not reply.has_error()
    assert list(reply.content) == ["body"]
    body = reply.content["body"]
    assert isinstance(body, ConfigRecord)
    assert list(body) == ["code"]
    code = body["code"]
    assert type(code) is int
    return code


def log_of(desk: Desk, name: str = FIRST) -> str:
    return (desk.small.homes[name].root / "silo.log").read_text()


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00",
        b"not a message at all",
        cbor2.dumps({"type": "fcfl-secagg/2/nothing"}),
        cbor2.dumps([1, 2, 3]),
        b"\xff" * 1000,
        b"\x9f" * 5000,
        "text",
        7,
        [1.5],
    ],
)
def test_garbage_gets_a_code_and_nothing_else(desk: MakeDesk, stage: str, body: Any) -> None:
    made = GARBAGE.get("desk") or GARBAGE.setdefault("desk", desk())
    assert code_of(sent(made.small.grid(made.config), stage, content(body))) in set(Code)


# One federation for all garbage: none of it may leave a trace.
GARBAGE: dict[str, Desk] = {}


def test_a_message_without_a_body_gets_a_code(desk: MakeDesk) -> None:
    made = desk()
    grid = made.small.grid(made.config)
    for stage in STAGES:
        for what in (RecordDict(), RecordDict({"body": ArrayRecord()}), RecordDict({"body": ConfigRecord()})):
            assert code_of(sent(grid, stage, what)) in set(Code)


def test_arrays_that_are_no_arrays_are_declined_and_spend_nothing(desk: MakeDesk) -> None:
    made = desk()
    asked, grid = made.ask(1), made.small.grid(made.config)
    good = dump(asked.arrays)
    files = (b"", b"PK\x03\x04rubbish", b"\x80\x04rubbish", b"\x93NUMPY\x01\x00", b"\xff" * 1000)
    for data in (*files, good[:3], good[:20], good[:-1], good + b"\x00", good.replace(b"<f4", b"|O4")):
        assert code_of(sent(grid, "train", content(asked.bodies[FIRST], data))) == Code.DECLINED
    point = asked.arrays["point"]
    records = [ConfigRecord(), ConfigRecord({"data": "text"}), ConfigRecord({"data": [good]})]
    for record in (*records, MetricRecord({"data": 1.0}), ArrayRecord({"point": Array(point), "data": Array(point)})):
        what = content(asked.bodies[FIRST])
        what["arrays"] = record
        assert code_of(sent(grid, "train", what)) == Code.DECLINED
    assert log_of(made).count("declined: arrays") == 10
    assert log_of(made).count("declined: the request's arrays are no byte string") == 5
    assert releases_of(made.small.homes[FIRST]) == []


def test_every_bad_contribution_request_gets_a_code_and_spends_nothing(desk: MakeDesk) -> None:
    made = desk()
    asked, grid = made.ask(1), made.small.grid(made.config)
    good = asked.arrays
    poisoned = good["point"].copy()
    poisoned[0] = np.nan
    other = dataclasses.replace(asked.announcement, run_id=b"?" * 16)
    requests = [
        content(asked.bodies[FIRST]),
        content(asked.bodies[FIRST], {"point": good["point"]}),
        content(asked.bodies[FIRST], {**good, "point": poisoned}),
        content(asked.bodies[FIRST], {**good, "point": good["point"] + np.float32(1)}),
        content(asked.bodies[FIRST], {**good, "control": good["control"][:3]}),
        content(asked.bodies["silo-01"][:-1], good),
        content(other.to_bytes(), good),
        content(JoinRequest(made.run, 1).to_bytes(), good),
    ]
    for what in requests:
        assert code_of(sent(grid, "train", what)) == Code.DECLINED
    assert releases_of(made.small.homes[FIRST]) == []
    # The very request it should be is still answered.
    reply = sent(grid, "train", content(asked.bodies[FIRST], good))
    assert set(reply.content) == {"body", "arrays"}
    assert len(releases_of(made.small.homes[FIRST])) == 1


def test_an_unknown_run_is_declined_at_every_stage(desk: MakeDesk) -> None:
    made = desk()
    grid, unknown = made.small.grid(made.config), b"?" * 16
    run = dataclasses.replace(made.run, run_id=unknown)
    assert code_of(sent(grid, "query.join", content(JoinRequest(run, 1).to_bytes()))) == Code.DECLINED
    assert code_of(sent(grid, "query.close", content(CloseRequest(unknown).to_bytes()))) == Code.DECLINED
    assert not (made.small.homes[FIRST].root / "runs" / unknown.hex()).exists()


SECRET_TEXT = "record 17 of ticker ACME has the return 0.0425"


@pytest.mark.parametrize(
    "error", [ValueError(SECRET_TEXT), MemoryError(SECRET_TEXT), RecursionError(SECRET_TEXT), OSError(28, SECRET_TEXT)]
)
def test_the_text_of_an_exception_stays_in_the_silo_s_log(
    desk: MakeDesk, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    made = desk()
    asked, grid = made.ask(1), made.small.grid(made.config)

    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(client_app.silo, "contribution", broken)
    # What reaches the root logger or Flower's is printed, and Flower can send it on.
    seen, handler = io.StringIO(), logging.StreamHandler()
    handler.setStream(seen)
    with monkeypatch.context() as patch:
        for name in ("", "flwr"):
            patch.setattr(logging.getLogger(name), "handlers", [handler])
        reply = sent(grid, "train", content(asked.bodies[FIRST], asked.arrays))
    assert code_of(reply) == Code.FAILED
    assert SECRET_TEXT in log_of(made)
    assert SECRET_TEXT not in str(reply.content)
    assert SECRET_TEXT not in seen.getvalue()
    # That it failed may tell about the release it was computing.
    assert len(releases_of(made.small.homes[FIRST])) == 1


def test_the_reason_of_a_refusal_is_in_the_log_and_not_in_the_reply(desk: MakeDesk) -> None:
    made = desk()
    terms = dataclasses.replace(made.settings.terms, run_id=b"n" * 16, clip_norm=77.0)
    reply = sent(made.small.grid(made.config), "query.enrol", content(terms.to_bytes()))
    assert code_of(reply) == Code.DECLINED
    assert "clip norm 77.0" in log_of(made)
    assert "77" not in str(reply.content)


def test_the_log_is_the_owner_s_and_holds_no_secret(desk: MakeDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets: list[bytes] = []
    create = protocol.create_bundle

    def spied(*args: Any, **kwargs: Any) -> Any:
        made, bundle = create(*args, **kwargs)
        secrets.extend((made.mask_private, made.seed, made.own_mask_share, made.own_seed_share, args[1].private))
        return made, bundle

    monkeypatch.setattr(protocol, "create_bundle", spied)
    made = desk()
    asked, grid = made.ask(1), made.small.grid(made.config)
    secrets.append(made.small.homes[FIRST].identity._private.private_bytes_raw())
    for stage in STAGES:
        sent(grid, stage, content(b"garbage"))
    sent(grid, "train", content(asked.bodies[FIRST], asked.arrays))
    # Another announcement of the same epoch, and a broken file with secrets in it.
    sent(grid, "train", content(made.ask(1, plan=dataclasses.replace(made.plan(), step_size=0.2)).bodies[FIRST]))
    bundle = made.folder(FIRST) / "1.bundle"
    bundle.write_bytes(bundle.read_bytes()[:-3])
    sent(grid, "query.unmask", content(made.unmask_request(asked, sorted(made.small.homes)).to_bytes()))
    path = made.small.homes[FIRST].root / "silo.log"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    data = path.read_bytes()
    assert data.count(b"declined") + data.count(b"failed") >= 7
    assert len(secrets) >= 10
    for secret in secrets:
        for form in (secret, secret.hex().encode(), repr(secret)[2:-1].encode(), repr(secret[:12])[2:-1].encode()):
            assert form not in data


@pytest.mark.parametrize("what", ["identity.key", "ledger.anchor", "silo.toml"])
def test_what_the_operator_must_mend_is_one_line_of_the_log(desk: MakeDesk, what: str) -> None:
    made = desk()
    (made.small.homes[FIRST].root / what).unlink()
    run = dataclasses.replace(made.settings.terms, run_id=b"n" * 16)
    assert code_of(sent(made.small.grid(made.config), "query.enrol", content(run.to_bytes()))) == Code.FAILED
    (line,) = [line for line in log_of(made).splitlines() if "enrolled" not in line]
    assert f"ERROR stopped: {made.small.homes[FIRST].root / what}: " in line
    assert not (made.small.homes[FIRST].root / what).exists()


def test_a_node_without_a_silo_folder_gets_a_code(tmp_path: Path) -> None:
    for config in ({}, {"simulation-root": str(tmp_path / "nowhere")}, {"simulation-root": str(tmp_path)}):
        (tmp_path / "silo-00").mkdir(exist_ok=True)
        grid = LocalGrid(client_app.app.app, 1, config)
        assert code_of(sent(grid, "query.enrol", content(b""))) == Code.FAILED


def test_a_deployed_node_s_own_folder_comes_before_the_simulation_s() -> None:
    def context(node: dict[str, Any], run: dict[str, Any]) -> Context:
        return Context(run_id=1, node_id=2, node_config=node, state=RecordDict(), run_config=run)

    both = context({"silo-home": "/silo", "partition-id": 3}, {"simulation-root": "/all"})
    assert client_app.app.home_of(both) == Path("/silo")
    assert client_app.app.home_of(context({"partition-id": 3}, {"simulation-root": "/all"})) == Path("/all/silo-03")
    with pytest.raises(SiloError, match="silo-home"):
        client_app.app.home_of(context({"partition-id": 3}, {"simulation-root": ""}))


def test_the_run_id_of_a_message_never_leaves_the_runs_folder(desk: MakeDesk) -> None:
    made = desk()
    runs = made.small.homes[FIRST].root / "runs"
    sent(made.small.grid(made.config), "query.close", content(CloseRequest(b"../../../../etc/").to_bytes()))
    assert {path.parent for path in runs.iterdir()} == {runs}
    assert RUN_ID.hex() in {path.name for path in runs.iterdir()}
