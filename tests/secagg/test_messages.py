"""Messages: exact round trips, and any other bytes are refused by name."""

import contextlib
import dataclasses
from typing import Any

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg import cbor, coordinator
from secagg.envelopes import MaskRequest, RevealRequest
from secagg.errors import ProtocolError
from secagg.graph import GraphNonce
from secagg.messages import (
    MAX_ENTRIES,
    Bundle,
    EpochOutcome,
    MaskedHeader,
    MaskedInput,
    UnmaskRequest,
    UnmaskShares,
)
from secagg.silo import EpochSecrets, RunKeys
from secagg.wire import TYPE_PREFIX, Message, plain
from tests.secagg.federation import Federation
from tests.secagg.regular import Regular

FED = Federation(4)
EPOCH = FED.epoch(9)
ANNOUNCEMENT, MASKED, REPLIES = EPOCH.collect(lost_masked=["silo-03"])
FULL = dataclasses.replace(
    ANNOUNCEMENT,
    outcomes=(EpochOutcome(1, "completed", ("silo-00", "silo-01")), EpochOutcome(4, "abandoned", ())),
    ledger_heads={"silo-01": b"head", "silo-00": bytes(40)},
)
EXAMPLES: list[Message] = [
    FED.enrolments["silo-00"],
    FED.run.roster.entries[0],
    FED.run.roster,
    FED.run,
    EPOCH.bundles["silo-00"].public,
    EPOCH.bundles["silo-00"],
    FULL.outcomes[0],
    FULL,
    MaskedHeader("silo-00", 9, bytes(32), (3, bytes(32)), bytes(32)),
    UnmaskRequest(FED.run.run_id, 9, bytes(32), ("silo-00", "silo-02")),
    REPLIES["silo-00"],
    FED.keys["silo-00"],
    EPOCH.secrets["silo-00"],
]
REGULAR = Regular(12).run
assert REGULAR.graph is not None
EXAMPLES += [
    REGULAR.roster.entries[0],
    REGULAR.graph,
    REGULAR,
    GraphNonce(REGULAR.run_id, "silo-00", REGULAR.graph.nonces[0]),
    RevealRequest(REGULAR.run_id, REGULAR.roster),
    MaskRequest(FULL, tuple(EPOCH.publics), coordinator.ciphertexts_for(EPOCH.bundles, "silo-01")),
]
NAMES = [type(example).__name__ for example in EXAMPLES]
each_message = pytest.mark.parametrize("message", EXAMPLES, ids=NAMES)


def spelled_out(value: object) -> Any:
    """A message and all messages inside it as plain data, for one pass of the encoder."""
    if isinstance(value, Message):
        given = {name: spelled_out(getattr(value, name)) for name in value.CHECKS}
        present = {name: field for name, field in given.items() if field is not None}
        return {"type": TYPE_PREFIX + value.TYPE} | present
    if isinstance(value, tuple):
        return [spelled_out(item) for item in value]
    return plain(value)


@each_message
def test_a_message_survives_its_bytes(message: Message) -> None:
    again = type(message).from_bytes(message.to_bytes())
    assert again == message
    assert again.to_bytes() == message.to_bytes()


@each_message
def test_an_encoding_put_together_from_parts_is_the_deterministic_one(message: Message) -> None:
    assert message.to_bytes() == cbor.encode(spelled_out(message))
    assert message.to_bytes() == cbor2.dumps(cbor2.loads(message.to_bytes()), canonical=True)


@each_message
def test_unknown_missing_and_mistyped_fields_are_refused_by_name(message: Message) -> None:
    data = cbor2.loads(message.to_bytes())
    parse = type(message).from_bytes
    with pytest.raises(ProtocolError, match="unknown field 'surprise'"):
        parse(cbor.encode(data | {"surprise": 1}))
    for name in message.CHECKS:
        if name not in message.OPTIONAL:
            with pytest.raises(ProtocolError, match=f"{name}: missing"):
                parse(cbor.encode({k: v for k, v in data.items() if k != name}))
        for wrong in (None, True, 1.5, {"x": 1}, [None], -1, "\n"):
            if wrong is True and isinstance(data.get(name), bool):
                continue
            with pytest.raises(ProtocolError, match=name):
                parse(cbor.encode(data | {name: wrong}))
    with pytest.raises(ProtocolError, match="type"):
        parse(cbor.encode({k: v for k, v in data.items() if k != "type"}))


@each_message
def test_no_message_is_read_as_another(message: Message) -> None:
    for other in EXAMPLES:
        if type(other) is not type(message):
            with pytest.raises(ProtocolError):
                type(other).from_bytes(message.to_bytes())


@each_message
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_damaged_bytes_are_refused_or_another_valid_message(message: Message, data: st.DataObject) -> None:
    raw = bytearray(message.to_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)))
    for mutated in (bytes(raw), bytes(raw[:cut]), bytes(raw) + b"\x00"):
        with contextlib.suppress(ProtocolError):
            assert type(message).from_bytes(mutated).to_bytes() == mutated


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=9)
    | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9) | st.integers(), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(garbage=st.binary(max_size=300))
