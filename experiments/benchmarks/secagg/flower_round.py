"""One round of Flower's SecAgg+ in memory: its own functions, called in the order of its mod and its workflow.

No messages, no serialisation of arrays and no logging: less work than Flower really does.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt, encrypt, generate_shared_key
from flwr.common.secure_aggregation.ndarrays_arithmetic import (
    factor_combine,
    parameters_addition,
    parameters_mod,
    parameters_multiply,
    parameters_subtraction,
)
from flwr.common.secure_aggregation.quantization import quantize
from flwr.common.secure_aggregation.secaggplus_utils import (
    pseudo_rand_gen,
    share_keys_plaintext_concat,
    share_keys_plaintext_separate,
)
from flwr.supercore.primitives.asymmetric import (
    bytes_to_private_key,
    bytes_to_public_key,
    generate_key_pairs,
    private_key_to_bytes,
    public_key_to_bytes,
)

MOD_RANGE, TARGET_RANGE, CLIP = 1 << 32, 1 << 22, 8.0
"""Flower's defaults for modulus, quantisation levels and clipping range."""

Vector = list[npt.NDArray[np.int64]]


@dataclass
class Party:
    """One client of Flower's protocol.

    Attributes
    ----------
    number
        Node id.
    neighbours
        Ids it shares with, itself among them.
    threshold
        Shares that reconstruct.
    """

    number: int
    neighbours: Sequence[int]
    threshold: int
    keys: tuple[bytes, bytes] = field(init=False)
    publics: tuple[bytes, bytes] = field(init=False)
    seed: bytes = field(init=False)
    shared: dict[int, bytes] = field(init=False, default_factory=dict)
    seed_shares: dict[int, bytes] = field(init=False, default_factory=dict)
    key_shares: dict[int, bytes] = field(init=False, default_factory=dict)

    def make_keys(self) -> tuple[bytes, bytes]:
        """Stage 0."""
        pairs = [generate_key_pairs() for _ in range(2)]
        first, second = (private_key_to_bytes(private) for private, _ in pairs)
        self.keys = first, second
        mask, sharing = (public_key_to_bytes(public) for _, public in pairs)
        self.publics = mask, sharing
        return self.publics

    def share(self, publics: dict[int, tuple[bytes, bytes]]) -> dict[int, bytes]:
        """Stage 1: encrypted shares of the seed and of the mask key for every neighbour."""
        self.seed = os.urandom(32)
        count = len(self.neighbours)
        seeds = create_shares(self.seed, self.threshold, count)
        keys = create_shares(self.keys[0], self.threshold, count)
        sent = {}
        for index, peer in enumerate(self.neighbours):
            if peer == self.number:
                self.seed_shares[peer], self.key_shares[peer] = seeds[index], keys[index]
                continue
            key = generate_shared_key(bytes_to_private_key(self.keys[1]), bytes_to_public_key(publics[peer][1]))
            self.shared[peer] = key
            sent[peer] = encrypt(key, share_keys_plaintext_concat(self.number, peer, seeds[index], keys[index]))
        return sent

    def mask(
        self, received: dict[int, bytes], publics: dict[int, tuple[bytes, bytes]], values: npt.NDArray[np.float32]
    ) -> Vector:
        """Stage 2: the masked vector."""
        for peer, ciphertext in received.items():
            _, _, seed, key = share_keys_plaintext_separate(decrypt(self.shared[peer], ciphertext))
            self.seed_shares[peer], self.key_shares[peer] = seed, key
        vector = quantize(parameters_multiply([values], 1.0), CLIP, TARGET_RANGE)
        vector = factor_combine(1, vector)
        shapes = [array.shape for array in vector]
        vector = parameters_addition(vector, pseudo_rand_gen(self.seed, MOD_RANGE, shapes))
        for peer in received:
            key = generate_shared_key(bytes_to_private_key(self.keys[0]), bytes_to_public_key(publics[peer][0]))
            mask = pseudo_rand_gen(key, MOD_RANGE, shapes)
            combine = parameters_addition if self.number > peer else parameters_subtraction
            vector = combine(vector, mask)
        return parameters_mod(vector, MOD_RANGE)


