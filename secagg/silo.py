"""The silo's side: pure functions from messages and state to messages.

State (:class:`RunKeys`, :class:`EpochSecrets`) can be written to disk between messages. Three rules need memory and
therefore the caller: store the state that :func:`record_masked` and :func:`record_answered` return **before** sending
what :func:`mask_input` and :func:`answer_unmask` returned (an outbox then repeats the stored bytes), and replace the
state by :func:`erase` when an announcement states the epoch's outcome. With that, a silo masks one vector and answers
one unmask request per epoch; the functions refuse a second one.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from secagg import cbor, ring
from secagg.epoch import (
    apply_masks,
    check_announcement,
    check_publics,
    check_survivors,
    neighbourhood,
    pair_masks,
    scope_of,
    self_mask,
)
from secagg.errors import NotEnoughSurvivors, ProtocolError, RingError
from secagg.identity import Signer
from secagg.keys import KEY_BYTES, Agreements, Envelope, Scope, commit_seed, open_shares, public_key, seal_shares
from secagg.messages import (
    EPOCH,
    Announcement,
    Bundle,
    BundlePublic,
    MaskedHeader,
    MaskedInput,
    Run,
    UnmaskRequest,
    UnmaskShares,
    ciphertext_hash,
)
from secagg.ring import EncodedVector, Layout
from secagg.shamir import SHARE_BYTES, Entropy, is_share, split_at
from secagg.signatures import arrays_hash, check_bundles, check_headers, sign_bundle, sign_masked, sign_shares
from secagg.wire import Message

# Empty once erased.
SECRET = cbor.binary(0, KEY_BYTES)
OWN_SHARE = cbor.binary(0, SHARE_BYTES)
MARK = cbor.binary(0, 32)

# A silo, the scope of its messages, and the bundles of its neighbourhood, its own among them, by sender.
View = tuple[str, Scope, dict[str, BundlePublic]]


@dataclass(frozen=True)
class RunKeys(Message):
    """A silo's share-encryption key of one run. Never shared, never reconstructed; repr hides it."""

    TYPE: ClassVar[str] = "run-keys"
    CHECKS: ClassVar[Mapping[str, cbor.Check]] = {"private": cbor.binary(KEY_BYTES)}
    private: bytes = field(repr=False)

    @cached_property
    def agreement_key(self) -> Agreements:
        """The private key, ready for use."""
        return Agreements(X25519PrivateKey.from_private_bytes(self.private))

    @cached_property
    def encryption_key(self) -> bytes:
        """The public key that goes into the enrolment (RFC 7748)."""
        return public_key(self.private)


@dataclass(frozen=True)
class EpochSecrets(Message):
    """A silo's secrets of one epoch and what it has done with them; repr hides every secret.

    Attributes
    ----------
    mask_private, seed : bytes
        X25519 mask key and self-mask seed b; empty once erased.
    own_mask_share, own_seed_share : bytes
        The silo's own share of each.
    bundle_hash : bytes
        Hash of the public part of the bundle made with these secrets.
    masked, answered : bytes
        Digest of the announcement a vector was masked for, and of the unmask request answered; empty before.
    """

    TYPE: ClassVar[str] = "epoch-secrets"
    CHECKS: ClassVar[Mapping[str, cbor.Check]] = {
        "run_id": cbor.binary(16),
        "silo_id": cbor.silo_id,
        "epoch": EPOCH,
        "bundle_hash": cbor.binary(32),
        "mask_private": SECRET,
        "seed": SECRET,
        "own_mask_share": OWN_SHARE,
        "own_seed_share": OWN_SHARE,
        "masked": MARK,
        "answered": MARK,
    }
    run_id: bytes
    silo_id: str
    epoch: int
    bundle_hash: bytes
    mask_private: bytes = field(repr=False)
    seed: bytes = field(repr=False)
    own_mask_share: bytes = field(repr=False)
    own_seed_share: bytes = field(repr=False)
    masked: bytes = b""
    answered: bytes = b""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len({bool(s) for s in (self.mask_private, self.seed, self.own_mask_share, self.own_seed_share)}) != 1:
            raise ProtocolError("epoch-secrets: some secrets are missing; expected all or, once erased, none")

    @property
    def erased(self) -> bool:
        """Whether the secrets are gone."""
        return not self.seed