def test_garbage_gives_a_protocol_error_and_nothing_else(garbage: bytes) -> None:
    for message in EXAMPLES:
        with pytest.raises(ProtocolError):
            type(message).from_bytes(garbage)


@settings(max_examples=150, deadline=None)
@given(data=st.data(), value=PLAIN)
def test_well_formed_nonsense_in_any_field_gives_a_protocol_error(data: st.DataObject, value: object) -> None:
    message = data.draw(st.sampled_from(EXAMPLES))
    tree = cbor2.loads(message.to_bytes())
    spot: Any = tree
    key: Any = data.draw(st.sampled_from(sorted(tree)))
    while isinstance(spot[key], dict | list) and spot[key] and data.draw(st.booleans()):
        spot = spot[key]
        key = data.draw(st.sampled_from(sorted(spot) if isinstance(spot, dict) else range(len(spot))))
    spot[key] = value
    raw = cbor2.dumps(tree, canonical=True)
    with contextlib.suppress(ProtocolError):
        assert type(message).from_bytes(raw).to_bytes() == raw


@pytest.mark.parametrize(
    "raw",
    [
        "c249010000000000000000",  # bignum
        "c4821b00000000000fffff03",  # decimal fraction with a huge exponent
        "d81c81d81d00",  # a list that contains itself
        "9f01ff",  # indefinite length
        "81" * 5000,  # nesting
        "9bffffffffffffffff",  # 2^64 - 1 items
        "5bffffffffffffffff",
        "bbffffffffffffffff",
        "61ff",  # not UTF-8
        "fc",
        "1c",
        "",
        "0000",
    ],
)
def test_hostile_cbor_is_refused_before_it_is_decoded(raw: str) -> None:
    with pytest.raises(ProtocolError):
        cbor.decode(bytes.fromhex(raw), "message")


def test_other_encodings_of_the_same_message_are_refused() -> None:
    request = EXAMPLES[9]
    data = cbor2.loads(request.to_bytes())
    unordered = cbor2.dumps(dict(reversed(data.items())))
    assert cbor2.loads(unordered) == data
    with pytest.raises(ProtocolError, match="deterministic"):
        UnmaskRequest.from_bytes(unordered)
    long_integer = request.to_bytes().replace(b"\x65epoch\x09", b"\x65epoch\x18\x09")
    assert cbor2.loads(long_integer) == data
    with pytest.raises(ProtocolError, match="deterministic"):
        UnmaskRequest.from_bytes(long_integer)
    twice = b"\xa6" + request.to_bytes()[1:] + b"\x65epoch\x09"
    with pytest.raises(ProtocolError):
        UnmaskRequest.from_bytes(twice)


@given(st.dictionaries(st.from_regex(cbor.SILO_ID, fullmatch=True), st.binary(min_size=3, max_size=3), max_size=8))
def test_a_packed_map_comes_back_and_reads_the_same_from_the_map_itself(entries: dict[str, bytes]) -> None:
    check, packed = cbor.packed(3, 8), cbor.pack(entries)
    assert check(packed, "field") == check(entries, "field") == entries
    assert plain(check(packed, "field")) == packed


@pytest.mark.parametrize(
    "value",
    [
        ["a", b"xy"],
        ["a", b"xyzxyz"],
        ["a b", b"xyz"],
        ["", b"xyz"],
        ["b a", b"xyzxyz"],
        ["a a", b"xyzxyz"],
        ["a  b", b"xyzxyz"],
        ["a b ", b"xyzxyz"],
        [" a", b"xyz"],
        ["a\nb", b"xyz"],
        ["a b c", b"xyz" * 3],
        ["a" * 65, b"xyz"],
        [b"a", b"xyz"],
        ["a", "xyz"],
        ["a", b"xyz", b""],
        ["a"],
        "a",
        None,
    ],
)
def test_what_packs_no_map_of_the_width_and_limit_is_refused(value: object) -> None:
    with pytest.raises(ProtocolError, match="field: expected"):
        cbor.packed(3, 2)(value, "field")


def test_a_map_that_travels_packed_is_refused_as_a_map() -> None:
    bundle = EPOCH.bundles["silo-00"]
    unpacked = cbor.encode(spelled_out(bundle) | {"ciphertexts": dict(bundle.ciphertexts)})
    with pytest.raises(ProtocolError, match="deterministic"):
        Bundle.from_bytes(unpacked)


def test_map_keys_are_in_bytewise_order() -> None:
    assert cbor.encode({"b": 1, "aa": 2, "a": 3}) == bytes.fromhex("a3616103616201626161" + "02")


