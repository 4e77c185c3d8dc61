"""Canonical encoding of what both sides must read alike: flat or nested frozen dataclasses, strictly decoded."""

import dataclasses
import sys
import types
import typing
from typing import Any, ClassVar, Self

import cbor2

from privacy.errors import PrivacyError


class Wire:
    """A frozen dataclass with a canonical encoding (RFC 8949, section 4.2).

    Fields are bool, int, float, str, bytes, choices of text, tuples of one of these, other frozen dataclasses, or None
    beside one of these.
    """

    label: ClassVar[str]

    def to_bytes(self) -> bytes:
        """Return the canonical encoding."""
        return cbor2.dumps(dataclasses.asdict(self), canonical=True)  # type: ignore[call-overload]

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode and validate.

        Raises
        ------
        PrivacyError
            If the bytes are not exactly one value of this type; the message names the field.
        """
        try:
            values = cbor2.loads(data)
        except Exception as error:
            raise PrivacyError(f"{cls.label}: not canonical CBOR; the peer speaks another protocol") from error
        made: Self = _build(cls.label, cls, values)
        if made.to_bytes() != data:
            raise PrivacyError(f"{cls.label}: the encoding is not canonical; the peer speaks another protocol")
        return made


def require(label: str, **conditions: bool) -> None:
    """Raise an error that names the first field whose condition does not hold."""
    for name, holds in conditions.items():
        if not holds:
            raise PrivacyError(f"{label}.{name}: out of range; correct the setting of that name")


def _build(label: str, kind: Any, values: Any) -> Any:
    hints = typing.get_type_hints(kind)
    fields = {field.name: hints[field.name] for field in dataclasses.fields(kind)}
    if not isinstance(values, dict) or set(values) != set(fields):
        raise PrivacyError(f"{label}: expected exactly the fields {sorted(fields)}; check the software versions")
    return kind(**{name: _checked(label, name, wanted, values[name]) for name, wanted in fields.items()})


def _checked(label: str, name: str, kind: Any, value: Any) -> Any:
    """Return ``value`` as ``kind`` or raise an error that names the field."""
    if isinstance(kind, types.UnionType):
        if value is None:
            return None
        kind = next(part for part in typing.get_args(kind) if part is not types.NoneType)
    if dataclasses.is_dataclass(kind):
        return _build(f"{label}.{name}", kind, value)
    if typing.get_origin(kind) is typing.Literal:
        if value in typing.get_args(kind):
            return value
        raise PrivacyError(f"{label}.{name}: expected one of {', '.join(typing.get_args(kind))}")
    if typing.get_origin(kind) is tuple:
        inner = typing.get_args(kind)[0]
        if isinstance(value, list):
            return tuple(_checked(label, name, inner, item) for item in value)
    elif kind is float:
        # Compared, not converted: a whole number may be beyond every float.
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max:
            return float(value)
    elif type(value) is kind:
        return value
    raise PrivacyError(f"{label}.{name}: expected {getattr(kind, '__name__', kind)}, got {type(value).__name__}")
