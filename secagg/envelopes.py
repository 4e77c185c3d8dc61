"""Requests and replies that carry the protocol's messages between the coordinator and one silo."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from secagg import cbor
from secagg.errors import ProtocolError
from secagg.messages import (
    CIPHERTEXTS,
    EPOCH,
    Announcement,
    Bundle,
    BundlePublic,
    MaskedHeader,
    MaskedInput,
    UnmaskRequest,
)
from secagg.roster import HASH, MAX_SILOS, RUN_ID, SIGNATURE, Roster, Run
from secagg.wire import Message


@dataclass(frozen=True)
class RevealRequest(Message):
    """Shows a silo the roster with everyone's commitment and asks for its nonce; one answer per run."""

    TYPE: ClassVar[str] = "reveal-request"
    CHECKS: ClassVar[Mapping[str, cbor.Check]] = {"run_id": RUN_ID, "roster": Roster.parse}
    run_id: bytes
    roster: Roster


@dataclass(frozen=True)
class JoinRequest(Message):
    """Asks a silo for its bundle of ``epoch``: the first of a run, or a latecomer's."""

    TYPE: ClassVar[str] = "join-request"
    CHECKS: ClassVar[Mapping[str, cbor.Check]] = {"run": Run.parse, "epoch": EPOCH}
    run: Run
    epoch: int


@dataclass(frozen=True)
class MaskRequest(Message):
    """Asks a silo for its masked vector: A_e, its neighbourhood's public parts of bundles, the shares sent to it."""

    TYPE: ClassVar[str] = "mask-request"
    CHECKS: ClassVar[Mapping[str, cbor.Check]] = {
        "announcement": Announcement.parse,
        "publics": cbor.sequence(BundlePublic.parse, MAX_SILOS),
        "ciphertexts": CIPHERTEXTS,
    }
    announcement: Announcement
    publics: tuple[BundlePublic, ...]
    ciphertexts: Mapping[str, bytes]


@dataclass(frozen=True)
class MaskReply(Message):
    """A masked vector's header (its arrays travel beside it) and the silo's bundle for the next epoch."""

    TYPE: ClassVar[str] = "mask-reply"
    CHECKS: ClassVar[Mapping[str, cbor.Check]] = {"header": MaskedHeader.parse, "bundle": Bundle.parse}
    header: MaskedHeader
    bundle: Bundle


@dataclass(frozen=True)
class UnmaskCall(Message):
    """Asks a silo for its shares, and shows what every survivor signed: which announcement its vector is masked for.

    Attributes
    ----------
    request : UnmaskRequest
    vectors : tuple
        Ledger head, arrays hash and signature of each survivor's vector, in the order of the survivors. The rest of
        their headers is in the request.
    """

    TYPE: ClassVar[str] = "unmask-call"
    CHECKS: ClassVar[Mapping[str, cbor.Check]] = {
        "request": UnmaskRequest.parse,
        "vectors": cbor.sequence(cbor.row(MaskedHeader.CHECKS["ledger_head"], HASH, SIGNATURE), MAX_SILOS),
    }
    request: UnmaskRequest
    vectors: tuple[tuple[tuple[int, bytes], bytes, bytes], ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.vectors) != len(self.request.survivors):
            raise ProtocolError("unmask-call.vectors: expected one of each survivor")

    @classmethod
    def of(cls, request: UnmaskRequest, masked: Mapping[str, MaskedInput]) -> "UnmaskCall":
        """Return the call for the survivors' vectors as the server holds them."""
        held = (masked[survivor] for survivor in request.survivors)
        return cls(request, tuple((m.ledger_head, m.arrays_hash, m.signature) for m in held))

    def headers(self) -> tuple[MaskedHeader, ...]:
        """Return the headers that the survivors signed, if their vectors are masked for this announcement."""
        epoch, digest = self.request.epoch, self.request.announcement_hash
        rows = zip(self.request.survivors, self.vectors, strict=True)
        return tuple(MaskedHeader(survivor, epoch, digest, *row) for survivor, row in rows)


@dataclass(frozen=True)
class CloseRequest(Message):
    """Ends a run, after which a silo erases the run's secrets."""

    TYPE: ClassVar[str] = "close-request"
    CHECKS: ClassVar[Mapping[str, cbor.Check]] = {"run_id": RUN_ID}
    run_id: bytes
