"""Who takes part in a run: enrolments, the roster, and the frozen parameters of the run."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from secagg import cbor
from secagg.errors import ProtocolError
from secagg.identity import SIGNATURE_BYTES, UNSIGNED, identity
from secagg.keys import check_public_key
from secagg.wire import PROTOCOL_VERSION, Message

MAX_SILOS = 1 << 14
MAX_RECORDS = 1 << 48
KEY = cbor.binary(32)
HASH = cbor.binary(32)
SIGNATURE = cbor.binary(SIGNATURE_BYTES)
RUN_ID = cbor.binary(16)


def default_threshold(n: int) -> int:
    """Return floor(2n/3) + 1: with it 2t > n + n_C holds for every n_C up to about n/3 (Bonawitz et al. 2017, 6.2)."""
    return 2 * n // 3 + 1


@dataclass(frozen=True)
class Enrolment(Message):
    """What a silo tells once, before the roster is fixed.

    ``records`` is n_i, frozen for the run and not protected. ``identity_key`` is the silo's long-term Ed25519 key,
    which also signs its ledger. ``salt`` hides n_i in the hash that the roster carries. Made by
    :func:`secagg.signatures.enrol`, checked by :func:`secagg.signatures.check_enrolment`.
    """

    TYPE: ClassVar[str] = "enrolment"
    CHECKS: ClassVar[Mapping[str, cbor.Check]] = {
        "silo_id": cbor.silo_id,
        "identity_key": identity,
        "encryption_key": KEY,
        "records": cbor.uint(MAX_RECORDS),
        "software": cbor.text(200),
        "salt": cbor.binary(32),
        "signature": SIGNATURE,
    }
    silo_id: str
    identity_key: bytes
    encryption_key: bytes
    records: int
    software: str
    salt: bytes
    signature: bytes = UNSIGNED

    def __post_init__(self) -> None:
        super().__post_init__()
        check_public_key(self.encryption_key, self.silo_id)

    def details(self) -> bytes:
        """Return the salted hash of what the coordinator learns and the other silos do not."""
        return cbor.digest(b"fcfl-secagg/1/enrolment-details", [self.records, self.software, self.salt])


@dataclass(frozen=True)
class RosterEntry(Message):
    """One silo of a roster: name, long-term identity key, share-encryption key, and the signature that binds them.

    n_i is only in it by a salted hash: the roster goes to every silo, and no silo needs another's.
    """

    TYPE: ClassVar[str] = "roster-entry"
    CHECKS: ClassVar[Mapping[str, cbor.Check]] = {
        "silo_id": cbor.silo_id,
        "identity_key": identity,
        "encryption_key": KEY,
        "details": HASH,
        "signature": SIGNATURE,
    }
    silo_id: str
    identity_key: bytes
    encryption_key: bytes
    details: bytes
    signature: bytes

    @classmethod
    def of(cls, enrolment: Enrolment) -> "RosterEntry":
        """Return the entry of an enrolment."""
        e = enrolment
        return cls(e.silo_id, e.identity_key, e.encryption_key, e.details(), e.signature)


@dataclass(frozen=True)
class Roster(Message):
    """All silos of a run, sorted by id; the position fixes a silo's Shamir index.

    Refuses duplicate ids, and duplicate identity or share-encryption keys: one secret key would hold two seats.
    """

    TYPE: ClassVar[str] = "roster"
    CHECKS: ClassVar[Mapping[str, cbor.Check]] = {"entries": cbor.sequence(RosterEntry.parse, MAX_SILOS)}
    entries: tuple[RosterEntry, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.entries) < 2:
            raise ProtocolError("roster.entries: expected at least two silos; a sum of one is its input")
        ids = [entry.silo_id for entry in self.entries]
        if ids != sorted(set(ids)):
            raise ProtocolError("roster.entries: expected distinct silo ids in ascending order")
        for kind in ("identity", "encryption"):
            keys: dict[bytes, str] = {}
            for entry in self.entries:
                other = keys.setdefault(getattr(entry, f"{kind}_key"), entry.silo_id)
                if other != entry.silo_id:
                    raise ProtocolError(f"roster: {other} and {entry.silo_id} have the same {kind} key; enrol again")

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {entry.silo_id: position for position, entry in enumerate(self.entries)}

    @property
    def ids(self) -> tuple[str, ...]:
        """The silo ids in roster order."""
        return tuple(self._positions)

    @property
    def threshold(self) -> int:
        """The default threshold for this many silos."""
        return default_threshold(len(self.entries))

    def __contains__(self, silo_id: object) -> bool:
        return silo_id in self._positions

    def hash(self) -> bytes:
        """Return SHA-256 of CBOR ["fcfl-secagg/1/roster-hash", the roster's encoding]."""
        return cbor.digest(b"fcfl-secagg/1/roster-hash", self.to_bytes())

    def index(self, silo_id: str) -> int:
        """Return the position of a silo, from 0; its Shamir x is one more."""
        if silo_id not in self._positions:
            raise ProtocolError(f"{silo_id}: not in the roster of this run")
        return self._positions[silo_id]

    def entry(self, silo_id: str) -> RosterEntry:
        """Return the entry of a silo."""
        return self.entries[self.index(silo_id)]


@dataclass(frozen=True)
class Run(Message):
    """The frozen parameters of a run that every silo and the server hold.

    Refuses 2 * threshold <= N + max_colluders: then two disjoint sets of honest silos, with the colluders' help, could
    reconstruct both secrets of one silo (Bonawitz et al. 2017, section 6.2).
    """

    TYPE: ClassVar[str] = "run"
    CHECKS: ClassVar[Mapping[str, cbor.Check]] = {
        "version": cbor.uint(1 << 16),
        "run_id": RUN_ID,
        "roster": Roster.parse,
        "threshold": cbor.uint(MAX_SILOS),
        "max_colluders": cbor.uint(MAX_SILOS),
    }
    version: int
    run_id: bytes
    roster: Roster
    threshold: int
    max_colluders: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        n = len(self.roster.entries)
        if self.version != PROTOCOL_VERSION:
            raise ProtocolError(f"run.version: this software speaks version {PROTOCOL_VERSION}; use the same release")
        if self.threshold > n:
            raise ProtocolError(f"run.threshold: expected at most the {n} silos of the roster")
        if 2 * self.threshold <= n + self.max_colluders:
            raise ProtocolError(
                f"run.threshold: expected more than ({n} + {self.max_colluders}) / 2 for {n} silos of which "
                f"{self.max_colluders} may collude; raise the threshold or enrol more silos"
            )

    @cached_property
    def roster_hash(self) -> bytes:
        """The hash of the roster."""
        return self.roster.hash()
