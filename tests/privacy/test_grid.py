import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from privacy import exact_normal, rounded_normal
from privacy.errors import PrivacyError
from privacy.exact_normal import Cell, accepts, tail
from privacy.grid import Grid
from privacy.mlp import Mlp
from privacy.plan import MechanismPlan
from privacy.randomness import RandomStream
from privacy.rounded_normal import NormalTable

torch.set_num_threads(1)


SCALES = [1e-9, 0.3, 1.0, 6.0, 31.9, 40.0, 1000.5, 3.77 * 2.0**19, 2.0**22, 2.0**24, 2.0**36]


def density(y: object, scale: float) -> object:
    """The normal density over its value at 0, to many digits."""
    return mpmath.exp(-((y / mpmath.mpf(scale)) ** 2) / 2)  # type: ignore[operator]


@pytest.mark.parametrize("scale", SCALES)
def test_the_histogram_lies_below_the_density_and_the_bounds_above(scale: float) -> None:
    table = NormalTable.of(scale)
    cells = len(table.lefts) - 2
    counts, weights = table.counts.astype(int).tolist(), table.weights.tolist()
    width = math.ldexp(1.0, table.bits)
    assert table.used == sum(counts) < 2**16
    assert sum(weights) == len(table.proposals) == 2**16
    assert min(weights) >= 1
    assert np.array_equal(np.bincount(table.proposals), weights)
    assert 2.0**-6 <= width / scale <= 2.0**-5
    assert table.used / 2**16 > 0.98, "the table decides all but one in fifty"
    with mpmath.workdps(40):
        entry = mpmath.mpf(scale) * mpmath.sqrt(2 * mpmath.pi) / 2**16 / width
        for place in range(cells):
            left, right = mpmath.mpf(table.lefts[place]), mpmath.mpf(table.lefts[place]) + width
            assert right == table.lefts[place + 1]
            lowest, highest = sorted((density(left, scale), density(right, scale)))
            if left < 0 < right:
                highest = mpmath.mpf(1)
            assert counts[place] * entry <= lowest
            assert highest - counts[place] * entry <= weights[place] * mpmath.mpf(table.unit)
        # The tail: below its proposals in the first stretches; after that it falls faster than they do.
        for stretch in range(4):
            start = table.lefts[cells] + 64 * stretch * width
            assert start >= 8.5 * scale
            assert density(mpmath.mpf(start), scale) <= mpmath.mpf(table.unit) * mpmath.mpf(2) ** -(stretch + 8)
    assert table.lefts[0] == -table.lefts[cells] - (1.0 if table.bits >= 0 else 0.0)


@pytest.mark.parametrize("scale", SCALES)
def test_columns_hold_the_first_roundings_of_their_cells(scale: float) -> None:
    table = NormalTable.of(scale)
    first = np.repeat(table.lefts, table.counts.astype(int))
    width = math.ldexp(1.0, table.bits)
    assert np.array_equal(table.columns[: table.used], np.floor(first + 0.5))
    if table.bits < 0:
        assert np.array_equal(np.ceil(first + width - 0.5), np.floor(first + 0.5)), "a cell lies within one rounding"
    else:
        assert np.array_equal(first + 0.5, np.round((first + 0.5) / width) * width)


@pytest.mark.parametrize("scale", [0.3, 40.0, 3.77 * 2.0**19, 2.0**29])
def test_every_decision_is_that_of_the_ideal_values(scale: float) -> None:
    table = NormalTable.of(scale)
    drawn = RandomStream.seeded(11)._words(1600)
    found = table._accepted(drawn.copy(), lambda place, count: (0, 0)).tolist()
    expected = []
    width = mpmath.mpf(2) ** table.bits
    with mpmath.workdps(60):
        entry = mpmath.mpf(scale) * mpmath.sqrt(2 * mpmath.pi) / 2**16 / width
        for choice, position in zip(drawn[:800].tolist(), drawn[800:].tolist(), strict=True):
            place = int(table.proposals[choice >> 48])
            if place >= len(table.lefts) - 2:
                continue
            y = mpmath.mpf(table.lefts[place]) + (position + mpmath.mpf("0.5")) / mpmath.mpf(2) ** 64 * width
            bound = int(table.weights[place]) * mpmath.mpf(table.unit)
            chance = ((choice % 2**48) + mpmath.mpf("0.5")) / mpmath.mpf(2) ** 48 * bound
            if chance < density(y, scale) - int(table.counts[place]) * entry:  # type: ignore[operator]
                expected.append(int(mpmath.floor(y + 0.5)))
    assert found == expected
    assert len(found) > 200


@pytest.mark.parametrize("scale", [0.3, 6.0, 1e6, 2.0**29])
def test_the_slow_path_gives_the_same_numbers(monkeypatch: pytest.MonkeyPatch, scale: float) -> None:
    fast = RandomStream.seeded(13).rounded_normal(20_001, scale)
    monkeypatch.setattr(rounded_normal, "_MARGIN", 10.0)
    assert np.array_equal(RandomStream.seeded(13).rounded_normal(20_001, scale), fast)


