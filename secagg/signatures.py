"""What a silo signs with its identity key (Ed25519, RFC 8032), and the checks of it.

A statement is the deterministic CBOR array of a label, the protocol version, the run and everything the message says.
Each purpose has its own label, and no other thing a silo signs begins like one of them, so that no signature of one
purpose, run, epoch or sender holds for another. Signatures are mandatory.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from secagg import cbor
from secagg.errors import ProtocolError
from secagg.identity import Signer, holds
from secagg.messages import BundlePublic, MaskedHeader, MaskedInput, UnmaskRequest, UnmaskShares
from secagg.ring import RingArray
from secagg.roster import Enrolment, Roster, RosterEntry, Run
from secagg.shamir import Entropy
from secagg.wire import PROTOCOL_VERSION

ENROLMENT_LABEL = b"fcfl-secagg/2/sign-enrolment"
BUNDLE_LABEL = b"fcfl-secagg/2/sign-bundle"
MASKED_LABEL = b"fcfl-secagg/2/sign-masked-input"
SHARES_LABEL = b"fcfl-secagg/2/sign-unmask-shares"
ARRAYS_LABEL = b"fcfl-secagg/2/masked-arrays"
SALT_BYTES = 32


def arrays_hash(arrays: Mapping[str, RingArray]) -> bytes:
    """Return the hash of masked arrays: of the map of segment name to SHA-256 of its little-endian bytes."""
    parts = {name: hashlib.sha256(np.ascontiguousarray(array).data).digest() for name, array in arrays.items()}
    return cbor.digest(ARRAYS_LABEL, parts)


def enrolment_statement(run_id: bytes, entry: RosterEntry) -> bytes:
    """Return what an enrolment's signature is over; all of it is in the roster, so that every peer can check it."""
    keys = [entry.identity_key, entry.encryption_key, entry.nonce_commitment]
    return cbor.encode([ENROLMENT_LABEL, PROTOCOL_VERSION, run_id, entry.silo_id, *keys, entry.details])


def bundle_statement(run: Run, public: BundlePublic) -> bytes:
    """Return what a bundle's signature is over."""
    said = [public.epoch, public.sender, public.mask_key, public.seed_commitment, public.ciphertext_hash]
    return cbor.encode([BUNDLE_LABEL, run.version, run.run_id, run.roster_hash, *said])


def masked_statement(run: Run, message: MaskedInput | MaskedHeader) -> bytes:
    """Return what a masked input's signature is over: the header, and the arrays by their hash."""
    said = [message.announcement_hash, list(message.ledger_head), message.arrays_hash]
    return cbor.encode([MASKED_LABEL, run.version, run.run_id, message.epoch, message.sender, *said])


def shares_statement(run: Run, request: UnmaskRequest, reply: UnmaskShares) -> bytes:
    """Return what the signature of unmask shares is over: they count for this request alone."""
    said = [request.digest(), cbor.pack(reply.self_mask_shares), cbor.pack(reply.mask_key_shares)]
    return cbor.encode([SHARES_LABEL, run.version, run.run_id, reply.epoch, reply.sender, *said])


def enrol(
    run_id: bytes,
    silo_id: str,
    encryption_key: bytes,
    nonce_commitment: bytes,
    records: int,
    software: str,
    signer: Signer,
    entropy: Entropy = os.urandom,
) -> Enrolment:
    """Return a silo's signed enrolment for one run.

    Guarantee: the signature binds protocol version, run, name, identity key, share-encryption key, the commitment to
    the silo's part in the order of a regular graph (``secagg.graph.commit_nonce``), n_i and software. Every silo can
    check it without n_i, which enters through a salted hash that hides it from the peers.
    Assumptions: Ed25519 is unforgeable (RFC 8032), SHA-256 a random oracle, ``entropy`` uniform; the salt goes to the
    coordinator only.
    """
    salt = entropy(SALT_BYTES)
    unsigned = Enrolment(silo_id, signer.public_key, encryption_key, records, software, nonce_commitment, salt)
    return replace(unsigned, signature=signer.sign(enrolment_statement(run_id, RosterEntry.of(unsigned))))


def check_enrolment(run_id: bytes, enrolment: Enrolment) -> Enrolment:
    """Return an enrolment that its identity key signed for this run; refuse any other, naming the silo."""
    _check_entry(run_id, RosterEntry.of(enrolment))
    return enrolment


def check_roster(run_id: bytes, roster: Roster) -> None:
    """Refuse a roster with an entry that is not signed by its own identity key for this run, naming the silo.

    Guarantee: each share-encryption key was chosen by who holds that entry's identity key, for this run. That the
    identity keys belong to the institutions they are listed under is not shown here; a pinned roster
    (:mod:`secagg.pins`) does. Source: RFC 8032; Bonawitz et al. 2017, section 6.3, whose signatures this extends to
    the key that seals shares. Cost: one verification per silo of the roster.
    """
    for entry in roster.entries:
        _check_entry(run_id, entry)


