"""The regular graph of a run: who exchanges masks and shares with whom, in an order that nobody chose.

The silos stand on a circle; each is a neighbour of the ``k / 2`` nearest on either side (a circulant, and the Harary
graph H(k, N) for even k). Every silo commits to a nonce when it enrols and reveals it once it has been shown the whole
roster; the order of the circle follows from all nonces. Source of the construction: Bell, Bonawitz, Gascon, Lepoint and
Raykova 2020, who let the server draw the order for the semi-honest case; the joint draw is ours.
"""

import os
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import ClassVar

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR

from secagg import cbor
from secagg.errors import ProtocolError
from secagg.graph_parameters import Degree, Rates
from secagg.shamir import Entropy
from secagg.wire import PROTOCOL_VERSION, Message

COMMITMENT_LABEL = b"fcfl-secagg/2/graph-nonce-commitment"
SEED_LABEL = b"fcfl-secagg/2/graph-seed"
NONCE_BYTES = 32
MAX_NODES = 1 << 14
MAX_BITS = 256


def new_nonce(entropy: Entropy = os.urandom) -> bytes:
    """Return a silo's nonce of one run. Assumption: ``entropy`` is uniform and private until the nonce is revealed."""
    return entropy(NONCE_BYTES)


def commit_nonce(run_id: bytes, silo_id: str, nonce: bytes) -> bytes:
    """Return what a silo enrols with. Hiding (256 bits of entropy) and binding (SHA-256 resists collisions)."""
    return cbor.digest(COMMITMENT_LABEL, [PROTOCOL_VERSION, run_id, silo_id, nonce])


def graph_seed(run_id: bytes, roster_hash: bytes, nonces: Sequence[bytes]) -> bytes:
    """Return the seed of the circle's order from all nonces, in roster order.

    Guarantee: uniform to whoever fixed the roster, if SHA-256 is a random oracle and **one** silo's nonce was uniform
    and unknown until then. The roster lists every commitment, so nothing that enters the seed can be chosen after that
    silo revealed. What remains is to break off a set-up whose order one does not like.
    """
    return cbor.digest(SEED_LABEL, [PROTOCOL_VERSION, run_id, roster_hash, list(nonces)])


def permutation(seed: bytes, n: int) -> tuple[int, ...]:
    """Return a permutation of 0 to n - 1: Fisher-Yates (Durstenfeld 1964) with words of AES-256-CTR under ``seed``.

    For i from n - 1 down to 1 the next little-endian 32-bit words w are drawn until w < 2^32 - (2^32 mod (i + 1)), then
    the entries i and w mod (i + 1) are exchanged. The counter block starts at zero. Guarantee: exactly uniform over
    the permutations if the keystream is uniform; no residue is favoured.
    """
    if len(seed) != 32 or not 1 <= n <= MAX_NODES:
        raise ProtocolError(f"graph: expected a seed of 32 bytes and 1 to {MAX_NODES} silos")
    stream = Cipher(AES256(seed), CTR(bytes(16))).encryptor()
    words: deque[int] = deque()

    def below(limit: int) -> int:
        bound = (1 << 32) - (1 << 32) % limit
        while True:
            if not words:
                block = stream.update(bytes(4096))
                words.extend(int.from_bytes(block[at : at + 4], "little") for at in range(0, len(block), 4))
            if (word := words.popleft()) < bound:
                return word % limit

    order = list(range(n))
    for i in range(n - 1, 0, -1):
        j = below(i + 1)
        order[i], order[j] = order[j], order[i]
    return tuple(order)


