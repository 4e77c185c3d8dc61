"""Signatures: what another run, epoch, purpose or silo signed, or nobody did, is refused by the sender's name."""

import dataclasses
from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.chain import _ENTRY_LABEL
from secagg import coordinator, signatures, silo
from secagg.errors import ProtocolError, SecAggError
from secagg.identity import UNSIGNED
from secagg.messages import Announcement, Bundle, BundlePublic, MaskedInput, RosterEntry, UnmaskRequest, UnmaskShares
from secagg.roster import Enrolment, Roster
from tests.secagg.federation import Epoch, Federation
from tests.secagg.signers import TestSigner

ME, PEER, OTHER, LOST = "silo-00", "silo-01", "silo-02", "silo-05"
MALLORY = TestSigner.of("mallory")


@dataclasses.dataclass
class Collected:
    """An epoch with one silo lost after its bundle, and all its messages."""

    epoch: Epoch
    announcement: Announcement
    masked: dict[str, MaskedInput]
    replies: dict[str, UnmaskShares]
    request: UnmaskRequest

    @classmethod
    def of(cls, epoch: Epoch) -> "Collected":
        announcement, masked, replies = epoch.collect(lost_masked=[LOST])
        request = coordinator.unmask_request(epoch.federation.run, announcement, list(masked))
        return cls(epoch, announcement, masked, replies, request)

    def check_masked(self, message: MaskedInput) -> MaskedInput:
        return coordinator.check_masked(self.epoch.federation.run, self.announcement, message)

    def check_reply(self, reply: UnmaskShares) -> UnmaskShares:
        return coordinator.check_reply(self.epoch.federation.run, self.announcement, self.request, reply)

    def mask_with(self, public: BundlePublic) -> None:
        """Show silo 0 an announcement that is consistent in itself and has this public part among the others."""
        e, f = self.epoch, self.epoch.federation
        publics = [public if p.sender == public.sender else p for p in e.publics]
        participants = tuple((p.sender, p.hash()) for p in publics)
        announcement = dataclasses.replace(self.announcement, participants=participants)
        fresh = dataclasses.replace(e.secrets[ME], masked=b"", answered=b"")
        silo.mask_input(
            f.run, f.keys[ME], fresh, ME, announcement, publics, e.inputs[ME], (0, bytes(32)), signer=f.signers[ME]
        )


@pytest.fixture(scope="module")
def now() -> Collected:
    return Collected.of(Federation(6).epoch(3))


@pytest.fixture(scope="module")
def before(now: Collected) -> Collected:
    return Collected.of(now.epoch.federation.epoch(2))


@pytest.fixture(scope="module")
def other_run(now: Collected) -> Collected:
    """The same silos with the same identities and names, in another run."""
    return Collected.of(Federation(6, tag="other", run_id=bytes(16)).epoch(3))


def forged(message: Any, **change: Any) -> list[tuple[str, Any]]:
    """A message without a signature, with nobody's, and changed under the old one."""
    return [
        ("stripped", dataclasses.replace(message, signature=UNSIGNED)),
        ("nobody's", dataclasses.replace(message, signature=bytes(range(64)))),
        *((field, dataclasses.replace(message, **{field: value})) for field, value in change.items()),
    ]


# --- statements ---------------------------------------------------------------------------------------------


def statements(c: Collected) -> dict[str, bytes]:
    run = c.epoch.federation.run
    return {
        "enrolment": signatures.enrolment_statement(run.run_id, run.roster.entry(ME)),
        "bundle": signatures.bundle_statement(run, c.epoch.bundles[ME].public),
        "masked": signatures.masked_statement(run, c.masked[ME]),
        "shares": signatures.shares_statement(run, c.request, c.replies[ME]),
    }


def test_no_statement_is_one_of_another_purpose_run_epoch_or_silo(
    now: Collected, before: Collected, other_run: Collected
) -> None:
    found = [text for c in (now, before, other_run) for text in statements(c).values()]
    run = now.epoch.federation.run
    found += [signatures.bundle_statement(run, p) for p in now.epoch.publics if p.sender != ME]
    # An enrolment is for a run, not an epoch.
    assert len(set(found)) == len(found) - 1
    for one, two in combinations(set(found), 2):
        assert not one.startswith(two)
        assert not two.startswith(one)


def test_no_statement_can_be_read_as_a_line_of_a_ledger(now: Collected) -> None:
    for text in statements(now).values():
        assert 0x80 <= text[0] < 0x98, "an array"
        assert _ENTRY_LABEL[0] < 0x80, "ASCII"