def test_float64_errs_by_far_less_than_the_margin() -> None:
    for scale in (0.3, 40.0, 3.77 * 2.0**19):
        y = np.linspace(-8.6, 8.6, 4001) * scale
        found = np.exp((y / scale) ** 2 * -0.5)
        with mpmath.workdps(40):
            worst = max(
                abs(float(mpmath.mpf(float(value)) / density(mpmath.mpf(float(at)), scale) - 1))  # type: ignore[operator]
                for at, value in zip(y, found, strict=True)
            )
        assert worst < 2.0**-45 < rounded_normal._MARGIN / 4


def test_undecided_proposals_ask_for_more_bits() -> None:
    # The density at y >= 2^-60 is below 1 - 2^-122, and the chance, of a bound of 2, lies in [1 - 2^-47, 1).
    cell = Cell(2.0**-60, 2.0**-60, 0, 2.0)
    for more, decision, times in (((0, 1 << 63), True, 1), ((2**64 - 1, 2**64 - 1), False, 2)):
        asked: list[int] = []

        def further(count: int, more: tuple[int, int] = more, asked: list[int] = asked) -> tuple[int, int]:
            asked.append(count)
            return more

        assert accepts(1.0, cell, 2**47 - 1, 0, further) == decision
        assert asked == list(range(times))
        asked.clear()
        assert accepts(1.0, cell, 2**47 - 2, 0, further)
        assert not accepts(1.0, cell, 2**47 + 1, 0, further)
        assert asked == []


def test_the_tail_has_the_density_of_the_normal() -> None:
    """Proposals beyond 0.5 scale, a place where many are accepted, against the normal's own tail."""
    scale, start, unit = 64.0, 31.5, 2.0**9
    stream = RandomStream.seeded(21)
    found = []
    words = stream._words(12 * 6000).reshape(-1, 6)
    for chance, position, *bits in words.tolist():
        pairs = list(zip(bits[::2], bits[1::2], strict=True))
        drawn = tail(scale, Cell(start, 2.0, 0, unit), 1, chance >> 16, position, lambda k, of=pairs: of[k])
        found += [] if drawn is None else [drawn]
    values = np.array(found)
    assert len(values) > 800
    assert values[values > 0].min() == 32
    assert values[values < 0].max() == -33
    edges = np.array([-np.inf, -192.5, -128.5, -96.5, -64.5, -32.5, 31.5, 63.5, 95.5, 127.5, 191.5, np.inf])
    expected = np.diff(stats.norm.cdf(edges / scale))
    expected[5] = 0.0
    seen = np.histogram(values, edges)[0]
    kept = expected > 0
    assert seen[5] == 0
    expected = expected[kept] / expected.sum() * len(values)
    assert stats.chisquare(seen[kept], expected).pvalue > 1e-3


def test_a_long_stretch_of_the_tail_needs_more_words() -> None:
    bits = iter([(2**64 - 1, 0), (0b111, 1), (0, 0)])
    asked = []

    def further(count: int) -> tuple[int, int]:
        asked.append(count)
        return next(bits)

    assert tail(1.0, Cell(9.5, 1.0, 0, 1.0), 1, 2**47, 0, further) is None
    assert asked[:2] == [0, 1]


def test_a_broken_stream_of_bits_is_an_error() -> None:
    with pytest.raises(PrivacyError, match="noise"):
        accepts(1.0, Cell(-0.5, 0.5, 0, 1.0), 2**48 - 1, 2**64 - 1, lambda count: (2**64 - 1, 2**64 - 1))


def test_pi_is_pi() -> None:
    with mpmath.workdps(300):
        assert abs(mpmath.mpf(str(exact_normal._pi(250))) - mpmath.pi) < mpmath.mpf(10) ** -249


@pytest.mark.parametrize("scale", [0.4, 1.7, 6.0, 33.0])
def test_rounded_noise_has_the_distribution_of_a_rounded_normal(scale: float) -> None:
    values = RandomStream.seeded(14).rounded_normal(200_001, scale)
    assert values.dtype == np.float64
    assert len(values) == 200_001
    top = math.ceil(4 * scale)
    edges = np.array([-np.inf, *(np.arange(-top, top) + 0.5), np.inf])
    expected = np.diff(stats.norm.cdf(edges / scale)) * len(values)
    seen = np.bincount(np.clip(values, -top, top).astype(int) + top, minlength=2 * top + 1)
    kept = expected > 5
    assert stats.chisquare(seen[kept], expected[kept] * seen[kept].sum() / expected[kept].sum()).pvalue > 1e-3


def test_rounded_noise_is_independent_between_the_halves() -> None:
    values = RandomStream.seeded(15).rounded_normal(100_000, 2.0**24) / 2.0**24
    assert stats.kstest(values, "norm").pvalue > 1e-3
    left, right = values[:50_000], values[50_000:]
    for one, other in ((left, right), (left**2, right**2), (values[:-1], values[1:])):
        assert abs(np.corrcoef(one, other)[0, 1]) < 4 / np.sqrt(50_000)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf"), 2.0**37, True])
