"""Expansion of 32-byte keys into masks: AES-256 in counter mode (NIST SP 800-38A) under one subkey per segment.

The subkey is HKDF-Expand (RFC 5869, section 2.3) of the key with the segment's name, so that masks of different
segments are independent and no counter range has to be divided between them. Every key expands once: it belongs to one
epoch, one announcement and one pair of silos (or one silo), hence the counter starts at zero.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from secagg.cbor import encode
from secagg.errors import ProtocolError
from secagg.ring import FloatArray, RingArray, dtype_of

SEGMENT_LABEL = b"fcfl-secagg/2/segment"
KEY_BYTES = 32
# Three of it, the zeros, the keystream and the part of the sum it is added to, fit a second-level cache of 512 KiB.
CHUNK_BYTES = 1 << 17
# Keystreams that are open at a time; each holds about a kilobyte.
STREAMS = 64
_ZEROS = memoryview(bytes(CHUNK_BYTES))


def segment_key(key: bytes, name: str) -> bytes:
    """Return the AES key of one segment: HKDF-Expand(SHA-256, key, CBOR [label, name], 32) (RFC 5869)."""
    if len(key) != KEY_BYTES:
        raise ProtocolError(f"mask key: expected {KEY_BYTES} bytes")
    return HKDFExpand(SHA256(), KEY_BYTES, encode([SEGMENT_LABEL, name])).derive(key)


@dataclass(frozen=True)
class Mask:
    """A mask before it is expanded: its 32-byte key, hidden from repr, and whether it is subtracted."""

    key: bytes = field(repr=False)
    subtract: bool = False


def add_masks(total: RingArray, masks: Iterable[Mask], name: str) -> None:
    """Add masks of a segment to ``total`` in place (or subtract them), modulo 2^32 or 2^64 as its type says.

    Guarantee: under the assumption that AES-256 is a pseudorandom permutation and every key is uniform and used for
    this segment only, each mask cannot be told from uniform ring elements; every ring value occurs, the top one
    included. Cost per value and mask: one keystream word and one addition, both in the cache.
    """
    per_chunk = CHUNK_BYTES // total.dtype.itemsize
    buffer = np.empty(min(per_chunk, total.size), total.dtype)
    pending = iter(masks)
    while batch := [
        (_keystream(segment_key(mask.key, name)).update_into, np.subtract if mask.subtract else np.add)
        for mask in islice(pending, STREAMS)
    ]:
        # All masks of a part before the next part: a vector is larger than the cache, and going through it once for
        # each mask would cost a third more.
        for start in range(0, total.size, per_chunk):
            part = total[start : start + per_chunk]
            chunk = buffer[: part.size]
            into = chunk.data.cast("B")
            zeros = _ZEROS[: into.nbytes]
            for expand_into, combine in batch:
                expand_into(zeros, into)
                combine(part, chunk, part)


def expand(key: bytes, segment_name: str, length: int, bits: int) -> RingArray:
    """Return the mask of a segment: ``length`` little-endian words of the keystream as uint32 or uint64.

    Guarantee and assumption: those of :func:`add_masks`.
    """
    mask: RingArray = np.zeros(length, dtype_of(bits))
    add_masks(mask, [Mask(key)], segment_name)
    return mask


def secure_uniforms(entropy: Callable[[int], bytes] = os.urandom) -> Callable[[int], FloatArray]:
    """Return a source of uniforms in [0, 1), multiples of 2^-52: the keystream of AES-256-CTR under one fresh key.

    For :func:`secagg.ring.encode`. Assumption: ``entropy`` is the operating system's generator; anything else is for
    tests. A source belongs to one thread.
    """
    stream = _keystream(segment_key(entropy(KEY_BYTES), "stochastic rounding"))

    def draw(count: int) -> FloatArray:
        words = np.empty(count, np.uint64)
        _fill(stream, words)
        # 52 random bits as the fraction of a float in [1, 2): exact, and far faster than converting integers.
        words >>= np.uint64(12)
        words |= np.uint64(0x3FF << 52)
        uniforms: FloatArray = words.view(np.float64)
        uniforms -= 1.0
        return uniforms

    return draw


def _fill(stream: CipherContext, words: RingArray) -> None:
    """Write the next of a keystream over ``words``."""
    into = words.data.cast("B")
    for start in range(0, into.nbytes, CHUNK_BYTES):
        part = into[start : start + CHUNK_BYTES]
        stream.update_into(_ZEROS[: part.nbytes], part)


def _keystream(key: bytes) -> CipherContext:
    return Cipher(AES256(key), CTR(bytes(16))).encryptor()