def new_run_keys(entropy: Entropy = os.urandom) -> RunKeys:
    """Return a fresh share-encryption key for one run (RFC 7748). Assumption: ``entropy`` is uniform and private."""
    return RunKeys(entropy(KEY_BYTES))


def create_bundle(
    run: Run, keys: RunKeys, silo_id: str, epoch: int, entropy: Entropy = os.urandom, *, signer: Signer
) -> tuple[EpochSecrets, Bundle]:
    """Make the mask key and self-mask seed of an epoch and share both over the roster, or over the silo's neighbours.

    Guarantee: fewer than t silos learn nothing about either secret; only the addressed silo can open a ciphertext, and
    only as one of this run, epoch, sender and mask key. Every neighbour (in a complete graph, everyone) and the silo
    itself gets a share, absent ones included, because a bundle is made before U_e is known. Source: Bonawitz et al.
    2017, figure 4, rounds 0 and 1; Shamir 1979. The public part is signed by the silo's identity (RFC 8032).

    Assumptions: ``entropy`` is uniform and private; the roster passed ``signatures.check_roster`` and its identities
    are authentic. The caller stores the secrets before sending the bundle, and makes one bundle per (run, epoch).
    """
    own = run.roster.entry(silo_id)
    if own.encryption_key != keys.encryption_key:
        raise ProtocolError(f"{silo_id}: the roster lists another encryption key than mine; enrol again")
    scope = scope_of(run, epoch)
    mask_private, seed = entropy(KEY_BYTES), entropy(KEY_BYTES)
    mask_key = public_key(mask_private)
    holders = sorted((silo_id, *run.neighbours(silo_id)))
    xs, position = [run.roster.index(holder) + 1 for holder in holders], holders.index(silo_id)
    mask_shares = split_at(mask_private, run.threshold, xs, entropy)
    seed_shares = split_at(seed, run.threshold, xs, entropy)
    ciphertexts: dict[str, bytes] = {}
    for holder, mask_share, seed_share in zip(holders, mask_shares, seed_shares, strict=True):
        entry = run.roster.entry(holder)
        if entry.silo_id != silo_id:
            envelope = Envelope(
                scope, silo_id, entry.silo_id, own.encryption_key, entry.encryption_key, sender_mask_key=mask_key
            )
            ciphertexts[entry.silo_id] = seal_shares(envelope, keys.agreement_key, mask_share, seed_share, entropy)
    commitment = commit_seed(scope, silo_id, seed)
    public = BundlePublic(silo_id, epoch, mask_key, commitment, ciphertext_hash(ciphertexts))
    public = sign_bundle(run, public, signer)
    secrets = EpochSecrets(
        run.run_id,
        silo_id,
        epoch,
        public.hash(),
        mask_private,
        seed,
        mask_shares[position],
        seed_shares[position],
    )
    return secrets, Bundle(public, ciphertexts)


def mask_input(
    run: Run,
    keys: RunKeys,
    secrets: EpochSecrets,
    silo_id: str,
    announcement: Announcement,
    publics: Sequence[BundlePublic],
    encoded: EncodedVector,
    ledger_head: tuple[int, bytes],
    *,
    signer: Signer,
) -> MaskedInput:
    """Mask an encoded vector with the self mask and one mask per participating neighbour, bound to the announcement.

    Guarantee: as long as one other participant (in a regular graph, one neighbour) is honest and t - n_C honest silos
    never answer that this silo is lost, the arrays cannot be told from uniform ring elements by anyone else; silos that
    hold another announcement hold masks that do not cancel. Source: Bonawitz et al. 2017, figure 4, round 2.

    Refuses: another run, roster or epoch; fewer participants than the run's minimum, or a graph of them that falls
    apart; a bundle other than the announced one, or not signed by its sender's identity for this run, roster and
    epoch; a U_e
    without this silo's own bundle; a peer key of low order; values that do not fit the layout; a second vector under
    the same secrets (their difference would be the difference of the inputs).
    """
    view = check_signed_view(run, keys, secrets, silo_id, announcement, publics)
    return mask_in_view(run, secrets, announcement, view, encoded, ledger_head, signer=signer)


