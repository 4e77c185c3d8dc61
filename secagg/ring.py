"""Fixed-point encoding of real vectors into rings modulo 2^32 and 2^64 in which the sum of all parties cannot wrap.

A vector travels in named segments. Each has a public bound and a public step: a value v in [-bound, bound] becomes the
integer v / step, stochastically rounded, modulo 2^bits. With at most ``parties`` summands the construction of a
:class:`Layout` guarantees that the signed sum is the sum of the signed integers (fixed-point secure aggregation as in
Bonawitz et al. 2017, section 5, with the wrap excluded by construction rather than by tuning).
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secagg.errors import RingError

RingArray = NDArray[Any]  # uint32 or uint64, as the segment says
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Uniforms = Callable[[int], FloatArray]

RING_BITS = (32, 64)
MAX_LENGTH = 1 << 31
# Temporaries of this many values stay in the cache and off the kernel's page allocator: three times as fast.
CHUNK = 1 << 13
# Up to here every integer is a float64.
EXACT = 1 << 53


def dtype_of(bits: int) -> np.dtype[Any]:
    """Return the little-endian unsigned type of a ring with ``bits`` bits."""
    return np.dtype("<u4" if bits == 32 else "<u8")


@dataclass(frozen=True)
class Segment:
    """One named part of a vector.

    Attributes
    ----------
    name : str
        Unique in its layout; also the label of the segment's mask (see :mod:`secagg.prg`).
    length : int
        Number of values.
    bits : int
        32 or 64: the ring is the integers modulo 2^bits.
    bound : float
        Values are clamped to [-bound, bound].
    step : float
        Value of one ring unit. With a power of two (:func:`finest_step`) decoding is exact.
    """

    name: str
    length: int
    bits: int
    bound: float
    step: float

    def __post_init__(self) -> None:
        # Layouts are compared and hashed as CBOR, where 8 and 8.0 differ and numpy's scalars do not exist.
        for name, kind in (("length", index), ("bits", index), ("bound", float), ("step", float)):
            object.__setattr__(self, name, kind(getattr(self, name)))

    @cached_property
    def top(self) -> int:
        """The largest magnitude of one encoded value: ceil(bound / step), computed exactly."""
        return math.ceil(Fraction(self.bound) / Fraction(self.step))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The array type of the segment on the wire and in sums."""
        return dtype_of(self.bits)


@dataclass(frozen=True)
class Layout:
    """The segments of a vector and the largest number of summands.

    Guarantee: for every segment ``parties * ceil(bound / step) < 2^(bits - 1)``, so that a sum of at most ``parties``
    encoded vectors never wraps. Construction refuses anything else with a :class:`RingError` naming the segment.
    """

    segments: tuple[Segment, ...]
    parties: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "segments", tuple(self.segments))
        object.__setattr__(self, "parties", index(self.parties))
        if not self.segments:
            raise RingError("layout: expected at least one segment")
        if not 1 <= self.parties < 1 << 31:
            raise RingError("layout: parties must be between 1 and 2^31 - 1")
        seen: set[str] = set()
        for segment in self.segments:
            where = f"segment {segment.name!r}"
            if not segment.name or segment.name in seen:
                raise RingError(f"{where}: names must be non-empty and unique in a layout")
            seen.add(segment.name)
            if not 1 <= segment.length <= MAX_LENGTH:
                raise RingError(f"{where}: length must be between 1 and 2^31")
            if segment.bits not in RING_BITS:
                raise RingError(f"{where}: bits must be 32 or 64")
            for label, number in (("bound", segment.bound), ("step", segment.step)):
                if not (math.isfinite(number) and number > 0):
                    raise RingError(f"{where}: {label} must be finite and above zero")
            if self.parties * segment.top >= 1 << (segment.bits - 1):
                raise RingError(
                    f"{where}: the sum of {self.parties} parties could wrap modulo 2^{segment.bits}; "
                    "use a larger step (finest_step gives the smallest), a smaller bound, or 64 bits"
                )

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.segments)