def _check_entry(run_id: bytes, entry: RosterEntry) -> None:
    if not holds(entry.identity_key, enrolment_statement(run_id, entry), entry.signature):
        raise ProtocolError(
            f"{entry.silo_id}: the enrolment is not signed by its identity key for this run; leave the silo out"
        )


def sign_bundle(run: Run, public: BundlePublic, signer: Signer) -> BundlePublic:
    """Return a bundle's public part, signed; refuse a signer that the roster does not list under the sender."""
    return replace(public, signature=_sign(run, public.sender, bundle_statement(run, public), signer))


def check_bundles(run: Run, publics: Iterable[BundlePublic]) -> None:
    """Refuse bundles that are not signed by their sender's identity for this run, roster and epoch, naming the sender.

    Guarantee: every mask key and seed commitment was made by its sender for exactly this run, roster and epoch, so
    that who relays them cannot put a key of its own, or an old one, between two silos (Bonawitz et al. 2017, section
    6.3, with the signature also over the commitment and the ciphertexts). Assumptions: Ed25519 is unforgeable, the
    roster passed :func:`check_roster` and its identities are authentic. Cost: one verification per bundle.
    """
    for public in publics:
        _check(run, public.sender, bundle_statement(run, public), public.signature, "bundle", "leave it out")


def sign_masked(run: Run, message: MaskedInput, signer: Signer) -> MaskedInput:
    """Return a masked input, signed; refuse a signer that the roster does not list under the sender."""
    return replace(message, signature=_sign(run, message.sender, masked_statement(run, message), signer))


def check_masked_signature(run: Run, message: MaskedInput) -> None:
    """Refuse a masked input whose header, arrays or ledger head its sender did not sign, naming the sender.

    Guarantee: exactly these arrays and this ledger head come from the sender, for this run, epoch and announcement.
    Assumption: Ed25519 is unforgeable, SHA-256 collision resistant. The arrays must have been checked against the
    layout, which fixes names, types and lengths.
    """
    if arrays_hash(message.arrays) != message.arrays_hash:
        raise ProtocolError(f"{message.sender}: the arrays are not those its header names; count the silo as lost")
    statement = masked_statement(run, message)
    _check(run, message.sender, statement, message.signature, "masked input", "count the silo as lost")


def check_headers(run: Run, request: UnmaskRequest, headers: Sequence[MaskedHeader]) -> None:
    """Refuse survivors of which one did not sign that its vector is masked for the request's announcement.

    Guarantee: every honest survivor holds that very announcement. A silo signs for one announcement an epoch, so that
    with more than half of the honest silos and all colluders needed for an answer, at most one announcement of an epoch
    is ever answered. Source: the consistency check of Bonawitz et al. 2017, section 6.3, for the announcement instead
    of the list, on signatures the server holds already. Cost: one verification per survivor.
    """
    if tuple(header.sender for header in headers) != request.survivors:
        raise ProtocolError("unmask-request: expected the header of every survivor's vector, in their order")
    for header in headers:
        if (header.epoch, header.announcement_hash) != (request.epoch, request.announcement_hash):
            raise ProtocolError(f"{header.sender}: its vector is masked for another announcement; abandon the epoch")
        statement = masked_statement(run, header)
        _check(run, header.sender, statement, header.signature, "masked input", "abandon the epoch")


def sign_shares(run: Run, request: UnmaskRequest, reply: UnmaskShares, signer: Signer) -> UnmaskShares:
    """Return unmask shares, signed as the answer to one request."""
    return replace(reply, signature=_sign(run, reply.sender, shares_statement(run, request, reply), signer))


def check_shares_signature(run: Run, request: UnmaskRequest, reply: UnmaskShares) -> None:
    """Refuse unmask shares that their sender did not sign as the answer to this request, naming the sender."""
    statement = shares_statement(run, request, reply)
    _check(run, reply.sender, statement, reply.signature, "unmask reply", "leave it out")


def _sign(run: Run, sender: str, statement: bytes, signer: Signer) -> bytes:
    if run.roster.entry(sender).identity_key != signer.public_key:
        raise ProtocolError(f"{sender}: the roster lists another identity key than the one to sign with; enrol again")
    return signer.sign(statement)


def _check(run: Run, sender: str, statement: bytes, signature: bytes, what: str, then: str) -> None:
    if not holds(run.roster.entry(sender).identity_key, statement, signature):
        raise ProtocolError(
            f"{sender}: its {what} is not signed by its identity key for this run, epoch and content; {then}"
        )