def mask_in_view(
    run: Run,
    secrets: EpochSecrets,
    announcement: Announcement,
    view: View,
    encoded: EncodedVector,
    ledger_head: tuple[int, bytes],
    *,
    signer: Signer,
) -> MaskedInput:
    """Do :func:`mask_input` after :func:`check_signed_view`, which a caller asks before it pays for its vector.

    The bundles' signatures are not checked again: the view holds the very records that were found signed.
    """
    own_id, scope, by_sender = view
    if secrets.masked:
        raise ProtocolError(
            f"epoch {secrets.epoch}: a vector was already masked with these secrets; send the stored reply again"
        )
    _check_encoded(announcement.layout, encoded)
    arrays = {segment.name: encoded.values[segment.name].copy() for segment in announcement.layout}
    digest, own = announcement.digest(), by_sender[own_id]
    peers = (peer for peer in by_sender.values() if peer.sender != own_id)
    masks = [self_mask(scope, own, secrets.seed, digest), *pair_masks(scope, secrets.mask_private, own, peers, digest)]
    apply_masks(arrays, masks)
    unsigned = MaskedInput(own_id, announcement.epoch, digest, arrays, ledger_head, arrays_hash(arrays))
    return sign_masked(run, unsigned, signer)


def answer_unmask(
    run: Run,
    keys: RunKeys,
    secrets: EpochSecrets,
    silo_id: str,
    announcement: Announcement,
    publics: Sequence[BundlePublic],
    ciphertexts: Mapping[str, bytes],
    request: UnmaskRequest,
    headers: Sequence[MaskedHeader],
    *,
    signer: Signer,
) -> UnmaskShares:
    """Give this silo's shares: of b for every survivor, of the mask key for every participant that was lost.

    Guarantee: never both of one peer. Together with 2t > N + n_C and one answer per epoch, no coalition of the server
    and n_C silos gets t shares of both secrets of an honest silo (Bonawitz et al. 2017, section 6.2). Nor are the
    shares of an epoch given for two announcements, which could take the masks between their silos apart: every
    survivor has to have signed for this one. A ciphertext that
    is missing or does not open leaves that peer's share out; others can make up for it. In a regular graph only
    neighbours have shares here; the whole list is checked all the same, because it has to be large enough and the
    graph of the survivors has to hang together. Only secrets that :func:`record_masked` marked for this very
    announcement answer; the answer is signed for this request alone.

    Parameters
    ----------
    ciphertexts : mapping of str to bytes
        Sender to the ciphertext addressed to this silo (``coordinator.ciphertexts_for``).
    request : UnmaskRequest
        Its survivors must be at least the run's minimum of participants, this silo among them.
    headers : sequence of MaskedHeader
        That of every survivor's vector, in their order (``envelopes.UnmaskCall.headers``).
    """
    own_id, scope, by_sender = check_view(run, keys, secrets, silo_id, announcement, publics)
    check_survivors(run, announcement, request)
    if own_id not in request.survivors:
        raise ProtocolError(f"unmask-request.survivors: {own_id} (this silo) is missing; only survivors are asked")
    if reason := run.shortage(announcement.ids, request.survivors):
        raise NotEnoughSurvivors(f"unmask-request: survivors: {reason}")
    if not secrets.masked:
        raise ProtocolError(
            f"epoch {secrets.epoch}: no vector was masked with these secrets; there is nothing to unmask"
        )
    # The mark also says that the bundles, which the announcement lists by hash, were found signed.
    if secrets.masked != announcement.digest():
        raise ProtocolError(f"epoch {secrets.epoch}: my vector was masked for another announcement; abandon the epoch")
    if secrets.answered not in (b"", request.digest()):
        raise ProtocolError(f"epoch {secrets.epoch}: another unmask request was already answered")
    check_headers(run, request, headers)
    own_key = run.roster.entry(own_id).encryption_key
    survivors = set(request.survivors)
    seed_shares: dict[str, bytes] = {own_id: secrets.own_seed_share}
    mask_shares: dict[str, bytes] = {}
    for peer_id, public in by_sender.items():
        if peer_id == own_id or peer_id not in ciphertexts:
            continue
        sender_key = run.roster.entry(peer_id).encryption_key
        envelope = Envelope(scope, peer_id, own_id, sender_key, own_key, sender_mask_key=public.mask_key)
        opened = open_shares(envelope, keys.agreement_key, ciphertexts[peer_id])
        if opened is None:
            continue
        kind, share = (seed_shares, opened[1]) if peer_id in survivors else (mask_shares, opened[0])
        if is_share(share):
            kind[peer_id] = share
    return sign_shares(run, request, UnmaskShares(own_id, announcement.epoch, seed_shares, mask_shares), signer)


