"""The coordinator: bad input is refused by the sender's name, wrong shares cannot move the sum."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from secagg import coordinator
from secagg.errors import NotEnoughSurvivors, ProtocolError, SecAggError
from secagg.messages import Announcement, Bundle, UnmaskShares, ciphertext_hash
from tests.secagg.federation import Epoch, Federation


@pytest.fixture
def epoch() -> Epoch:
    return Federation(6).epoch(2)


def wrong(share: bytes) -> bytes:
    return share[:-1] + bytes([share[-1] ^ 1])


def lying(reply: UnmaskShares) -> UnmaskShares:
    return dataclasses.replace(
        reply,
        self_mask_shares={s: wrong(v) for s, v in reply.self_mask_shares.items()},
        mask_key_shares={s: wrong(v) for s, v in reply.mask_key_shares.items()},
    )


def lied(epoch: Epoch, announcement: Announcement, masked: Any, replies: dict[str, UnmaskShares]) -> Any:
    """Aggregate replies that their senders signed, whatever is in them."""
    return epoch.aggregate(announcement, masked, epoch.resigned(announcement, masked, replies))


def test_an_announcement_lists_exactly_the_bundles_given_in_order(epoch: Epoch) -> None:
    epoch.bundles = dict(reversed(epoch.bundles.items()))
    announcement = epoch.announce()
    assert announcement.ids == epoch.federation.ids
    assert dict(announcement.participants)["silo-03"] == epoch.bundles["silo-03"].public.hash()
    assert announcement.roster_hash == epoch.federation.run.roster.hash()


def test_bundles_that_do_not_fit_are_refused_by_name(epoch: Epoch) -> None:
    good = epoch.bundles["silo-02"]
    fewer = {k: v for k, v in good.ciphertexts.items() if k != "silo-01"}
    sign = epoch.federation.signed
    partial = Bundle(sign(dataclasses.replace(good.public, ciphertext_hash=ciphertext_hash(fewer))), fewer)
    old = Bundle(sign(dataclasses.replace(good.public, epoch=1)), good.ciphertexts)
    for bundle in (partial, old, epoch.bundles["silo-01"]):
        with pytest.raises(ProtocolError, match="silo-02"):
            coordinator.announce(
                epoch.federation.run, 2, {**epoch.bundles, "silo-02": bundle}, epoch.layout, b"", (), {}
            )


def test_a_layout_for_fewer_summands_than_participants_is_refused(epoch: Epoch) -> None:
    epoch.layout = dataclasses.replace(epoch.layout, parties=5)
    with pytest.raises(ProtocolError, match="5 summands, 6 take part"):
        epoch.announce()


def test_masked_inputs_that_do_not_fit_are_refused_by_name(epoch: Epoch) -> None:
    announcement = epoch.announce()
    good = epoch.mask("silo-02", announcement)
    a = good.arrays["A"]
    changes: list[dict[str, Any]] = [
        {"epoch": 1}, {"announcement_hash": bytes(32)}, {"sender": "stranger"},
        {"arrays": {"A": a}}, {"arrays": {**good.arrays, "B": a}}, {"arrays": {**good.arrays, "A": a[:-1]}},
        {"arrays": {**good.arrays, "A": a.astype(np.int64)}}, {"arrays": {**good.arrays, "A": a.reshape(1, -1)}},
        {"arrays": {**good.arrays, "A": a.tolist()}}, {"arrays": {**good.arrays, "A": a.view(">u4")}},
    ]  # fmt: skip
    for change in changes:
        with pytest.raises(ProtocolError, match=change.get("sender", "silo-02")):
            coordinator.check_masked(epoch.federation.run, announcement, dataclasses.replace(good, **change))


def test_silos_cannot_be_survivors_without_taking_part(epoch: Epoch) -> None:
    with pytest.raises(ProtocolError, match="stranger"):
        coordinator.unmask_request(epoch.federation.run, epoch.announce(), [*epoch.members, "stranger"])


@pytest.mark.parametrize("liars", [["silo-00"], ["silo-05"]])
def test_as_many_wrong_repliers_as_spare_shares_do_not_move_the_sum(epoch: Epoch, liars: list[str]) -> None:
    announcement, masked, replies = epoch.collect()
    replies = {s: lying(r) if s in liars else r for s, r in replies.items()}
    total = lied(epoch, announcement, masked, replies)
    assert (total["A"] == epoch.expected(masked)["A"]).all()


def test_three_liars_of_twelve_and_a_lost_silo_are_sorted_out() -> None:
    epoch = Federation(12, threshold=8).epoch()
    announcement, masked, replies = epoch.collect(lost_masked=["silo-04"])
    liars = {"silo-00", "silo-01", "silo-11"}
    replies = {s: lying(r) if s in liars else r for s, r in replies.items()}
    total = lied(epoch, announcement, masked, replies)
    assert (total["C"] == epoch.expected(masked)["C"]).all()


@pytest.mark.parametrize("liar", ["silo-00", "silo-05"])
def test_a_wrong_share_of_a_lost_silos_mask_key_alone_does_not_move_the_sum(liar: str) -> None:
    epoch = Federation(6, threshold=4).epoch()
    announcement, masked, replies = epoch.collect(lost_masked=["silo-03"])
    keys = {s: wrong(v) for s, v in replies[liar].mask_key_shares.items()}
    replies[liar] = dataclasses.replace(replies[liar], mask_key_shares=keys)
    total = lied(epoch, announcement, masked, replies)
    assert (total["A"] == epoch.expected(masked)["A"]).all()


def test_too_many_wrong_shares_are_an_error_that_names_the_secret(epoch: Epoch) -> None:
    announcement, masked, replies = epoch.collect()
    replies = {s: lying(r) if s in ("silo-00", "silo-01") else r for s, r in replies.items()}
    with pytest.raises(ProtocolError, match="self-mask seed of silo-00"):
        lied(epoch, announcement, masked, replies)


def test_shares_missing_for_one_peer_are_made_up_by_others_or_named(epoch: Epoch) -> None:
    announcement, masked, replies = epoch.collect()

    def without(reply: UnmaskShares) -> UnmaskShares:
        return dataclasses.replace(
            reply, self_mask_shares={s: v for s, v in reply.self_mask_shares.items() if s != "silo-03"}
        )

    one_short = {s: without(r) if s == "silo-01" else r for s, r in replies.items()}
    assert (lied(epoch, announcement, masked, one_short)["A"] == epoch.expected(masked)["A"]).all()
    two_short = {s: without(r) if s in ("silo-01", "silo-02") else r for s, r in replies.items()}
    with pytest.raises(NotEnoughSurvivors, match="self-mask seed of silo-03"):
        lied(epoch, announcement, masked, two_short)


def test_shares_that_are_no_field_element_count_as_missing(epoch: Epoch) -> None:
    announcement, masked, replies = epoch.collect()
    replies["silo-02"] = dataclasses.replace(
        replies["silo-02"], self_mask_shares=dict.fromkeys(replies["silo-02"].self_mask_shares, b"\xff" * 33)
    )
    assert (lied(epoch, announcement, masked, replies)["A"] == epoch.expected(masked)["A"]).all()


def test_replies_for_another_list_epoch_or_sender_are_refused_by_name(epoch: Epoch) -> None:
    announcement, masked, replies = epoch.collect(lost_masked=["silo-04"])
    good = replies["silo-01"]
    share = good.mask_key_shares["silo-04"]
    changes: list[dict[str, Any]] = [
        {"epoch": 1}, {"sender": "silo-02"}, {"mask_key_shares": {"silo-05": share}, "self_mask_shares": {}},
        {"self_mask_shares": {"silo-04": share}, "mask_key_shares": {}},
    ]  # fmt: skip
    for change in changes:
        with pytest.raises(ProtocolError, match="silo-01"):
            epoch.aggregate(announcement, masked, {**replies, "silo-01": dataclasses.replace(good, **change)})
    with pytest.raises(ProtocolError, match="silo-04"):
        epoch.aggregate(announcement, masked, {**replies, "silo-04": dataclasses.replace(good, sender="silo-04")})


def test_a_masked_input_under_another_name_is_refused(epoch: Epoch) -> None:
    announcement, masked, replies = epoch.collect()
    masked["silo-00"] = masked["silo-01"]
    with pytest.raises(ProtocolError, match="silo-00"):
        epoch.aggregate(announcement, masked, replies)


def test_aggregating_leaves_the_received_vectors_as_they_were(epoch: Epoch) -> None:
    announcement, masked, replies = epoch.collect()
    before = {s: m.arrays["A"].copy() for s, m in masked.items()}
    epoch.aggregate(announcement, masked, replies)
    assert all((m.arrays["A"] == before[s]).all() for s, m in masked.items())


def test_no_error_of_the_server_shows_a_share(epoch: Epoch) -> None:
    announcement, masked, replies = epoch.collect()
    bad = {s: lying(r) for s, r in replies.items()}
    with pytest.raises(SecAggError) as caught:
        epoch.aggregate(announcement, masked, bad)
    shares = [v for r in bad.values() for v in r.self_mask_shares.values()]
    assert not any(v.hex() in str(caught.value) or repr(v)[2:-1] in str(caught.value) for v in shares)
