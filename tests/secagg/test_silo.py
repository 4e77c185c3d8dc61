"""The silo: what it refuses, what it never gives away."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from secagg import coordinator, ring, silo
from secagg.epoch import scope_of
from secagg.errors import NotEnoughSurvivors, ProtocolError, RingError, SecAggError
from secagg.keys import Envelope, open_shares, public_key
from secagg.messages import Announcement, Bundle, UnmaskRequest
from secagg.shamir import combine
from tests.secagg.federation import Epoch, Federation, random_vector, seeded

ME = "silo-00"
HEAD = (0, bytes(32))


@pytest.fixture
def epoch() -> Epoch:
    return Federation(5).epoch(3)


def mask(epoch: Epoch, announcement: Announcement, **change: Any) -> Any:
    f = epoch.federation
    arguments: dict[str, Any] = {
        "run": f.run, "keys": f.keys[ME], "secrets": epoch.secrets[ME], "silo_id": ME, "announcement": announcement,
        "publics": epoch.publics, "encoded": epoch.inputs[ME], "ledger_head": HEAD,
        "signer": f.signers[ME],
    }  # fmt: skip
    return silo.mask_input(**{**arguments, **change})


def answer(epoch: Epoch, announcement: Announcement, request: UnmaskRequest, **change: Any) -> Any:
    f, secrets = epoch.federation, epoch.secrets[ME]
    recorded = secrets if secrets.masked else silo.record_masked(secrets, announcement)
    arguments: dict[str, Any] = {
        "run": f.run, "keys": f.keys[ME], "secrets": recorded,
        "silo_id": ME, "announcement": announcement, "signer": f.signers[ME],
        "publics": epoch.publics, "ciphertexts": coordinator.ciphertexts_for(epoch.bundles, ME), "request": request,
        "headers": epoch.shown(request),
    }  # fmt: skip
    return silo.answer_unmask(**{**arguments, **change})


def request_for(epoch: Epoch, announcement: Announcement, *lost: str) -> UnmaskRequest:
    survivors = [s for s in epoch.members if s not in lost]
    return coordinator.unmask_request(epoch.federation.run, announcement, survivors)


def test_new_keys_and_bundles_come_from_the_entropy_alone() -> None:
    federation = Federation(3)
    assert silo.new_run_keys(seeded("x")) == silo.new_run_keys(seeded("x"))
    assert silo.new_run_keys() != silo.new_run_keys()
    sign = federation.signers[ME]
    make = [
        silo.create_bundle(federation.run, federation.keys[ME], ME, 1, seeded(tag), signer=sign)
        for tag in ("x", "x", "y")
    ]
    assert make[0] == make[1]
    assert make[0][1].public.mask_key != make[2][1].public.mask_key


def test_a_bundle_has_a_ciphertext_for_every_other_silo_absent_ones_included(epoch: Epoch) -> None:
    bundle = epoch.bundles[ME]
    assert set(bundle.ciphertexts) == set(epoch.federation.ids) - {ME}
    private = X25519PrivateKey.from_private_bytes
    run, secrets = epoch.federation.run, epoch.secrets[ME]
    mask_shares, seed_shares = {1: secrets.own_mask_share}, {1: secrets.own_seed_share}
    for peer, ciphertext in bundle.ciphertexts.items():
        envelope = Envelope(
            scope_of(run, 3), ME, peer, run.roster.entry(ME).encryption_key, run.roster.entry(peer).encryption_key,
            sender_mask_key=bundle.public.mask_key,
        )  # fmt: skip
        opened = open_shares(envelope, private(epoch.federation.keys[peer].private), ciphertext)
        assert opened is not None
        mask_shares[run.roster.index(peer) + 1], seed_shares[run.roster.index(peer) + 1] = opened
    assert combine(mask_shares, run.threshold) == secrets.mask_private
    assert combine(seed_shares, run.threshold) == secrets.seed


def test_a_roster_with_another_key_of_mine_is_refused(epoch: Epoch) -> None:
    federation = epoch.federation
    with pytest.raises(ProtocolError, match="another encryption key"):
        silo.create_bundle(federation.run, federation.keys["silo-01"], ME, 4, signer=federation.signers[ME])
    with pytest.raises(ProtocolError, match="stranger"):
        silo.create_bundle(federation.run, federation.keys[ME], "stranger", 4, signer=federation.signers[ME])
    with pytest.raises(ProtocolError, match="another identity key"):
        silo.create_bundle(federation.run, federation.keys[ME], ME, 4, signer=federation.signers["silo-01"])


def test_masking_refuses_announcements_of_another_run_roster_epoch_or_version(epoch: Epoch) -> None:
    announcement = epoch.announce()
    changes: list[tuple[dict[str, Any], str]] = [
        ({"run_id": b"\x07" * 16}, "run_id"), ({"roster_hash": bytes(32)}, "roster_hash"), ({"epoch": 4}, "epoch"),
        ({"version": 1}, "version"), ({"participants": announcement.participants[:3]}, "participants"),
        ({"layout": dataclasses.replace(announcement.layout, parties=4)}, "layout"),
    ]  # fmt: skip
    for change, reason in changes:
        with pytest.raises(ProtocolError, match=reason):
            mask(epoch, dataclasses.replace(announcement, **change))


def test_masking_refuses_a_view_without_my_own_bundle_or_with_another(epoch: Epoch) -> None:
    announcement = epoch.announce()
    without = dataclasses.replace(announcement, participants=announcement.participants[1:])
    with pytest.raises(ProtocolError, match="silo-00 is not listed"):
        mask(epoch, without, publics=epoch.publics[1:])
    f = epoch.federation
    again = silo.create_bundle(f.run, f.keys[ME], ME, 3, signer=f.signers[ME])[1]
    epoch.bundles[ME] = again
    with pytest.raises(ProtocolError, match="silo-00 is not listed with the bundle it made"):
        mask(epoch, epoch.announce())


def test_masking_refuses_bundles_that_are_not_the_announced_ones(epoch: Epoch) -> None:
    announcement, publics = epoch.announce(), epoch.publics
    swapped = dataclasses.replace(publics[2], mask_key=publics[3].mask_key)
    other_epoch = dataclasses.replace(publics[2], epoch=2)
    stranger = dataclasses.replace(publics[2], sender="stranger")
    cases = [
        ([*publics[:2], swapped, *publics[3:]], "silo-02 is not the one announced"),
        ([*publics[:2], other_epoch, *publics[3:]], "silo-02 is for epoch 2"),
        (publics[:4], "silo-04 is missing"),
        ([*publics, stranger], "stranger is not a participant"),
        ([*publics, publics[2]], "two bundles"),
    ]
    for given, reason in cases:
        with pytest.raises(ProtocolError, match=reason):
            mask(epoch, announcement, publics=given)


def test_masking_refuses_a_peer_key_of_low_order_by_name(epoch: Epoch) -> None:
    bad = epoch.federation.signed(dataclasses.replace(epoch.bundles["silo-02"].public, mask_key=bytes(32)))
    announcement = epoch.announce()
    participants = tuple((s, bad.hash() if s == "silo-02" else h) for s, h in announcement.participants)
    publics = [bad if p.sender == "silo-02" else p for p in epoch.publics]
    with pytest.raises(ProtocolError, match="silo-02"):
        mask(epoch, dataclasses.replace(announcement, participants=participants), publics=publics)
    epoch.bundles["silo-02"] = Bundle(bad, epoch.bundles["silo-02"].ciphertexts)
    with pytest.raises(ProtocolError, match="silo-02"):
        epoch.announce()


def test_masking_refuses_values_encoded_for_another_layout(epoch: Epoch) -> None:
    announcement = epoch.announce()
    coarse = random_vector(epoch.federation.epoch(3, parties=1).layout, 1)
    with pytest.raises(RingError, match="another bound"):
        mask(epoch, announcement, encoded=coarse)
    with pytest.raises(RingError, match="missing"):
        mask(epoch, announcement, encoded=ring.EncodedVector({"A": epoch.inputs[ME].values["A"]}, {}))


def test_a_second_vector_under_the_same_secrets_is_refused(epoch: Epoch) -> None:
    announcement = epoch.announce()
    epoch.mask(ME, announcement)
    for again in (announcement, epoch.announce(b"other")):
        with pytest.raises(ProtocolError, match="already masked"):
            mask(epoch, again)


def test_keys_and_secrets_of_another_silo_are_refused(epoch: Epoch) -> None:
    announcement = epoch.announce()
    for change in (
        {"silo_id": "silo-01"}, {"secrets": epoch.secrets["silo-01"]}, {"keys": epoch.federation.keys["silo-01"]}
    ):  # fmt: skip
        with pytest.raises(ProtocolError, match="another silo"):
            mask(epoch, announcement, **change)


def test_masking_leaves_the_encoded_vector_as_it_was(epoch: Epoch) -> None:
    before = epoch.inputs[ME].values["A"].copy()
    message = mask(epoch, epoch.announce())
    assert (epoch.inputs[ME].values["A"] == before).all()
    assert not np.shares_memory(message.arrays["A"], epoch.inputs[ME].values["A"])


def test_an_answer_has_one_share_of_each_peer_never_both(epoch: Epoch) -> None:
    announcement = epoch.announce()
    reply = answer(epoch, announcement, request_for(epoch, announcement, "silo-02"))
    assert set(reply.self_mask_shares) == {"silo-00", "silo-01", "silo-03", "silo-04"}
    assert set(reply.mask_key_shares) == {"silo-02"}


def test_a_silo_listed_lost_does_not_leak_its_seed_nor_a_survivor_its_mask_key(epoch: Epoch) -> None:
    announcement, _, replies = epoch.collect(lost_masked=["silo-02"])
    assert not any("silo-02" in reply.self_mask_shares for reply in replies.values())
    assert not any(set(reply.mask_key_shares) - {"silo-02"} for reply in replies.values())
    assert announcement.ids == epoch.federation.ids


def test_unmasking_refuses_lists_that_break_the_rules(epoch: Epoch) -> None:
    announcement = epoch.announce()
    good = request_for(epoch, announcement)
    changes: list[tuple[dict[str, Any], str]] = [
        ({"survivors": ("silo-01", "silo-02", "silo-03", "silo-04")}, "this silo"),
        ({"survivors": ("silo-00", "silo-01", "silo-02")}, "3 silos, 4 are needed"),
        ({"survivors": (*good.survivors, "stranger")}, "stranger"),
        ({"announcement_hash": bytes(32)}, "announcement"),
        ({"epoch": 4}, "another run or epoch"),
        ({"run_id": bytes(16)}, "another run or epoch"),
    ]
    for change, reason in changes:
        with pytest.raises(SecAggError, match=reason):
            answer(epoch, announcement, dataclasses.replace(good, **change))
    with pytest.raises(ProtocolError, match="distinct"):
        dataclasses.replace(good, survivors=(*good.survivors, "silo-04"))
    with pytest.raises(NotEnoughSurvivors):
        answer(epoch, announcement, dataclasses.replace(good, survivors=good.survivors[:1]))


def test_participants_outside_the_epoch_are_not_unmasked() -> None:
    federation = Federation(5)
    epoch = federation.epoch(members=federation.ids[:4])
    announcement = epoch.announce()
    request = request_for(epoch, announcement)
    with pytest.raises(ProtocolError, match="silo-04"):
        answer(epoch, announcement, dataclasses.replace(request, survivors=federation.ids))
    late = silo.create_bundle(
        federation.run, federation.keys["silo-04"], "silo-04", 0, signer=federation.signers["silo-04"]
    )[1]
    ciphertexts = coordinator.ciphertexts_for({**epoch.bundles, "silo-04": late}, ME)
    reply = answer(epoch, announcement, request, ciphertexts=ciphertexts)
    assert "silo-04" not in {*reply.self_mask_shares, *reply.mask_key_shares}


def test_a_second_different_request_is_refused_and_the_same_one_gets_the_same_bytes(epoch: Epoch) -> None:
    announcement = epoch.announce()
    epoch.mask(ME, announcement)
    first, second = request_for(epoch, announcement), request_for(epoch, announcement, "silo-02")
    reply = epoch.answer(ME, announcement, first)
    assert epoch.answer(ME, announcement, first).to_bytes() == reply.to_bytes()
    with pytest.raises(ProtocolError, match="already answered"):
        epoch.answer(ME, announcement, second)


def test_a_request_for_another_announcement_than_the_one_masked_for_is_refused(epoch: Epoch) -> None:
    epoch.mask(ME, epoch.announce())
    other = epoch.announce(b"another plan")
    with pytest.raises(ProtocolError, match="masked for another announcement"):
        epoch.answer(ME, other, request_for(epoch, other))


@pytest.mark.parametrize("damage", ["flip", "short", "missing", "foreign"])
def test_a_ciphertext_that_does_not_open_leaves_only_that_peer_out(epoch: Epoch, damage: str) -> None:
    announcement = epoch.announce()
    ciphertexts = coordinator.ciphertexts_for(epoch.bundles, ME)
    good = ciphertexts.pop("silo-03")
    replacement = {"flip": good[:-1] + bytes([good[-1] ^ 1]), "short": good[:5], "foreign": ciphertexts["silo-01"]}
    if damage in replacement:
        ciphertexts["silo-03"] = replacement[damage]
    reply = answer(epoch, announcement, request_for(epoch, announcement), ciphertexts=ciphertexts)
    assert set(reply.self_mask_shares) == {"silo-00", "silo-01", "silo-02", "silo-04"}


def test_a_mask_key_reconstructed_in_one_epoch_opens_no_shares_of_another() -> None:
    federation = Federation(5)
    epoch, following = federation.epoch(3), federation.epoch(4)
    _, _, replies = epoch.collect(lost_masked=["silo-02"])
    run = federation.run
    shares = {run.roster.index(s) + 1: r.mask_key_shares["silo-02"] for s, r in replies.items()}
    leaked = combine(shares, run.threshold)
    assert public_key(leaked) == epoch.bundles["silo-02"].public.mask_key
    assert leaked not in (federation.keys["silo-02"].private, following.secrets["silo-02"].mask_private)
    for sender in following.bundles.values():
        for receiver, ciphertext in sender.ciphertexts.items():
            from_key, to_key = (run.roster.entry(s).encryption_key for s in (sender.public.sender, receiver))
            envelope = Envelope(
                scope_of(run, 4),
                sender.public.sender,
                receiver,
                from_key,
                to_key,
                sender_mask_key=sender.public.mask_key,
            )
            assert open_shares(envelope, X25519PrivateKey.from_private_bytes(leaked), ciphertext) is None


def test_shares_of_one_epoch_do_not_open_in_another() -> None:
    federation = Federation(5)
    epoch, following = federation.epoch(3), federation.epoch(4)
    announcement = following.announce()
    stale = coordinator.ciphertexts_for(epoch.bundles, ME)
    reply = answer(following, announcement, request_for(following, announcement), ciphertexts=stale)
    assert set(reply.self_mask_shares) == {ME}


def test_erased_secrets_hold_nothing_and_serve_nothing(epoch: Epoch) -> None:
    announcement = epoch.announce()
    secrets = epoch.secrets[ME]
    stub = silo.erase(secrets)
    raw = stub.to_bytes()
    for secret in (secrets.mask_private, secrets.seed, secrets.own_mask_share, secrets.own_seed_share):
        assert secret not in raw
    assert silo.EpochSecrets.from_bytes(raw) == stub
    assert stub.erased
    assert not secrets.erased
    with pytest.raises(ProtocolError, match="erased"):
        mask(epoch, announcement, secrets=stub)
    with pytest.raises(ProtocolError, match="erased"):
        answer(epoch, announcement, request_for(epoch, announcement), secrets=stub)


def test_half_erased_secrets_are_refused(epoch: Epoch) -> None:
    changes: list[dict[str, Any]] = [
        {"mask_private": b""},
        {"seed": b""},
        {"own_mask_share": b""},
        {"own_seed_share": b""},
    ]
    for change in changes:
        with pytest.raises(ProtocolError, match="some secrets are missing"):
            dataclasses.replace(epoch.secrets[ME], **change)
