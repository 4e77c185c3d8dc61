"""Whole epochs: the survivors' exact integer sum whatever is lost, and nothing below the threshold."""

import dataclasses
from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg import coordinator, prg, ring, signatures, silo
from secagg.errors import NotEnoughSurvivors, ProtocolError, RingError
from secagg.ring import Layout, Segment
from tests.secagg.federation import Epoch, Federation


def check_sum(epoch: Epoch, lost_masked: list[str], lost_unmask: list[str]) -> None:
    announcement, masked, replies = epoch.collect(lost_masked, lost_unmask)
    total = epoch.aggregate(announcement, masked, replies)
    expected = epoch.expected(masked)
    assert total.keys() == expected.keys()
    for name, array in total.items():
        assert array.dtype == np.int64
        assert array.tolist() == expected[name].tolist()


@pytest.mark.parametrize("n", range(3, 13))
def test_without_losses_the_sum_is_exact(n: int) -> None:
    check_sum(Federation(n).epoch(), [], [])


@settings(max_examples=40, deadline=None)
@given(data=st.data(), n=st.integers(3, 12))
def test_losses_at_every_stage_leave_exactly_the_survivors_sum(data: st.DataObject, n: int) -> None:
    federation = Federation(n)
    order = data.draw(st.permutations(federation.ids))
    spare = data.draw(st.integers(0, n - federation.run.threshold))
    cuts = sorted(data.draw(st.integers(0, spare)) for _ in range(2))
    absent, lost_masked, lost_unmask = order[: cuts[0]], order[cuts[0] : cuts[1]], order[cuts[1] : spare]
    epoch = federation.epoch(members=[s for s in federation.ids if s not in absent])
    check_sum(epoch, lost_masked, lost_unmask)


def test_every_subset_of_five_silos_lost_at_each_stage() -> None:
    federation = Federation(5)
    subsets = chain.from_iterable(combinations(federation.ids, k) for k in range(2))
    for lost in map(list, subsets):
        check_sum(federation.epoch(members=[s for s in federation.ids if s not in lost]), [], [])
        check_sum(federation.epoch(), lost, [])
        check_sum(federation.epoch(), [], lost)


def test_one_lost_at_every_stage_at_once() -> None:
    federation = Federation(12)
    a, b, c = federation.ids[0], federation.ids[5], federation.ids[11]
    check_sum(federation.epoch(members=[s for s in federation.ids if s != a]), [b], [c])


@pytest.mark.parametrize("n", [3, 6, 12])
def test_below_the_threshold_nothing_comes_out(n: int) -> None:
    federation = Federation(n)
    too_many = federation.ids[: n - federation.run.threshold + 1]
    rest = [s for s in federation.ids if s not in too_many]
    with pytest.raises(NotEnoughSurvivors):
        federation.epoch(members=rest).announce()
    epoch = federation.epoch()
    announcement = epoch.announce()
    with pytest.raises(NotEnoughSurvivors):
        coordinator.unmask_request(federation.run, announcement, rest)
    with pytest.raises(NotEnoughSurvivors):
        check_sum(federation.epoch(), [], list(too_many))
    masked = {s: epoch.mask(s, announcement) for s in rest}
    with pytest.raises(NotEnoughSurvivors):
        epoch.aggregate(announcement, masked, {})


def test_signed_extremes_sum_exactly_in_both_rings() -> None:
    federation = Federation(5)
    epoch = federation.epoch()
    layout = epoch.layout
    for sign in (1.0, -1.0):
        epoch = federation.epoch()
        ends = {s.name: np.full(s.length, sign * s.bound) for s in layout}
        epoch.inputs = {s: ring.encode(layout, ends, prg.secure_uniforms()) for s in epoch.members}
        announcement, masked, replies = epoch.collect([federation.ids[2]])
        decoded = ring.decode_sum(layout, epoch.aggregate(announcement, masked, replies))
        for segment in layout:
            assert decoded[segment.name].tolist() == [4 * sign * segment.bound] * segment.length


def test_silos_that_do_not_contribute_leave_the_others_sum() -> None:
    epoch = Federation(4).epoch()
    for s in epoch.members[1:]:
        epoch.inputs[s] = ring.zeros(epoch.layout)
    announcement, masked, replies = epoch.collect()
    total = epoch.aggregate(announcement, masked, replies)
    assert total["A"].tolist() == epoch.inputs[epoch.members[0]].signed("A").tolist()


