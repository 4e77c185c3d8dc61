"""The server's side: pure functions over frozen state. The caller stores each result before it uses it."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from secagg.epoch import (
    apply_masks,
    check_announcement,
    check_publics,
    pair_masks,
    scope_of,
    self_mask,
)
from secagg.errors import NotEnoughSurvivors, ProtocolError, RingError
from secagg.keys import check_public_key, commit_seed, public_key
from secagg.messages import (
    Announcement,
    Bundle,
    BundlePublic,
    EpochOutcome,
    MaskedInput,
    Run,
    UnmaskRequest,
    UnmaskShares,
)
from secagg.recover import Holders, recover
from secagg.ring import IntArray, Layout, check_vector, to_signed
from secagg.signatures import check_bundles, check_masked_signature, check_shares_signature


def check_bundle(run: Run, bundle: Bundle, epoch: int) -> Bundle:
    """Return a bundle that is fit for the epoch; refuse one that would stop the others, naming its sender.

    A bundle that is not signed by its sender's identity for this run, roster and epoch would be refused by every silo.
    Check bundles as they come in.
    """
    _check_bundle_fit(run, bundle, epoch)
    check_bundles(run, [bundle.public])
    return bundle


def _check_bundle_fit(run: Run, bundle: Bundle, epoch: int) -> None:
    sender = bundle.public.sender
    run.roster.index(sender)
    if bundle.public.epoch != epoch:
        raise ProtocolError(f"{sender}: bundle for epoch {bundle.public.epoch}, expected {epoch}")
    expected = set(run.neighbours(sender))
    if odd := sorted(expected ^ set(bundle.ciphertexts)):
        raise ProtocolError(f"{sender}: ciphertexts must go to its neighbours, each once; {odd[0]} does not fit")
    check_public_key(bundle.public.mask_key, sender)


def announce(
    run: Run,
    epoch: int,
    bundles: Mapping[str, Bundle],
    layout: Layout,
    context: bytes,
    outcomes: Sequence[EpochOutcome] = (),
    ledger_heads: Mapping[str, bytes] | None = None,
) -> Announcement:
    """Fix U_e, the silos whose bundles are given, and everything common to the epoch.

    Guarantee: every participant that accepts this announcement and no other has masks that cancel. Refuses a bundle
    under another name, for another epoch, without a ciphertext for each neighbour or with a key of low order
    (:class:`ProtocolError`), and too few bundles or, in a regular graph, too many missing in one place
    (:class:`NotEnoughSurvivors`). Assumption: the bundles passed :func:`check_bundle` when they came in; their
    signatures are not checked again, since the silos, who need not trust the server in this, check them before they
    mask.
    """
    for silo_id, bundle in bundles.items():
        if bundle.public.sender != silo_id:
            raise ProtocolError(f"{silo_id}: its bundle names {bundle.public.sender}")
        _check_bundle_fit(run, bundle, epoch)
    if reason := run.shortage(bundles.keys(), bundles.keys()):
        raise NotEnoughSurvivors(f"epoch {epoch}: bundles: {reason}; wait for more")
    announcement = Announcement(
        run.version,
        run.run_id,
        epoch,
        run.roster_hash,
        tuple((silo_id, bundles[silo_id].public.hash()) for silo_id in sorted(bundles)),
        layout,
        tuple(outcomes),
        ledger_heads or {},
        context,
    )
    check_announcement(run, announcement)
    return announcement


def ciphertexts_for(bundles: Mapping[str, Bundle], receiver: str) -> dict[str, bytes]:
    """Return, by sender, the ciphertexts of the bundles that are addressed to one silo."""
    return {
        sender: bundle.ciphertexts[receiver] for sender, bundle in bundles.items() if receiver in bundle.ciphertexts
    }


def view_for(
    run: Run, announcement: Announcement, bundles: Mapping[str, Bundle], silo_id: str
) -> tuple[tuple[BundlePublic, ...], dict[str, bytes]]:
    """Return what a silo needs beside the announcement: its neighbourhood's public parts, and the shares sent to it.

    In a complete graph that is everyone's; in a regular one at most k + 1 and k, so that what the server
    sends and holds grows with the degree.
    """
    there = {s: bundles[s] for s in run.neighbours(silo_id) if s in announcement.members}
    shares = {s: bundle.ciphertexts[silo_id] for s, bundle in there.items()}
    there[silo_id] = bundles[silo_id]
    return tuple(there[s].public for s in sorted(there)), shares


def check_masked(run: Run, announcement: Announcement, message: MaskedInput) -> MaskedInput:
    """Return a masked input that fits the announcement; refuse any other, naming its sender.

    Guarantee: header, arrays and ledger head are signed by the sender's identity (RFC 8032). A refused input means the
    silo counts as lost. Nothing here depends on the values: masked values are uniform.
    """
    _check_fit(run, announcement, message)
    check_masked_signature(run, message)
    return message


def _check_fit(run: Run, announcement: Announcement, message: MaskedInput) -> None:
    sender = message.sender
    if sender not in announcement.members:
        raise ProtocolError(f"{sender}: masked input of a silo that does not take part in epoch {announcement.epoch}")
    if announcement.run_id != run.run_id:
        raise ProtocolError("announcement.run_id: another run than this one")
    if message.epoch != announcement.epoch or message.announcement_hash != announcement.digest():
        raise ProtocolError(f"{sender}: masked for another epoch or announcement; count the silo as lost")
    try:
        check_vector(announcement.layout, message.arrays)
    except RingError as error:
        raise ProtocolError(f"{sender}: {error}") from error


def unmask_request(run: Run, announcement: Announcement, survivors: Sequence[str]) -> UnmaskRequest:
    """Fix L, the silos whose masked inputs the server holds.

    Fewer than the run's minimum, or survivors whose graph falls apart, raise :class:`NotEnoughSurvivors`.
    """
    if len(set(survivors)) != len(survivors):
        raise ProtocolError("survivors: a silo is listed twice")
    if outside := sorted(set(survivors) - set(announcement.ids)):
        raise ProtocolError(f"survivors: {outside[0]} does not take part in epoch {announcement.epoch}")
    if reason := run.shortage(announcement.ids, set(survivors)):
        raise NotEnoughSurvivors(f"epoch {announcement.epoch}: masked inputs: {reason}; abandon the epoch")
    return UnmaskRequest(run.run_id, announcement.epoch, announcement.digest(), tuple(sorted(set(survivors))))


def check_reply(run: Run, announcement: Announcement, request: UnmaskRequest, reply: UnmaskShares) -> UnmaskShares:
    """Return an unmask reply that its sender signed as the answer to this request; refuse any other, naming it.

    Check replies as they come in, so that one that does not fit is left out and cannot stop the epoch. Whether the
    shares in it are right only :func:`aggregate` can tell.
    """
    _check_answer(announcement, request, reply)
    check_shares_signature(run, request, reply)
    return reply


def _check_answer(announcement: Announcement, request: UnmaskRequest, reply: UnmaskShares) -> None:
    sender, survivors = reply.sender, request.members
    if sender not in survivors:
        raise ProtocolError(f"{sender}: unmask reply of a silo that is not among the survivors; leave it out")
    if reply.epoch != request.epoch:
        raise ProtocolError(f"{sender}: unmask reply for epoch {reply.epoch}, expected {request.epoch}; leave it out")
    named = reply.mask_key_shares
    fits = survivors.issuperset(reply.self_mask_shares) and announcement.members.issuperset(named)
    if not fits or not survivors.isdisjoint(named):
        raise ProtocolError(f"{sender}: unmask reply answers for another list of survivors; leave it out")


def aggregate(
    run: Run,
    announcement: Announcement,
    publics: Sequence[BundlePublic],
    masked: Mapping[str, MaskedInput],
    replies: Mapping[str, UnmaskShares],
) -> dict[str, IntArray]:
    """Return the signed sum of the survivors' vectors, per segment.

    Guarantee: exactly the integer sum of what the survivors encoded, if they followed the protocol. Each reconstructed
    secret is checked against H(b) or the mask key of its bundle, so wrong shares cannot shift the sum: they are sorted
    out, or named. Assumption: inputs and replies passed :func:`check_masked` and :func:`check_reply` when they came
    in; their signatures are not checked again. Source: Bonawitz et al. 2017, figure 4, round 4.

    Parameters
    ----------
    masked : mapping of str to MaskedInput
        The inputs of exactly the survivors L that were asked.
    replies : mapping of str to UnmaskShares
        At least t of the survivors' replies; in a regular graph, of every needed secret's holders. Else
        :class:`NotEnoughSurvivors`.
    """
    check_announcement(run, announcement)
    by_sender = check_publics(announcement, publics, announcement.members)
    for silo_id, message in masked.items():
        if message.sender != silo_id:
            raise ProtocolError(f"{silo_id}: its masked input names {message.sender}")
        _check_fit(run, announcement, message)
    request = unmask_request(run, announcement, list(masked))
    lost = announcement.members - set(masked)
    for silo_id, reply in replies.items():
        if reply.sender != silo_id:
            raise ProtocolError(f"{silo_id}: its unmask reply names {reply.sender}")
        _check_answer(announcement, request, reply)
    _enough(len(replies), run, f"epoch {announcement.epoch}: unmask replies")

    scope, digest = scope_of(run, announcement.epoch), announcement.digest()

    def commits(owner: str, seed: bytes) -> bool:
        return commit_seed(scope, owner, seed) == by_sender[owner].seed_commitment

    def matches(owner: str, private: bytes) -> bool:
        return public_key(private) == by_sender[owner].mask_key

    holders = Holders()
    seeds = _secrets(
        run, "self-mask seed", masked, {s: r.self_mask_shares for s, r in replies.items()}, commits, holders
    )
    mask_privates = _secrets(
        run, "mask key", lost, {s: r.mask_key_shares for s, r in replies.items()}, matches, holders
    )

    inputs = list(masked.values())
    total = {segment.name: inputs[0].arrays[segment.name].copy() for segment in announcement.layout}
    for message in inputs[1:]:
        for name, array in total.items():
            array += message.arrays[name]
    apply_masks(total, (self_mask(scope, by_sender[s], seed, digest, subtract=True) for s, seed in seeds.items()))
    for owner, private in mask_privates.items():
        # The lost silo's mask is the negative of the survivor's: adding it takes the survivor's off.
        left = (by_sender[s] for s in run.neighbours(owner) if s in masked)
        apply_masks(total, pair_masks(scope, private, by_sender[owner], left, digest))
    return {name: to_signed(array) for name, array in total.items()}


def _secrets(
    run: Run,
    what: str,
    owners: Collection[str],
    given: Mapping[str, Mapping[str, bytes]],
    accept: Callable[[str, bytes], bool],
    holders: Holders,
) -> dict[str, bytes]:
    """Reconstruct the secrets of ``owners`` from the shares given by holder, each by its owner's neighbours or itself.

    Owners and holders are gone through along the circle, holders that are ahead first: those that give one secret then
    hold shares of the next ones as well, and t weights serve about k - t secrets instead of one.
    """
    order = run.circle.order if run.circle is not None else run.roster.ids
    shares: dict[str, dict[int, bytes]] = {owner: {} for owner in order if owner in owners}
    for holder in reversed(order):
        held = given.get(holder, {})
        x = run.roster.index(holder) + 1
        for owner in held.keys() & {holder, *run.neighbours(holder)}:
            if owner in shares:
                shares[owner][x] = held[owner]
    return {
        owner: recover(f"{what} of {owner}", of, run.threshold, partial(accept, owner), holders)
        for owner, of in shares.items()
    }


def _enough(count: int, run: Run, what: str) -> None:
    if count < run.threshold:
        raise NotEnoughSurvivors(f"{what}: {count}, {run.threshold} are needed; abandon the epoch")
