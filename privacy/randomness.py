"""The only source of noise, samples and coins: an AES-256-CTR keystream."""

import hashlib
import hmac
import math
import os
from fractions import Fraction
from functools import lru_cache, partial
from typing import NoReturn

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from privacy.checks import real, whole
from privacy.errors import PrivacyError
from privacy.rounded_normal import NormalTable

_DOMAIN = b"fcfl/privacy/random-stream/v1"
_LARGEST_BELOW_ONE = 1.0 - 2.0**-53
_ZEROS = memoryview(bytes(1 << 20))
_LARGEST_SCALE = 2.0**36


def _encode(label: object) -> bytes:
    """Type tag, length and content, so that no two label lists share an encoding."""
    if isinstance(label, bool) or not isinstance(label, (str, int, bytes)):
        raise PrivacyError(f"label of type {type(label).__name__}: expected str, int or bytes")
    if isinstance(label, str):
        tag, content = b"s", label.encode("utf-8")
    elif isinstance(label, int):
        tag, content = b"i", str(label).encode("ascii")
    else:
        tag, content = b"b", label
    return tag + len(content).to_bytes(8, "big") + content


def _hkdf_sha256(secret: bytes, info: bytes) -> bytes:
    """RFC 5869 with an empty salt and one block of output."""
    extracted = hmac.new(bytes(32), secret, hashlib.sha256).digest()
    return hmac.new(extracted, info + b"\x01", hashlib.sha256).digest()


_table = lru_cache(maxsize=4)(NormalTable.of)


def _further(key: bytes, place: int, count: int) -> tuple[int, int]:
    """Further bits of two uniforms: a function of the key and the place, whichever places need them."""
    bits = hmac.new(key, place.to_bytes(8, "big") + count.to_bytes(8, "big"), hashlib.sha256).digest()
    return int.from_bytes(bits[:8], "big"), int.from_bytes(bits[8:16], "big")


@lru_cache(maxsize=16, typed=True)
def _threshold(name: str, probability: float) -> int:
    return math.floor(Fraction(real(name, probability, 0.0, 1.0)) * 2**64)