def finest_step(bound: float, parties: int, bits: int) -> float:
    """Return the smallest power of two that, as a step, cannot wrap for ``parties`` values in [-bound, bound].

    Guarantee: ``Layout((Segment(name, length, bits, bound, finest_step(bound, parties, bits)),), parties)`` is
    accepted, and half of the step is not. Raises :class:`RingError` if there is no such step.
    """
    if bits not in RING_BITS:
        raise RingError("finest_step: bits must be 32 or 64")
    if not (math.isfinite(bound) and bound > 0):
        raise RingError("finest_step: bound must be finite and above zero")
    largest = ((1 << (bits - 1)) - 1) // parties if parties >= 1 else 0
    if largest < 1:
        raise RingError(f"finest_step: parties must be between 1 and 2^{bits - 1} - 1")
    ratio = Fraction(bound) / largest
    exponent = ratio.numerator.bit_length() - ratio.denominator.bit_length() - 1
    while Fraction(2) ** exponent < ratio:
        exponent += 1
    step = math.ldexp(1.0, exponent) if exponent <= 1023 else math.inf
    if not (math.isfinite(step) and step > 0):
        raise RingError("finest_step: no float64 step exists for this bound; rescale the values")
    return step


@dataclass(frozen=True, eq=False)
class EncodedVector:
    """What a silo adds to the sum, before masking. Stays at the silo; its repr shows nothing.

    Attributes
    ----------
    values : mapping of str to uint32 or uint64 array
        One read-only array per segment.
    saturated : mapping of str to int
        How many values were clamped to the bound. For the silo's own log only: the count depends on its data.
    """

    values: Mapping[str, RingArray] = field(repr=False)
    saturated: Mapping[str, int] = field(repr=False)

    def signed(self, name: str) -> IntArray:
        """Return the integers of a segment exactly as they were encoded, with their sign."""
        return to_signed(self.values[name])


def signed_view(values: RingArray) -> NDArray[Any]:
    """Return the representatives in [-2^(bits-1), 2^(bits-1)) of ring elements, in the same memory."""
    return values.view("<i4" if values.dtype.itemsize == 4 else "<i8")


def to_signed(values: RingArray) -> IntArray:
    """Return the representatives in [-2^(bits-1), 2^(bits-1)) of ring elements, as int64."""
    return signed_view(values).astype(np.int64)


def _round(segment: Segment, value: FloatArray, uniforms: Uniforms) -> tuple[RingArray, int]:
    where = f"segment {segment.name!r}"
    array = np.asarray(value, dtype=np.float64)
    if array.shape != (segment.length,):
        raise RingError(f"{where}: expected a vector of {segment.length} values, got shape {array.shape}")
    top = segment.top
    encoded: RingArray = np.empty(segment.length, segment.dtype)
    integers = signed_view(encoded)
    buffers = np.empty((2, min(CHUNK, segment.length)))
    saturated = 0
    for start in range(0, segment.length, CHUNK):
        part = array[start : start + CHUNK]
        least, greatest = float(part.min()), float(part.max())  # NaN if there is one
        if not (math.isfinite(least) and math.isfinite(greatest)):
            raise RingError(f"{where}: a value is not finite; make it finite (or zero) before encoding")
        u = np.asarray(uniforms(part.size))
        if u.shape != part.shape or u.dtype != np.float64 or not (u.min() >= 0.0 and u.max() < 1.0):
            raise RingError(f"{where}: uniforms must return as many float64 values in [0, 1) as it is asked for")
        if least < -segment.bound or greatest > segment.bound:
            within = np.clip(part, -segment.bound, segment.bound)
            saturated += int(np.count_nonzero(within != part))
            part = within
        units, below = buffers[:, : part.size]
        np.divide(part, segment.step, out=units)
        np.floor(units, out=below)
        # floor(x + u) in floating point would round u away for large x and could even pass the top; comparing u with
        # the exact fraction gives the same distribution without either fault.
        units -= below
        # A difference of floats is above zero exactly if the first is larger; and where a float has a fraction, one
        # more is exact. Floats all the way: integers would take three times as long.
        units -= u
        np.ceil(units, out=units)
        below += units
        rounded = integers[start : start + CHUNK]
        np.copyto(rounded, below, casting="unsafe")
        if top > EXACT:
            # A quotient this large may itself be rounded past the top; a smaller one is rounded to the top at most.
            np.clip(rounded, -top, top, out=rounded)
    return encoded, saturated


