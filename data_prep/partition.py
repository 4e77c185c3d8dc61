"""Division of instruments among silos."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_prep.errors import DataError

__all__ = ["Member", "partition"]


@dataclass(frozen=True)
class Member:
    """One instrument to be given to a silo.

    Attributes
    ----------
    key : str
        Unique name; the result depends on the members' order only through it.
    region : str
        A silo holds members of one region.
    sector : str or None
        Dirichlet proportions are drawn per region and sector.
    samples : int
        Training samples.
    """

    key: str
    region: str
    sector: str | None
    samples: int


def partition(
    members: Sequence[Member],
    *,
    silos: int,
    alpha: float,
    seed: int,
    floor: int = 1,
    min_samples: int = 1,
    min_share: float = 0.0,
) -> list[tuple[str, ...]]:
    """Divide instruments among silos: one region per silo, Dirichlet proportions per sector.

    Silos are divided among regions in proportion to their numbers of members, at least one each; with fewer silos than
    regions all members form one bucket. Within a region each sector draws proportions over the region's silos from
    Dirichlet(alpha) and each of its members draws a silo from them. Then silos short of `floor` members or
    `min_samples` samples receive, one at a time, the smallest sufficient member of the silo that has most samples to
    spare; and, as far as that is possible, so do silos below `min_share` of their region's mean.

    Parameters
    ----------
    members : sequence of Member
        With distinct keys.
    silos : int
        Number of silos.
    alpha : float
        Concentration; small values give each silo few sectors and unequal sizes.
    seed : int
        The only source of randomness.
    floor : int
        Least number of members of a silo.
    min_samples : int
        Least number of training samples of a silo.
    min_share : float
        Wanted least number of training samples of a silo, as a share in [0, 1] of the mean over its region's silos. It
        keeps a small alpha on a region of unknown sectors from leaving most silos with a single ticker.

    Returns
    -------
    list of tuple of str
        Sorted keys per silo; disjoint, and together all members.

    Raises
    ------
    DataError
        Settings out of range, more silos than members, or floors that cannot be met.

    References
    ----------
    Hsu, Qi, Brown, Measuring the effects of non-identical data distribution for federated visual classification,
    arXiv:1909.06335, section 3.
    """
    if silos < 1 or floor < 1 or not alpha > 0.0 or not 0.0 <= min_share <= 1.0:
        raise DataError(
            f"partition: found silos={silos}, floor={floor}, alpha={alpha}, min_share={min_share}, expected "
            "silos >= 1, floor >= 1, alpha > 0 and 0 <= min_share <= 1; correct the setting"
        )
    if silos * floor > len(members):
        raise DataError(
            f"partition: found {len(members)} instruments for {silos} silos of at least {floor}, expected at least "
            f"{silos * floor}; lower silos or add price files"
        )
    rng = np.random.default_rng(seed)
    ordered = sorted(members, key=lambda member: member.key)
    regions = sorted({member.region for member in ordered})
    buckets = [[m for m in ordered if m.region == region] for region in regions]
    if silos < len(regions):
        buckets = [ordered]
    shares = _silos_per_bucket([len(bucket) for bucket in buckets], silos, floor)
    result: list[tuple[str, ...]] = []
    for bucket, share in zip(buckets, shares, strict=True):
        groups = _allocate(bucket, share, alpha, rng)
        short = _repair(bucket, groups, floor, min_samples)
        if short is not None:
            raise DataError(
                f"partition of {bucket[0].region}: a silo is left with {len(short)} instruments and "
                f"{sum(bucket[i].samples for i in short)} training samples, expected at least {floor} and "
                f"{min_samples}; lower silos or min_samples, or add price files"
            )
        wanted = int(min_share * sum(member.samples for member in bucket) / share)
        _repair(bucket, groups, floor, max(wanted, min_samples))
        result += [tuple(sorted(bucket[i].key for i in group)) for group in groups]
    return result


def _silos_per_bucket(sizes: list[int], silos: int, floor: int) -> list[int]:
    """Give every bucket one silo, then each further one to the bucket with most members per silo that has room."""
    shares = [1] * len(sizes)
    for _ in range(silos - len(sizes)):
        load = [
            size / share if size >= (share + 1) * floor else -1.0 for size, share in zip(sizes, shares, strict=True)
        ]
        shares[int(np.argmax(load))] += 1
    return shares


def _allocate(bucket: list[Member], silos: int, alpha: float, rng: np.random.Generator) -> list[list[int]]:
    groups: list[list[int]] = [[] for _ in range(silos)]
    for sector in sorted({m.sector or "" for m in bucket}):
        inside = [i for i, m in enumerate(bucket) if (m.sector or "") == sector]
        proportions: NDArray[np.float64] = rng.dirichlet(np.full(silos, alpha))
        for i, silo in zip(inside, rng.choice(silos, size=len(inside), p=proportions), strict=True):
            groups[int(silo)].append(i)
    return groups


def _repair(bucket: list[Member], groups: list[list[int]], floor: int, min_samples: int) -> list[int] | None:
    """Move members to silos below the least numbers; return a silo for which none is left to take, or None."""

    def samples(group: list[int]) -> int:
        return sum(bucket[i].samples for i in group)

    def short(group: list[int]) -> bool:
        return len(group) < floor or samples(group) < min_samples

    while any(short(group) for group in groups):
        needy = min((g for g in groups if short(g)), key=lambda g: (samples(g), len(g)))
        wanted = min_samples - samples(needy)
        donors = sorted((g for g in groups if g is not needy), key=samples, reverse=True)
        for donor in donors:
            spare = samples(donor) - min_samples
            if len(donor) <= floor:
                continue
            fitting = [i for i in donor if bucket[i].samples <= spare and bucket[i].samples > 0]
            if fitting:
                enough = [i for i in fitting if bucket[i].samples >= wanted]
                chosen = (
                    min(enough, key=lambda i: bucket[i].samples)
                    if enough
                    else max(fitting, key=lambda i: bucket[i].samples)
                )
                donor.remove(chosen)
                needy.append(chosen)
                break
        else:
            return needy
    return None
