"""The ring: rounding is unbiased, sums cannot wrap, decoding is exact."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg import ring
from secagg.errors import RingError
from secagg.ring import Layout, Segment

BOUNDS = st.floats(1e-12, 1e12, allow_nan=False)


def layout(bound: float = 8.0, bits: int = 32, parties: int = 20, length: int = 5, step: float = 0.0) -> Layout:
    return Layout((Segment("A", length, bits, bound, step or ring.finest_step(bound, parties, bits)),), parties)


def constant(value: float) -> ring.Uniforms:
    return lambda n: np.full(n, value)


@settings(max_examples=60, deadline=None)
@given(bound=BOUNDS, parties=st.integers(1, 5000), bits=st.sampled_from([32, 64]))
def test_the_finest_step_is_accepted_and_half_of_it_is_not(bound: float, parties: int, bits: int) -> None:
    step = ring.finest_step(bound, parties, bits)
    assert math.frexp(step)[0] == 0.5
    layout(bound, bits, parties, step=step)
    with pytest.raises(RingError, match="could wrap"):
        layout(bound, bits, parties, step=step / 2)


@settings(max_examples=60, deadline=None)
@given(bound=BOUNDS, step=BOUNDS, parties=st.integers(1, 40), bits=st.sampled_from([32, 64]))
def test_all_parties_at_the_extreme_sum_exactly_whatever_the_rounding(
    bound: float, step: float, parties: int, bits: int
) -> None:
    try:
        wanted = layout(bound, bits, parties, step=step)
    except RingError:
        wanted = layout(bound, bits, parties)
    segment = wanted.segments[0]
    for sign in (1.0, -1.0):
        vectors = [
            ring.encode(wanted, {"A": np.full(5, sign * bound)}, constant(1 - 2.0**-53 if k % 2 else 0.0))
            for k in range(parties)
        ]
        total = np.zeros(5, segment.dtype)
        for vector in vectors:
            assert max(abs(int(v)) for v in vector.signed("A")) <= segment.top
            total += vector.values["A"]
        assert ring.to_signed(total).tolist() == [sum(int(v.signed("A")[i]) for v in vectors) for i in range(5)]


@settings(max_examples=100, deadline=None)
@given(values=st.lists(st.floats(-8, 8), min_size=1, max_size=30), u=st.floats(0, 1, exclude_max=True))
def test_an_encoded_value_is_one_of_the_two_neighbours_and_decodes_exactly(values: list[float], u: float) -> None:
    wanted = layout(length=len(values))
    step = wanted.segments[0].step
    signed = ring.encode(wanted, {"A": np.array(values)}, constant(u)).signed("A")
    for value, unit in zip(values, signed, strict=True):
        assert unit in (math.floor(Fraction(value) / Fraction(step)), math.ceil(Fraction(value) / Fraction(step)))
    decoded = ring.decode_sum(wanted, {"A": signed})["A"]
    assert [Fraction(float(d)) for d in decoded] == [int(s) * Fraction(step) for s in signed]


def test_long_vectors_are_encoded_like_short_ones() -> None:
    n = 3 * ring.CHUNK + 5
    values = np.random.default_rng(2).uniform(-9, 9, n)
    whole = ring.encode(layout(length=n), {"A": values}, constant(0.25))
    for start in range(0, n, 5000):
        part = values[start : start + 5000]
        encoded = ring.encode(layout(length=part.size), {"A": part}, constant(0.25))
        assert (whole.values["A"][start : start + 5000] == encoded.values["A"]).all()
    assert whole.saturated["A"] == np.count_nonzero(np.abs(values) > 8)


def test_rounding_is_unbiased() -> None:
    generator = np.random.default_rng(1)
    n, step = 200_000, 0.5
    wanted = layout(8.0, length=n, step=step)
    for value in (0.1, -0.1, 3.37, -7.99, 1e-4):
        signed = ring.encode(wanted, {"A": np.full(n, value)}, generator.random).signed("A")
        fraction = value / step - math.floor(value / step)
        error = math.sqrt(fraction * (1 - fraction) / n)
        assert abs(signed.mean() - value / step) < 5 * error


@pytest.mark.parametrize("u", [0.0, 0.5, 1 - 2.0**-53])
def test_zero_and_whole_units_never_move(u: float) -> None:
    wanted = layout(2.0**20, length=5, step=1.0, parties=1)
    values = np.array([0.0, -0.0, 2.0**20, -(2.0**20), 12345.0])
    signed = ring.encode(wanted, {"A": values}, constant(u)).signed("A")
    assert signed.tolist() == [0, 0, 2**20, -(2**20), 12345]


def test_64_bit_values_beyond_the_float_mantissa_are_exact() -> None:
    wanted = layout(2.0**61, 64, parties=3, length=4, step=1.0)
    values = np.array([2.0**61, -(2.0**61), 2.0**60 + 2.0**8, -(2.0**53) - 2.0])
    vector = ring.encode(wanted, {"A": values}, constant(0.9))
    assert vector.signed("A").tolist() == [int(v) for v in values]
    total = vector.values["A"] * np.uint64(3)
    assert ring.to_signed(total).tolist() == [3 * int(v) for v in values]
    assert ring.decode_sum(wanted, {"A": ring.to_signed(total)})["A"].tolist() == [float(3 * int(v)) for v in values]


def test_a_sum_of_exactly_half_the_ring_is_refused_and_one_unit_less_is_not() -> None:
    with pytest.raises(RingError, match="wrap"):
        layout(2.0**30, 32, parties=2, step=1.0)
    layout(2.0**30 - 1, 32, parties=2, step=1.0)


def test_a_quotient_that_rounds_past_the_top_is_cut_back() -> None:
    generator = np.random.default_rng(3)
    found = 0
    while found < 5:
        bound, step = float(generator.uniform(2.0**58, 2.0**60)), float(generator.uniform(1, 4))
        wanted = layout(bound, 64, parties=2, length=2, step=step)
        top = wanted.segments[0].top
        if int(bound / step) > top:
            found += 1
            assert ring.encode(wanted, {"A": np.array([bound, -bound])}, constant(0.5)).signed("A").tolist() == [
                top,
                -top,
            ]


def test_saturation_is_counted_and_clamped() -> None:
    wanted = layout(8.0, length=5)
    vector = ring.encode(wanted, {"A": np.array([9.0, -1e300, 8.0, -8.0, 0.0])}, constant(0.3))
    assert vector.saturated == {"A": 2}
    assert ring.decode_sum(wanted, {"A": vector.signed("A")})["A"].tolist() == [8.0, -8.0, 8.0, -8.0, 0.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_non_finite_values_are_refused_without_showing_values(bad: float) -> None:
    with pytest.raises(RingError, match="segment 'A'") as caught:
        ring.encode(layout(), {"A": np.array([1.2345, bad, 0, 0, 0])}, constant(0.0))
    assert "1.2345" not in str(caught.value)
    assert "nan" not in str(caught.value)


@pytest.mark.parametrize(
    ("segment", "reason"),
    [
        (Segment("A", 5, 32, math.nan, 1.0), "bound"),
        (Segment("A", 5, 32, math.inf, 1.0), "bound"),
        (Segment("A", 5, 32, 0.0, 1.0), "bound"),
        (Segment("A", 5, 32, -1.0, 1.0), "bound"),
        (Segment("A", 5, 32, 1.0, 0.0), "step"),
        (Segment("A", 5, 32, 1.0, math.nan), "step"),
        (Segment("A", 5, 16, 1.0, 1.0), "bits"),
        (Segment("A", 0, 32, 1.0, 1.0), "length"),
        (Segment("", 5, 32, 1.0, 1.0), "unique"),
        (Segment("A", 5, 32, 1e300, 1e-300), "wrap"),
    ],
)
def test_a_layout_that_could_not_be_exact_is_refused_by_name(segment: Segment, reason: str) -> None:
    with pytest.raises(RingError, match=reason):
        Layout((segment,), 20)


def test_duplicate_names_no_segments_and_no_parties_are_refused() -> None:
    segment = Segment("A", 5, 32, 1.0, 1.0)
    for segments, parties in (((segment, segment), 2), ((), 2), ((segment,), 0)):
        with pytest.raises(RingError):
            Layout(segments, parties)


def test_wrong_shapes_names_and_uniforms_are_refused() -> None:
    wanted = layout()
    good = np.zeros(5)
    for values in ({}, {"A": np.zeros(4)}, {"A": good, "B": good}, {"A": np.zeros((5, 1))}):
        with pytest.raises(RingError):
            ring.encode(wanted, values, constant(0.0))
    faulty: list[ring.Uniforms] = [constant(1.0), constant(-0.1), constant(math.nan), lambda n: np.zeros(n + 1)]
    for uniforms in faulty:
        with pytest.raises(RingError, match="uniforms"):
            ring.encode(wanted, {"A": good}, uniforms)


def test_a_sum_nobody_could_have_sent_is_refused() -> None:
    wanted = layout(8.0, parties=20, step=1.0)
    ring.decode_sum(wanted, {"A": np.full(5, 160)})
    with pytest.raises(RingError, match="did not"):
        ring.decode_sum(wanted, {"A": np.array([0, 0, -161, 0, 0])})
    with pytest.raises(RingError):
        ring.decode_sum(wanted, {"A": np.zeros(5)})  # type: ignore[dict-item]


def test_zeros_is_the_encoding_of_zero_and_vectors_cannot_be_changed() -> None:
    wanted = layout()
    assert (ring.zeros(wanted).values["A"] == ring.encode(wanted, {"A": np.zeros(5)}, constant(0.9)).values["A"]).all()
    with pytest.raises(ValueError, match="read-only"):
        ring.zeros(wanted).values["A"][0] = 1


def test_the_repr_of_an_encoded_vector_shows_no_data() -> None:
    vector = ring.encode(layout(), {"A": np.array([1.0, 2, 3, 4, 100])}, constant(0.0))
    assert repr(vector) == "EncodedVector()"
