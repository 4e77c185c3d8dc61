"""Messages that somebody changed on the way to the coordinator: refused by name, counted as lost, the round goes on."""

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message

from fcfl_strategy.errors import RunError
from privacy.signing import SigningKey
from secagg import signatures
from secagg.arrays import dump, load
from secagg.envelopes import MaskReply
from secagg.identity import UNSIGNED
from secagg.messages import Bundle, Enrolment, UnmaskShares
from secagg.pins import Pin, PinnedRoster
from tests.client_app.federation import Small, conduct, name_of
from tests.experiments.watch import JOIN, TRAIN, UNMASK, Sums, epoch_of, names

MakeSmall = Callable[..., Small]
Parts = tuple[bytes, dict[str, Any]]
ENROL = "query.enrol"
N, VICTIM, TWIN = 7, 6, 5


@dataclass
class Relay:
    """Sits between silos and coordinator and changes replies; ``change`` gets what it has seen, by stage and silo."""

    stage: str
    epoch: int
    change: Callable[["Relay", int, Parts], Parts]
    victims: Iterable[int] = (VICTIM,)
    seen: dict[tuple[str, int, int], Parts] = field(default_factory=dict)
    messages: dict[tuple[str, int, int], Message] = field(default_factory=dict)
    waiting: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    changed: int = 0

    def __call__(self, message: Message) -> None:
        if message.metadata.dst_node_id >= 1000:
            silo = message.metadata.dst_node_id - 1000
            self.waiting[message.metadata.message_id] = (message.metadata.message_type, epoch_of(message), silo)
            return
        key = self.waiting[message.metadata.reply_to_message_id]
        if message.has_error() or "data" not in message.content["body"]:
            return
        record = message.content.get("arrays")
        parts = bytes(message.content["body"]["data"]), dict(load(record["data"])) if record else {}
        self.seen[key], self.messages[key] = parts, message
        if key[0] == self.stage and key[2] in self.victims and key[1] == self.epoch:
            self.changed += 1
            put(message, self.change(self, key[2], parts))


def put(message: Message, parts: Parts) -> None:
    """Replace what a reply holds."""
    message.content["body"] = ConfigRecord({"data": parts[0]})
    if parts[1]:
        message.content["arrays"] = ConfigRecord({"data": dump(parts[1])})


def masked_with(parts: Parts, **change: Any) -> Parts:
    reply = MaskReply.from_bytes(parts[0])
    return MaskReply(dataclasses.replace(reply.header, **change), reply.bundle).to_bytes(), parts[1]


def bundle_with(parts: Parts, **change: Any) -> Parts:
    bundle = Bundle.from_bytes(parts[0])
    return Bundle(dataclasses.replace(bundle.public, **change), bundle.ciphertexts).to_bytes(), parts[1]


def shares_with(parts: Parts, **change: Any) -> Parts:
    return dataclasses.replace(UnmaskShares.from_bytes(parts[0]), **change).to_bytes(), parts[1]


def other_values(relay: Relay, silo: int, parts: Parts) -> Parts:
    name = next(iter(parts[1]))
    return parts[0], {**parts[1], name: parts[1][name] + 1}


def next_mask_key(relay: Relay, silo: int, parts: Parts) -> Parts:
    reply = MaskReply.from_bytes(parts[0])
    public = dataclasses.replace(reply.bundle.public, mask_key=reply.bundle.public.seed_commitment)
    return MaskReply(reply.header, Bundle(public, reply.bundle.ciphertexts)).to_bytes(), parts[1]


def of_the_epoch_before(relay: Relay, silo: int, parts: Parts) -> Parts:
    return relay.seen[(relay.stage, relay.epoch - 1, silo)]


def old_vector_under_this_header(relay: Relay, silo: int, parts: Parts) -> Parts:
    old = relay.seen[(TRAIN, relay.epoch - 1, silo)]
    return masked_with((parts[0], old[1]), arrays_hash=signatures.arrays_hash(old[1]))


def of_another_silo(relay: Relay, silo: int, parts: Parts) -> Parts:
    return relay.seen[(relay.stage, relay.epoch, 0)]


