"""Every instrument goes to exactly one silo, silos stay in one region, floors hold, and the seed decides all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.errors import DataError
from data_prep.partition import Member, partition


def members(us: int, eu: int, *, sectors: int = 4, samples: int = 100) -> list[Member]:
    return [
        Member(f"{region}/{i:03d}", region, f"s{i % sectors}", samples + i)
        for region, count in (("us", us), ("eu", eu))
        for i in range(count)
    ]


@settings(max_examples=60, deadline=None)
@given(
    us=st.integers(8, 40),
    eu=st.integers(8, 40),
    silos=st.integers(1, 8),
    alpha=st.sampled_from([0.01, 0.1, 0.2, 0.5, 10.0]),
    seed=st.integers(0, 1000),
)
def test_silos_are_disjoint_complete_of_one_region_and_above_the_floors(
    us: int, eu: int, silos: int, alpha: float, seed: int
) -> None:
    people = members(us, eu)
    groups = partition(people, silos=silos, alpha=alpha, seed=seed, floor=1, min_samples=100)
    assert len(groups) == silos
    assert sorted(key for group in groups for key in group) == sorted(m.key for m in people)
    samples = {m.key: m.samples for m in people}
    for group in groups:
        assert len(group) >= 1
        assert sum(samples[key] for key in group) >= 100
        if silos > 1:
            assert len({key.split("/")[0] for key in group}) == 1


def test_the_same_seed_gives_the_same_division_whatever_the_order() -> None:
    people = members(30, 10)
    first = partition(people, silos=6, alpha=0.2, seed=7)
    assert partition(people[::-1], silos=6, alpha=0.2, seed=7) == first
    assert partition(people, silos=6, alpha=0.2, seed=8) != first


def test_silos_are_divided_among_regions_in_proportion() -> None:
    groups = partition(members(60, 20), silos=8, alpha=0.5, seed=1)
    regions = [group[0].split("/")[0] for group in groups]
    assert regions.count("us") == 6
    assert regions.count("eu") == 2


def test_a_smaller_alpha_makes_silos_less_alike() -> None:
    def spread(alpha: float) -> float:
        sizes = [
            len(group) for seed in range(20) for group in partition(members(80, 8), silos=8, alpha=alpha, seed=seed)
        ]
        return float(np.std(sizes))

    assert spread(0.1) > spread(0.5) > spread(50.0)


def test_min_share_lifts_the_smallest_silos() -> None:
    people = members(100, 0, sectors=1)
    plain = partition(people, silos=10, alpha=0.1, seed=3, min_samples=1)
    lifted = partition(people, silos=10, alpha=0.1, seed=3, min_samples=1, min_share=0.5)
    assert min(map(len, plain)) < 3
    assert min(map(len, lifted)) >= 3


def test_more_silos_than_instruments_is_refused() -> None:
    with pytest.raises(DataError, match="found 3 instruments for 4 silos"):
        partition(members(3, 0), silos=4, alpha=0.2, seed=0)


def test_a_floor_of_samples_that_cannot_be_met_is_refused() -> None:
    with pytest.raises(DataError, match="partition of us: a silo is left with"):
        partition(members(4, 0), silos=4, alpha=0.2, seed=0, min_samples=150)


@pytest.mark.parametrize("setting", [{"alpha": 0.0}, {"silos": 0}, {"floor": 0}, {"min_share": 2.0}])
def test_settings_out_of_range_are_refused(setting: dict[str, float]) -> None:
    with pytest.raises(DataError, match="correct the setting"):
        partition(members(4, 0), **({"silos": 2, "alpha": 0.2, "seed": 0} | setting))  # type: ignore[arg-type]
