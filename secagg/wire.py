"""The base of every message: checked fields, deterministic bytes, strict parsing."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

from secagg import cbor
from secagg.errors import ProtocolError

PROTOCOL_VERSION = 2
TYPE_PREFIX = "fcfl-secagg/2/"


@dataclass(frozen=True)
class Message:
    """A frozen record whose fields are checked whenever one is made, from bytes or not.

    Guarantees: ``from_bytes(m.to_bytes()) == m``; equal messages have equal bytes (RFC 8949, section 4.2.1); bytes that
    are not exactly what ``to_bytes`` of some message gives raise :class:`ProtocolError` naming the field. The encoding
    is a map of the field names, and ``type`` with the versioned name of the message, so that no message can be read as
    another.
    """

    TYPE: ClassVar[str]
    CHECKS: ClassVar[Mapping[str, cbor.Check]]
    # Fields that are left out of the encoding, and not checked, while they are None.
    OPTIONAL: ClassVar[frozenset[str]] = frozenset()
    # What CHECKS says, once for each class and not for each of thousands of messages: name, check, path in errors; and
    # the names, as they are and encoded, in the order of the encodings.
    _FIELDS: ClassVar[tuple[tuple[str, cbor.Check, str], ...]]
    _ORDER: ClassVar[tuple[tuple[str, bytes], ...]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._FIELDS = tuple((name, check, f"{cls.TYPE}.{name}") for name, check in cls.CHECKS.items())
        encoded = {name: cbor.encode(name) for name in ("type", *cls.CHECKS)}
        cls._ORDER = tuple(sorted(encoded.items(), key=lambda pair: pair[1]))

    def __post_init__(self) -> None:
        for name, check, path in self._FIELDS:
            value = getattr(self, name)
            if value is None and name in self.OPTIONAL:
                continue
            if (checked := check(value, path)) is not value:
                object.__setattr__(self, name, checked)

    def to_bytes(self) -> bytes:
        """Return the deterministic encoding, made once; a message that was read has it already."""
        return self._encoded

    @cached_property
    def _encoded(self) -> bytes:
        # By hand, because messages inside this one, the same in many others, have theirs.
        parts: list[bytes] = []
        for name, key in self._ORDER:
            value = TYPE_PREFIX + self.TYPE if name == "type" else getattr(self, name)
            if value is not None or name not in self.OPTIONAL:
                parts += (key, _encoding(value))
        return cbor.map_head(len(parts) // 2) + b"".join(parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse; anything but the exact encoding of a valid message raises :class:`ProtocolError`."""
        message = cls.parse(cbor.decode(data, cls.TYPE), cls.TYPE)
        if message.to_bytes() != data:
            raise ProtocolError(f"{cls.TYPE}: not in the deterministic encoding (RFC 8949, section 4.2.1)")
        return message

    @classmethod
    def parse(cls, value: object, path: str) -> Self:
        """Check plain data (or pass a message through); used where one message contains another."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise ProtocolError(f"{path}: expected a map")
        if value.get("type") != TYPE_PREFIX + cls.TYPE:
            raise ProtocolError(f"{path}: expected a message of type {TYPE_PREFIX + cls.TYPE}")
        if unknown := [name for name in value if name != "type" and name not in cls.CHECKS]:
            raise ProtocolError(f"{path}: unknown field {ascii(unknown[0])[:80]}")
        if missing := [name for name in cls.CHECKS if name not in value and name not in cls.OPTIONAL]:
            raise ProtocolError(f"{path}.{missing[0]}: missing")
        if empty := [name for name in cls.OPTIONAL if name in value and value[name] is None]:
            raise ProtocolError(f"{path}.{min(empty)}: expected a value, or no such field")
        return cls(**{name: value[name] for name in cls.CHECKS if name in value})


_SCALARS = frozenset({bool, int, float, str, bytes, type(None)})


def _encoding(value: object) -> bytes:
    if isinstance(value, Message):
        return value.to_bytes()
    if type(value) is tuple and value and isinstance(value[0], Message):
        return cbor.listed([item.to_bytes() for item in value])
    return cbor.encode(plain(value))


def plain(value: object) -> Any:
    """Return the plain data (maps, arrays, scalars) of a field and of frozen records inside it."""
    if type(value) in _SCALARS:  # nearly everything is one, and the questions below are slow
        return value
    if isinstance(value, cbor.Packed):
        return cbor.pack(value)
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {name: entry if type(entry) in _SCALARS else plain(entry) for name, entry in value.items()}
    if isinstance(value, tuple):
        return [entry if type(entry) in _SCALARS else plain(entry) for entry in value]
    return value