def test_oversized_fields_are_refused_by_name() -> None:
    with pytest.raises(ProtocolError, match="context"):
        dataclasses.replace(ANNOUNCEMENT, context=bytes((1 << 20) + 1))
    with pytest.raises(ProtocolError, match="ledger_heads"):
        dataclasses.replace(ANNOUNCEMENT, ledger_heads={"silo-00": bytes(257)})
    with pytest.raises(ProtocolError, match="at most"):
        cbor.decode(bytes(cbor.MAX_MESSAGE + 1), "message")
    with pytest.raises(ProtocolError, match="silo_id"):
        dataclasses.replace(FED.run.roster.entries[0], silo_id="a" * 65)
    MaskedInput("silo-00", 1, bytes(32), {}, (MAX_ENTRIES, bytes(32)), bytes(32))
    with pytest.raises(ProtocolError, match="ledger_head"):
        MaskedInput("silo-00", 1, bytes(32), {}, (MAX_ENTRIES + 1, bytes(32)), bytes(32))


def test_a_bundle_whose_ciphertexts_do_not_fit_its_hash_is_refused() -> None:
    bundle = EPOCH.bundles["silo-00"]
    with pytest.raises(ProtocolError, match="ciphertext_hash"):
        Bundle(bundle.public, {**bundle.ciphertexts, "silo-01": bytes(94)})


def test_a_bundle_hash_covers_everything_but_the_signature() -> None:
    public = EPOCH.bundles["silo-00"].public
    changes: list[dict[str, Any]] = [
        {"sender": "silo-01"}, {"epoch": 10}, {"mask_key": bytes(32)}, {"seed_commitment": bytes(32)},
        {"ciphertext_hash": bytes(32)},
    ]  # fmt: skip
    hashes = {public.hash()} | {dataclasses.replace(public, **change).hash() for change in changes}
    assert len(hashes) == 6
    assert dataclasses.replace(public, signature=bytes(64)).hash() == public.hash()


def test_announcement_digests_depend_on_every_field() -> None:
    changes: list[dict[str, Any]] = [
        {"run_id": b"\x01" * 16}, {"epoch": 10}, {"roster_hash": bytes(32)}, {"context": b"other"},
        {"participants": FULL.participants[:3]}, {"layout": dataclasses.replace(FULL.layout, parties=3)},
        {"outcomes": FULL.outcomes[:1]}, {"ledger_heads": {"silo-00": b""}}, {"version": 1},
    ]  # fmt: skip
    digests = {FULL.digest()} | {dataclasses.replace(FULL, **change).digest() for change in changes}
    assert len(digests) == len(changes) + 1


def test_announcements_with_disordered_participants_or_outcomes_are_refused() -> None:
    first, second, *rest = ANNOUNCEMENT.participants
    for participants in ((second, first, *rest), (first, first, *rest)):
        with pytest.raises(ProtocolError, match="participants"):
            dataclasses.replace(ANNOUNCEMENT, participants=participants)
    one, two = FULL.outcomes
    for outcomes in ((two, one), (one, one), (EpochOutcome(9, "completed", ()),)):
        with pytest.raises(ProtocolError, match="outcomes"):
            dataclasses.replace(ANNOUNCEMENT, outcomes=outcomes)
    with pytest.raises(ProtocolError, match="status"):
        EpochOutcome(1, "maybe", ())


def test_a_masked_input_travels_as_header_and_arrays_of_four_bytes_a_value() -> None:
    message = MASKED["silo-00"]
    again = MaskedInput.from_parts(message.header_bytes(), message.arrays)
    assert again.header_bytes() == message.header_bytes()
    assert again.arrays["A"].nbytes == 4 * message.arrays["A"].size
    assert len(message.header_bytes()) < 400
    with pytest.raises(ProtocolError, match="ledger_head"):
        MaskedInput("silo-00", 1, bytes(32), {}, (1, b"short"), bytes(32))


def test_shares_of_both_kinds_for_one_peer_are_refused() -> None:
    with pytest.raises(ProtocolError, match="both shares of silo-01"):
        UnmaskShares("silo-00", 1, {"silo-01": bytes(33)}, {"silo-01": bytes(33)})


def test_secrets_show_in_no_repr() -> None:
    secrets, keys, reply = EPOCH.secrets["silo-00"], FED.keys["silo-00"], REPLIES["silo-00"]
    hidden = [keys.private, secrets.mask_private, secrets.seed, secrets.own_mask_share, secrets.own_seed_share]
    hidden += [*reply.self_mask_shares.values(), *reply.mask_key_shares.values()]
    for shown in (repr(keys), repr(secrets), repr(reply), str(keys), str(secrets), str(reply), f"{[secrets]}"):
        for secret in hidden:
            assert repr(secret)[2:-1] not in shown
            assert secret.hex() not in shown
    assert repr(keys) == "RunKeys()"
    assert "array(" not in repr(MASKED["silo-00"])


def test_errors_about_state_files_show_no_secret() -> None:
    for state, kind in ((EPOCH.secrets["silo-00"], EpochSecrets), (FED.keys["silo-00"], RunKeys)):
        raw = state.to_bytes()
        for broken in (raw[:-1], raw + b"\x00", b"\xff" + raw[1:], raw.replace(b"type", b"tape")):
            with pytest.raises(ProtocolError) as caught:
                kind.from_bytes(broken)
            assert caught.value.__cause__ is None
            assert len(str(caught.value)) < 200
    with pytest.raises(ProtocolError) as caught:
        RunKeys(b"0123456789")
    assert "0123456789" not in str(caught.value)
