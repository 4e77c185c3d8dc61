"""How many neighbours a regular graph needs: degree and threshold from stated rates, by exact tails.

The graph is the circulant of :mod:`secagg.graph`: the silos stand on a circle in an order nobody chose, and each is a
neighbour of the ``k / 2`` nearest on either side. All tails are exact integers, so no rounding can turn a failed
condition into a fulfilled one. The derivation is in docs/secure-aggregation.md. Conditions 1 to 3 follow Bell,
Bonawitz, Gascon, Lepoint and Raykova 2020, the fourth Bonawitz et al. 2017, section 6.2; the fifth is our own.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from secagg.errors import ProtocolError

# Statistical security and correctness, in bits: every condition fails with at most 2^-bits.
SECURITY_BITS = 40
CORRECTNESS_BITS = 30
# Up to here a complete graph costs a silo less than its training does.
ALWAYS_COMPLETE = 100
KINDS = ("complete", "regular", "auto")


@dataclass(frozen=True)
class Rates:
    """What a regular graph has to withstand.

    Attributes
    ----------
    corruption : float
        Share of the silos that may collude with the server; rounded up to whole silos.
    dropout : float
        Share of the silos that may be missing in an epoch; rounded down. An epoch that loses more is abandoned.
    active : bool
        Whether the server may lie about who takes part and who survived, differently to each silo.
    security, correctness : int
        Bits; each privacy condition fails with probability at most 2^-security over the order of the circle, each
        correctness condition with at most 2^-correctness.
    """

    corruption: float
    dropout: float
    active: bool
    security: int = SECURITY_BITS
    correctness: int = CORRECTNESS_BITS

    def corrupt(self, n: int) -> int:
        """Return the number of silos that may collude."""
        # The product of a decimal rate and n may be a little above the whole number that is meant.
        return math.ceil(round(self.corruption * n, 9))

    def missing(self, n: int) -> int:
        """Return the number of silos that may be missing in an epoch."""
        return math.floor(round(self.dropout * n, 9))


@dataclass(frozen=True)
class Degree:
    """Neighbours per silo and the threshold within a neighbourhood."""

    k: int
    t: int


@dataclass(frozen=True)
class Bounds:
    """What holds for every neighbourhood and every half of one, except with the stated probabilities.

    Attributes
    ----------
    corrupt_neighbours : int
        No silo has more corrupt neighbours.
    highest_threshold : int
        Every secret keeps as many shares: a survivor's own and its surviving neighbours', a lost silo's surviving
        neighbours' only.
    window_corrupt, window_missing : int
        No ``k / 2`` consecutive silos on the circle hold more corrupt, or more missing, ones.
    ring : bool
        Whether no ``k / 2`` consecutive silos are all corrupt or missing, so that the honest survivors form a ring.
    """

    corrupt_neighbours: int
    highest_threshold: int
    window_corrupt: int
    window_missing: int
    ring: bool


def tail_bound(population: int, marked: int, draws: int, union: int, bits: int) -> int:
    """Return the smallest b with ``union * P[X > b] <= 2^-bits``.

    X counts the marked ones among ``draws`` without replacement. Exact: the
    hypergeometric weights are integers that sum to C(population, draws).
    """
    allowed, above = math.comb(population, draws), 0
    for x, weight in _weights_downwards(population, marked, draws):
        above += weight
        if (above * union) << bits > allowed:
            return x
    return 0


def highest_threshold(n: int, k: int, missing: int, bits: int) -> int:
    """Return the largest t at which, but for a probability of 2^-bits, no secret is short of t shares.

    A survivor's seed has k + 1 holders, itself included; a lost silo's mask key has k holders, among whom one fewer of
    the missing silos can be. Union over all silos, exactly.
    """
    kept = _tails(n - 1, missing, k)
    lost = _tails(n - 1, max(missing - 1, 0), k)
    allowed = math.comb(n - 1, k)
    for t in range(k, 0, -1):
        short = (n - missing) * kept.get(k + 2 - t, 0) + missing * lost.get(k + 1 - t, 0)
        if short << bits <= allowed:
            return t
    return 0


def _tails(population: int, marked: int, draws: int) -> dict[int, int]:
    """Return P[X >= x] times C(population, draws) for each x that can occur."""
    tails, above = {}, 0
    for x, weight in _weights_downwards(population, marked, draws):
        above += weight
        tails[x] = above
    return {x: tails.get(x, above) for x in range(min(marked, draws) + 1)}


def _weights_downwards(population: int, marked: int, draws: int) -> Iterator[tuple[int, int]]:
    """Yield (x, C(marked, x) C(population - marked, draws - x)) from the largest possible x downwards."""
    x = min(marked, draws)
    weight = math.comb(marked, x) * math.comb(population - marked, draws - x)
    while x >= max(0, draws - (population - marked)):
        yield x, weight
        weight = weight * x * (population - marked - draws + x) // ((marked - x + 1) * (draws - x + 1))
        x -= 1


@lru_cache(maxsize=1024)
def bounds(n: int, k: int, rates: Rates) -> Bounds:
    """Return what holds for the neighbourhoods of a ``k``-regular circulant on ``n`` silos in uniform order.

    Assumption: who is corrupt or missing does not depend on the order of the circle.
    """
    corrupt, missing, half = rates.corrupt(n), rates.missing(n), k // 2
    removed = min(corrupt + missing, n)
    # P[half given positions are all removed] = C(n - half, removed - half) / C(n, removed); n positions to begin at.
    runs = 0 if removed < half else n * math.comb(n - half, removed - half) << rates.security
    return Bounds(
        corrupt_neighbours=tail_bound(n - 1, corrupt, k, n, rates.security),
        highest_threshold=highest_threshold(n, k, missing, rates.correctness),
        window_corrupt=tail_bound(n, corrupt, half, n, rates.security),
        window_missing=tail_bound(n, missing, half, n, rates.correctness),
        ring=runs <= math.comb(n, removed),
    )


def shortcoming(n: int, degree: Degree, rates: Rates) -> str:
    """Say which condition a degree and threshold miss, or return an empty text if they meet all.

    1. No silo has t or more corrupt neighbours (security).
    2. No k / 2 consecutive silos are all corrupt or missing: the honest survivors stay connected (security).
    3. Every secret keeps t shares (correctness).
    4. Active: 2 t > k + 1 + c, with c the most corrupt neighbours: never both secrets of one silo. And more than half
       of the honest silos survive, so that of two announcements of an epoch at most one is answered.
    5. Active: no k / 2 consecutive silos can be made to look missing by lists that differ (see :func:`uncuttable`).
    """
    k, t = degree.k, degree.t
    if not (2 <= k < n - 1 and k % 2 == 0 and 1 <= t <= k):
        return f"degree {k} and threshold {t} of {n} silos: expected an even degree from 2 to {n - 2} and 1 <= t <= k"
    found = bounds(n, k, rates)
    if t <= found.corrupt_neighbours:
        return f"a silo may have {found.corrupt_neighbours} corrupt neighbours; expected a higher threshold than {t}"
    if not found.ring:
        return f"{k // 2} silos in a row may be corrupt or missing; expected a higher degree than {k}"
    if t > found.highest_threshold:
        return f"a secret may keep only {found.highest_threshold} shares; expected at most that, not {t}"
    if rates.active and 2 * t <= k + 1 + found.corrupt_neighbours:
        return (
            f"2 t > k + 1 + c does not hold for k = {k}, t = {t} and c = {found.corrupt_neighbours} corrupt neighbours"
        )
    if rates.active and 2 * (n - rates.missing(n)) <= n + rates.corrupt(n):
        return "two announcements of one epoch could both be answered; state lower rates"
    if rates.active and not uncuttable(k, t, found):
        return f"lists that differ could cut the circle at k = {k}, t = {t}; expected a higher degree"
    return ""


def uncuttable(k: int, t: int, found: Bounds) -> bool:
    """Say whether no lists, however they differ between silos, can make ``k / 2`` silos in a row look missing.

    Of h = k / 2 silos in a row at least h - g are honest. Let a of them be left out of the announcement, which is the
    same for everyone; the others' mask keys have to be reconstructed, each from at least t - c honest neighbours
    that were told it is lost. A silo answers only lists that leave out at most m of any h in a row, a of them already
    used: at most m - a for this row, and no more than its neighbours in it. Inside the row all h silos are asked,
    outside it the j-th from the end has h + 1 - j neighbours in it.
    """
    h, spare = k // 2, t - found.corrupt_neighbours
    for a in range(found.window_missing + 1):
        x = found.window_missing - a
        told = h * x + 2 * (x * (x + 1) // 2 + x * (h - x))
        if (h - found.window_corrupt - a) * spare <= told:
            return False
    return True


def thresholds(n: int, k: int, rates: Rates) -> range:
    """Return the thresholds that satisfy conditions 1, 3 and 4 at a degree; there may be none."""
    found = bounds(n, k, rates)
    low = found.corrupt_neighbours + 1
    if rates.active:
        low = max(low, (k + 1 + found.corrupt_neighbours) // 2 + 1)
    return range(low, found.highest_threshold + 1)


@lru_cache(maxsize=256)
def smallest(n: int, rates: Rates) -> Degree | None:
    """Return the smallest degree, and for it the smallest threshold, that meet every condition; None if there are none.

    Without one, and for few silos generally, the graph has to be complete.
    """
    for k in range(2, n - 1, 2):
        for t in thresholds(n, k, rates):
            if not shortcoming(n, Degree(k, t), rates):
                return Degree(k, t)
    return None


def choose(kind: str, n: int, rates: Rates) -> Degree | None:
    """Return the degree of a run's graph by its kind, None for a complete graph.

    ``complete`` is complete, ``regular`` the smallest regular graph or :class:`ProtocolError` if there is none, and
    ``auto`` regular above 100 silos if that at least halves the number of neighbours.
    """
    if kind == "complete" or (kind == "auto" and n <= ALWAYS_COMPLETE):
        return None
    found = smallest(n, rates)
    if kind == "auto":
        return found if found is not None and 2 * found.k < n else None
    if found is None:
        raise ProtocolError(
            f"no regular graph of {n} silos withstands a corruption of {rates.corruption:g} and a drop-out of "
            f"{rates.dropout:g}; state lower rates, or use the complete graph"
        )
    return found
