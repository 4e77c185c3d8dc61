"""Long-term identities: Ed25519 keys (RFC 8032), which of them are acceptable, and who signs with them."""

import hashlib
from typing import Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from secagg.errors import ProtocolError

IDENTITY_BYTES = 32
SIGNATURE_BYTES = 64
# What an unsigned message carries until it is signed; it holds under no acceptable key.
UNSIGNED = bytes(SIGNATURE_BYTES)

_P = 2**255 - 19
_D = -121665 * pow(121666, -1, _P) % _P
# The y of the points of order 1, 2, 4 and 8 (privacy.signing has the same list for ledgers; the rooms share no code).
_LOW_ORDER = frozenset(
    (
        0,
        1,
        _P - 1,
        int.from_bytes(bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little"),
        int.from_bytes(bytes.fromhex("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"), "little"),
    )
)


class Signer(Protocol):
    """What holds a silo's identity: a key in memory, or a device that never gives its key away."""

    @property
    def public_key(self) -> bytes:
        """The 32-byte Ed25519 public key."""

    def sign(self, message: bytes) -> bytes:
        """Return the 64-byte Ed25519 signature of a message (RFC 8032, deterministic)."""


def acceptable(key: bytes) -> bool:
    """Whether these bytes are 32, in canonical form, and no point of low order.

    Guarantee: for an acceptable key no signature can be made without its private key, if Ed25519 is unforgeable; a
    point of low order, for which anyone can sign, and a second encoding of a point, by which one key could sit in a
    roster twice, are not acceptable. For bytes that are no point of the curve no signature holds; that costs a modular
    power to see, see :func:`on_curve`. Source: RFC 8032, section 5.1.3. Timing depends on the key, which is public.
    """
    y = int.from_bytes(key, "little") & ((1 << 255) - 1)
    return len(key) == IDENTITY_BYTES and y < _P and y not in _LOW_ORDER


def on_curve(key: bytes) -> bool:
    """Whether an acceptable key is a point of the curve, as half of all mistyped ones are not (RFC 8032, 5.1.3)."""
    square = pow(int.from_bytes(key, "little") & ((1 << 255) - 1), 2, _P)
    return pow((square - 1) * (_D * square + 1), (_P - 1) // 2, _P) == 1


def identity(value: object, path: str) -> bytes:
    """Check a field that holds an identity key, as :mod:`secagg.cbor` checks fields."""
    if not isinstance(value, bytes):
        raise ProtocolError(f"{path}: expected a byte string")
    if len(value) != IDENTITY_BYTES:
        raise ProtocolError(f"{path}: expected {IDENTITY_BYTES} bytes, got {len(value)}")
    if not acceptable(value):
        raise ProtocolError(f"{path}: not an Ed25519 public key (of low order, or not in canonical form)")
    return value


def holds(key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether a signature holds under an identity key.

    Guarantee: only who holds the private key can make a message for which it does, if Ed25519 is unforgeable and the
    message begins with a label of its purpose (RFC 8032, section 5.1.7; cofactorless, canonical S, by OpenSSL).
    """
    if not acceptable(key) or len(signature) != SIGNATURE_BYTES:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def fingerprint(key: bytes) -> str:
    """Return "SHA256:" and the hexadecimal hash of a public key's 32 bytes, for people to compare."""
    return "SHA256:" + hashlib.sha256(key).hexdigest()
