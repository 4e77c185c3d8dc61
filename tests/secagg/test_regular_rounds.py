"""Rounds over a regular graph: the survivors' exact sum or a clean end, and no list that would open a part."""

import dataclasses
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg import coordinator, silo
from secagg.errors import NotEnoughSurvivors, ProtocolError
from secagg.graph import Circle
from secagg.graph_parameters import Degree, Rates, bounds, smallest
from secagg.messages import Announcement, UnmaskRequest, ciphertext_hash
from tests.secagg.federation import Epoch
from tests.secagg.regular import Regular


def check_sum(epoch: Epoch, lost_masked: list[str], lost_unmask: list[str]) -> None:
    announcement, masked, replies = epoch.collect(lost_masked, lost_unmask)
    total = epoch.aggregate(announcement, masked, replies)
    expected = epoch.expected(masked)
    assert {name: array.tolist() for name, array in total.items()} == {n: a.tolist() for n, a in expected.items()}


def holders(epoch: Epoch, owner: str, left: set[str]) -> int:
    return len(left & {owner, *epoch.federation.run.neighbours(owner)})


@settings(max_examples=80, deadline=None)
@given(data=st.data(), t=st.integers(2, 4))
def test_losses_at_every_stage_leave_the_survivors_sum_or_a_clean_end(data: st.DataObject, t: int) -> None:
    federation = Regular(12, degree=Degree(6, t), rates=Rates(0.0, 0.25, False, 3, 0), tag=str(t))
    order = data.draw(st.permutations(federation.ids))
    cuts = sorted(data.draw(st.integers(0, 6)) for _ in range(3))
    absent, lost_masked, lost_unmask = order[: cuts[0]], order[cuts[0] : cuts[1]], order[cuts[1] : cuts[2]]
    epoch = federation.epoch(members=[s for s in federation.ids if s not in absent])
    there = set(epoch.members) - set(lost_masked)
    replying = there - set(lost_unmask)
    possible = len(there) >= 9 and all(holders(epoch, s, replying - (set() if s in there else {s})) >= t
                                       for s in epoch.members)  # fmt: skip
    try:
        check_sum(epoch, lost_masked, lost_unmask)
    except NotEnoughSurvivors:
        assert not possible
    else:
        assert possible


def test_every_silo_sends_and_is_sent_only_what_its_neighbours_need() -> None:
    epoch = Regular(12).epoch()
    run, announcement = epoch.federation.run, epoch.announce()
    for s in epoch.members:
        near = set(run.neighbours(s))
        assert set(epoch.bundles[s].ciphertexts) == near
        publics, ciphertexts = coordinator.view_for(run, announcement, epoch.bundles, s)
        assert {public.sender for public in publics} == near | {s}
        assert set(ciphertexts) == near


def test_a_bundle_for_others_than_the_neighbours_is_refused() -> None:
    epoch = Regular(12).epoch()
    run, good = epoch.federation.run, epoch.bundles["silo-02"]
    near = run.neighbours("silo-02")
    stranger = next(s for s in epoch.members if s != "silo-02" and s not in near)
    for ciphertexts in (
        {s: c for s, c in good.ciphertexts.items() if s != near[0]},
        {**good.ciphertexts, stranger: good.ciphertexts[near[0]]},
    ):
        public = dataclasses.replace(good.public, ciphertext_hash=ciphertext_hash(ciphertexts))
        bundle = dataclasses.replace(good, public=public, ciphertexts=ciphertexts)
        with pytest.raises(ProtocolError, match="silo-02"):
            coordinator.check_bundle(run, bundle, 0)


def test_a_silo_wants_exactly_its_neighbourhoods_public_parts() -> None:
    epoch = Regular(12).epoch()
    f, announcement = epoch.federation, epoch.announce()
    s = f.ids[0]
    own = (f.run, f.keys[s], epoch.secrets[s], s, announcement)
    view = epoch.view(s, announcement)
    for publics, says in ((epoch.publics, "no neighbour"), (view[1:], "missing"), (view[:-1], "missing")):
        with pytest.raises(ProtocolError, match=says):
            silo.mask_input(*own, publics, epoch.inputs[s], (0, bytes(32)), signer=f.signers[s])


def test_no_reply_has_both_shares_of_a_peer_nor_any_of_a_stranger() -> None:
    epoch = Regular(12).epoch()
    _, _, replies = epoch.collect(lost_masked=["silo-03", "silo-07"])
    for s, reply in replies.items():
        near = {s, *epoch.federation.run.neighbours(s)}
        assert not reply.self_mask_shares.keys() & reply.mask_key_shares.keys()
        assert reply.mask_key_shares.keys() == near & {"silo-03", "silo-07"}
        assert reply.self_mask_shares.keys() == near - {"silo-03", "silo-07"}


def test_shares_of_strangers_do_not_count() -> None:
    """A reply with a share it cannot have neither moves nor stops the sum."""
    epoch = Regular(12).epoch()
    announcement, masked, replies = epoch.collect()
    near = epoch.federation.run.neighbours("silo-00")
    stranger = next(s for s in epoch.members if s != "silo-00" and s not in near)
    made_up = {**replies[stranger].self_mask_shares, "silo-00": bytes(33)}
    replies[stranger] = dataclasses.replace(replies[stranger], self_mask_shares=made_up)
    replies = epoch.resigned(announcement, masked, replies)
    assert (epoch.aggregate(announcement, masked, replies)["A"] == epoch.expected(masked)["A"]).all()