Change = Callable[[Relay, int, Parts], Parts]
CASES: Mapping[str, tuple[str, int, Change, str]] = {
    "a vector without signature": (TRAIN, 2, lambda r, s, p: masked_with(p, signature=UNSIGNED), "not signed"),
    "a vector with other values": (TRAIN, 2, other_values, "arrays are not those"),
    "a vector with another ledger head": (
        TRAIN, 2, lambda r, s, p: masked_with(p, ledger_head=(9, bytes(32))), "not signed"
    ),
    "a vector of the epoch before": (TRAIN, 2, of_the_epoch_before, "another epoch"),
    "an old vector under a new header": (TRAIN, 2, old_vector_under_this_header, "not signed"),
    "a vector of another silo": (TRAIN, 2, of_another_silo, "sent the vector of silo-00"),
    "a vector with another key for the next epoch": (TRAIN, 2, next_mask_key, "its bundle is not signed"),
    "a bundle without signature": (JOIN, 1, lambda r, s, p: bundle_with(p, signature=UNSIGNED), "is not signed"),
    "a bundle with another mask key": (
        JOIN, 1, lambda r, s, p: bundle_with(p, mask_key=bytes(range(32))), "is not signed"
    ),
    "a bundle of another silo": (JOIN, 1, of_another_silo, "sent the bundle of silo-00"),
    "a bundle that names another sender": (
        JOIN, 1, lambda r, s, p: bundle_with(p, sender="silo-00"), "sent the bundle of"
    ),
    "shares without signature": (UNMASK, 2, lambda r, s, p: shares_with(p, signature=UNSIGNED), "reply is not signed"),
    "shares left out": (UNMASK, 2, lambda r, s, p: shares_with(p, self_mask_shares={}), "reply is not signed"),
    "shares of the epoch before": (UNMASK, 2, of_the_epoch_before, "unmask reply for epoch 1"),
    "old shares under a new epoch": (
        UNMASK, 2, lambda r, s, p: shares_with(of_the_epoch_before(r, s, p), epoch=2), "reply is not signed"
    ),
    "shares of another silo": (UNMASK, 2, of_another_silo, "sent the shares of silo-00"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_changed_message_counts_as_lost_and_the_round_completes_with_the_others(
    small: MakeSmall,
    hurry: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    case: str,
) -> None:
    stage, epoch, change, reason = CASES[case]
    made, sums, relay = small(N), Sums.watched(monkeypatch), Relay(stage, epoch, change)
    config = made.config(**hurry)
    with caplog.at_level(logging.WARNING, "fcfl.coordinator"):
        done = conduct(made.grid(config, observe=relay), config, tmp_path / "run")
    assert done.strategy.outcome == "completed"
    assert relay.changed == 1
    sums.check()
    for number, (survivors, _) in sums.decoded.items():
        lost = number == epoch and stage != UNMASK
        assert survivors == names(range(N - 1 if lost else N))
    refused = [record.getMessage() for record in caplog.records if reason in record.getMessage()]
    assert len(refused) == 1
    assert name_of(VICTIM) in refused[0] or "silo-00" in refused[0]


@pytest.mark.parametrize("stage", [JOIN, TRAIN, UNMASK])
def test_two_silos_messages_exchanged_count_as_lost_both(
    small: MakeSmall, hurry: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stage: str
) -> None:
    def exchanged(relay: Relay, silo: int, parts: Parts) -> Parts:
        # Both replies arrive with the same look at the grid, so that the first can still be changed with the second.
        if silo == VICTIM:
            put(relay.messages[(stage, 1, TWIN)], parts)
        return relay.seen[(stage, 1, TWIN)]

    made, sums = small(N), Sums.watched(monkeypatch)
    relay = Relay(stage, 1, exchanged, victims=(TWIN, VICTIM))
    config = made.config(**hurry)
    assert conduct(made.grid(config, observe=relay), config, tmp_path / "run").strategy.outcome == "completed"
    assert relay.changed == 2
    sums.check()
    assert sums.decoded[1][0] == names(range(N if stage == UNMASK else N - 2))
    assert sums.decoded[2][0] == names(range(N))


def enrolment_with(**change: Any) -> Change:
    return lambda relay, silo, parts: (
        dataclasses.replace(Enrolment.from_bytes(parts[0]), **change).to_bytes(),
        parts[1],
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (enrolment_with(signature=UNSIGNED), "enrolment is not signed"),
        (enrolment_with(records=10**6), "enrolment is not signed"),
        (enrolment_with(encryption_key=SigningKey.generate().public_key), "enrolment is not signed"),
        (enrolment_with(identity_key=SigningKey.generate().public_key), "enrolment is not signed"),
        (of_another_silo, "two nodes enrol as silo-00"),
    ],
)
def test_a_changed_enrolment_is_left_out_by_name(
    small: MakeSmall,
    hurry: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    change: Change,
    reason: str,
) -> None:
    made = small(4)
    relay = Relay(ENROL, 0, change, victims=(3,))
    config = made.config(**hurry, silos=3, **{"participation.cohort": 3.0})
    with caplog.at_level(logging.WARNING, "fcfl.coordinator"):
        done = conduct(made.grid(config, observe=relay), config, tmp_path / "run")
    assert done.strategy.outcome == "completed"
    assert sorted(done.strategy.records) == list(names(range(3)))
    assert any(reason in record.getMessage() for record in caplog.records)


def test_the_coordinator_leaves_out_who_is_not_in_its_roster_file(
    small: MakeSmall, hurry: dict[str, Any], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    made = small(4)
    pins = "".join(
        Pin(name, SigningKey.generate().public_key if name == "silo-02" else home.identity.public_key).render()
        for name, home in made.homes.items()
        if name != "silo-03"
    )
    file = tmp_path / "pins.toml"
    file.write_text(pins)
    assert len(PinnedRoster.parse(pins, "x").pins) == 3
    config = made.config(**hurry, silos=4, **{"roster-file": str(file)})
    with caplog.at_level(logging.WARNING, "fcfl.coordinator"), pytest.raises(RunError, match="2 of 4 enrolled"):
        conduct(made.grid(config), config, tmp_path / "run")
    said = " ".join(record.getMessage() for record in caplog.records)
    assert "silo-03: not in" in said
    assert "silo-02: " in said
    assert "another identity key" in said


def test_a_silo_that_enrols_under_two_names_gets_one_seat(
    small: MakeSmall, hurry: dict[str, Any], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    made = small(4)
    key, other = made.homes["silo-00"].identity, made.homes["silo-03"].root
    for name in ("identity.key", "identity.pub", "ledger.jsonl", "ledger.anchor"):
        (other / name).write_bytes((Path(key.where).parent / name).read_bytes())
    toml = other / "silo.toml"
    toml.write_text(toml.read_text().replace('roster = "../roster.toml"\n', "") + "allow_unpinned = true\n")
    config = made.config(**hurry, silos=3, **{"participation.cohort": 3.0})
    with caplog.at_level(logging.WARNING, "fcfl.coordinator"):
        done = conduct(made.grid(config), config, tmp_path / "run")
    assert sorted(done.strategy.records) == list(names(range(3)))
    assert any("silo-03 enrols with a key of silo-00" in record.getMessage() for record in caplog.records)
