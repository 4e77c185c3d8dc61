"""Valid messages, changed in any way: a silo answers with a code and spends nothing, or as it would to a valid one."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cbor2
import pytest
from flwr.app import ConfigRecord, Message
from hypothesis import given, settings
from hypothesis import strategies as st

from client_app.errors import Code
from experiments.local_grid import LocalGrid
from privacy.records import Release
from secagg.arrays import dump
from secagg.envelopes import CloseRequest, JoinRequest, RevealRequest
from tests.client_app.federation import RUN_ID, Asked, Desk, releases_of
from tests.client_app.test_app import FIRST, code_of, content, log_of, sent

MakeDesk = Callable[..., Desk]
STAGES = ("query.enrol", "query.reveal", "query.join", "train", "query.unmask", "query.close")
NONSENSE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=9) | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)
BOMBS = {
    "deep arrays": b"\x81" * 200_000,
    "deep maps": b"\xa1\x00" * 100_000,
    "deep tags": b"\xc6" * 200_000,
    "array of 2^63 items": bytes.fromhex("9b7fffffffffffffff"),
    "text of 2^63 bytes": bytes.fromhex("7b7fffffffffffffff"),
    "huge exponent": bytes.fromhex("c4821b00000000000fffff03"),
    "huge binary exponent": bytes.fromhex("c5821b7fffffffffffffff03"),
    "list within itself": bytes.fromhex("d81c81d81d00"),
    "regular expression": b"\xd8\x23\x78\x20" + b"(" * 32,
    "eight megabytes": b"\x5a\x00\x80\x00\x00" + bytes(1 << 23),
}


@dataclass
class Subject:
    """One silo of a federation in the midst of an epoch, put back as it was after every answer."""

    desk: Desk
    grid: LocalGrid
    asked: Asked
    valid: dict[str, bytes]
    spare: Path
    spent: list[Release]

    @classmethod
    def make(cls, made: Desk, spare: Path, *, contributed: bool = False) -> "Subject":
        asked = made.ask(1)
        for name in sorted(made.small.homes):
            if contributed or name != FIRST:
                made.contribute(asked, name)
        valid = {
            "query.enrol": made.settings.terms.to_bytes(),
            "query.reveal": RevealRequest(RUN_ID, made.run.roster).to_bytes(),
            "query.join": JoinRequest(made.run, 1).to_bytes(),
            "train": asked.bodies[FIRST],
            "query.unmask": made.call(asked, sorted(made.small.homes)).to_bytes(),
            "query.close": CloseRequest(RUN_ID).to_bytes(),
        }
        home = made.small.homes[FIRST]
        shutil.copytree(home.root, spare)
        return cls(made, made.small.grid(made.config), asked, valid, spare, releases_of(home))

    def ask(self, stage: str, body: Any, arrays: bytes | None = None) -> Message:
        if stage == "train" and arrays is None:
            arrays = dump(self.asked.arrays)
        return sent(self.grid, stage, content(body, arrays))

    def check(self, stage: str, body: Any) -> None:
        """A code and no spend; or, where the change left a valid request, one answer to one request.

        A contribution that was computed is charged even if it then fails: the only spend beside a code.
        """
        reply = self.ask(stage, body)
        home = self.desk.small.homes[FIRST]
        assert not reply.has_error()
        record, now = reply.content["body"], releases_of(home)
        assert isinstance(record, ConfigRecord)
        if "code" in record:
            assert code_of(reply) == Code.DECLINED
            assert now == self.spent or (stage == "train" and len(now) == 1)
        else:
            assert len(now) == (1 if stage == "train" else len(self.spent))
        assert "Traceback" not in log_of(self.desk)
        shutil.rmtree(home.root)
        shutil.copytree(self.spare, home.root)


def cut_or_changed(data: st.DataObject, valid: bytes) -> bytes:
    """A valid message with bytes changed, cut out, put in or repeated."""
    raw = bytearray(valid)
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(raw)))
        end = min(len(raw), start + data.draw(st.integers(0, 40)))
        raw[start:end] = data.draw(st.sampled_from([b"", bytes(raw[start:end]) * 2]) | st.binary(max_size=8))
    return bytes(raw)


def other_field(data: st.DataObject, valid: bytes) -> bytes:
    """A valid message with one field, at any depth, of any other value."""
    tree = cbor2.loads(valid)
    spot, key = tree, data.draw(st.sampled_from(sorted(tree)))
    while isinstance(spot[key], dict | list) and spot[key] and data.draw(st.booleans()):
        spot = spot[key]
        key = data.draw(st.sampled_from(sorted(spot) if isinstance(spot, dict) else range(len(spot))))
    spot[key] = data.draw(NONSENSE)
    return cbor2.dumps(tree, canonical=True)


@pytest.mark.parametrize("stage", STAGES)
def test_a_changed_message_gets_a_code_and_no_free_answer(desk: MakeDesk, tmp_path: Path, stage: str) -> None:
    subject = Subject.make(desk(), tmp_path / "spare", contributed=stage == "query.unmask")

    @settings(max_examples=40, deadline=None, database=None)
    @given(data=st.data())
    def changed(data: st.DataObject) -> None:
        how = data.draw(st.sampled_from([cut_or_changed, other_field]))
        body = how(data, subject.valid[stage])
        if body != subject.valid[stage]:
            subject.check(stage, body)

    changed()


def test_changed_arrays_get_a_code_and_spend_nothing(desk: MakeDesk, tmp_path: Path) -> None:
    subject = Subject.make(desk(), tmp_path / "spare")
    valid = dump(subject.asked.arrays)

    @settings(max_examples=40, deadline=None, database=None)
    @given(data=st.data())
    def changed(data: st.DataObject) -> None:
        arrays = cut_or_changed(data, valid)
        if arrays != valid:
            assert code_of(subject.ask("train", subject.valid["train"], arrays)) == Code.DECLINED
            assert releases_of(subject.desk.small.homes[FIRST]) == []
            assert "Traceback" not in log_of(subject.desk)

    changed()


@pytest.mark.parametrize("bomb", BOMBS)
def test_what_makes_a_decoder_grow_is_declined_at_every_stage(desk: MakeDesk, tmp_path: Path, bomb: str) -> None:
    subject = Subject.make(desk(), tmp_path / "spare")
    for stage in STAGES:
        subject.check(stage, BOMBS[bomb])
        subject.check(stage, b"\xa1\x64type" + BOMBS[bomb])


@pytest.mark.parametrize("stage", STAGES)
def test_a_message_of_another_stage_is_declined(desk: MakeDesk, tmp_path: Path, stage: str) -> None:
    subject = Subject.make(desk(), tmp_path / "spare")
    for other in STAGES:
        if other != stage:
            assert code_of(subject.ask(stage, subject.valid[other])) == Code.DECLINED
    assert releases_of(subject.desk.small.homes[FIRST]) == []
    assert "Traceback" not in log_of(subject.desk)


def test_an_old_protocol_version_is_declined_by_its_name(desk: MakeDesk, tmp_path: Path) -> None:
    subject = Subject.make(desk(), tmp_path / "spare")
    for stage in STAGES[1:]:
        old = subject.valid[stage].replace(b"fcfl-secagg/2/", b"fcfl-secagg/1/")
        assert code_of(subject.ask(stage, old)) == Code.DECLINED
        assert "expected a message of type fcfl-secagg/2/" in log_of(subject.desk).splitlines()[-1]
    run = cbor2.loads(subject.valid["query.join"])
    run["run"]["version"] = 1
    assert code_of(subject.ask("query.join", cbor2.dumps(run, canonical=True))) == Code.DECLINED
    assert "this software speaks version 2; use the same release" in log_of(subject.desk).splitlines()[-1]
    # Terms have no version of their own: another release has other fields.
    terms = cbor2.loads(subject.valid["query.enrol"])
    del terms["backtracks"]
    assert code_of(subject.ask("query.enrol", cbor2.dumps(terms, canonical=True))) == Code.DECLINED
    assert "check the software versions" in log_of(subject.desk).splitlines()[-1]


def test_a_replayed_message_gets_identical_bytes_and_spends_nothing_again(desk: MakeDesk, tmp_path: Path) -> None:
    subject = Subject.make(desk(), tmp_path / "spare", contributed=True)
    home = subject.desk.small.homes[FIRST]
    assert [release.epoch for release in subject.spent] == [1]
    for stage in ("query.enrol", "query.join", "train", "query.unmask"):
        one, two = (subject.ask(stage, subject.valid[stage]) for _ in range(2))
        assert "data" in one.content["body"], stage
        assert one.content == two.content
    assert releases_of(home) == subject.spent
