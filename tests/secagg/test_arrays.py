"""Named vectors as bytes: exact round trips at hardly more than their values; any other bytes are refused by name."""

import contextlib
import tracemalloc
from typing import Any

import cbor2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg import arrays as module
from secagg.arrays import MAX_ARRAYS, MAX_HEADER, TYPES, Arrays, dump, load
from secagg.errors import ProtocolError

NAMES = st.text(min_size=1, max_size=64).filter(str.isprintable)
KINDS = st.sampled_from(TYPES) | st.sampled_from([">f4", ">f8", ">u4", ">u8"])


def vectors(length: int = 9) -> st.SearchStrategy[Any]:
    """Vectors of any bits (infinities, NaNs with a payload, minus zero), in either byte order."""

    def of(kind: str) -> st.SearchStrategy[Any]:
        width = np.dtype(kind).itemsize
        return st.integers(0, length).flatmap(
            lambda n: st.binary(min_size=n * width, max_size=n * width).map(lambda data: np.frombuffer(data, kind))
        )

    return KINDS.flatmap(of)


NAMED = st.dictionaries(NAMES, vectors(), max_size=6)


def bits(array: Any) -> bytes:
    return bytes(array.astype(array.dtype.newbyteorder("<")).tobytes())


def encoded(entries: Any, values: bytes = b"") -> bytes:
    """Bytes whose header is ``entries`` as they are."""
    header = entries if isinstance(entries, bytes) else cbor2.dumps(entries, canonical=True)
    return len(header).to_bytes(4, "little") + header + values


GOOD: Arrays = {
    "update": np.arange(3, dtype=np.uint32),
    "weight": np.array([2**63 + 1], dtype=np.uint64),
    "point": np.array([-0.0, np.nan, np.inf, 1.5], dtype=np.float32),
    "none": np.zeros(0, dtype=np.float64),
}


@given(named=NAMED)
def test_vectors_survive_with_their_names_order_types_and_every_bit(named: dict[str, Any]) -> None:
    again = load(dump(named))
    assert list(again) == list(named)
    for name, array in named.items():
        assert again[name].dtype.str == array.dtype.newbyteorder("<").str
        assert again[name].shape == array.shape
        assert again[name].tobytes() == bits(array)


@given(named=NAMED)
def test_what_a_machine_of_the_other_byte_order_sends_is_the_same(named: dict[str, Any]) -> None:
    swapped = {name: array.astype(array.dtype.newbyteorder()) for name, array in named.items()}
    assert dump(swapped) == dump(named)


@given(named=NAMED)
def test_the_header_is_the_deterministic_encoding_of_names_types_and_lengths(named: dict[str, Any]) -> None:
    entries = [[name, array.dtype.newbyteorder("<").str, array.size] for name, array in named.items()]
    assert dump(named) == encoded(entries, b"".join(map(bits, named.values())))


def test_known_bytes() -> None:
    # Length of the header; [["a", "<u4", 2]]; the two values.
    known = "09000000" + "81" + "83" + "6161" + "633c7534" + "02" + "01000000" + "02000000"
    assert dump({"a": np.array([1, 2], np.uint32)}).hex() == known


@pytest.mark.parametrize("kind", TYPES)
def test_a_vector_grows_by_less_than_a_thousandth(kind: str) -> None:
    array = np.zeros(100_000, kind)
    assert len(dump({"update": array})) <= array.nbytes * 1.001


def test_strided_vectors_are_sent_as_they_read() -> None:
    array = np.arange(10, dtype=np.float32)
    assert load(dump({"v": array[::-3]}))["v"].tolist() == [9.0, 6.0, 3.0, 0.0]


@given(st.text(min_size=1, max_size=20).filter(str.isprintable))
def test_received_vectors_are_aligned_and_independent_of_the_message(name: str) -> None:
    data = dump({name: np.arange(3, dtype=np.uint64)})
    first, second = load(data)[name], load(data)[name]
    assert first.flags.aligned
    first += np.uint64(1)
    assert second.tolist() == [0, 1, 2]
    assert dump({name: second}) == data


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((2, 2), np.float32), np.zeros((), np.float32), np.zeros(2, np.float16), np.zeros(2, np.int32),
        np.zeros(2, np.int64), np.zeros(2, bool), np.zeros(2, complex), np.array(["a"]), np.array([None]),
        np.zeros(2, "M8[s]"), np.zeros(2, [("x", "<f4")]),
    ],
    ids=lambda array: f"{array.dtype} {array.shape}",
)  # fmt: skip
def test_nothing_but_vectors_of_the_four_types_is_sent(array: Any) -> None:
    with pytest.raises(ProtocolError, match="arrays"):
        dump({"update": array})


@pytest.mark.parametrize("name", ["", "x" * 65, "line\nbreak", "\udc80", 7])
def test_no_name_is_sent_that_a_log_could_not_show(name: Any) -> None:
    with pytest.raises(ProtocolError, match=r"arrays\[0\]\[0\]"):
        dump({name: np.zeros(1, np.float32)})


