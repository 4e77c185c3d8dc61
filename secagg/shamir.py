"""Shamir's secret sharing of 32-byte secrets over the prime field of order 2^256 + 297 (Shamir 1979).

The prime is the smallest above 2^256, so that every 32-byte string is a field element and a share takes 33 bytes.
Shares carry no integrity of their own: whoever reconstructs has to check the secret against a commitment to it.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import prod
from operator import mul

from secagg.errors import NotEnoughSurvivors, ProtocolError

Entropy = Callable[[int], bytes]

PRIME = 2**256 + 297
SECRET_BYTES = 32
SHARE_BYTES = 33
MAX_SHARES = 1 << 16
# 128 bits more than the field element: the residue is within 2^-128 of uniform (RFC 9380, section 5.1).
COEFFICIENT_BYTES = 49


def split(secret: bytes, t: int, n: int, entropy: Entropy = os.urandom) -> list[bytes]:
    """Share a secret so that any ``t`` of ``n`` shares give it back and fewer say nothing about it.

    Guarantee: any t - 1 shares are within t * 2^-128 of independent of the secret, if ``entropy`` is uniform. The
    share at list index i belongs to x = i + 1. Source: Shamir 1979.
    """
    return split_at(secret, t, range(1, n + 1), entropy)


def split_at(secret: bytes, t: int, xs: Sequence[int], entropy: Entropy = os.urandom) -> list[bytes]:
    """Share a secret as :func:`split` does, at these distinct x coordinates instead of 1 to n, in their order."""
    if len(secret) != SECRET_BYTES:
        raise ProtocolError(f"secret: expected {SECRET_BYTES} bytes")
    n = len(xs)
    if not 1 <= t <= n < MAX_SHARES or len(set(xs)) < n or not all(1 <= x < MAX_SHARES for x in xs):
        raise ProtocolError(f"sharing {t} of {n}: expected 1 <= t <= n < {MAX_SHARES}, and distinct indices from 1")
    coefficients = [int.from_bytes(entropy(COEFFICIENT_BYTES), "big") % PRIME for _ in range(t - 1)]
    coefficients.append(int.from_bytes(secret, "big"))
    shares = []
    for x in xs:
        y = 0
        for coefficient in coefficients:
            y = (y * x + coefficient) % PRIME
        shares.append(y.to_bytes(SHARE_BYTES, "big"))
    return shares


def combine(shares: Mapping[int, bytes], t: int) -> bytes:
    """Reconstruct a secret from the ``t`` shares with the lowest indices among those given.

    Guarantee: the secret, if these t shares come unaltered from one :func:`split` with this ``t``. Wrong shares give
    a wrong secret or a :class:`ProtocolError`; the caller checks a commitment. Source: Shamir 1979.

    Parameters
    ----------
    shares : mapping of int to bytes
        x coordinate (1 to n) to share.
    t : int
        Threshold of the sharing; fewer shares raise :class:`NotEnoughSurvivors`.
    """
    if t < 1:
        raise ProtocolError("threshold: expected at least 1")
    for x, share in shares.items():
        if not 1 <= x < MAX_SHARES:
            raise ProtocolError(f"share index {x}: expected 1 to {MAX_SHARES - 1}")
        if not is_share(share):
            raise ProtocolError(f"share {x}: expected {SHARE_BYTES} bytes that encode a field element")
    if len(shares) < t:
        raise NotEnoughSurvivors(f"{len(shares)} shares, {t} are needed")
    secret = interpolate(shares, tuple(sorted(shares)[:t]))
    if secret is None:
        raise ProtocolError("the shares do not belong to one 32-byte secret")
    return secret


def interpolate(shares: Mapping[int, bytes], xs: tuple[int, ...]) -> bytes | None:
    """Return the secret of the polynomial through the shares at ``xs``, or None if it is none of 32 bytes.

    :func:`combine` without its checks: every share at one of the distinct ``xs`` is well-formed (:func:`is_share`).
    """
    from_bytes = int.from_bytes
    values = [from_bytes(shares[x], "big") for x in xs]
    secret = sum(map(mul, weights_at(0, xs), values)) % PRIME
    return None if secret >> 256 else secret.to_bytes(SECRET_BYTES, "big")


def is_share(share: object) -> bool:
    """Say whether this is the encoding of a field element in 33 bytes."""
    return isinstance(share, bytes) and len(share) == SHARE_BYTES and int.from_bytes(share, "big") < PRIME


@lru_cache(maxsize=4096)
def weights_at(point: int, xs: tuple[int, ...]) -> tuple[int, ...]:
    """Return the Lagrange weights that evaluate at ``point`` the polynomial through the distinct ``xs``.

    ``point`` is none of them. One inversion for all weights.
    """
    full, below = 1, [1]  # below[i]: product of the first i denominators
    denominators = []
    for x in xs:
        full = full * (x - point) % PRIME
        denominators.append((x - point) * prod([other - x for other in xs if other != x]) % PRIME)
        below.append(below[-1] * denominators[-1] % PRIME)
    inverse = pow(below[-1], -1, PRIME)  # of all denominators not yet passed
    weights = []
    for before, denominator in zip(reversed(below[:-1]), reversed(denominators), strict=True):
        weights.append(full * before % PRIME * inverse % PRIME)
        inverse = inverse * denominator % PRIME
    return tuple(reversed(weights))