def record_masked(secrets: EpochSecrets, announcement: Announcement) -> EpochSecrets:
    """Return the state after :func:`mask_input`; with it, masking again is refused. Store it before sending.

    Refuses secrets that are marked for another announcement already.
    """
    if secrets.masked not in (b"", announcement.digest()):
        raise ProtocolError(f"epoch {secrets.epoch}: a vector was already masked for another announcement")
    return replace(secrets, masked=announcement.digest())


def record_answered(secrets: EpochSecrets, request: UnmaskRequest) -> EpochSecrets:
    """Return the state after :func:`answer_unmask`; with it, another request is refused. Store it before sending.

    Refuses secrets that are marked for another request already.
    """
    if secrets.answered not in (b"", request.digest()):
        raise ProtocolError(f"epoch {secrets.epoch}: another unmask request was already answered")
    return replace(secrets, answered=request.digest())


def erase(secrets: EpochSecrets) -> EpochSecrets:
    """Return a stub without secrets that remembers what was done; every later use is refused.

    Python cannot overwrite the memory of bytes: what this guarantees is that the state to store has no secret left.
    """
    return replace(secrets, mask_private=b"", seed=b"", own_mask_share=b"", own_seed_share=b"")


def check_view(
    run: Run,
    keys: RunKeys,
    secrets: EpochSecrets,
    silo_id: str,
    announcement: Announcement,
    publics: Sequence[BundlePublic],
) -> View:
    """Check that secrets, announcement and signed bundles are of one epoch of this run, this silo's among them.

    Nothing secret is used. A caller that pays for what it is about to compute asks here first.

    Returns
    -------
    View

    Raises
    ------
    ProtocolError
        Naming what does not belong together.
    """
    if secrets.erased:
        raise ProtocolError(f"epoch {secrets.epoch}: the secrets were erased; the epoch is over for this silo")
    if secrets.silo_id != silo_id or run.roster.entry(silo_id).encryption_key != keys.encryption_key:
        raise ProtocolError(f"{silo_id}: these keys and secrets belong to another silo or run")
    if secrets.run_id != run.run_id or secrets.epoch != announcement.epoch:
        raise ProtocolError(
            f"announcement.epoch: {announcement.epoch}, but these secrets are for epoch {secrets.epoch} of their run"
        )
    check_announcement(run, announcement)
    if dict(announcement.participants).get(silo_id) != secrets.bundle_hash:
        raise ProtocolError(f"announcement.participants: {silo_id} is not listed with the bundle it made")
    by_sender = check_publics(announcement, publics, neighbourhood(run, announcement, silo_id))
    return silo_id, scope_of(run, announcement.epoch), by_sender


def check_signed_view(
    run: Run,
    keys: RunKeys,
    secrets: EpochSecrets,
    silo_id: str,
    announcement: Announcement,
    publics: Sequence[BundlePublic],
) -> View:
    """Do :func:`check_view`, and refuse bundles their senders did not sign for this run, roster and epoch."""
    view = check_view(run, keys, secrets, silo_id, announcement, publics)
    # The silo's own is the one it made: it has the hash of the secrets.
    check_bundles(run, (public for sender, public in view[2].items() if sender != silo_id))
    return view


def _check_encoded(layout: Layout, encoded: EncodedVector) -> None:
    ring.check_vector(layout, encoded.values)
    for segment in layout:
        signed = ring.signed_view(encoded.values[segment.name])
        if int(signed.max()) > segment.top or int(signed.min()) < -segment.top:
            raise RingError(f"segment {segment.name!r}: encoded with another bound or step than announced")