def test_a_signature_by_the_right_key_for_another_purpose_does_not_hold(now: Collected) -> None:
    f = now.epoch.federation
    wrong = {name: f.signers[PEER].sign(text) for name, text in statements(now).items()}
    entry = f.run.roster.entry(PEER)
    for name, signature in wrong.items():
        public = dataclasses.replace(now.epoch.bundles[PEER].public, signature=signature)
        with pytest.raises(ProtocolError, match=f"{PEER}: its bundle is not signed"):
            signatures.check_bundles(f.run, [public])
        with pytest.raises(ProtocolError, match=f"{PEER}: its masked input is not signed"):
            now.check_masked(dataclasses.replace(now.masked[PEER], signature=signature))
        with pytest.raises(ProtocolError, match=f"{PEER}: its unmask reply is not signed"):
            now.check_reply(dataclasses.replace(now.replies[PEER], signature=signature))
        entries = [dataclasses.replace(entry, signature=signature) if e is entry else e for e in f.run.roster.entries]
        with pytest.raises(ProtocolError, match=f"{PEER}: the enrolment is not signed"):
            signatures.check_roster(f.run_id, Roster(tuple(entries)))
        assert name


# --- enrolments and rosters -----------------------------------------------------------------------------------


def test_an_enrolment_holds_for_its_run_and_every_field_of_it(now: Collected, other_run: Collected) -> None:
    f = now.epoch.federation
    good = f.enrolments[PEER]
    assert signatures.check_enrolment(f.run_id, good) == good
    changes: dict[str, Any] = {
        "silo_id": "silo-77", "identity_key": MALLORY.public_key, "encryption_key": f.keys[OTHER].encryption_key,
        "records": 101, "software": "fcfl 0.2", "nonce_commitment": bytes(32), "salt": bytes(32),
        "signature": f.enrolments[OTHER].signature,
    }  # fmt: skip
    assert set(changes) == set(Enrolment.CHECKS)
    for _, bad in forged(good, **changes):
        with pytest.raises(ProtocolError, match=r"silo-(01|77): the enrolment is not signed"):
            signatures.check_enrolment(f.run_id, bad)
    with pytest.raises(ProtocolError, match=PEER):
        signatures.check_enrolment(f.run_id, other_run.epoch.federation.enrolments[PEER])


def test_a_roster_with_a_key_the_coordinator_put_in_is_refused_by_the_silos_name(
    now: Collected, other_run: Collected
) -> None:
    f = now.epoch.federation
    signatures.check_roster(f.run_id, f.run.roster)
    theirs = other_run.epoch.federation.run.roster.entry(PEER)
    own = signatures.enrol(f.run_id, "x", f.keys[PEER].encryption_key, bytes(32), 100, "x", MALLORY)
    good = f.run.roster.entry(PEER)
    bad = [
        theirs,
        dataclasses.replace(good, encryption_key=theirs.encryption_key),
        dataclasses.replace(good, details=bytes(32)),
        dataclasses.replace(good, nonce_commitment=bytes(32)),
        dataclasses.replace(RosterEntry.of(own), silo_id=PEER),
        dataclasses.replace(good, signature=UNSIGNED),
    ]
    for entry in bad:
        entries = tuple(entry if e.silo_id == PEER else e for e in f.run.roster.entries)
        with pytest.raises(ProtocolError, match=PEER):
            signatures.check_roster(f.run_id, Roster(entries))


def test_a_roster_does_not_tell_the_number_of_records(now: Collected) -> None:
    one, two = (signatures.enrol(bytes(16), ME, MALLORY.public_key, bytes(32), 100, "x", MALLORY) for _ in range(2))
    assert one.details() != two.details()
    assert one.salt != two.salt
    assert "records" not in RosterEntry.CHECKS


# --- bundles ------------------------------------------------------------------------------------------------


def test_a_bundle_of_another_run_epoch_or_sender_or_with_a_swapped_key_is_refused_by_every_silo(
    now: Collected, before: Collected, other_run: Collected
) -> None:
    good, twin = now.epoch.bundles[PEER].public, now.epoch.bundles[OTHER].public
    changes: dict[str, Any] = {
        "mask_key": twin.mask_key, "seed_commitment": twin.seed_commitment, "ciphertext_hash": twin.ciphertext_hash,
        "signature": twin.signature,
    }  # fmt: skip
    bad = forged(good, **changes)
    bad += [("epoch", dataclasses.replace(before.epoch.bundles[PEER].public, epoch=3))]
    bad += [("run", other_run.epoch.bundles[PEER].public)]
    bad += [("sender", dataclasses.replace(twin, sender=PEER))]
    bad += [("reflected", dataclasses.replace(now.epoch.bundles[ME].public, sender=PEER))]
    run = now.epoch.federation.run
    mallory = dataclasses.replace(good, signature=MALLORY.sign(signatures.bundle_statement(run, good)))
    for _, public in [*bad, ("foreign", mallory)]:
        with pytest.raises(ProtocolError, match=f"{PEER}: its bundle is not signed"):
            now.mask_with(public)
    now.mask_with(good)


