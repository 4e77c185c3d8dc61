"""Ed25519 identities for tests, seeded; stands in for `privacy.signing.SigningKey`, which secagg may not know."""

import hashlib
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


@dataclass(frozen=True)
class TestSigner:
    __test__ = False
    public_key: bytes
    _private: Ed25519PrivateKey = field(repr=False, compare=False)

    @classmethod
    def of(cls, name: str) -> "TestSigner":
        private = Ed25519PrivateKey.from_private_bytes(hashlib.shake_256(name.encode()).digest(32))
        return cls(private.public_key().public_bytes_raw(), private)

    def sign(self, message: bytes) -> bytes:
        return self._private.sign(message)
