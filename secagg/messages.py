"""The messages of an epoch. What the signatures are over, and their checks: :mod:`secagg.signatures`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from secagg import cbor
from secagg.errors import ProtocolError, RingError
from secagg.identity import UNSIGNED
from secagg.ring import Layout, RingArray, Segment
from secagg.roster import (
    HASH,
    KEY,
    MAX_SILOS,
    RUN_ID,
    SIGNATURE,
    Enrolment,
    Roster,
    RosterEntry,
    Run,
    default_threshold,
)
from secagg.shamir import SHARE_BYTES
from secagg.wire import PROTOCOL_VERSION, Message, plain

__all__ = [
    "PROTOCOL_VERSION",
    "Announcement",
    "Bundle",
    "BundlePublic",
    "Enrolment",
    "EpochOutcome",
    "MaskedInput",
    "Roster",
    "RosterEntry",
    "Run",
    "UnmaskRequest",
    "UnmaskShares",
    "default_threshold",
]

MAX_EPOCH = (1 << 63) - 1
# Entries of a ledger, far more than any has. What a silo signs cannot reach what peers note of one that fell back.
MAX_ENTRIES = 1 << 40
MAX_OUTCOMES = 1 << 16
MAX_CONTEXT = 1 << 20
MAX_SEGMENTS = 64
# Nonce, two shares, tag.
CIPHERTEXT_BYTES = 12 + 2 * SHARE_BYTES + 16

EPOCH = cbor.uint(MAX_EPOCH)
CIPHERTEXTS = cbor.packed(CIPHERTEXT_BYTES, MAX_SILOS)
SHARES = cbor.packed(SHARE_BYTES, MAX_SILOS)
STATUS = ("completed", "abandoned")


def _ascending(ids: tuple[str, ...], path: str) -> None:
    if list(ids) != sorted(set(ids)):
        raise ProtocolError(f"{path}: expected distinct silo ids in ascending order")


def parse_layout(value: object, path: str) -> Layout:
    """Check a layout or its plain data."""
    value = plain(value)
    if not isinstance(value, Mapping) or set(value) != {"segments", "parties"}:
        raise ProtocolError(f"{path}: expected a map with segments and parties")
    shape = {
        "name": cbor.text(64),
        "length": cbor.uint(1 << 31),
        "bits": cbor.uint(64),
        "bound": cbor.real,
        "step": cbor.real,
    }

    def segment(entry: object, where: str) -> Segment:
        if not isinstance(entry, Mapping) or set(entry) != set(shape):
            raise ProtocolError(f"{where}: expected a map with {', '.join(shape)}")
        return Segment(**{name: check(entry[name], f"{where}.{name}") for name, check in shape.items()})

    segments = cbor.sequence(segment, MAX_SEGMENTS)(value["segments"], f"{path}.segments")
    parties = cbor.uint((1 << 31) - 1)(value["parties"], f"{path}.parties")
    try:
        return Layout(segments, parties)
    except RingError as error:
        raise ProtocolError(f"{path}: {error}") from error


@dataclass(frozen=True)
class BundlePublic(Message):
    """The part of a bundle that every participant sees: mask key, commitment to b, hash of the ciphertexts."""

    TYPE: ClassVar[str] = "bundle-public"
    CHECKS: ClassVar[Mapping[str, cbor.Check]] = {
        "sender": cbor.silo_id,
        "epoch": EPOCH,
        "mask_key": KEY,
        "seed_commitment": HASH,
        "ciphertext_hash": HASH,
        "signature": SIGNATURE,
    }
    sender: str
    epoch: int
    mask_key: bytes
    seed_commitment: bytes
    ciphertext_hash: bytes
    signature: bytes = UNSIGNED

    @cached_property
    def _hash(self) -> bytes:
        named = [self.sender, self.epoch, self.mask_key, self.seed_commitment, self.ciphertext_hash]
        return cbor.digest(b"fcfl-secagg/2/bundle-hash", named)

    def hash(self) -> bytes:
        """Return the hash an announcement lists: over every field but the signature, under its own label."""
        return self._hash


@dataclass(frozen=True)
class Bundle(Message):
    """A silo's keys for one epoch: the public part and, for every other silo of the roster, an encrypted share pair."""

    TYPE: ClassVar[str] = "bundle"
    CHECKS: ClassVar[Mapping[str, cbor.Check]] = {
        "public": BundlePublic.parse,
        "ciphertexts": CIPHERTEXTS,
    }
    public: BundlePublic
    ciphertexts: Mapping[str, bytes]

    def __post_init__(self) -> None:
        super().__post_init__()
        if ciphertext_hash(self.ciphertexts) != self.public.ciphertext_hash:
            raise ProtocolError(f"bundle of {self.public.sender}: ciphertext_hash does not fit; ask for it again")


