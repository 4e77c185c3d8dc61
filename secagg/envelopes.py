"""Requests and replies that carry the protocol's messages between the coordinator and one silo."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from secagg import cbor
from secagg.messages import (
    CIPHERTEXTS,
    EPOCH,
    Announcement,
    Bundle,
    BundlePublic,
    MaskedHeader,
)
from secagg.roster import MAX_SILOS, RUN_ID, Roster, Run
from secagg.wire import TYPE_PREFIX, Message


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

    @cached_property
    def _encoded(self) -> bytes:
        # The announcement, the same for every silo, and each public part, the same for its neighbours, have theirs.
        return cbor.joined(
            {
                "type": cbor.encode(TYPE_PREFIX + self.TYPE),
                "announcement": self.announcement.to_bytes(),
                "publics": cbor.listed([public.to_bytes() for public in self.publics]),
                "ciphertexts": cbor.encode(cbor.pack(self.ciphertexts)),
            }
        )


@dataclass(frozen=True)
class MaskReply(Message):
    """A masked vector's header (its arrays travel beside it) and the silo's bundle for the next epoch."""

    TYPE: ClassVar[str] = "mask-reply"
    CHECKS: ClassVar[Mapping[str, cbor.Check]] = {"header": MaskedHeader.parse, "bundle": Bundle.parse}
    header: MaskedHeader
    bundle: Bundle


@dataclass(frozen=True)
class CloseRequest(Message):
    """Ends a run, after which a silo erases the run's secrets."""

    TYPE: ClassVar[str] = "close-request"
    CHECKS: ClassVar[Mapping[str, cbor.Check]] = {"run_id": RUN_ID}
    run_id: bytes