@dataclass(frozen=True)
class Circle:
    """Silos on a circle, each a neighbour of the ``k / 2`` nearest on either side.

    Attributes
    ----------
    order : tuple of str
        Silo ids along the circle.
    k : int
        Neighbours per silo: even, below the number of silos minus one.
    """

    order: tuple[str, ...]
    k: int

    @cached_property
    def position(self) -> dict[str, int]:
        """Where each silo stands."""
        return {silo_id: at for at, silo_id in enumerate(self.order)}

    @cached_property
    def _found(self) -> dict[str, tuple[str, ...]]:
        return {}

    def neighbours(self, silo_id: str) -> tuple[str, ...]:
        """Return the neighbours of a silo, ascending by id; found once, because the server asks for each many times."""
        if (found := self._found.get(silo_id)) is None:
            at, n = self.position[silo_id], len(self.order)
            steps = range(1, self.k // 2 + 1)
            found = tuple(sorted(self.order[(at + step) % n] for j in steps for step in (j, -j)))
            self._found[silo_id] = found
        return found

    def surviving_neighbours(self, members: Collection[str]) -> dict[str, int]:
        """Return for each silo how many of its neighbours, itself not counted, are among ``members``."""
        half, n = self.k // 2, len(self.order)
        there = [silo_id in members for silo_id in self.order]
        upto = list(accumulate(there[-half:] + there + there[:half], initial=0))
        return {self.order[at]: upto[at + self.k + 1] - upto[at] - there[at] for at in range(n)}

    def connected(self, members: Collection[str]) -> bool:
        """Say whether the graph restricted to ``members`` is connected.

        Members next to each other on the circle are neighbours unless ``k / 2`` or more silos between them are missing,
        and no edge leads over such a gap: one gap leaves a path, two cut the circle.
        """
        there = [at for at, silo_id in enumerate(self.order) if silo_id in members]
        if not there:
            return False
        ahead = [*there[1:], there[0] + len(self.order)]
        return sum(to - at > self.k // 2 for at, to in zip(there, ahead, strict=True)) <= 1

    def most_missing(self, members: Collection[str]) -> int:
        """Return how many of any ``k / 2`` consecutive silos are missing from ``members`` at most."""
        half = self.k // 2
        gone = [silo_id not in members for silo_id in self.order]
        upto = list(accumulate(gone + gone[: half - 1], initial=0))
        return max(upto[at + half] - upto[at] for at in range(len(gone)))


def _rate(value: object, path: str) -> float:
    rate = cbor.real(value, path)
    if not 0 <= rate < 1:
        raise ProtocolError(f"{path}: expected a rate of at least 0 and below 1")
    return rate


@dataclass(frozen=True)
class RegularGraph(Message):
    """The graph of a run that is not complete: its degree, what it has to withstand, and every silo's nonce.

    The threshold is the run's. ``nonces`` are in roster order; the run checks each against the roster's commitment.
    """

    TYPE: ClassVar[str] = "regular-graph"
    CHECKS: ClassVar[Mapping[str, cbor.Check]] = {
        "degree": cbor.uint(MAX_NODES),
        "corruption": _rate,
        "dropout": _rate,
        "active": cbor.flag,
        "security": cbor.uint(MAX_BITS),
        "correctness": cbor.uint(MAX_BITS),
        "nonces": cbor.sequence(cbor.binary(NONCE_BYTES), MAX_NODES),
    }
    degree: int
    corruption: float
    dropout: float
    active: bool
    security: int
    correctness: int
    nonces: tuple[bytes, ...]

    @classmethod
    def of(cls, degree: Degree, rates: Rates, nonces: Sequence[bytes]) -> "RegularGraph":
        """Return the graph of a degree for rates."""
        return cls(
            degree.k, rates.corruption, rates.dropout, rates.active, rates.security, rates.correctness, tuple(nonces)
        )

    @property
    def rates(self) -> Rates:
        """What the graph has to withstand."""
        return Rates(self.corruption, self.dropout, self.active, self.security, self.correctness)

    def circle(self, run_id: bytes, roster_hash: bytes, ids: Sequence[str]) -> Circle:
        """Return the silos on their circle; ``ids`` in roster order."""
        order = permutation(graph_seed(run_id, roster_hash, self.nonces), len(ids))
        return Circle(tuple(ids[at] for at in order), self.degree)


@dataclass(frozen=True)
class GraphNonce(Message):
    """A silo reveals its nonce; authentic because it has to fit the commitment the silo enrolled with."""

    TYPE: ClassVar[str] = "graph-nonce"
    CHECKS: ClassVar[Mapping[str, cbor.Check]] = {
        "run_id": cbor.binary(16),
        "silo_id": cbor.silo_id,
        "nonce": cbor.binary(NONCE_BYTES),
    }
    run_id: bytes
    silo_id: str
    nonce: bytes