def encode(layout: Layout, values: Mapping[str, FloatArray], uniforms: Uniforms) -> EncodedVector:
    """Encode real vectors, clamped to the bound and stochastically rounded.

    Guarantee: inside the bound the expectation of ``signed * step`` is the value (up to the resolution of the
    uniforms) and the error is below one step; zero encodes to exactly zero; no encoded magnitude passes
    ceil(bound / step). Equivalent to floor(v / step + u) with u uniform in [0, 1).

    Parameters
    ----------
    layout : Layout
        Segments to encode; ``values`` must have exactly these names.
    values : mapping of str to float64 array
        Finite values. NaN and infinities are refused without naming them.
    uniforms : callable
        Given n, returns n independent float64 uniforms in [0, 1); called once per 8,192 values of a segment. For a
        deployment use :func:`secagg.prg.secure_uniforms`: rounding with guessable uniforms would narrow what the silo's
        noise hides.
    """
    _same_names(layout, values)
    rings: dict[str, RingArray] = {}
    saturated: dict[str, int] = {}
    for segment in layout:
        ring, saturated[segment.name] = _round(segment, values[segment.name], uniforms)
        ring.flags.writeable = False
        rings[segment.name] = ring
    return EncodedVector(rings, saturated)


def zeros(layout: Layout) -> EncodedVector:
    """Return the encoding of the zero vector (what a silo sends that does not contribute)."""
    rings = {segment.name: np.zeros(segment.length, segment.dtype) for segment in layout}
    for ring in rings.values():
        ring.flags.writeable = False
    return EncodedVector(rings, dict.fromkeys(rings, 0))


def decode_sum(layout: Layout, sums: Mapping[str, IntArray]) -> dict[str, FloatArray]:
    """Turn signed sums back into real numbers: sum * step.

    Guarantee: with a step that is a power of two the result is exact for magnitudes up to 2^53 units and correctly
    rounded above. A sum that no ``parties`` encoded vectors can reach is refused: masks then did not cancel, or the
    layouts differ.
    """
    _same_names(layout, sums)
    decoded: dict[str, FloatArray] = {}
    for segment in layout:
        array = sums[segment.name]
        if array.dtype != np.int64 or array.shape != (segment.length,):
            raise RingError(f"segment {segment.name!r}: expected {segment.length} int64 sums")
        reach = layout.parties * segment.top
        if int(array.max()) > reach or int(array.min()) < -reach:
            raise RingError(
                f"segment {segment.name!r}: a sum is larger than {layout.parties} parties can reach; the masks did "
                "not cancel or the layout is another one: abandon the epoch"
            )
        decoded[segment.name] = array.astype(np.float64) * segment.step
    return decoded


def check_vector(layout: Layout, arrays: Mapping[str, RingArray]) -> None:
    """Refuse arrays whose names, types or lengths are not those of the layout."""
    _same_names(layout, arrays)
    for segment in layout:
        array = arrays[segment.name]
        if not isinstance(array, np.ndarray) or array.dtype != segment.dtype or array.shape != (segment.length,):
            raise RingError(f"segment {segment.name!r}: expected a vector of {segment.length} {segment.dtype.name}")


def _same_names(layout: Layout, given: Mapping[str, Any]) -> None:
    names = {segment.name for segment in layout}
    if missing := sorted(names - set(given)):
        raise RingError(f"segment {missing[0]!r}: missing; expected exactly the segments of the layout")
    if len(given) != len(names):
        raise RingError("a segment is not in the layout; expected exactly the segments of the layout")
