"""What both sides do the same way: checking the view of an epoch, and turning keys into masks on a vector."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from secagg.errors import ProtocolError
from secagg.keys import Scope, pair_key, self_mask_key
from secagg.messages import Announcement, BundlePublic, Run, UnmaskRequest
from secagg.prg import Mask, add_masks
from secagg.ring import RingArray


def scope_of(run: Run, epoch: int) -> Scope:
    """Return what the keys of an epoch are bound to."""
    return Scope(run.version, run.run_id, epoch)


def check_announcement(run: Run, announcement: Announcement) -> None:
    """Refuse an announcement that is not of this run or has participants the run does not allow.

    Guarantees: version, run id and roster hash are the run's; U_e is a subset of the roster with at least the
    run's minimum of silos and, in a regular graph, hangs together; the ring cannot wrap for that many.
    """
    if announcement.version != run.version:
        raise ProtocolError(f"announcement.version: expected {run.version}; use the same release everywhere")
    if announcement.run_id != run.run_id:
        raise ProtocolError("announcement.run_id: another run; check which run this silo joined")
    if announcement.roster_hash != run.roster_hash:
        raise ProtocolError("announcement.roster_hash: another roster than mine; compare rosters before going on")
    for silo_id in announcement.ids:
        run.roster.index(silo_id)
    count = len(announcement.ids)
    if count < run.minimum:
        raise ProtocolError(f"announcement.participants: {count} silos, the threshold is {run.minimum}")
    if reason := run.shortage(announcement.ids, announcement.ids):
        raise ProtocolError(f"announcement.participants: {reason}")
    if announcement.layout.parties < count:
        raise ProtocolError(f"announcement.layout: made for {announcement.layout.parties} summands, {count} take part")


def neighbourhood(run: Run, announcement: Announcement, silo_id: str) -> frozenset[str]:
    """Return the participants whose bundles a silo needs: itself and its neighbours."""
    return frozenset({silo_id, *run.neighbours(silo_id)}) & announcement.members


def check_publics(
    announcement: Announcement, publics: Sequence[BundlePublic], needed: Collection[str]
) -> dict[str, BundlePublic]:
    """Return the public parts by sender; refuse any that the announcement does not list by hash, or a missing one.

    ``needed`` are the participants whose parts are expected: all for the server, the neighbourhood for a silo.
    """
    by_sender = {public.sender: public for public in publics}
    if len(by_sender) != len(publics):
        raise ProtocolError("publics: two bundles of one silo; expected one per participant")
    if extra := sorted(by_sender.keys() - set(needed)):
        raise ProtocolError(f"publics: {extra[0]} is not a participant of the announcement, or no neighbour")
    for silo_id, expected in announcement.participants:
        if silo_id not in needed:
            continue
        public = by_sender.get(silo_id)
        if public is None:
            raise ProtocolError(f"publics: the bundle of {silo_id} is missing; ask the server for it")
        if public.epoch != announcement.epoch:
            raise ProtocolError(f"publics: the bundle of {silo_id} is for epoch {public.epoch}")
        if public.hash() != expected:
            raise ProtocolError(f"publics: the bundle of {silo_id} is not the one announced; abandon the epoch")
    return by_sender


def check_survivors(run: Run, announcement: Announcement, request: UnmaskRequest) -> None:
    """Refuse a request that is not for this epoch and announcement, or whose L is no subset of U_e."""
    if request.run_id != run.run_id or request.epoch != announcement.epoch:
        raise ProtocolError("unmask-request: another run or epoch than the announcement's")
    if request.announcement_hash != announcement.digest():
        raise ProtocolError("unmask-request.announcement_hash: made for another announcement; abandon the epoch")
    if outside := sorted(set(request.survivors) - set(announcement.ids)):
        raise ProtocolError(f"unmask-request.survivors: {outside[0]} does not take part in this epoch")


def self_mask(
    scope: Scope, public: BundlePublic, seed: bytes, announcement_hash: bytes, *, subtract: bool = False
) -> Mask:
    """Return a silo's own mask, to add to its vector or to take off a sum."""
    return Mask(self_mask_key(scope, public.sender, public.mask_key, seed, announcement_hash), subtract)


def pair_masks(
    scope: Scope, private: bytes, own: BundlePublic, peers: Iterable[BundlePublic], announcement_hash: bytes
) -> Iterator[Mask]:
    """Yield the masks that ``own``, whose mask key is given, shares with peers: plus for the smaller id, else minus.

    The two masks of a pair are therefore negatives of each other and vanish in the sum (Bonawitz et al. 2017, 4).
    """
    ready, this = X25519PrivateKey.from_private_bytes(private), (own.sender, own.mask_key)
    for peer in peers:
        key = pair_key(scope, ready, this, (peer.sender, peer.mask_key), announcement_hash)
        yield Mask(key, subtract=own.sender > peer.sender)


def apply_masks(arrays: Mapping[str, RingArray], masks: Iterable[Mask]) -> None:
    """Add masks to a vector in place, in every segment."""
    once = list(masks)
    for name, array in arrays.items():
        add_masks(array, once, name)
