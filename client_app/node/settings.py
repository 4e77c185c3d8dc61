"""``connection.toml`` in a silo's folder: where the coordinator is; it comes with the start-up kit.

Beside it lie ``ca.crt``, from the kit too, and ``supernode.key``, which the silo made itself.
"""

import re
import ssl
import tomllib
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from client_app.node.errors import NodeError

FILE, NODE_KEY = "connection.toml", "supernode.key"
KEYS = ("federation", "silo", "superlink", "root_certificates")
HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")


@dataclass(frozen=True)
class Connection:
    """Where the coordinator is and how to trust it.

    Attributes
    ----------
    superlink : str
        ``host:port``.
    root_certificates : Path
        PEM file with the authority that signed the coordinator's certificate.
    node_key : Path
        ECDSA P-384 key in OpenSSH form, registered at the SuperLink.
    """

    superlink: str
    root_certificates: Path
    node_key: Path

    @property
    def host(self) -> str:
        """Host name or address, without the brackets of IPv6."""
        return self.superlink.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """TCP port."""
        return int(self.superlink.rpartition(":")[2])


def load_connection(home: Path) -> Connection:
    """Read ``connection.toml``.

    Raises
    ------
    NodeError
        Naming the file and the key that is wrong.
    """
    path = home / FILE
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise NodeError(
            f"{path}: cannot be read ({error.strerror}); it comes with the start-up kit: 'fcfl provision install'"
        ) from None
    except (ValueError, RecursionError) as error:
        raise NodeError(f"{path}: not valid TOML: {error}") from None
    if odd := set(KEYS) ^ table.keys():
        raise NodeError(f"{path}: missing or unknown key {min(odd)}; expected {', '.join(KEYS)}")
    for key in KEYS:
        if not (isinstance(table[key], str) and table[key] and "\0" not in table[key]):
            raise NodeError(f"{path}: {key} = {table[key]!r}; expected a text")
    return Connection(_address(path, table["superlink"]), home / table["root_certificates"], home / NODE_KEY)


def _address(path: Path, text: str) -> str:
    host, _, port = text.rpartition(":")
    if not (HOST.fullmatch(host) and re.fullmatch("[0-9]{1,5}", port) and 0 < int(port) < 65536):
        raise NodeError(f'{path}: superlink = {text!r}; expected host:port such as "coordinator.example:443"')
    return text


def load_node_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read the node's key.

    Raises
    ------
    NodeError
        If it is missing, readable by others, or no ECDSA P-384 key.
    """
    try:
        if path.stat().st_mode & 0o077:
            raise NodeError(f"{path}: others may read it; chmod 600 {path}")
        key = load_ssh_private_key(path.read_bytes(), None)
    except OSError as error:
        raise NodeError(
            f"{path}: cannot be read ({error.strerror}); restore it, or make another with 'fcfl provision csr'"
        ) from None
    except (ValueError, TypeError):
        raise NodeError(f"{path}: not a private key in OpenSSH form without a passphrase") from None
    if not (isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP384R1)):
        raise NodeError(f"{path}: not an ECDSA P-384 key, which Flower's SuperLink wants")
    return key


def load_authority(path: Path) -> bytes:
    """Read the certificates of the authority (PEM), and make sure that they are some.

    Raises
    ------
    NodeError
        If the file cannot be read or holds no certificate.
    """
    try:
        data = path.read_bytes()
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=data.decode("ascii"))
    except ssl.SSLError as error:
        raise NodeError(
            f"{path}: no certificate in PEM form ({error.reason}); it comes with the start-up kit"
        ) from None
    except OSError as error:
        raise NodeError(f"{path}: cannot be read ({error.strerror}); it comes with the start-up kit") from None
    except ValueError:
        raise NodeError(f"{path}: no certificate in PEM form; it comes with the start-up kit") from None
    return data
