"""Degrees and thresholds: exact tails, every condition against a simulation, and the published order of magnitude."""

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.errors import ProtocolError
from secagg.graph_parameters import (
    Degree,
    Rates,
    bounds,
    choose,
    highest_threshold,
    shortcoming,
    smallest,
    tail_bound,
    uncuttable,
)

FIVE, TEN, TWENTY = (0.05, 0.05), (0.1, 0.1), (0.2, 0.1)


def exceeds(population: int, marked: int, draws: int, b: int) -> Fraction:
    """P[X > b] from the definition."""
    ways = sum(
        math.comb(marked, x) * math.comb(population - marked, draws - x)
        for x in range(b + 1, draws + 1)
        if x <= marked and draws - x <= population - marked
    )
    return Fraction(ways, math.comb(population, draws))


@settings(max_examples=150, deadline=None)
@given(data=st.data(), population=st.integers(1, 40), bits=st.integers(1, 50))
def test_a_tail_bound_is_the_smallest_that_keeps_its_promise(data: st.DataObject, population: int, bits: int) -> None:
    marked, draws = (data.draw(st.integers(0, population)) for _ in range(2))
    union = data.draw(st.integers(1, population))
    b = tail_bound(population, marked, draws, union, bits)
    assert union * exceeds(population, marked, draws, b) <= Fraction(1, 2**bits)
    assert b == 0 or union * exceeds(population, marked, draws, b - 1) > Fraction(1, 2**bits)


