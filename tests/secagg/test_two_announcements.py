"""A server that shows two announcements of one epoch, to lift the masks of a part with shares that both parts give.

Within one announcement a list may leave out N - t silos. A second announcement that leaves out N - t itself would put
as many again out of the way: of 20 silos, 5 of them colluding, all keys around a single silo would come out.
"""

import dataclasses
from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from secagg import coordinator, ring, silo
from secagg.envelopes import UnmaskCall
from secagg.epoch import apply_masks, pair_masks, scope_of, self_mask
from secagg.errors import NotEnoughSurvivors, ProtocolError
from secagg.keys import Envelope, open_shares
from secagg.messages import Announcement, MaskedHeader, MaskedInput, UnmaskRequest
from secagg.shamir import combine
from secagg.signatures import check_headers, masked_statement
from tests.secagg.federation import Epoch, Federation

COLLUDERS, THRESHOLD = 5, 14
Headers = Callable[[UnmaskCall], tuple[MaskedHeader, ...]]


class Attack:
    """The server and the last five of 20 silos against the first, within 2 * 14 > 20 + 5.

    The victim is shown an announcement of itself, the corrupt silos and eight others, which are shown one of everyone.
    """

    def __init__(self) -> None:
        self.federation = Federation(20, tag="two")
        self.federation.run = dataclasses.replace(self.federation.run, max_colluders=COLLUDERS)
        self.run = self.federation.run
        assert self.run.threshold == THRESHOLD
        self.epoch: Epoch = self.federation.epoch()
        ids = self.federation.ids
        self.corrupt, (self.victim, *self.honest) = ids[-COLLUDERS:], ids[:-COLLUDERS]
        self.targets = self.honest[: THRESHOLD - COLLUDERS - 1]
        self.everyone = self.epoch.announce()
        around = {self.victim, *self.corrupt, *self.targets}
        rows = tuple(row for row in self.everyone.participants if row[0] in around)
        self.few = dataclasses.replace(self.everyone, participants=rows)
        self.masked = {self.victim: self.mask(self.victim, self.few)}
        self.masked |= {s: self.mask(s, self.everyone) for s in (*self.honest, *self.corrupt)}

    def mask(self, s: str, announcement: Announcement) -> MaskedInput:
        e, f = self.epoch, self.federation
        publics = [public for public in e.publics if public.sender in announcement.members]
        held = f.run, f.keys[s], e.secrets[s], s, announcement, publics, e.inputs[s], (1, bytes(32))
        message = silo.mask_input(*held, signer=f.signers[s])
        e.secrets[s] = silo.record_masked(e.secrets[s], announcement)
        return message

    def gather(self, headers: Headers) -> tuple[dict[str, dict[int, bytes]], list[str]]:
        """Ask every honest silo but the victim, and return the shares by owner, and who refused."""
        e, f, run = self.epoch, self.federation, self.run
        shares: dict[str, dict[int, bytes]] = {owner: {} for owner in (*self.targets, self.victim)}
        for s in self.corrupt:
            private = X25519PrivateKey.from_private_bytes(f.keys[s].private)
            for owner, held in shares.items():
                keys = run.roster.entry(owner).encryption_key, run.roster.entry(s).encryption_key
                sealed = Envelope(scope_of(run, 0), owner, s, *keys, e.bundles[owner].public.mask_key)
                opened = open_shares(sealed, private, e.bundles[owner].ciphertexts[s])
                assert opened is not None
                held[run.roster.index(s) + 1] = opened[owner == self.victim]
        refused = []
        for s in self.honest:
            others = [target for target in self.targets if target != s]
            lost = sorted(others, key=lambda target: len(shares[target]))[: 20 - THRESHOLD]
            survivors = tuple(name for name in f.ids if name not in lost)
            request = UnmaskRequest(run.run_id, 0, self.everyone.digest(), survivors)
            call = UnmaskCall.from_bytes(UnmaskCall.of(request, self.masked).to_bytes())
            view = coordinator.view_for(run, self.everyone, e.bundles, s)
            told = run, f.keys[s], e.secrets[s], s, self.everyone, *view, call.request, headers(call)
            try:
                reply = silo.answer_unmask(*told, signer=f.signers[s])
            except ProtocolError:
                refused.append(s)
                continue
            for target in lost:
                shares[target][run.roster.index(s) + 1] = reply.mask_key_shares[target]
            shares[self.victim][run.roster.index(s) + 1] = reply.self_mask_shares[self.victim]
        return shares, refused

    def opens(self, shares: dict[str, dict[int, bytes]]) -> bool:
        """Whether the shares lift every mask off the victim's vector."""
        e, scope, arrays = self.epoch, scope_of(self.run, 0), dict(self.masked[self.victim].arrays)
        publics = {public.sender: public for public in e.publics}
        try:
            found = {owner: combine(held, THRESHOLD) for owner, held in shares.items()}
        except NotEnoughSurvivors:
            return False
        digest, own = self.few.digest(), publics[self.victim]
        apply_masks(arrays, [self_mask(scope, own, found.pop(self.victim), digest, subtract=True)])
        for peer, key in (found | {s: e.secrets[s].mask_private for s in self.corrupt}).items():
            apply_masks(arrays, pair_masks(scope, key, publics[peer], [own], digest))
        return all((ring.to_signed(arrays[g.name]) == e.inputs[self.victim].signed(g.name)).all() for g in e.layout)


def test_shares_for_two_announcements_do_not_open_a_single_silo() -> None:
    attack = Attack()
    shares, refused = attack.gather(UnmaskCall.headers)
    assert refused == attack.honest, "a silo answers only among survivors that signed for its own announcement"
    assert not attack.opens(shares)


def test_the_attack_works_if_nobody_looks_at_what_the_survivors_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the check is for; without this test the one above could pass because the attack is badly made."""
    monkeypatch.setattr(silo, "check_headers", lambda run, request, headers: None)
    attack = Attack()
    shares, refused = attack.gather(UnmaskCall.headers)
    assert not refused
    assert attack.opens(shares)


def test_every_survivor_has_to_have_signed_for_this_announcement() -> None:
    epoch = Federation(5).epoch(3)
    announcement, masked, _ = epoch.collect()
    run, request = epoch.federation.run, coordinator.unmask_request(epoch.federation.run, announcement, list(masked))
    good = UnmaskCall.of(request, masked).headers()
    check_headers(run, request, good)
    signer = epoch.federation.signers["silo-01"]
    elsewhere = dataclasses.replace(good[1], announcement_hash=bytes(32))
    elsewhere = dataclasses.replace(elsewhere, signature=signer.sign(masked_statement(run, elsewhere)))
    earlier = dataclasses.replace(good[1], epoch=2)
    earlier = dataclasses.replace(earlier, signature=signer.sign(masked_statement(run, earlier)))
    relabelled = dataclasses.replace(good[2], sender="silo-01")
    longer = dataclasses.replace(good[1], ledger_head=(4, bytes(32)))
    for bad in (elsewhere, earlier, relabelled, longer):
        with pytest.raises(ProtocolError, match="silo-01"):
            check_headers(run, request, (good[0], bad, *good[2:]))
    for headers in (good[:-1], (*good, good[0]), (good[1], good[0], *good[2:]), ()):
        with pytest.raises(ProtocolError, match="every survivor"):
            check_headers(run, request, headers)
    with pytest.raises(ProtocolError, match="one of each survivor"):
        UnmaskCall(request, UnmaskCall.of(request, masked).vectors[:-1])
