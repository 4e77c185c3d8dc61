"""Reconstruction of a shared secret when some shares may be wrong."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations, islice

from secagg.errors import NotEnoughSurvivors, ProtocolError
from secagg.shamir import PRIME, interpolate, is_share, weights_at

# An attempt costs about t^2 multiplications; this bounds what one lying silo can make the server compute.
MAX_WORK = 1 << 20


@dataclass
class Holders:
    """What the secrets of an epoch that are found already say about who holds shares of the next.

    Attributes
    ----------
    suspects : set of int
        Indices whose share was wrong. They are tried last, because a silo that lies usually lies about more than one.
    usual : tuple of int
        The indices that gave the last secret. They are tried first, because their weights are known.
    """

    suspects: set[int] = field(default_factory=set)
    usual: tuple[int, ...] = ()


def recover(what: str, shares: Mapping[int, bytes], t: int, accept: Callable[[bytes], bool], holders: Holders) -> bytes:
    """Return the secret that passes ``accept``, from ``t`` of the shares, preferably the first of them.

    With r shares of which w <= r - t are wrong, the secret is found by leaving out sets of w shares, smallest sets
    first, for at most 2^20 / t^2 attempts (5,349 at t = 14). Notes in ``holders`` what it learns about them.

    Guarantee: the result passes ``accept`` (a commitment known before the shares); it is never a guess. Raises
    :class:`NotEnoughSurvivors` below t well-formed shares and :class:`ProtocolError` if no set gives an accepted
    secret, both naming ``what``.
    """
    usual = holders.usual
    if len(usual) == t and all(x in shares and is_share(shares[x]) for x in usual):
        secret = interpolate(shares, usual)
        if secret is not None and accept(secret):
            return secret
    usable = {x: share for x, share in shares.items() if is_share(share)}
    if len(usable) < t:
        raise NotEnoughSurvivors(f"{what}: {len(usable)} shares, {t} are needed; abandon the epoch")
    order = sorted(usable, key=holders.suspects.__contains__)
    for attempt, chosen in enumerate(islice(_candidates(order, t), max(2, MAX_WORK // t**2))):
        secret = interpolate(usable, tuple(chosen))
        if secret is not None and accept(secret):
            if attempt:  # else no wrong share was in the way, and looking for one would cost more than the secret
                holders.suspects.update(_wrong(usable, chosen, secret))
            holders.usual = tuple(chosen)
            return secret
    raise ProtocolError(
        f"{what}: no {t} of {len(usable)} shares give the committed secret; its owner or too many silos sent wrong "
        "shares: abandon the epoch and leave the owner out"
    )


def _candidates(order: list[int], t: int) -> Iterator[list[int]]:
    """Yield distinct choices of t indices: first without leaving any out, then without one, two, ... of them."""
    seen: set[frozenset[int]] = set()
    for size in range(len(order) - t + 1):
        for left_out in combinations(order, size):
            chosen = [x for x in order if x not in left_out][:t]
            if (key := frozenset(chosen)) not in seen:
                seen.add(key)
                yield chosen


def _wrong(shares: Mapping[int, bytes], chosen: list[int], secret: bytes) -> set[int]:
    """Return the indices outside ``chosen`` whose share is not on the polynomial of the accepted secret."""
    points = {0: int.from_bytes(secret, "big")} | {x: int.from_bytes(shares[x], "big") for x in chosen[:-1]}
    wrong = set()
    for x in shares.keys() - set(chosen):
        weights = weights_at(x, tuple(points))
        value = sum(weight * y for weight, y in zip(weights, points.values(), strict=True)) % PRIME
        if value != int.from_bytes(shares[x], "big"):
            wrong.add(x)
    return wrong