@settings(max_examples=100, deadline=None)
@given(data=st.data(), n=st.integers(5, 40), bits=st.integers(1, 40))
def test_a_highest_threshold_is_the_highest(data: st.DataObject, n: int, bits: int) -> None:
    k, missing = data.draw(st.integers(1, (n - 2) // 2)) * 2, data.draw(st.integers(0, n // 2))

    def short(t: int) -> Fraction:
        kept = (n - missing) * exceeds(n - 1, missing, k, k + 1 - t)
        return kept + missing * exceeds(n - 1, max(missing - 1, 0), k, k - t)

    t = highest_threshold(n, k, missing, bits)
    assert t == 0 or short(t) <= Fraction(1, 2**bits)
    assert t == k or short(t + 1) > Fraction(1, 2**bits)


@pytest.mark.parametrize(
    ("n", "rates", "semi_honest", "active"),
    [
        (20, FIVE, (6, 2), (6, 6)),
        (100, FIVE, (22, 6), (30, 26)),
        (100, TEN, (32, 11), (60, 51)),
        (300, FIVE, (28, 14), (84, 70)),
        (1000, FIVE, (30, 17), (138, 112)),
        (1000, TEN, (50, 27), (288, 228)),
        (1000, TWENTY, (74, 45), (470, 391)),
        (10000, FIVE, (36, 20), (176, 141)),
    ],
)
def test_the_parameters_of_the_documentation(
    n: int, rates: tuple[float, float], semi_honest: tuple[int, int], active: tuple[int, int]
) -> None:
    for against, expected in ((False, semi_honest), (True, active)):
        asked = Rates(*rates, active=against)
        found = smallest(n, asked)
        assert found == Degree(*expected)
        assert shortcoming(n, found, asked) == ""
        for less in (Degree(found.k - 2, t) for t in range(1, found.k - 1)):
            assert shortcoming(n, less, asked)
        assert shortcoming(n, Degree(found.k, found.t - 1), asked)


@pytest.mark.parametrize(
    ("n", "rates", "expected"),
    [
        (100, FIVE, (30, 6)), (100, TEN, (42, 11)), (100, TWENTY, (54, 21)),
        (1000, FIVE, (32, 18)), (1000, TEN, (50, 27)), (1000, TWENTY, (74, 45)),
    ],
)  # fmt: skip
def test_with_the_bound_for_independent_losses_the_published_sizes_come_out(
    n: int, rates: tuple[float, float], expected: tuple[int, int]
) -> None:
    """n (gamma + delta)^(k/2) for a row of k/2 removed silos, as if each were lost independently, needs a few more."""
    asked = Rates(*rates, active=False)
    corrupt, missing = asked.corrupt(n), asked.missing(n)
    for k in range(2, n, 2):
        low, high = tail_bound(n - 1, corrupt, k, n, 40) + 1, highest_threshold(n, k, missing, 30)
        if n * sum(rates) ** (k // 2) <= 2**-40 and low <= high:
            assert (k, low) == expected
            return
    pytest.fail("no degree")


def test_without_the_fifth_condition_half_the_degree_would_seem_enough() -> None:
    """2 t > k + 1 + c alone gives about what is published for a malicious server; split lists then cut the circle."""
    rates = Rates(0.05, 0.05, active=True)
    found = bounds(1000, 60, rates)
    assert found.highest_threshold >= 42
    assert 60 + 1 + found.corrupt_neighbours < 2 * 42
    assert not uncuttable(60, 42, found)
    assert "lists that differ" in shortcoming(1000, Degree(60, 42), rates)


@pytest.mark.parametrize(("n", "rates"), [(8, (0.25, 0.25)), (100, (0.33, 0.33)), (12, (0.3, 0.3))])
def test_for_few_silos_or_high_rates_only_the_complete_graph_is_left(n: int, rates: tuple[float, float]) -> None:
    asked = Rates(*rates, active=True)
    assert smallest(n, asked) is None
    assert choose("complete", n, asked) is None
    assert choose("auto", n, asked) is None
    with pytest.raises(ProtocolError, match="complete graph"):
        choose("regular", n, asked)


def test_auto_is_regular_only_for_many_silos_and_where_it_pays() -> None:
    rates = Rates(*FIVE, active=True)
    assert choose("auto", 100, rates) is None
    assert choose("auto", 1000, rates) == choose("regular", 1000, rates) == Degree(138, 112)
    assert choose("auto", 1000, Rates(*TWENTY, active=True)) == Degree(470, 391)
    assert choose("auto", 300, Rates(*TEN, active=True)) is None, "162 of 299 neighbours are more than half"


@pytest.mark.parametrize("rates", [Rates(0.1, 0.1, False, 7, 7), Rates(0.15, 0.2, False, 5, 5)])
def test_a_simulation_fails_no_more_often_than_stated(rates: Rates) -> None:
    n, tries = 60, 4000
    found = smallest(n, rates)
    assert found is not None
    held, half = bounds(n, found.k, rates), found.k // 2
    generator = np.random.default_rng(5)
    corrupt, missing = rates.corrupt(n), rates.missing(n)
    failures = dict.fromkeys(("corrupt", "ring", "short", "window corrupt", "window missing"), 0)

    def around(flags: np.ndarray, width: int) -> np.ndarray:
        upto = np.concatenate([[0], np.cumsum(np.concatenate([flags, flags]))])
        return upto[width : width + n] - upto[:n]

    for _ in range(tries):
        bad = np.zeros(n, dtype=int)
        gone = np.zeros(n, dtype=int)
        order = generator.permutation(n)
        bad[order[:corrupt]] = 1
        gone[order[corrupt : corrupt + missing]] = 1  # disjoint: the worst case for the ring
        closed_bad = np.roll(around(bad, found.k + 1), half)
        closed_gone = np.roll(around(gone, found.k + 1), half)
        failures["corrupt"] += ((closed_bad - bad)[bad == 0] >= found.t).any()
        failures["ring"] += (around(bad + gone, half) == half).any()
        # A survivor's own share counts, a lost silo's does not.
        failures["short"] += (found.k + 1 - closed_gone < found.t).any()
        failures["window corrupt"] += (around(bad, half) > held.window_corrupt).any()
        failures["window missing"] += (around(gone, half) > held.window_missing).any()
    for name, count in failures.items():
        stated = 2.0 ** -(rates.correctness if name in ("short", "window missing") else rates.security)
        assert count <= tries * stated + 4 * math.sqrt(tries * stated), name


def test_rates_count_whole_silos_and_decimals_mean_what_they_say() -> None:
    assert [Rates(r, r, False).corrupt(1000) for r in (0.05, 0.1, 0.33, 0.0501)] == [50, 100, 330, 51]
    assert [Rates(r, r, False).missing(1000) for r in (0.05, 0.29, 0.0509)] == [50, 290, 50]


def test_odd_degrees_and_impossible_thresholds_are_named() -> None:
    rates = Rates(0.0, 0.0, False)
    for degree in (Degree(3, 2), Degree(0, 1), Degree(10, 5), Degree(4, 0), Degree(4, 5)):
        assert "expected an even degree" in shortcoming(10, degree, rates)
    assert shortcoming(10, Degree(4, 2), rates) == ""


@pytest.mark.parametrize("bits", [0, 2, 4])
@pytest.mark.parametrize("k", [2, 4, 6])
@pytest.mark.parametrize(("corrupt", "missing"), [(0, 3), (1, 1), (2, 3), (3, 2)])
def test_over_every_placement_on_a_small_circle_no_bound_is_passed_more_often_than_stated(
    bits: int, k: int, corrupt: int, missing: int
) -> None:
    """No formula here: neighbourhoods and rows as sets, and all ways to choose who is corrupt or missing."""
    n, h = 9, k // 2
    found, limit = bounds(n, k, Rates(corrupt / n, missing / n, True, bits, bits)), Fraction(1, 2**bits)
    near = [{(i + s * j) % n for j in range(1, h + 1) for s in (1, -1)} for i in range(n)]
    rows = [{(i + j) % n for j in range(h)} for i in range(n)]

    def share(chosen: int, fails: Callable[[set[int]], bool]) -> Fraction:
        """How many of all placements fail."""
        ways = itertools.combinations(range(n), chosen)
        return Fraction(sum(fails(set(way)) for way in ways), math.comb(n, chosen))

    def short(gone: set[int]) -> bool:
        return any(len(near[i] - gone) + (i not in gone) < found.highest_threshold for i in range(n))

    assert share(corrupt, lambda bad: any(len(x & bad) > found.corrupt_neighbours for x in near)) <= limit
    assert share(corrupt, lambda bad: any(len(x & bad) > found.window_corrupt for x in rows)) <= limit
    assert share(missing, lambda gone: any(len(x & gone) > found.window_missing for x in rows)) <= limit
    assert share(missing, short) <= limit
    assert not found.ring or share(corrupt + missing, lambda gone: any(x <= gone for x in rows)) <= limit


def test_against_an_active_server_two_announcements_never_both_find_enough_silos() -> None:
    for n, corruption, dropout in itertools.product((8, 20, 50), (0.0, 0.1, 0.3), (0.0, 0.2, 0.35, 0.5)):
        rates = Rates(corruption, dropout, True, 3, 0)
        found = smallest(n, rates)
        assert found is None or 2 * (n - rates.missing(n) - rates.corrupt(n)) > n - rates.corrupt(n)
