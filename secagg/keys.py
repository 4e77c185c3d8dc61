"""Keys: X25519 (RFC 7748), HKDF-SHA256 (RFC 5869) and AES-256-GCM (NIST SP 800-38D), each under its own label."""

import os
from dataclasses import dataclass
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from secagg import cbor
from secagg.errors import ProtocolError
from secagg.shamir import SHARE_BYTES, Entropy

PAIR_LABEL = b"fcfl-secagg/2/pairwise-mask"
SELF_LABEL = b"fcfl-secagg/2/self-mask"
COMMITMENT_LABEL = b"fcfl-secagg/2/seed-commitment"
SHARE_KEY_LABEL = b"fcfl-secagg/2/share-encryption"
SHARE_AD_LABEL = b"fcfl-secagg/2/share-associated-data"
KEY_BYTES = 32
NONCE_BYTES = 12
_P = 2**255 - 19
# The u of the points of order 1, 2, 4 and 8 on the curve and its twist (RFC 7748, section 7; Bernstein's ecdh.html).
_LOW_ORDER = frozenset(
    (
        0,
        1,
        _P - 1,
        int.from_bytes(bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"), "little"),
        int.from_bytes(bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"), "little"),
    )
)


@dataclass(frozen=True)
class Scope:
    """What every derived key of an epoch is bound to: protocol version, run and epoch."""

    version: int
    run_id: bytes
    epoch: int

    @property
    def info(self) -> list[object]:
        """The scope as the beginning of a context string."""
        return [self.version, self.run_id, self.epoch]


def hkdf(secret: bytes, info: bytes, salt: bytes | None = None, length: int = KEY_BYTES) -> bytes:
    """Return HKDF-SHA256 of a secret (RFC 5869); without salt, the salt is 32 zero bytes (section 2.2)."""
    return HKDF(SHA256(), length, salt, info).derive(secret)


def public_key(private: bytes) -> bytes:
    """Return the X25519 public key of a 32-byte private key (RFC 7748, section 6.1)."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


class Exchange(Protocol):
    """A private key that agrees on secrets with public ones."""

    def exchange(self, peer_public_key: X25519PublicKey, /) -> bytes:
        """Return the X25519 shared secret, or raise ``ValueError`` for a key of low order."""


class Agreements:
    """A private key that keeps what it agreed on, for as long as it is kept itself.

    Sealing shares for a peer and opening its shares take the same secret, in every epoch of a run.
    """

    def __init__(self, private: X25519PrivateKey) -> None:
        self._private = private
        self._agreed: dict[bytes, bytes] = {}

    def exchange(self, peer_public_key: X25519PublicKey, /) -> bytes:
        """Return the shared secret, computed once for each peer."""
        key = peer_public_key.public_bytes_raw()
        if key not in self._agreed:
            self._agreed[key] = self._private.exchange(peer_public_key)
        return self._agreed[key]


def agree(private: Exchange, peer_key: bytes, peer: str) -> bytes:
    """Return the X25519 shared secret (RFC 7748, section 6.1).

    Guarantee: a peer key of low order, which would make the secret known to everyone, raises :class:`ProtocolError`
    naming the peer.
    """
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(peer_key))
    except ValueError:
        raise _invalid(peer) from None


def _invalid(owner: str) -> ProtocolError:
    return ProtocolError(f"{owner}: its X25519 key is not valid (low order or malformed); remove the peer")


def check_public_key(key: bytes, owner: str) -> None:
    """Refuse a key of low order where it enters, so that one bad key cannot stop everyone else later.

    Guarantee: refuses exactly the keys that :func:`agree` refuses, at a hundredth of its cost.
    """
    if len(key) != KEY_BYTES or (int.from_bytes(key, "little") & ((1 << 255) - 1)) % _P in _LOW_ORDER:
        raise _invalid(owner)


def pair_key(
    scope: Scope, private: X25519PrivateKey, own: tuple[str, bytes], peer: tuple[str, bytes], announcement_hash: bytes
) -> bytes:
    """Return the key of the mask between two silos; both compute the same.

    Guarantee: pseudorandom to everyone who holds neither mask private key, if X25519 is a secure key exchange and HKDF
    a random oracle; independent between epochs, announcements and pairs. ``own`` and ``peer`` are (silo id, mask public
    key); they enter in the order of the ids. Source: Bonawitz et al. 2017, section 4; RFC 5869.
    """
    (first, first_key), (second, second_key) = sorted((own, peer))
    context = [PAIR_LABEL, *scope.info, first, second, first_key, second_key, announcement_hash]
    return hkdf(agree(private, peer[1], peer[0]), cbor.encode(context))


def self_mask_key(scope: Scope, silo_id: str, mask_key: bytes, seed: bytes, announcement_hash: bytes) -> bytes:
    """Return the key of a silo's own mask from its seed b (Bonawitz et al. 2017, section 4; RFC 5869)."""
    return hkdf(seed, cbor.encode([SELF_LABEL, *scope.info, silo_id, mask_key, announcement_hash]))


def commit_seed(scope: Scope, silo_id: str, seed: bytes) -> bytes:
    """Return H(b). Hiding because b has 256 bits of entropy, binding because SHA-256 resists collisions."""
    return cbor.digest(COMMITMENT_LABEL, [*scope.info, silo_id, seed])


@dataclass(frozen=True)
class Envelope:
    """From whom, to whom and for what a pair of shares is sealed; every field is authenticated.

    ``sender_key`` and ``receiver_key`` are the share-encryption keys of the roster.
    """

    scope: Scope
    sender: str
    receiver: str
    sender_key: bytes
    receiver_key: bytes
    sender_mask_key: bytes

    @property
    def associated_data(self) -> bytes:
        """The AEAD's associated data."""
        return cbor.encode([SHARE_AD_LABEL, *self.scope.info, self.sender, self.receiver, self.sender_mask_key])

    def cipher(self, shared: bytes) -> AESGCM:
        """Return the AEAD of this direction under the X25519 secret of the two share-encryption keys."""
        ends = [self.sender, self.receiver, self.sender_key, self.receiver_key]
        return AESGCM(hkdf(shared, cbor.encode([SHARE_KEY_LABEL, *self.scope.info, *ends])))


def seal_shares(
    envelope: Envelope,
    private: Exchange,
    mask_key_share: bytes,
    seed_share: bytes,
    entropy: Entropy = os.urandom,
) -> bytes:
    """Return nonce || AES-256-GCM(mask-key share || seed share).

    Guarantee: confidential and authentic between the two share-encryption keys for this run, epoch, direction and
    sender mask key. The nonce is random, so that a bundle made twice for one epoch (a crash before it was stored) does
    not reuse one. Source: NIST SP 800-38D.
    """
    nonce = entropy(NONCE_BYTES)
    cipher = envelope.cipher(agree(private, envelope.receiver_key, envelope.receiver))
    return nonce + cipher.encrypt(nonce, mask_key_share + seed_share, envelope.associated_data)


def open_shares(envelope: Envelope, private: Exchange, ciphertext: bytes) -> tuple[bytes, bytes] | None:
    """Return (mask-key share, seed share), or None if the ciphertext was not sealed for exactly this envelope."""
    cipher = envelope.cipher(agree(private, envelope.sender_key, envelope.sender))
    nonce, sealed = ciphertext[:NONCE_BYTES], ciphertext[NONCE_BYTES:]
    try:
        opened = cipher.decrypt(nonce, sealed, envelope.associated_data)
    except (InvalidTag, ValueError):
        return None
    if len(opened) != 2 * SHARE_BYTES:
        return None
    return opened[:SHARE_BYTES], opened[SHARE_BYTES:]