def test_an_announcement_of_another_graph_is_refused() -> None:
    epoch = Regular(12).epoch()
    f, announcement = epoch.federation, epoch.announce()
    assert f.run.graph is not None
    other = dataclasses.replace(f.run, graph=dataclasses.replace(f.run.graph, degree=8))
    s = f.ids[0]
    own = (other, f.keys[s], epoch.secrets[s], s, announcement)
    with pytest.raises(ProtocolError, match="roster_hash"):
        silo.mask_input(*own, epoch.publics, epoch.inputs[s], (0, bytes(32)), signer=f.signers[s])


# --- graphs that fall apart ---------------------------------------------------------------------------


def cuttable() -> tuple[Epoch, list[str], Circle]:
    """Sixteen silos with two neighbours on either side, of which four may be missing: two gaps cut the circle."""
    federation = Regular(16, degree=Degree(4, 2), rates=Rates(0.0, 0.25, False, 0, 0))
    circle = federation.run.circle
    assert circle is not None
    gone = {circle.order[at] for at in (0, 1, 8, 9)}
    return federation.epoch(), [s for s in federation.ids if s not in gone], circle


def test_neither_side_unmasks_a_graph_that_falls_apart() -> None:
    epoch, left, circle = cuttable()
    f, announcement = epoch.federation, epoch.announce()
    assert not circle.connected(left)
    with pytest.raises(NotEnoughSurvivors, match="falls apart"):
        coordinator.unmask_request(f.run, announcement, left)
    s = left[0]
    request = UnmaskRequest(f.run.run_id, 0, announcement.digest(), tuple(left))
    with pytest.raises(NotEnoughSurvivors, match="falls apart"):
        epoch.answer(s, announcement, request)
    # Four others may be missing.
    fine = [s for s in f.ids if s not in circle.order[0:8:2]]
    s = fine[0]
    epoch.mask(s, announcement)
    epoch.answer(s, announcement, coordinator.unmask_request(f.run, announcement, fine))


def test_neither_side_begins_an_epoch_whose_graph_falls_apart() -> None:
    epoch, left, _ = cuttable()
    f = epoch.federation
    few = {s: epoch.bundles[s] for s in left}
    with pytest.raises(NotEnoughSurvivors, match="falls apart"):
        coordinator.announce(f.run, 0, few, epoch.layout, b"")
    full = epoch.announce()
    listed = tuple(row for row in full.participants if row[0] in left)
    split = Announcement.from_bytes(dataclasses.replace(full, participants=listed).to_bytes())
    with pytest.raises(ProtocolError, match="falls apart"):
        epoch.mask(left[0], split)


def test_fewer_than_the_stated_survivors_are_refused_by_both_sides() -> None:
    epoch = Regular(12).epoch()
    f, announcement = epoch.federation, epoch.announce()
    left = f.ids[:8]
    with pytest.raises(NotEnoughSurvivors, match="8 silos, 9 are needed"):
        coordinator.unmask_request(f.run, announcement, left)
    with pytest.raises(NotEnoughSurvivors, match="8 silos, 9 are needed"):
        epoch.answer(left[0], announcement, UnmaskRequest(f.run.run_id, 0, announcement.digest(), left))


def test_against_an_active_server_no_row_may_lose_more_than_stated() -> None:
    rates = Rates(0.05, 0.1, True)
    degree = smallest(60, rates)
    assert degree is not None
    run = Regular(60, degree=degree, rates=rates).run
    assert run.circle is not None
    worst = bounds(60, degree.k, rates).window_missing
    assert worst < rates.missing(60) or worst == 6
    for gone in range(rates.missing(60) + 1):
        row = set(run.circle.order[:gone])
        left = [s for s in run.roster.ids if s not in row]
        assert bool(run.shortage(run.roster.ids, left)) == (gone > worst)


# --- lists that differ --------------------------------------------------------------------------------


def isolates(federation: Regular) -> bool:
    """Say whether lists that each silo accepts can give a server all mask keys around one honest silo, and its seed.

    The server knows the shares of the corrupt silos. It tells each honest silo that as many of the victim's neighbours
    are lost as the silo accepts, those first that need it most.
    """
    run, rates = federation.run, federation.rates
    circle = run.circle
    assert circle is not None
    n = len(run.roster.ids)
    corrupt = set(sorted(run.roster.ids)[: rates.corrupt(n)])  # the order of the circle does not depend on names
    victim = next(s for s in reversed(run.roster.ids))
    around = set(circle.neighbours(victim)) - corrupt
    told: Counter[str] = Counter()
    alive = 0
    for s in run.roster.ids:
        if s in corrupt:
            continue
        gone: set[str] = set()
        for peer in sorted((around - {s}) & set(circle.neighbours(s)), key=lambda peer: told[peer]):
            if not run.shortage(run.roster.ids, set(run.roster.ids) - gone - {peer}):
                gone.add(peer)
        told.update(gone)
        alive += victim in (s, *circle.neighbours(s)) and s not in gone
    helped = {s: len(corrupt & set(circle.neighbours(s))) for s in (*around, victim)}
    return alive + helped[victim] >= run.threshold and all(told[s] + helped[s] >= run.threshold for s in around)


def test_lists_that_differ_open_a_silo_of_a_graph_made_for_honest_servers_only() -> None:
    semi_honest, active = Rates(0.05, 0.05, False), Rates(0.05, 0.05, True)
    for rates, broken in ((semi_honest, True), (active, False)):
        degree = smallest(200, rates)
        assert degree is not None
        assert isolates(Regular(200, degree=degree, rates=rates)) == broken
