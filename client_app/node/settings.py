"""``connection.toml`` in a silo's folder: where the coordinator is, and how the node knows it."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from client_app.node.fleet import Connection, NodeError
from client_app.node.service import Polling

FILE = "connection.toml"
TEMPLATE = """\
# The coordinator's address, host:port.
superlink = "{superlink}"
# The authority that signed its certificate, from the start-up kit; paths are from this folder.
root-certificates = "{root_certificates}"
# This node's key, ECDSA P-384 in OpenSSH form; its public half is registered at the coordinator.
node-key = "{node_key}"

# Seconds between two looks for a message: while messages come, and after two minutes without one.
[poll]
busy = 0.3
idle = 3.0
"""
EXPECTED = {"superlink": str, "root-certificates": str, "node-key": str}


@dataclass(frozen=True)
class NodeSettings:
    """What a node needs beside the silo's own settings."""

    connection: Connection
    polling: Polling


def load_node_settings(home: Path) -> NodeSettings:
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
        raise NodeError(f"{path}: cannot be read ({error.strerror}); it comes with the start-up kit") from None
    except (ValueError, RecursionError) as error:
        raise NodeError(f"{path}: not valid TOML: {error}") from None
    polling = _polling(path, table.pop("poll", {}))
    if odd := EXPECTED.keys() ^ table.keys():
        raise NodeError(f"{path}: missing or unknown key {min(odd)}; expected {', '.join(EXPECTED)} and perhaps [poll]")
    for key in EXPECTED:
        if not (isinstance(table[key], str) and table[key] and "\0" not in table[key]):
            raise NodeError(f"{path}: {key} = {table[key]!r}; expected a text")
    return NodeSettings(
        Connection(_address(path, table["superlink"]), home / table["root-certificates"], home / table["node-key"]),
        polling,
    )


def _address(path: Path, text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isascii() and port.isdigit() and 0 < int(port) < 65536) or "/" in text:
        raise NodeError(f'{path}: superlink = {text!r}; expected host:port such as "coordinator.example:443"')
    return text


def _polling(path: Path, table: Any) -> Polling:
    known = ("busy", "idle")
    if not isinstance(table, dict) or set(table) - set(known):
        raise NodeError(f"{path}: [poll] knows busy and idle, nothing else")
    for key, value in table.items():
        if type(value) not in (int, float) or not 0.05 <= value <= 60:
            raise NodeError(f"{path}: poll.{key} = {value!r}; expected seconds between 0.05 and 60")
    return Polling(**{key: float(value) for key, value in table.items()})
