"""Ed25519 signatures (RFC 8032) of ledgers, and the file that holds a silo's identity key."""

import hashlib
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from privacy.errors import IdentityError
from privacy.files import replace, sync_folder, write_fresh

_MAX_BYTES = 1 << 14
# Points of order 1, 2, 4 and 8, sign bit cleared: under such a "key" anyone can write a signature that holds.
_LOW_ORDER = frozenset(
    bytes.fromhex(text)
    for text in (
        "00" * 32,
        "01" + "00" * 31,
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "ec" + "ff" * 30 + "7f",
        "ed" + "ff" * 30 + "7f",
        "ee" + "ff" * 30 + "7f",
    )
)


class Signer(Protocol):
    """What signs a ledger: `SigningKey`, or a device that never gives its key away."""

    @property
    def public_key(self) -> bytes:
        """The 32-byte Ed25519 public key."""

    @property
    def where(self) -> str:
        """Where the key is kept, named in errors."""

    def sign(self, message: bytes) -> bytes:
        """Return the 64-byte signature of a message that begins with a label of its purpose."""


def fingerprint(public_key: bytes) -> str:
    """Return "SHA256:" and the hexadecimal hash of a public key's 32 bytes, for people to compare."""
    return "SHA256:" + hashlib.sha256(public_key).hexdigest()


def usable(public_key: bytes) -> bool:
    """Whether these bytes can be an Ed25519 public key that only the holder of a private key can sign for.

    Guarantee: points of low order, for which anyone can sign, are not usable. No privacy guarantee.
    """
    return len(public_key) == 32 and public_key[:31] + bytes([public_key[31] & 0x7F]) not in _LOW_ORDER


def signed_by(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether a signature holds.

    Guarantee: only who holds the private key can make a message it holds for, if Ed25519 is unforgeable (RFC 8032).
    No privacy guarantee; adjacency does not enter.
    """
    if not usable(public_key):
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _refuse_existing(*paths: Path) -> None:
    for there in paths:
        if there.exists() or there.is_symlink():
            raise IdentityError(
                f"{there}: exists already, and an identity key is never replaced; restore the key that belongs to it, "
                "or remove the folder if it was never used"
            )


@dataclass(frozen=True, slots=True)
class SigningKey:
    """An Ed25519 key pair in memory; repr, comparison and exceptions never show the private half.

    Use `create`, `load` or `generate`. Its holder can sign anything as the silo, so every purpose has its own label
    in front of what is signed.

    Attributes
    ----------
    public_key : bytes
        32 bytes.
    where : str
        The file, or "memory".
    """

    public_key: bytes
    where: str
    _private: Ed25519PrivateKey = field(repr=False, compare=False)

    @classmethod
    def generate(cls) -> Self:
        """Return a fresh key that is in no file. Guarantee: from the operating system's CSPRNG."""
        return cls._of(Ed25519PrivateKey.generate(), "memory")

    @classmethod
    def _of(cls, private: Ed25519PrivateKey, where: str) -> Self:
        return cls(private.public_key().public_bytes_raw(), where, private)

    @classmethod
    def create(cls, path: Path) -> Self:
        """Make a key, in PEM (PKCS #8), and its public half beside it as `.pub`, both for their owner only.

        Guarantee: the key is whole and on stable storage when this returns, and never replaces another. Assumption:
        fsync is honest. No privacy guarantee; adjacency does not enter.

        Raises
        ------
        IdentityError
            If there is a key, or half of one; nothing is changed then.
        """
        private, public, fresh = (
            Ed25519PrivateKey.generate(),
            path.with_suffix(".pub"),
            path.with_name(f"{path.name}.new"),
        )
        _refuse_existing(path, public, fresh)
        secret = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        try:
            # Only one process can hold the fresh file, and it looks again for what another has made meanwhile.
            write_fresh(fresh, secret, os.O_EXCL)
            try:
                _refuse_existing(path, public)
            except IdentityError:
                fresh.unlink()
                raise
            fresh.replace(path)
            sync_folder(path.parent)
            key = cls._of(private, str(path))
            replace(public, private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
        except OSError as error:
            raise IdentityError(
                f"{path}: cannot be written ({error.strerror}); check the folder and the disk"
            ) from None
        return key

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a key that `create` made.

        Guarantee: fails closed; no key is ever made here. No privacy guarantee; adjacency does not enter.

        Raises
        ------
        IdentityError
            If the file is missing, open to others than its owner, or no Ed25519 private key.
        """
        try:
            # Without O_NONBLOCK a named pipe in the key's place would stop the silo without a word.
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            raise IdentityError(
                f"{path}: the identity key is missing; restore it from its backup, since no other key can go on with "
                'this ledger (docs/operations.md, "If the identity key is lost")'
            ) from None
        except OSError as error:
            raise IdentityError(
                f"{path}: the identity key cannot be read ({error.strerror}); check its rights"
            ) from None
        try:
            mode = os.fstat(handle).st_mode
            if not stat.S_ISREG(mode):
                raise IdentityError(f"{path}: not a file; expected the identity key")
            if mode & 0o077:
                raise IdentityError(
                    f"{path}: others than its owner may read or write the identity key (mode "
                    f"{stat.S_IMODE(mode):04o}); run: chmod 600 '{path}', and if anyone else may have read it, treat "
                    'it as stolen (docs/operations.md, "If the identity key is stolen")'
                )
            data = os.read(handle, _MAX_BYTES)
        except OSError as error:
            raise IdentityError(f"{path}: the identity key cannot be read ({error.strerror}); check the disk") from None
        finally:
            os.close(handle)
        try:
            private = load_pem_private_key(data, None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            private = None
        if not isinstance(private, Ed25519PrivateKey):
            raise IdentityError(
                f"{path}: not an unencrypted Ed25519 private key in PEM; restore the identity key from its backup"
            )
        return cls._of(private, str(path))

    @property
    def fingerprint(self) -> str:
        """What people compare; see `fingerprint`."""
        return fingerprint(self.public_key)

    def sign(self, message: bytes) -> bytes:
        """Return the signature of a message that begins with a label of its purpose (RFC 8032, deterministic)."""
        return self._private.sign(message)


def read_public_key(path: Path) -> bytes:
    """Return the 32 bytes of an Ed25519 public key in PEM, as `SigningKey.create` writes it.

    No privacy guarantee; adjacency does not enter. Assumption: whoever gave the file is who they say.

    Raises
    ------
    IdentityError
        If the file is missing or holds no such key.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES)
    except OSError as error:
        raise IdentityError(f"{path}: cannot be read ({error.strerror}); expected a silo's identity.pub") from None
    try:
        public = load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        public = None
    if not isinstance(public, Ed25519PublicKey) or not usable(public.public_bytes_raw()):
        raise IdentityError(f"{path}: not an Ed25519 public key in PEM; expected a silo's identity.pub")
    return public.public_bytes_raw()
