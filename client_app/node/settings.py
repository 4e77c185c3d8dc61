"""``connection.toml`` in a silo's folder: where the coordinator is; it comes with the start-up kit.

Beside it lie ``ca.crt``, from the kit too, and ``supernode.key``, which the silo made itself.
"""

import tomllib
from pathlib import Path

from client_app.node.fleet import Connection, NodeError

FILE, NODE_KEY = "connection.toml", "supernode.key"
KEYS = ("federation", "silo", "superlink", "root_certificates")


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
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isascii() and port.isdigit() and 0 < int(port) < 65536) or "/" in text:
        raise NodeError(f'{path}: superlink = {text!r}; expected host:port such as "coordinator.example:443"')
    return text