def test_as_many_vectors_as_are_sent_are_read_with_the_longest_names() -> None:
    named = {"𝕏" * 61 + f"{i:03d}": np.zeros(1, np.uint32) for i in range(MAX_ARRAYS)}
    assert list(load(dump(named))) == list(named)
    more = {**named, "one more": np.zeros(1, np.uint32)}
    with pytest.raises(ProtocolError, match=f"at most {MAX_ARRAYS}"):
        dump(more)
    entries = [[f"{i}", "<u4", 0] for i in range(MAX_ARRAYS + 1)]
    with pytest.raises(ProtocolError, match=f"at most {MAX_ARRAYS}"):
        load(encoded(entries))


def test_an_encoding_cut_at_any_length_or_with_more_behind_is_refused() -> None:
    data = dump(GOOD)
    for length in range(len(data)):
        with pytest.raises(ProtocolError, match="arrays"):
            load(data[:length])
    for more in (b"\x00", bytes(4), data):
        with pytest.raises(ProtocolError, match="after the last vector"):
            load(data + more)


@given(garbage=st.binary(max_size=200) | st.binary(max_size=200).map(encoded))
def test_any_bytes_are_refused_by_name_or_are_an_encoding(garbage: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        assert dump(load(garbage)) == garbage


@given(data=st.data())
def test_a_damaged_encoding_is_refused_or_another_encoding(data: st.DataObject) -> None:
    raw = bytearray(dump(GOOD))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ProtocolError):
        assert dump(load(bytes(raw))) == bytes(raw)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=9) | st.binary(max_size=9)
    | st.sampled_from(TYPES),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)  # fmt: skip


@given(entries=PLAIN | st.lists(st.tuples(NAMES, KINDS, st.integers(-1, 2**64 - 1)), max_size=3), values=st.binary())
def test_any_header_is_refused_by_name_or_is_that_of_an_encoding(entries: Any, values: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        assert dump(load(encoded(entries, values))) == encoded(entries, values)


HEADERS: dict[str, tuple[Any, str]] = {
    "no list": ({"a": 1}, "arrays: expected an array"),
    "no entry": ([1], r"arrays\[0\]: expected an array of 3"),
    "a short entry": ([["a", "<f4"]], r"arrays\[0\]: expected an array of 3"),
    "another type": ([["a", "<f2", 0]], r"arrays\[0\]\[1\]: expected a type"),
    "the other byte order": ([["a", ">f4", 0]], r"arrays\[0\]\[1\]: expected a type"),
    "objects": ([["a", "|O", 1]], r"arrays\[0\]\[1\]: expected a type"),
    "a type that is a list": ([["a", ["<f4"], 0]], r"arrays\[0\]\[1\]: expected a type"),
    "a negative length": ([["a", "<f4", -1]], r"arrays\[0\]\[2\]: expected an integer"),
    "a fraction": ([["a", "<f4", 1.0]], r"arrays\[0\]\[2\]: expected an integer"),
    "true": ([["a", "<f4", True]], r"arrays\[0\]\[2\]: expected an integer"),
    "the largest integer": ([["a", "<f4", 2**64 - 1]], r"arrays\[0\]\[2\]: expected an integer"),
    "a name twice": ([["a", "<f4", 0], ["a", "<u4", 0]], "arrays: a is there twice"),
    "more values than there are": ([["a", "<f4", 1]], "arrays: a is there twice, or its values are cut off"),
    "a name that breaks the line": ([["a\nb", "<f4", 0]], r"arrays\[0\]\[0\]: expected text"),
    "nothing": (b"", "arrays: truncated"),
    "bytes behind it": (b"\x80\x00", "arrays: bytes after the end"),
    "a longer integer than needed": (b"\x81\x83\x61a\x63<f4\x18\x00", "not in its deterministic encoding"),
    "an indefinite length": (b"\x9f\xff", "indefinite lengths"),
    "a tag": (b"\xd8\x40\x40", "tags"),
    "text that is no text": (b"\x81\x83\x61\xff\x63<f4\x00", "not valid CBOR"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_a_header_is_refused_unless_it_is_the_one_encoding(case: str) -> None:
    entries, reason = HEADERS[case]
    with pytest.raises(ProtocolError, match=reason):
        load(encoded(entries))


@pytest.mark.parametrize("stated", [MAX_HEADER + 1, 2**32 - 1])
def test_a_header_larger_than_any_is_not_parsed(monkeypatch: pytest.MonkeyPatch, stated: int) -> None:
    monkeypatch.setattr(module.cbor, "decode", lambda *_: pytest.fail("parsed"))
    with pytest.raises(ProtocolError, match="header"):
        load(stated.to_bytes(4, "little") + bytes(MAX_HEADER + 10))


def test_lengths_that_are_only_stated_take_no_memory() -> None:
    data = encoded([["a", "<u8", 2**31]], bytes(1000))
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="cut off"):
            load(data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "data",
    [b"", b"\x93NUMPY\x01\x00" + bytes(120), b"PK\x03\x04" + bytes(60), b"\x80\x04N."],
    ids=["nothing", "a .npy file", "an archive", "a pickle"],
)
def test_files_of_numpy_and_pickles_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="arrays"):
        load(data)


def test_no_vectors_are_an_encoding_too() -> None:
    assert load(dump({})) == {}