def test_views_that_differ_give_the_server_noise() -> None:
    federation = Federation(4)
    epoch = federation.epoch()
    epoch.layout = Layout((Segment("A", 4096, 32, 8.0, ring.finest_step(8.0, 4, 32)),), 4)
    epoch.inputs = {s: ring.zeros(epoch.layout) for s in federation.ids}
    announcement, other = epoch.announce(b"plan"), epoch.announce(b"another plan")
    masked = {s: epoch.mask(s, announcement) for s in federation.ids[1:]}
    deviant = epoch.mask(federation.ids[0], other)
    with pytest.raises(ProtocolError, match=r"silo-00.*announcement"):
        coordinator.check_masked(federation.run, announcement, deviant)
    # A server that goes on all the same, calling the deviant's input one of this announcement:
    # (With the deviant's help, who signs that; without it the signature alone refuses.)
    claimed = dataclasses.replace(deviant, announcement_hash=announcement.digest())
    with pytest.raises(ProtocolError, match=r"silo-00.*not signed"):
        coordinator.check_masked(federation.run, announcement, claimed)
    masked[federation.ids[0]] = signatures.sign_masked(federation.run, claimed, federation.signers[federation.ids[0]])
    request = coordinator.unmask_request(federation.run, announcement, federation.ids)
    replies = {s: epoch.answer(s, announcement, request) for s in federation.ids[1:]}
    total = epoch.aggregate(announcement, masked, replies)["A"]
    assert np.count_nonzero(total == 0) <= 1
    assert abs(total.astype(float).std() / (2**32 / 12**0.5) - 1) < 0.1
    with pytest.raises(RingError, match="did not"):
        ring.decode_sum(epoch.layout, {"A": total})


def test_masked_vectors_look_uniform_and_unlike_their_input() -> None:
    epoch = Federation(3).epoch()
    epoch.layout = Layout((Segment("A", 1 << 16, 32, 8.0, ring.finest_step(8.0, 3, 32)),), 3)
    epoch.inputs = {s: ring.zeros(epoch.layout) for s in epoch.members}
    announcement, masked, _ = epoch.collect()
    for message in masked.values():
        octets = np.bincount(message.arrays["A"].view(np.uint8), minlength=256)
        chi_square = ((octets - octets.mean()) ** 2 / octets.mean()).sum()
        assert abs(chi_square - 255) < 6 * (2 * 255) ** 0.5
        assert np.count_nonzero(message.arrays["A"] == 0) <= 2
    everything = sum(m.arrays["A"] for m in masked.values())
    assert np.count_nonzero(everything == 0) <= 2, "without the shares even the sum stays masked"
    assert announcement.ids == epoch.members


def test_the_same_input_is_masked_differently_in_the_next_epoch() -> None:
    federation = Federation(3)
    one, two = federation.epoch(1), federation.epoch(2)
    s = federation.ids[0]
    first, second = one.mask(s, one.announce()), two.mask(s, two.announce())
    assert (first.arrays["A"] != second.arrays["A"]).all()
    for name in ("mask_private", "seed", "own_mask_share", "own_seed_share", "bundle_hash"):
        assert getattr(one.secrets[s], name) != getattr(two.secrets[s], name)


def test_a_restarted_silo_goes_on_from_its_stored_state() -> None:
    federation = Federation(4)
    epoch = federation.epoch()
    announcement = epoch.announce()
    for s in federation.ids:
        epoch.secrets[s] = silo.EpochSecrets.from_bytes(epoch.secrets[s].to_bytes())
        federation.keys[s] = silo.RunKeys.from_bytes(federation.keys[s].to_bytes())
    masked = {s: epoch.mask(s, announcement) for s in federation.ids}
    for s in federation.ids:
        epoch.secrets[s] = silo.EpochSecrets.from_bytes(epoch.secrets[s].to_bytes())
    request = coordinator.unmask_request(federation.run, announcement, federation.ids)
    replies = {s: epoch.answer(s, announcement, request) for s in federation.ids}
    assert (epoch.aggregate(announcement, masked, replies)["A"] == epoch.expected(masked)["A"]).all()
