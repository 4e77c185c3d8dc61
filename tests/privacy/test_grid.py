import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from privacy import exact_normal, randomness
from privacy.errors import PrivacyError
from privacy.exact_normal import rounded_pair
from privacy.grid import Grid
from privacy.mlp import Mlp
from privacy.plan import MechanismPlan
from privacy.randomness import RandomStream

torch.set_num_threads(1)


def ideal(u: int, v: int, scale: float) -> tuple[object, object]:
    """Box and Muller's values of the midpoints, to 60 digits."""
    with mpmath.workdps(60):
        half = mpmath.mpf(1) / 2
        radius = scale * mpmath.sqrt(-2 * mpmath.log((u + half) / mpmath.mpf(2) ** 63))
        angle = 2 * mpmath.pi * (v + half) / mpmath.mpf(2) ** 63
        return radius * mpmath.cos(angle), radius * mpmath.sin(angle)


def uniforms(seed: int, pairs: int) -> tuple[list[int], list[int]]:
    """The 63-bit words that `rounded_normal` draws first from a seeded stream."""
    stream = RandomStream.seeded(seed)
    stream._words(4)
    words = (stream._words(2 * pairs) >> np.uint64(1)).tolist()
    return words[:pairs], words[pairs:]


@pytest.mark.parametrize("scale", [0.3, 40.0, 2.0**24, 2.0**29])
def test_every_rounding_is_that_of_the_ideal_value(scale: float) -> None:
    pairs = 700
    found = RandomStream.seeded(11).rounded_normal(2 * pairs, scale)
    us, vs = uniforms(11, pairs)
    with mpmath.workdps(60):
        for k, (u, v) in enumerate(zip(us, vs, strict=True)):
            expected = [int(mpmath.floor(value + 0.5)) for value in ideal(u, v, scale)]
            assert [found[k], found[pairs + k]] == expected
            assert rounded_pair(u, v, scale, lambda count: (0, 0)) == tuple(expected)


def test_float64_errs_by_far_less_than_the_margin() -> None:
    pairs = 3000
    us, vs = uniforms(12, pairs)
    # Also the ends of the range that float64 may decide.
    for place, edge in enumerate((2.0**-9, 5.26)):
        us[place] = int(math.exp(-(edge**2) / 2) * 2**63)
    with mpmath.workdps(40):
        uniform = (torch.tensor(us).double() + 0.5) * 2.0**-63
        angle = (torch.tensor(vs).double() + 0.5) * 2.0**-63 * (2.0 * math.pi)
        radius = (uniform.log() * -2.0).sqrt()
        inside = (radius > 2.0**-9) & (radius < 5.2601)
        worst = 0.0
        for k in inside.nonzero().flatten().tolist():
            cosine, sine = ideal(us[k], vs[k], 1.0)
            worst = max(worst, abs(float(cosine - float(angle[k].cos() * radius[k]))))  # type: ignore[operator]
            worst = max(worst, abs(float(sine - float(angle[k].sin() * radius[k]))))  # type: ignore[operator]
    assert worst < 2.0**-44.8 < randomness._MARGIN / 3


def test_the_slow_path_gives_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = RandomStream.seeded(13).rounded_normal(401, 1e6)
    monkeypatch.setattr(randomness, "_MARGIN", 1.0)
    assert np.array_equal(RandomStream.seeded(13).rounded_normal(401, 1e6), fast)


def test_undecided_roundings_ask_for_more_bits() -> None:
    asked = []

    def more(count: int) -> tuple[int, int]:
        asked.append(count)
        return (5 << 58, 9 << 57)

    # u = 0 has no logarithm yet, and the largest u may round to 1.
    for u in (0, 2**63 - 1):
        asked.clear()
        assert isinstance(rounded_pair(u, 1 << 61, 2.0**24, more)[0], int)
        assert asked == [0]
    # V = 1/8 exactly, so both values are scale R / sqrt 2: choose the scale that puts them on a half-integer.
    with mpmath.workdps(60):
        radius = mpmath.sqrt(-2 * mpmath.log(mpmath.mpf("0.3")))
        scale = float((mpmath.mpf(2) ** 29 + 0.5) * mpmath.sqrt(2) / radius)
    asked.clear()
    found = rounded_pair(int(0.3 * 2**63), 1 << 60, scale, more)
    assert all(value in (2**29, 2**29 + 1) for value in found)


def test_a_broken_stream_of_bits_is_an_error() -> None:
    with pytest.raises(PrivacyError, match="noise"):
        rounded_pair(0, 0, 1.0, lambda count: (0, 0))


def test_pi_is_pi() -> None:
    with mpmath.workdps(300):
        assert abs(mpmath.mpf(str(exact_normal._quarter_turn(250))) - mpmath.pi / 2) < mpmath.mpf(10) ** -249


@pytest.mark.parametrize("scale", [0.4, 1.7, 6.0])
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
        assert covered <= sensitivity * (1 + 2.0**-13)
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


def test_the_grid_costs_a_ten_thousandth_of_the_noise() -> None:
    grid = MechanismPlan(0.1, 1.0, 3.77, 5, 1000).grid(121_281, 1000)
    assert grid.step == 2.0**-22
    assert grid.noise_stddev == pytest.approx(3.77 * (1 + math.sqrt(121_281) * 2.0**-22), rel=1e-9)
    assert grid.noise_stddev < 3.77 * (1 + 2.0**-13)


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

    def watched(self: Grid, values: "np.ndarray[tuple[int], np.dtype[np.float64]]", stream: RandomStream) -> object:
        seen.append(original(self, values, stream))
        return seen[-1].copy()

    monkeypatch.setattr(Grid, "release", watched)
    release = dpsgd.private_gradient(model, params, x, y, plan, RandomStream.seeded(3))
    steps = seen[0] / grid.step
    assert np.array_equal(steps, np.rint(steps))
    assert np.array_equal(release.mean.numpy(), (steps * grid.step / plan.divisor).astype(np.float32))
