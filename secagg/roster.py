"""Who takes part in a run: enrolments, the roster, and the frozen parameters of the run."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from secagg import cbor
from secagg.errors import ProtocolError
from secagg.graph import Circle, RegularGraph, commit_nonce
from secagg.graph_parameters import Degree, bounds, shortcoming
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
    which also signs its ledger. ``nonce_commitment`` is to its part in the order of a regular graph. ``salt`` hides n_i
    in the hash that the roster carries. Made by :func:`secagg.signatures.enrol`, checked by
    :func:`secagg.signatures.check_enrolment`.
    """

    TYPE: ClassVar[str] = "enrolment"
    CHECKS: ClassVar[Mapping[str, cbor.Check]] = {
        "silo_id": cbor.silo_id,
        "identity_key": identity,
        "encryption_key": KEY,
        "records": cbor.uint(MAX_RECORDS),
        "software": cbor.text(200),
        "nonce_commitment": HASH,
        "salt": cbor.binary(32),
        "signature": SIGNATURE,
    }
    silo_id: str
    identity_key: bytes
    encryption_key: bytes
    records: int
    software: str
    nonce_commitment: bytes
    salt: bytes
    signature: bytes = UNSIGNED

    def __post_init__(self) -> None:
        super().__post_init__()
        check_public_key(self.encryption_key, self.silo_id)

    def details(self) -> bytes:
        """Return the salted hash of what the coordinator learns and the other silos do not."""
        return cbor.digest(b"fcfl-secagg/2/enrolment-details", [self.records, self.software, self.salt])


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
        "nonce_commitment": HASH,
        "details": HASH,
        "signature": SIGNATURE,
    }
    silo_id: str
    identity_key: bytes
    encryption_key: bytes
    nonce_commitment: bytes
    details: bytes
    signature: bytes

    @classmethod
    def of(cls, enrolment: Enrolment) -> "RosterEntry":
        """Return the entry of an enrolment."""
        e = enrolment
        return cls(e.silo_id, e.identity_key, e.encryption_key, e.nonce_commitment, e.details(), e.signature)


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
        """Return SHA-256 of CBOR ["fcfl-secagg/2/roster-hash", the roster's encoding]."""
        return cbor.digest(b"fcfl-secagg/2/roster-hash", self.to_bytes())

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

    Without ``graph`` every silo is every other's neighbour. Then 2 * threshold <= N + max_colluders is refused: two
    disjoint sets of honest silos, with the colluders' help, could reconstruct both secrets of one silo (Bonawitz et al.
    2017, section 6.2). With ``graph`` the threshold is that of a neighbourhood; degree and threshold are refused unless
    they withstand the rates the graph states, and each nonce has to fit the roster's commitment.
    """

    TYPE: ClassVar[str] = "run"
    CHECKS: ClassVar[Mapping[str, cbor.Check]] = {
        "version": cbor.uint(1 << 16),
        "run_id": RUN_ID,
        "roster": Roster.parse,
        "threshold": cbor.uint(MAX_SILOS),
        "max_colluders": cbor.uint(MAX_SILOS),
        "graph": RegularGraph.parse,
    }
    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"graph"})
    version: int
    run_id: bytes
    roster: Roster
    threshold: int
    max_colluders: int = 0
    graph: RegularGraph | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        n = len(self.roster.entries)
        if self.version != PROTOCOL_VERSION:
            raise ProtocolError(f"run.version: this software speaks version {PROTOCOL_VERSION}; use the same release")
        if self.threshold > n:
            raise ProtocolError(f"run.threshold: expected at most the {n} silos of the roster")
        if self.graph is not None:
            self._check_graph(self.graph)
        elif 2 * self.threshold <= n + self.max_colluders:
            raise ProtocolError(
                f"run.threshold: expected more than ({n} + {self.max_colluders}) / 2 for {n} silos of which "
                f"{self.max_colluders} may collude; raise the threshold or enrol more silos"
            )

    def _check_graph(self, graph: RegularGraph) -> None:
        n = len(self.roster.entries)
        if reason := shortcoming(n, Degree(graph.degree, self.threshold), graph.rates):
            raise ProtocolError(f"run.graph: {reason}")
        if self.max_colluders > graph.rates.corrupt(n):
            raise ProtocolError(
                f"run.graph: made for {graph.rates.corrupt(n)} colluders, max_colluders is {self.max_colluders}; raise "
                "the corruption rate"
            )
        if len(graph.nonces) != n:
            raise ProtocolError(f"run.graph.nonces: {len(graph.nonces)}, expected one of each of the {n} silos")
        for entry, nonce in zip(self.roster.entries, graph.nonces, strict=True):
            if commit_nonce(self.run_id, entry.silo_id, nonce) != entry.nonce_commitment:
                raise ProtocolError(f"run.graph.nonces: not the one {entry.silo_id} committed to; leave this run")

    @cached_property
    def roster_hash(self) -> bytes:
        """The hash of the roster; with a regular graph, of the graph, its threshold and the roster.

        The announcement carries it, so that silos with different graphs have masks that do not cancel.
        """
        if self.graph is None:
            return self.roster.hash()
        named = [self.roster.hash(), self.threshold, self.max_colluders, self.graph.to_bytes()]
        return cbor.digest(b"fcfl-secagg/2/graph-hash", named)

    @cached_property
    def circle(self) -> Circle | None:
        """The silos on the circle of a regular graph; None if the graph is complete."""
        graph = self.graph
        return None if graph is None else graph.circle(self.run_id, self.roster.hash(), self.roster.ids)

    @cached_property
    def minimum(self) -> int:
        """How many silos have to take part, and to survive: t, or all but the stated drop-outs of a regular graph."""
        n = len(self.roster.entries)
        return self.threshold if self.graph is None else n - self.graph.rates.missing(n)

    def neighbours(self, silo_id: str) -> tuple[str, ...]:
        """Return whom a silo exchanges masks and shares with, in roster order: everyone else, or its neighbours."""
        at = self.roster.index(silo_id)
        if self.circle is not None:
            return self.circle.neighbours(silo_id)
        return self.roster.ids[:at] + self.roster.ids[at + 1 :]

    def shortage(self, participants: Collection[str], members: Collection[str]) -> str:
        """Say why a sum over ``members`` of the ``participants`` would not be safe or possible, or return "".

        Guarantee, if the text is empty: at least :attr:`minimum` members; t holders of each secret that is needed; and
        a graph of the members that hangs together, so that no sum of a part comes out. Against an active server also:
        nowhere on the circle are more missing than the parameters allow for (docs/secure-aggregation.md).
        """
        if len(members) < self.minimum:
            return f"{len(members)} silos, {self.minimum} are needed"
        circle, graph = self.circle, self.graph
        if circle is None or graph is None:
            return ""
        there = frozenset(members)
        kept = circle.surviving_neighbours(there)
        if short := [s for s in sorted(participants) if kept[s] + (s in there) < self.threshold]:
            return f"{short[0]} keeps fewer than {self.threshold} holders of its shares"
        if not circle.connected(there):
            return "the graph of those left falls apart, and the sums of its parts would come out"
        n = len(circle.order)
        if graph.active and circle.most_missing(there) > bounds(n, graph.degree, graph.rates).window_missing:
            return "too many silos next to each other on the circle are missing"
        return ""