class RandomStream:
    """Random numbers from an AES-256-CTR keystream.

    Guarantee: with a key from the operating system, no polynomial adversary tells the keystream from uniform bits
    (AES as a pseudorandom permutation), so every DP statement that uses it holds computationally for its adjacency
    (one record replaced by the null record). A seeded stream gives **no** privacy: whoever knows the seed subtracts
    the noise (E21). Assumptions: the key is used by this object only; the object is neither copied nor used on both
    sides of a fork, and it refuses both. Mechanisms take their noise from `rounded_normal`, whose distribution is
    exact; `normal` is float64 and open to the attack of Mironov 2012. Not thread safe.
    """

    __slots__ = ("_keystream", "_pid", "_seeded")

    def __init__(self, key: bytes, *, seeded: bool) -> None:
        if len(key) != 32:
            raise PrivacyError(f"a key of {len(key)} bytes: expected 32; use RandomStream.from_os()")
        self._keystream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        self._seeded = seeded
        self._pid = os.getpid()

    @classmethod
    def from_os(cls) -> "RandomStream":
        """Return a stream under a fresh 256-bit key from the operating system.

        Guarantee, adjacency and assumptions: those of the class (AES-256-CTR, NIST SP 800-38A).
        """
        return cls(os.urandom(32), seeded=False)

    @classmethod
    def seeded(cls, seed: int, *labels: str | int | bytes) -> "RandomStream":
        """Return the reproducible stream of a seed and labels. **Not private**, whatever the adjacency (E21).

        Guarantee: the same seed and labels give the same uniforms, samples and coins on every machine (normals up to
        the last digit of its sine and logarithm); different ones give independent keys (HKDF-SHA256, RFC 5869, over
        an injective encoding). Assumption: only used for explicitly seeded, non-private runs and for public
        quantities such as initial parameters.

        Parameters
        ----------
        seed : int
            Any whole number.
        *labels : str, int or bytes
            What the stream is for.
        """
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise PrivacyError(f"seed of type {type(seed).__name__}: expected a whole number")
        info = _DOMAIN + b"".join(_encode(label) for label in labels)
        return cls(_hkdf_sha256(_encode(seed), info), seeded=True)

    @property
    def is_seeded(self) -> bool:
        """Whether the numbers can be reproduced: then the ledger must read "not private: seeded" (E21)."""
        return self._seeded

    def __repr__(self) -> str:
        return f"RandomStream({'seeded, not private' if self._seeded else 'os'})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise PrivacyError("a RandomStream cannot be copied or pickled: noise would be used twice; create a new one")

    def _words(self, n: int) -> npt.NDArray[np.uint64]:
        whole("n", n, 0)
        if not self._seeded and os.getpid() != self._pid:
            raise PrivacyError(
                "a RandomStream crossed a fork: noise would be used twice; create one in the new process"
            )
        room = np.empty(8 * n + 16, dtype=np.uint8)  # the cipher asks for up to a block of room behind its output
        for start in range(0, 8 * n, len(_ZEROS)):
            size = min(len(_ZEROS), 8 * n - start)
            self._keystream.update_into(_ZEROS[:size], room.data[start : start + size + 15])
        return room[: 8 * n].view("<u8")

    def uniform(self, n: int) -> npt.NDArray[np.float64]:
        """Return `n` float64 uniforms in the open interval (0, 1), each from 63 keystream bits.

        Guarantee: the rounded value of (w + 1/2) / 2^63 for 63 keystream bits w, never 0 or 1. Adjacency and
        assumptions: as for the class (AES-256-CTR).

        Parameters
        ----------
        n : int
            At least 0.
        """
        words = self._words(n)
        words >>= np.uint64(1)  # a signed conversion is several times faster than an unsigned one
        values = words.view(np.int64).astype(np.float64)
        values += 0.5
        values *= 2.0**-63
        return np.minimum(values, _LARGEST_BELOW_ONE, out=values)

    def normal(self, n: int) -> npt.NDArray[np.float64]:
        """Return `n` float64 standard normals (Box and Muller 1958) from 63-bit uniforms; the tail ends at 9.4.

        Guarantee: standard normal up to float64 rounding and the end of the tail (probability below 1e-19 per value);
        not for a mechanism, whatever the adjacency, because its low bits tell the sum apart (Mironov 2012).
        Assumptions: as for the class. The stream depends on how calls are split.

        Parameters
        ----------
        n : int
            At least 0.
        """
        import torch  # its float64 cosine is four times as fast as numpy's, and whoever adds noise has it loaded

        pairs = (whole("n", n, 0) + 1) // 2
        values = torch.from_numpy(self.uniform(2 * pairs))
        radius = values[:pairs].log_().mul_(-2.0).sqrt_()
        angle = values[pairs:].mul_(2.0 * math.pi)
        cosine = angle.cos().mul_(radius)
        angle.sin_().mul_(radius)
        values[:pairs] = cosine
        normals: npt.NDArray[np.float64] = values.numpy()[:n]
        return normals

    def rounded_normal(self, n: int, scale: float) -> npt.NDArray[np.float64]:
        """Return `n` whole numbers, independent and **exactly** distributed as round(N(0, scale^2)), as float64.

        Guarantee: the noise of `privacy.grid.Grid` for any adjacency (here one record replaced by the null record),
        without rounding error or cut tail: see `privacy.rounded_normal.NormalTable`. Nearly all values are a table
        entry plus random bits; the others, about one in 100, come by rejection whose every decision is exact, with
        decimals and further bits (HMAC-SHA256 under a key from the keystream) where float64 cannot tell. The numbers
        are a function of the keystream only, so a seeded stream gives the same ones on every machine (up to a chance
        of 1e-8 per scale, see there). Assumptions: as for the class (AES-256-CTR), and numpy's float64 exponential errs
        by less than 8 units in the last place.

        Parameters
        ----------
        n : int
            At least 0.
        scale : float
            Standard deviation before rounding, in (0, 2^36].

        Returns
        -------
        ndarray of float64
            Whole numbers below 2^53 in size.
        """
        real("scale", scale, 0.0, _LARGEST_SCALE, low_open=True)
        key = self._words(4).tobytes()
        return _table(float(scale)).draw(whole("n", n, 0), self._words, partial(_further, key))

    def poisson_sample(self, n_records: int, rate: float) -> npt.NDArray[np.int64]:
        """Return the sorted indices of a Poisson sample: each record independently with probability `rate`.

        Guarantee: the inclusion probability is floor(2^64 rate) / 2^64, never above `rate`, so the accountant's
        amplification (Mironov, Talwar and Zhang 2019) holds for the adjacency "one record replaced by the null
        record". Assumptions: as for the class; the sample stays secret.

        Parameters
        ----------
        n_records : int
            At least 0.
        rate : float
            In [0, 1].
        """
        below = _threshold("rate", rate)
        words = self._words(n_records)
        if below == 2**64:
            return np.arange(n_records, dtype=np.int64)
        return np.flatnonzero(words < np.uint64(below)).astype(np.int64, copy=False)

    def coin(self, p: float) -> bool:
        """Return True with probability `p` (up to 2^-64, never above).

        Guarantee: one independent Bernoulli draw; it has no privacy cost only if `p` comes from privatised or public
        quantities (E9, E10), whatever the adjacency. Assumptions: as for the class (AES-256-CTR).

        Parameters
        ----------
        p : float
            In [0, 1].
        """
        return int(self._words(1)[0]) < _threshold("p", p)