def test_bad_scales_are_refused_by_name(scale: float) -> None:
    with pytest.raises(PrivacyError, match="scale"):
        RandomStream.seeded(1).rounded_normal(3, scale)
    assert RandomStream.seeded(1).rounded_normal(0, 1.0).shape == (0,)


@given(
    sensitivity=st.floats(1e-6, 1e6),
    ratio=st.floats(1e-3, 1e4) | st.floats(1e-14, 1e-3),
    dimensions=st.integers(1, 200),
    records=st.integers(0, 10**6),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=200, deadline=None)
def test_the_noise_covers_what_rounding_adds(
    sensitivity: float, ratio: float, dimensions: int, records: int, seed: int
) -> None:
    grid = Grid.of(sensitivity, ratio, dimensions, records * sensitivity)
    assert math.frexp(grid.step)[0] == 0.5
    assert 0 < grid.noise <= 2.0**30
    covered = grid.noise_stddev / ratio
    assert sensitivity < covered <= sensitivity * 1.125001
    if 1e-3 < ratio <= 100:
        assert covered <= sensitivity * (1 + 2.0**-10)
    assert records * sensitivity / grid.step <= 2.0**51
    rng = np.random.default_rng(seed)
    # The worst case: the vector moves along the diagonal, from just below one half-integer to just above another.
    move = np.full(dimensions, sensitivity / math.sqrt(dimensions))
    offset = 0.5 - 1e-6 * rng.random(dimensions)
    near = (np.round(rng.standard_normal(dimensions) * 1e3) + offset) * grid.step
    for start in (near, rng.standard_normal(dimensions)):
        moved = np.rint((start + move) / grid.step) - np.rint(start / grid.step)
        assert float(np.linalg.norm(moved)) * grid.step <= covered * (1 + 1e-9)


def test_impossible_grids_are_refused_by_name() -> None:
    with pytest.raises(PrivacyError, match="noise_multiplier = 1e"):
        Grid.of(1.0, 1e9, 121_281, 1.0)
    with pytest.raises(PrivacyError, match="values of up to 1e"):
        Grid.of(1.0, 1.0, 121_281, 1e13)
    for bad in (0.0, float("nan"), float("inf"), -1.0):
        with pytest.raises(PrivacyError, match="sensitivity"):
            Grid.of(bad, 1.0, 1, 1.0)
    with pytest.raises(PrivacyError, match="norm"):
        Grid.of(1.0, 1.0, 1, float("inf"))


def test_the_grid_costs_a_thousandth_of_the_noise() -> None:
    grid = MechanismPlan(0.1, 1.0, 3.77, 5, 1000).grid(121_281, 1000)
    assert grid.step == 2.0**-19
    assert grid.noise_stddev == pytest.approx(3.77 * (1 + math.sqrt(121_281) * 2.0**-19), rel=1e-9)
    assert grid.noise_stddev < 3.77 * (1 + 2.0**-10)


def test_low_bits_no_longer_tell_two_sums_apart() -> None:
    # Outputs near 0 keep the noise's own last bits when the sum is 0 and lose them when it is 1.
    small = RandomStream.seeded(16).normal(4000) * 1e-3
    zero, one = set((0.0 + small).tolist()), {float(x) - 1.0 for x in 1.0 + small}
    assert len(zero & one) < 40, "the continuous noise is open to the attack"
    grid = Grid.of(1.0, 1e-3, 1, 10.0)
    stream = RandomStream.seeded(17)
    released = [grid.release(np.full(4000, value), stream) for value in (0.0, 1.0, 1 / 3)]
    for values in released:
        assert np.array_equal(values / grid.step, np.rint(values / grid.step))
    # The same noise gives the same set of low bits, whatever the sum.
    again = [grid.release(np.full(4000, value), RandomStream.seeded(18)) for value in (0.0, 1.0, 1 / 3)]
    shifts = [np.unique(values - again[0]) for values in again]
    assert [len(shift) for shift in shifts] == [1, 1, 1]


def test_a_release_is_a_function_of_whole_numbers_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from privacy import dpsgd

    model = Mlp(6, (9, 8))
    rng = np.random.default_rng(0)
    params = torch.from_numpy(model.initial_parameters(0))
    params[-9:] = 0.3
    x, y = rng.standard_normal((50, 6)).astype(np.float32), rng.standard_normal(50).astype(np.float32)
    plan = MechanismPlan(0.5, 0.5, 2.0, 1, 50)
    grid = plan.grid(model.size, 50)
    seen = []
    original = Grid.release

    def watched(
        self: Grid, values: "np.ndarray[tuple[int], np.dtype[np.float64]]", stream: RandomStream, divisor: float
    ) -> object:
        seen.append(original(self, values, RandomStream.seeded(4)))
        return original(self, values, RandomStream.seeded(4), divisor)

    monkeypatch.setattr(Grid, "release", watched)
    release = dpsgd.private_gradient(model, params, x, y, plan, RandomStream.seeded(3))
    steps = seen[0] / grid.step
    assert np.array_equal(steps, np.rint(steps))
    assert np.array_equal(release.mean.numpy(), (steps * (grid.step / plan.divisor)).astype(np.float32))