def test_the_coordinator_refuses_the_same_bundles_on_receipt(now: Collected, other_run: Collected) -> None:
    run = now.epoch.federation.run
    good = now.epoch.bundles[PEER]
    assert coordinator.check_bundle(run, good, 3) == good
    unsigned = Bundle(dataclasses.replace(good.public, signature=UNSIGNED), good.ciphertexts)
    for bundle in (unsigned, other_run.epoch.bundles[PEER]):
        with pytest.raises(ProtocolError, match=f"{PEER}: its bundle is not signed"):
            coordinator.check_bundle(run, bundle, 3)


def test_a_bundle_for_another_roster_of_the_same_run_is_refused(now: Collected) -> None:
    f = now.epoch.federation
    smaller = dataclasses.replace(f.run, roster=Roster(f.run.roster.entries[:5]), threshold=4)
    public = signatures.sign_bundle(smaller, now.epoch.bundles[PEER].public, f.signers[PEER])
    with pytest.raises(ProtocolError, match=PEER):
        signatures.check_bundles(f.run, [public])


def test_an_old_bundle_is_refused_for_its_epoch_alone(now: Collected, before: Collected) -> None:
    with pytest.raises(ProtocolError, match=f"{PEER} is for epoch 2"):
        now.mask_with(before.epoch.bundles[PEER].public)


def test_nobody_signs_with_a_key_that_is_not_in_the_roster(now: Collected) -> None:
    run = now.epoch.federation.run
    acts: list[Callable[[], object]] = [
        lambda: signatures.sign_bundle(run, now.epoch.bundles[ME].public, MALLORY),
        lambda: signatures.sign_masked(run, now.masked[ME], MALLORY),
        lambda: signatures.sign_shares(run, now.request, now.replies[ME], MALLORY),
    ]
    for act in acts:
        with pytest.raises(ProtocolError, match=f"{ME}: the roster lists another identity key"):
            act()


# --- masked inputs --------------------------------------------------------------------------------------------


def test_a_masked_vector_counts_for_its_run_epoch_sender_head_and_values_alone(
    now: Collected, before: Collected, other_run: Collected
) -> None:
    good, twin = now.masked[PEER], now.masked[OTHER]
    other_view = now.epoch.announce(b"another plan")
    now.epoch.secrets[PEER], kept = dataclasses.replace(now.epoch.secrets[PEER], masked=b""), now.epoch.secrets[PEER]
    elsewhere = now.epoch.mask(PEER, other_view)
    now.epoch.secrets[PEER] = kept
    replayed = dataclasses.replace(
        before.masked[PEER], epoch=3, announcement_hash=now.announcement.digest()
    )  # an old vector under a new header
    changes: dict[str, Any] = {
        "ledger_head": (4, bytes(32)), "arrays": twin.arrays, "arrays_hash": twin.arrays_hash,
        "signature": twin.signature,
    }  # fmt: skip
    bad = [message for _, message in forged(good, **changes)]
    bad += [dataclasses.replace(good, arrays=twin.arrays, arrays_hash=twin.arrays_hash)]
    bad += [dataclasses.replace(elsewhere, announcement_hash=now.announcement.digest())]
    bad += [replayed, before.masked[PEER], other_run.masked[PEER], dataclasses.replace(twin, sender=PEER)]
    assert now.check_masked(good) is good
    for message in bad:
        with pytest.raises(ProtocolError, match=PEER):
            now.check_masked(message)


def test_one_changed_ring_element_is_noticed(now: Collected) -> None:
    good = now.masked[PEER]
    for name in good.arrays:
        changed = {segment: array.copy() for segment, array in good.arrays.items()}
        changed[name][-1] ^= 1
        with pytest.raises(ProtocolError, match=f"{PEER}: the arrays are not those its header names"):
            now.check_masked(dataclasses.replace(good, arrays=changed))


# --- shares ---------------------------------------------------------------------------------------------------


def test_shares_count_for_their_request_and_sender_alone(
    now: Collected, before: Collected, other_run: Collected
) -> None:
    good, twin = now.replies[PEER], now.replies[OTHER]
    changes: dict[str, Any] = {
        "self_mask_shares": twin.self_mask_shares, "mask_key_shares": {}, "signature": twin.signature,
    }  # fmt: skip
    bad = [reply for _, reply in forged(good, **changes)]
    bad += [dataclasses.replace(before.replies[PEER], epoch=3), before.replies[PEER], other_run.replies[PEER]]
    bad += [dataclasses.replace(twin, sender=PEER)]
    assert now.check_reply(good) is good
    for reply in bad:
        with pytest.raises(ProtocolError, match=PEER):
            now.check_reply(reply)