def unmask(
    total: Vector,
    parties: Sequence[Party],
    active: set[int],
    publics: dict[int, tuple[bytes, bytes]],
) -> Vector:
    """Server: collect the shares of the active parties and take every mask off.

    Parameters
    ----------
    total
        Sum of the masked vectors of the active parties.
    parties
        All parties.
    active
        Ids of those whose vector is in the sum.
    publics
        Public keys by id.
    """
    shapes = [array.shape for array in total]
    by_number = {party.number: party for party in parties}
    for party in parties:
        present = [by_number[peer] for peer in party.neighbours if peer in active]
        if party.number in active:
            seed = combine_shares([peer.seed_shares[party.number] for peer in present])
            total = parameters_subtraction(total, pseudo_rand_gen(seed, MOD_RANGE, shapes))
            continue
        private = combine_shares([peer.key_shares[party.number] for peer in present])
        for peer in present:
            if peer.number == party.number:
                continue
            key = generate_shared_key(bytes_to_private_key(private), bytes_to_public_key(publics[peer.number][0]))
            mask = pseudo_rand_gen(key, MOD_RANGE, shapes)
            combine = parameters_addition if party.number > peer.number else parameters_subtraction
            total = combine(total, mask)
    return parameters_mod(total, MOD_RANGE)


@dataclass
class Costs:
    """CPU seconds of a round, and what a silo uploads over the size of its values in float32."""

    silo: float
    server: float
    total: float
    upload_ratio: float


def play(n: int, length: int, lost: int) -> Costs:
    """Play one round on the complete graph; every party's and the server's CPU time is taken."""
    everyone = list(range(n))
    parties = [Party(i, everyone, 2 * n // 3 + 1) for i in everyone]
    values = np.linspace(-4.0, 4.0, length).astype(np.float32)
    spent = dict.fromkeys(everyone, 0.0)

    def at(number: int, act: Callable[[], Any]) -> Any:
        began = time.process_time()
        result = act()
        spent[number] += time.process_time() - began
        return result

    publics = {p.number: at(p.number, p.make_keys) for p in parties}
    sent = {p.number: at(p.number, partial(p.share, publics)) for p in parties}
    active = set(everyone[lost:])
    vectors = {}
    for party in parties[lost:]:
        received = {peer: ciphertexts[party.number] for peer, ciphertexts in sent.items() if peer != party.number}
        vectors[party.number] = at(party.number, partial(party.mask, received, publics, values))
    began = time.process_time()
    total = parameters_mod(reduce(parameters_addition, vectors.values()), MOD_RANGE)
    unmask(total, parties, active, publics)
    server = time.process_time() - began
    working = [spent[number] for number in active]
    # Masked values travel as int64, shares as text of Fernet.
    upload = sum(array.nbytes for array in vectors[everyone[-1]]) + sum(map(len, sent[everyone[-1]].values()))
    return Costs(median(working), server, server + sum(spent.values()), upload / (4 * length))


def extrapolate(n: int, length: int, k: int, t: int, lost: int) -> Costs:
    """Estimate a round of ``n`` parties with ``k`` neighbours each from one neighbourhood.

    A neighbourhood of k + 1 parties is played; the server's work for one survivor and for one lost party in it is
    taken and multiplied by how many there are.
    """
    everyone = list(range(k + 1))
    parties = [Party(i, everyone, t) for i in everyone]
    values = np.linspace(-4.0, 4.0, length).astype(np.float32)
    subject, others = parties[0], parties[1:]
    publics = {party.number: party.make_keys() for party in others}
    began = time.process_time()
    publics[0] = subject.make_keys()
    silo = time.process_time() - began
    sent = {party.number: party.share(publics) for party in others}
    began = time.process_time()
    sent[0] = subject.share(publics)
    vector = subject.mask({party.number: sent[party.number][0] for party in others}, publics, values)
    silo += time.process_time() - began
    for party in others:
        party.seed_shares[0], party.key_shares[0] = _opened(party, sent[0][party.number])
    began = time.process_time()
    combine_shares([party.seed_shares[0] for party in parties])
    parameters_subtraction(vector, pseudo_rand_gen(subject.seed, MOD_RANGE, [array.shape for array in vector]))
    parameters_addition(vector, vector)
    survivor = time.process_time() - began
    began = time.process_time()
    private = combine_shares([party.key_shares[0] for party in parties])
    for peer in everyone[1:]:
        key = generate_shared_key(bytes_to_private_key(private), bytes_to_public_key(publics[peer][0]))
        parameters_addition(vector, pseudo_rand_gen(key, MOD_RANGE, [array.shape for array in vector]))
    gone = time.process_time() - began
    server = (n - lost) * survivor + lost * gone
    upload = sum(array.nbytes for array in vector) + sum(map(len, sent[0].values()))
    return Costs(silo, server, server + n * silo, upload / (4 * length))


def _opened(party: Party, ciphertext: bytes) -> tuple[bytes, bytes]:
    _, _, seed, key = share_keys_plaintext_separate(decrypt(party.shared[0], ciphertext))
    return seed, key