def ciphertext_hash(ciphertexts: Mapping[str, bytes]) -> bytes:
    """Return SHA-256 of CBOR ["fcfl-secagg/2/ciphertexts", packed map of receiver to ciphertext]."""
    return cbor.digest(b"fcfl-secagg/2/ciphertexts", cbor.pack(ciphertexts))


@dataclass(frozen=True)
class EpochOutcome(Message):
    """How an earlier epoch ended; a silo commits or drops what it kept for that epoch accordingly."""

    TYPE: ClassVar[str] = "epoch-outcome"
    CHECKS: ClassVar[Mapping[str, cbor.Check]] = {
        "epoch": EPOCH,
        "status": cbor.text(16),
        "survivors": cbor.sequence(cbor.silo_id, MAX_SILOS),
    }
    epoch: int
    status: str
    survivors: tuple[str, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.status not in STATUS:
            raise ProtocolError("epoch-outcome.status: expected completed or abandoned")
        _ascending(self.survivors, "epoch-outcome.survivors")


@dataclass(frozen=True)
class Announcement(Message):
    """A_e: everything that is common to the epoch. Its digest is an input of every mask of the epoch.

    Silos that hold different announcements derive masks that do not cancel. ``context`` is opaque here (the training
    plan); ``participants`` is U_e with the hash of each bundle's public part.
    """

    TYPE: ClassVar[str] = "announcement"
    CHECKS: ClassVar[Mapping[str, cbor.Check]] = {
        "version": cbor.uint(1 << 16),
        "run_id": RUN_ID,
        "epoch": EPOCH,
        "roster_hash": HASH,
        "participants": cbor.sequence(cbor.row(cbor.silo_id, HASH), MAX_SILOS),
        "layout": parse_layout,
        "outcomes": cbor.sequence(EpochOutcome.parse, MAX_OUTCOMES),
        "ledger_heads": cbor.table(cbor.binary(limit=256), MAX_SILOS),
        "context": cbor.binary(limit=MAX_CONTEXT),
    }
    version: int
    run_id: bytes
    epoch: int
    roster_hash: bytes
    participants: tuple[tuple[str, bytes], ...]
    layout: Layout
    outcomes: tuple[EpochOutcome, ...]
    ledger_heads: Mapping[str, bytes]
    context: bytes

    def __post_init__(self) -> None:
        super().__post_init__()
        _ascending(self.ids, "announcement.participants")
        epochs = [outcome.epoch for outcome in self.outcomes]
        if epochs != sorted(set(epochs)) or any(epoch >= self.epoch for epoch in epochs):
            raise ProtocolError("announcement.outcomes: expected earlier epochs, each once, in ascending order")

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """The silo ids of U_e in ascending order."""
        return tuple(silo_id for silo_id, _ in self.participants)

    @cached_property
    def members(self) -> frozenset[str]:
        """The silo ids of U_e."""
        return frozenset(self.ids)

    @cached_property
    def _digest(self) -> bytes:
        return cbor.digest(b"fcfl-secagg/2/announcement-hash", self.to_bytes())

    def digest(self) -> bytes:
        """Return SHA-256 of CBOR ["fcfl-secagg/2/announcement-hash", the announcement's encoding]."""
        return self._digest


@dataclass(frozen=True)
class MaskedHeader(Message):
    """What travels as CBOR beside the arrays of a masked input."""

    TYPE: ClassVar[str] = "masked-input"
    CHECKS: ClassVar[Mapping[str, cbor.Check]] = {
        "sender": cbor.silo_id,
        "epoch": EPOCH,
        "announcement_hash": HASH,
        "ledger_head": cbor.row(cbor.uint(MAX_ENTRIES), HASH),
        "arrays_hash": HASH,
        "signature": SIGNATURE,
    }
    sender: str
    epoch: int
    announcement_hash: bytes
    ledger_head: tuple[int, bytes]
    arrays_hash: bytes
    signature: bytes = UNSIGNED


@dataclass(frozen=True, eq=False)
class MaskedInput:
    """A silo's masked vector: arrays (4 or 8 bytes a value) and a small header that travels beside them.

    Attributes
    ----------
    ledger_head : tuple of int and bytes
        Count and 32-byte hash of the silo's privacy ledger.
    arrays_hash : bytes
        Hash of the arrays (``signatures.arrays_hash``), so that the signature covers them.
    """

    sender: str
    epoch: int
    announcement_hash: bytes
    arrays: Mapping[str, RingArray] = field(repr=False)
    ledger_head: tuple[int, bytes]
    arrays_hash: bytes
    signature: bytes = UNSIGNED

    def __post_init__(self) -> None:
        _ = self.header

    @cached_property
    def header(self) -> MaskedHeader:
        """What travels beside the arrays, checked."""
        said = self.sender, self.epoch, self.announcement_hash, self.ledger_head, self.arrays_hash
        return MaskedHeader(*said, self.signature)

    def header_bytes(self) -> bytes:
        """Return the deterministic encoding of everything but the arrays."""
        return self.header.to_bytes()

    @classmethod
    def from_parts(cls, header: bytes, arrays: Mapping[str, Any]) -> "MaskedInput":
        """Join a header and the arrays; ``coordinator.check_masked`` checks that they fit each other and the layout."""
        h = MaskedHeader.from_bytes(header)
        return cls(h.sender, h.epoch, h.announcement_hash, dict(arrays), h.ledger_head, h.arrays_hash, h.signature)


@dataclass(frozen=True)
class UnmaskRequest(Message):
    """L: the silos whose masked vectors the server holds and wants the sum of."""

    TYPE: ClassVar[str] = "unmask-request"
    CHECKS: ClassVar[Mapping[str, cbor.Check]] = {
        "run_id": RUN_ID,
        "epoch": EPOCH,
        "announcement_hash": HASH,
        "survivors": cbor.sequence(cbor.silo_id, MAX_SILOS),
    }
    run_id: bytes
    epoch: int
    announcement_hash: bytes
    survivors: tuple[str, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        _ascending(self.survivors, "unmask-request.survivors")

    @cached_property
    def members(self) -> frozenset[str]:
        """The survivors."""
        return frozenset(self.survivors)

    @cached_property
    def _digest(self) -> bytes:
        return cbor.digest(b"fcfl-secagg/2/unmask-request-hash", self.to_bytes())

    def digest(self) -> bytes:
        """Return SHA-256 of CBOR ["fcfl-secagg/2/unmask-request-hash", the request's encoding]."""
        return self._digest


@dataclass(frozen=True)
class UnmaskShares(Message):
    """A silo's shares of the self-mask seeds of the survivors and of the mask keys of the lost; repr hides them."""

    TYPE: ClassVar[str] = "unmask-shares"
    CHECKS: ClassVar[Mapping[str, cbor.Check]] = {
        "sender": cbor.silo_id,
        "epoch": EPOCH,
        "self_mask_shares": SHARES,
        "mask_key_shares": SHARES,
        "signature": SIGNATURE,
    }
    sender: str
    epoch: int
    self_mask_shares: Mapping[str, bytes] = field(repr=False)
    mask_key_shares: Mapping[str, bytes] = field(repr=False)
    signature: bytes = UNSIGNED

    def __post_init__(self) -> None:
        super().__post_init__()
        if both := self.self_mask_shares.keys() & self.mask_key_shares.keys():
            raise ProtocolError(f"unmask-shares of {self.sender}: both shares of {min(both)}; a peer is lost or not")