def test_shares_for_another_list_of_survivors_are_refused_though_they_would_fit() -> None:
    epoch = Federation(6).epoch(1)
    announcement, masked, replies = epoch.collect()
    run = epoch.federation.run
    fewer = coordinator.unmask_request(run, announcement, [s for s in masked if s != LOST])
    partial = dataclasses.replace(
        replies[PEER], self_mask_shares={s: v for s, v in replies[PEER].self_mask_shares.items() if s != LOST}
    )
    with pytest.raises(ProtocolError, match=f"{PEER}: its unmask reply is not signed"):
        coordinator.check_reply(run, announcement, fewer, partial)
    # The same shares, asked for under another announcement with the same list.
    request = coordinator.unmask_request(run, announcement, list(masked))
    coordinator.check_reply(run, announcement, request, replies[PEER])
    other = dataclasses.replace(request, announcement_hash=bytes(32))
    with pytest.raises(ProtocolError, match=f"{PEER}: its unmask reply is not signed"):
        coordinator.check_reply(run, announcement, other, replies[PEER])


# --- one vector and one answer ----------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_whatever_lists_a_silo_is_asked_with_it_never_gives_both_shares_of_a_peer(data: st.DataObject) -> None:
    """Over any series of requests, restarts with the stored state between them, on one or two announcements."""
    federation = Federation(5)
    epoch = federation.epoch(1)
    announcements = [epoch.announce(b"plan"), epoch.announce(b"another plan")]
    lists = st.lists(st.sampled_from(federation.ids), unique=True).map(sorted)
    given_out: dict[str, set[str]] = {"self": set(), "mask": set()}
    epoch.mask(ME, announcements[data.draw(st.integers(0, 1))])
    for _ in range(data.draw(st.integers(1, 6))):
        shown = announcements[data.draw(st.integers(0, 1))]
        epoch.secrets[ME] = silo.EpochSecrets.from_bytes(epoch.secrets[ME].to_bytes())
        try:
            request = UnmaskRequest(federation.run.run_id, 1, shown.digest(), tuple(data.draw(lists)))
            reply = epoch.answer(ME, shown, request)
        except SecAggError:
            continue
        given_out["self"] |= reply.self_mask_shares.keys()
        given_out["mask"] |= reply.mask_key_shares.keys()
    assert not given_out["self"] & given_out["mask"]
    assert ME not in given_out["mask"]


def test_secrets_that_masked_no_vector_answer_no_request() -> None:
    epoch = Federation(4).epoch(1)
    announcement = epoch.announce()
    request = coordinator.unmask_request(epoch.federation.run, announcement, epoch.members)
    with pytest.raises(ProtocolError, match="no vector was masked"):
        epoch.answer(ME, announcement, request)


def test_what_was_recorded_is_never_recorded_over() -> None:
    epoch = Federation(4).epoch(1)
    one, two = epoch.announce(b"plan"), epoch.announce(b"another plan")
    run = epoch.federation.run
    masked = silo.record_masked(epoch.secrets[ME], one)
    assert silo.record_masked(masked, one) == masked
    with pytest.raises(ProtocolError, match="another announcement"):
        silo.record_masked(masked, two)
    first, second = (coordinator.unmask_request(run, one, epoch.members[:n]) for n in (3, 4))
    answered = silo.record_answered(masked, first)
    assert silo.record_answered(answered, first) == answered
    with pytest.raises(ProtocolError, match="another unmask request"):
        silo.record_answered(answered, second)


def test_a_silo_listed_twice_is_refused_on_both_sides(now: Collected) -> None:
    run, members = now.epoch.federation.run, list(now.masked)
    with pytest.raises(ProtocolError, match="listed twice"):
        coordinator.unmask_request(run, now.announcement, [*members, PEER])
    for field, values in (("survivors", (*members, PEER)), ("survivors", (ME, ME, *members[1:]))):
        with pytest.raises(ProtocolError, match=r"survivors.*distinct"):
            dataclasses.replace(now.request, **{field: values})
    data = now.request.to_bytes()
    with pytest.raises(ProtocolError):
        UnmaskRequest.from_bytes(data.replace(b"silo-01", b"silo-00"))


def test_signers_show_nothing_of_their_key(now: Collected) -> None:
    secret = MALLORY._private.private_bytes_raw()
    for shown in (repr(MALLORY), repr(now.masked[ME]), repr(now.replies[ME]), repr(now.epoch.federation.enrolments)):
        assert repr(secret)[2:-1] not in shown
        assert secret.hex() not in shown
