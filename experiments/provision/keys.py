"""Files of private keys, and other files that are written once or replaced whole.

A private key is made with mode 0600 in a folder of mode 0700, never replaces another file, and is not read once others
than its owner may read or write it.
"""

import os
import stat
from contextlib import suppress
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
)

from experiments.provision.errors import ProvisionError
from privacy.files import sync_folder, write_fresh

MAX_SECRET = 1 << 14
Key = ec.EllipticCurvePrivateKey


def new_key() -> Key:
    """Return a fresh ECDSA P-384 key from the operating system's CSPRNG."""
    return ec.generate_private_key(ec.SECP384R1())


def pkcs8(key: Key, passphrase: bytes = b"") -> bytes:
    """Return a key in PEM (PKCS #8), encrypted if there is a passphrase."""
    lock: KeySerializationEncryption = BestAvailableEncryption(passphrase) if passphrase else NoEncryption()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock)


def openssh(key: Key) -> bytes:
    """Return a key in the form that ``flower-supernode --auth-supernode-private-key`` reads."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())


def openssh_public(key: Key) -> str:
    """Return the public half as one OpenSSH line without comment."""
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def load_pkcs8(path: Path, passphrase: bytes = b"") -> Key:
    """Read a key in PEM.

    Raises
    ------
    ProvisionError
        If it is missing, open to others, no ECDSA key, or the passphrase is not its own.
    """
    data = read_secret(path, "private key")
    try:
        key = load_pem_private_key(data, passphrase or None)
    except TypeError:
        wanted = "give its passphrase" if not passphrase else "it has no passphrase, give none"
        raise ProvisionError(f"{path}: {wanted} (--passphrase-file, or at the prompt)") from None
    except (ValueError, UnsupportedAlgorithm):
        hint = "another passphrase, or " if passphrase else ""
        raise ProvisionError(f"{path}: {hint}damaged; restore it from a backup of the project folder") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ProvisionError(f"{path}: not an ECDSA private key; restore it from a backup of the project folder")
    return key


def is_locked(path: Path) -> bool:
    """Whether a key's file wants a passphrase."""
    return b"ENCRYPTED PRIVATE KEY" in read_secret(path, "private key")


def load_openssh(path: Path) -> Key:
    """Read a SuperNode's key.

    Raises
    ------
    ProvisionError
        If it is missing, open to others, or no unencrypted ECDSA P-384 key.
    """
    data = read_secret(path, "SuperNode's key")
    try:
        key = load_ssh_private_key(data, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not (isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP384R1)):
        raise ProvisionError(f"{path}: not an unencrypted ECDSA P-384 key in OpenSSH form; restore it from its backup")
    return key


def read_secret(path: Path, what: str, limit: int = MAX_SECRET) -> bytes:
    """Read a file that only its owner may read or write.

    Raises
    ------
    ProvisionError
        If it is missing, no file, or open to others.
    """
    try:
        # Without O_NONBLOCK a named pipe in the file's place would wait for ever.
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ProvisionError(f"{path}: the {what} cannot be read ({error.strerror}); check path and rights") from None
    try:
        mode = os.fstat(handle).st_mode
        if not stat.S_ISREG(mode):
            raise ProvisionError(f"{path}: not a file; expected the {what}")
        if mode & 0o077:
            raise ProvisionError(
                f"{path}: others than its owner may read or write the {what} (mode {stat.S_IMODE(mode):04o}); run: "
                f"chmod 600 '{path}', and if anyone else may have read it, treat it as stolen"
            )
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read(limit)
    finally:
        os.close(handle)


def read_public(path: Path, limit: int, what: str) -> bytes:
    """Read a file of at most ``limit`` bytes.

    Raises
    ------
    ProvisionError
        If it is missing or longer.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise ProvisionError(f"{path}: the {what} cannot be read ({error.strerror}); check path and rights") from None
    if len(data) > limit:
        raise ProvisionError(f"{path}: longer than {limit} bytes; expected the {what}")
    return data


def write_once(path: Path, data: bytes) -> None:
    """Write a file for its owner only; a file that is there already stays, whoever makes it meanwhile.

    Raises
    ------
    ProvisionError
        If there is one.
    """
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        write_fresh(fresh, data, os.O_EXCL)
        os.link(fresh, path)
    except FileExistsError:
        raise ProvisionError(f"{path}: exists already, and is never replaced") from None
    finally:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
    sync_folder(path.parent)


def private_folder(path: Path) -> None:
    """Make a folder for its owner only; refuse one in which others may write.

    Raises
    ------
    ProvisionError
        Naming the folder.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (mode := path.stat().st_mode) & 0o022:
        raise ProvisionError(
            f"{path}: others than its owner may write in it (mode {stat.S_IMODE(mode):04o}); run: chmod 700 '{path}'"
        )
