"""Named vectors as one byte string, the way they travel beside a message.

A transport that stores, confirms and fetches every array by itself makes a dozen requests of one message. Nothing here
is secret or signed: what a vector must hash to stands in the messages that go with it.

The byte string is the header's length (4 bytes, little-endian), the header, then the values of each vector in turn,
little-endian and without gaps. The header is deterministic CBOR: an array of [name, type, length], one for each vector.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from secagg import cbor
from secagg.errors import ProtocolError
from secagg.ring import MAX_LENGTH

TYPES = ("<f4", "<f8", "<u4", "<u8")
MAX_ARRAYS = 64
MAX_HEADER = 1 << 15  # more than 64 entries of the longest names take
_PREFIX = 4

Arrays = Mapping[str, NDArray[np.generic]]


def dump(arrays: Arrays) -> bytes:
    """Return the encoding of named vectors, in their order.

    Guarantee: `load` gives vectors of the same names, types, order and bits, and accepts no other bytes for them.

    Parameters
    ----------
    arrays : mapping of str to ndarray of shape (n,)
        At most 64, of float32, float64, uint32 or uint64, with names of 1 to 64 printable characters.

    Raises
    ------
    ProtocolError
        For anything else.
    """
    entries, values = [], []
    for name, array in arrays.items():
        kind = array.dtype.newbyteorder("<")
        if array.ndim != 1:
            raise ProtocolError(f"arrays: {name} has the shape {array.shape}; expected a vector")
        entries.append([name, kind.str, array.size])
        values.append(np.ascontiguousarray(array, kind))
    header = cbor.encode(_ENTRIES(entries, "arrays"))
    return b"".join([len(header).to_bytes(_PREFIX, "little"), header, *(vector.data for vector in values)])


def load(data: bytes) -> Arrays:
    """Return the named vectors of an encoding, of little-endian types; they own their memory.

    Guarantee: no more memory is taken than the encoding has, whatever it states, and nothing in it is run.

    Parameters
    ----------
    data : bytes
        From a peer: anything.

    Raises
    ------
    ProtocolError
        For anything that `dump` does not write.
    """
    start = _PREFIX + int.from_bytes(data[:_PREFIX], "little")
    if len(data) < _PREFIX or start > min(len(data), _PREFIX + MAX_HEADER):
        raise ProtocolError(f"arrays: the header is cut off, or has more than {MAX_HEADER} bytes")
    header = data[_PREFIX:start]
    entries = _ENTRIES(cbor.decode(header, "arrays"), "arrays")
    if cbor.encode(entries) != header:
        raise ProtocolError("arrays: the header is not in its deterministic encoding")
    found: dict[str, NDArray[np.generic]] = {}
    for name, kind, length in entries:
        end = start + length * np.dtype(kind).itemsize
        if name in found or end > len(data):
            raise ProtocolError(f"arrays: {name} is there twice, or its values are cut off")
        # A copy is aligned whatever the header's length is, and does not hold the whole message in memory.
        found[name] = np.frombuffer(data, kind, length, start).copy()
        start = end
    if start != len(data):
        raise ProtocolError(f"arrays: {len(data) - start} bytes after the last vector")
    return found


def _type(value: object, path: str) -> str:
    if not isinstance(value, str) or value not in TYPES:
        raise ProtocolError(f"{path}: expected a type, one of {', '.join(TYPES)}")
    return value


_ENTRIES = cbor.sequence(cbor.row(cbor.text(64), _type, cbor.uint(MAX_LENGTH)), MAX_ARRAYS)
