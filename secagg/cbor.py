"""Deterministic CBOR (RFC 8949, section 4.2) and strict checks of what comes back.

Only unsigned and negative integers, byte and text strings, arrays, maps with text keys, booleans and floats occur.
Tags are refused before the decoder sees them: some make a decoder allocate by a number in the message.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from operator import lt
from typing import Any

import cbor2

from secagg.errors import ProtocolError

MAX_DEPTH = 8
MAX_MESSAGE = 1 << 24
MAX_ITEMS = 1 << 20
_ID = r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,63}"
SILO_ID = re.compile(_ID)
_SILO_IDS = re.compile(rf"(?:{_ID}(?: {_ID})*)?")

# By the first byte of an item: what follows its argument (nothing, a string, one or two items for each unit of the
# argument), and the argument or the code of its width. A tag has a code that no item may have.
_STRING = 3
_FOLLOWS = (0, 0, _STRING, _STRING, 1, 2, 0, 0)
_INITIAL = tuple((_FOLLOWS[byte >> 5], 31 if byte >> 5 == 6 else byte & 31) for byte in range(256))

Check = Callable[[object, str], Any]  # (value, path of the field) -> the value, or ProtocolError naming the path


def encode(value: object) -> bytes:
    """Return the deterministic encoding of plain data (RFC 8949, section 4.2.1)."""
    return cbor2.dumps(value, canonical=True)


def map_head(entries: int) -> bytes:
    """Return how the encoding of a map of less than 24 entries begins; names and values follow in turn."""
    if entries > 23:
        raise ProtocolError("map: expected less than 24 entries")
    return bytes([0xA0 + entries])


def listed(items: Sequence[bytes]) -> bytes:
    """Return the deterministic encoding of an array whose items are encoded already."""
    return encode([0] * len(items))[: -len(items) or None] + b"".join(items)


def digest(label: bytes, value: object) -> bytes:
    """Return SHA-256 of a domain label and the deterministic encoding, as one array: CBOR [label, value]."""
    return hashlib.sha256(encode([label, value])).digest()


def decode(data: bytes, what: str) -> Any:
    """Decode one item of plain data; any other bytes give a :class:`ProtocolError`.

    The caller re-encodes what it built and compares, which also refuses non-deterministic encodings.
    """
    if not isinstance(data, bytes):
        raise ProtocolError(f"{what}: expected bytes")
    if len(data) > MAX_MESSAGE:
        raise ProtocolError(f"{what}: {len(data)} bytes, at most {MAX_MESSAGE} are accepted")
    _check_form(data, what)
    try:
        return cbor2.loads(data)
    except (cbor2.CBORDecodeError, ValueError, TypeError):
        # The cause could quote the message; a silo's state passes through here too.
        raise ProtocolError(f"{what}: not valid CBOR; ask the sender for the message again") from None


def _check_form(data: bytes, what: str) -> None:
    """Refuse tags, indefinite lengths, deep nesting, too many items, truncation and trailing bytes."""
    at, end = 0, len(data)
    items = left = 1  # announced so far; still to come in the innermost open container
    around: list[int] = []  # still to come in the containers around it
    while left:
        if at >= end:
            raise ProtocolError(f"{what}: truncated")
        kind, argument = _INITIAL[data[at]]
        at += 1
        left -= 1
        if argument > 23:
            if argument > 27:
                raise ProtocolError(f"{what}: tags, indefinite lengths and reserved codes are not accepted")
            width = 1 << (argument - 24)
            argument = int.from_bytes(data[at : at + width], "big")
            at += width
        if kind == _STRING:
            at += argument
        elif kind and argument:  # an array, or a map with twice as many items
            argument *= kind
            items += argument
            around.append(left)
            left = argument
            if len(around) >= MAX_DEPTH or items > MAX_ITEMS:
                raise ProtocolError(f"{what}: nested too deeply or too many items")
        if at > end:
            raise ProtocolError(f"{what}: truncated")
        while not left and around:
            left = around.pop()
    if at != end:
        raise ProtocolError(f"{what}: bytes after the end of the message")


def uint(limit: int) -> Check:
    """Accept an integer from 0 to ``limit`` inclusive."""

    def check(value: object, path: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= limit:
            raise ProtocolError(f"{path}: expected an integer from 0 to {limit}")
        return value

    return check


def binary(*lengths: int, limit: int = 0) -> Check:
    """Accept a byte string of one of these lengths, or of at most ``limit`` bytes."""

    def check(value: object, path: str) -> bytes:
        if not isinstance(value, bytes):
            raise ProtocolError(f"{path}: expected a byte string")
        if len(value) not in lengths and (lengths or len(value) > limit):
            wanted = " or ".join(map(str, lengths)) if lengths else f"at most {limit}"
            raise ProtocolError(f"{path}: expected {wanted} bytes, got {len(value)}")
        return value

    return check


def text(limit: int) -> Check:
    """Accept a text string of 1 to ``limit`` printable characters (it may end up in a log)."""

    def check(value: object, path: str) -> str:
        if not isinstance(value, str) or not 1 <= len(value) <= limit or not value.isprintable():
            raise ProtocolError(f"{path}: expected text of 1 to {limit} printable characters")
        return value

    return check


def silo_id(value: object, path: str) -> str:
    """Accept the name of a silo."""
    if not isinstance(value, str) or not SILO_ID.fullmatch(value):
        raise ProtocolError(f"{path}: expected a silo id: 1 to 64 letters, digits or ._:@- after a letter or digit")
    return value


def real(value: object, path: str) -> float:
    """Accept a float (not an integer: both would encode one number)."""
    if not isinstance(value, float):
        raise ProtocolError(f"{path}: expected a float")
    return value


def flag(value: object, path: str) -> bool:
    """Accept true or false."""
    if not isinstance(value, bool):
        raise ProtocolError(f"{path}: expected true or false")
    return value


def sequence(item: Check, limit: int) -> Check:
    """Accept an array of at most ``limit`` items, as a tuple."""

    def check(value: object, path: str) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or len(value) > limit:
            raise ProtocolError(f"{path}: expected an array of at most {limit} items")
        return tuple(item(entry, f"{path}[{index}]") for index, entry in enumerate(value))

    return check


def row(*items: Check) -> Check:
    """Accept an array with exactly these items, as a tuple."""

    def check(value: object, path: str) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or len(value) != len(items):
            raise ProtocolError(f"{path}: expected an array of {len(items)} items")
        return tuple(item(entry, f"{path}[{i}]") for i, (item, entry) in enumerate(zip(items, value, strict=True)))

    return check


def table(item: Check, limit: int, key: Check = silo_id) -> Check:
    """Accept a map of at most ``limit`` entries, as a dict in the order of its keys."""

    def check(value: object, path: str) -> dict[str, Any]:
        if not isinstance(value, Mapping) or len(value) > limit:
            raise ProtocolError(f"{path}: expected a map of at most {limit} entries")
        names = sorted(key(name, f"{path} (a key)") for name in value)
        return {name: item(value[name], f"{path}[{name!r}]") for name in names}

    return check


class Packed(dict[str, bytes]):
    """A map of silo ids, in ascending order, to byte strings of one width; what :func:`packed` accepts and returns.

    Never changed once it is made: it keeps its plain data, which is hashed, signed and sent.
    """

    __slots__ = ("plain",)

    def __init__(self, entries: Mapping[str, bytes], plain: tuple[str, bytes] | None = None) -> None:
        super().__init__(entries)
        self.plain = (" ".join(entries), b"".join(entries.values())) if plain is None else plain

    def __setitem__(self, *_: object) -> None:
        raise TypeError("packed map: not to be changed")

    __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = __setitem__  # type: ignore[assignment]


def pack(entries: Mapping[str, bytes]) -> list[object]:
    """Return a map of silo ids to byte strings of one width as plain data: [the ids, the values].

    The ids ascend, joined by spaces, which no id contains; the values follow each other in the order of the ids. Two
    items instead of two an entry: these maps have an entry for each pair of silos, and reading them was most of the
    server's work.
    """
    packed = entries if isinstance(entries, Packed) else Packed({name: entries[name] for name in sorted(entries)})
    return list(packed.plain)


def packed(width: int, limit: int) -> Check:
    """Accept a map of at most ``limit`` silo ids to byte strings of ``width`` bytes, or the one list that packs it."""
    unpacked = table(binary(width), limit)

    def check(value: object, path: str) -> Packed:
        if isinstance(value, Mapping):
            return Packed(unpacked(value, path))
        match value:
            case [str(text), bytes(data)]:
                names = text.split(" ") if text else []
            case _:
                raise ProtocolError(f"{path}: expected an array of a text and a byte string")
        if not _SILO_IDS.fullmatch(text) or not all(map(lt, names, names[1:])):
            raise ProtocolError(f"{path}: expected distinct silo ids in ascending order, with one space between")
        if len(names) > limit or len(data) != width * len(names):
            raise ProtocolError(f"{path}: expected {width} bytes for each of {len(names)} silo ids, at most {limit}")
        starts = range(0, len(data), width)
        return Packed({name: data[at : at + width] for name, at in zip(names, starts, strict=True)}, (text, data))

    return check
