"""``federation.toml``: what the operator declares, as text in and text out."""

import json
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from experiments.provision import names
from experiments.provision.errors import ProvisionError
from experiments.provision.names import Address
from secagg.roster import MAX_SILOS

MAX_DAYS = 36500
DAYS = {"ca_days": 3650, "server_days": 397, "code_days": 14}
T = TypeVar("T")


@dataclass(frozen=True)
class Server:
    """A host that speaks TLS for the coordinator.

    Attributes
    ----------
    host : str
        DNS name (A-labels) or address that clients connect to.
    port : int
        Port they connect to.
    names : tuple of str
        Further DNS names of its certificate, such as the service's name inside a container network.
    addresses : tuple of IPv4Address or IPv6Address
        Addresses of its certificate; among them `host` if that is one.
    """

    host: str
    port: int = 443
    names: tuple[str, ...] = ()
    addresses: tuple[Address, ...] = ()

    @property
    def endpoint(self) -> str:
        """``host:port`` as Flower wants it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def of(cls, host: object, port: object, extra: Sequence[object], addresses: Sequence[object], at: str) -> "Server":
        """Check and normalise what was declared; ``at`` names the place in errors."""
        try:
            first: Address | None = names.address(host, at)
        except ProvisionError:
            first = None
        if type(port) is not int or not 0 < port < 65536:
            raise ProvisionError(f"{at}: port = {port!r}; expected a whole number from 1 to 65535")
        found = [names.address(entry, f"{at}: addresses") for entry in addresses]
        known = [names.host_name(entry, f"{at}: names") for entry in extra]
        host_text = str(first) if first else names.host_name(host, f"{at}: host")
        if first:
            found.insert(0, first)
        return cls(
            host_text, port, tuple(dict.fromkeys(n for n in known if n != host_text)), tuple(dict.fromkeys(found))
        )


@dataclass(frozen=True)
class Institution:
    """A silo that is expected: its name, and whose it is."""

    name: str
    organisation: str = ""

    def render(self) -> str:
        """Return the silo as a table of ``federation.toml``."""
        return f"\n[[silo]]\nname = {_quoted(self.name)}\norganisation = {_quoted(self.organisation)}\n"


@dataclass(frozen=True)
class Federation:
    """The content of ``federation.toml``: days of validity of the authority, of server certificates, of codes."""

    name: str
    servers: tuple[Server, ...]
    silos: tuple[Institution, ...] = ()
    ca_days: int = DAYS["ca_days"]
    server_days: int = DAYS["server_days"]
    code_days: int = DAYS["code_days"]

    def silo(self, name: str) -> Institution | None:
        """Return the silo declared under a name, or None."""
        return next((silo for silo in self.silos if silo.name == name), None)

    def render(self) -> str:
        """Return the text of a new ``federation.toml``."""
        lines = [
            "# A federation: edit it by hand; what was issued and enrolled is in state.json, which is not to be "
            "edited.",
            "[federation]",
            f"name = {_quoted(self.name)}",
            "# Validity in days. The authority's cannot be changed once it exists.",
            *(f"{key} = {getattr(self, key)}" for key in DAYS),
            "",
            "# Silos connect to the first server. After a change of names: fcfl provision renew.",
        ]
        for server in self.servers:
            lines += [
                "[[server]]",
                f"host = {_quoted(server.host)}",
                f"port = {server.port}",
                f"names = {json.dumps(list(server.names))}",
                f"addresses = {json.dumps([str(entry) for entry in server.addresses])}",
                "",
            ]
        return "\n".join(lines) + "".join(silo.render() for silo in self.silos)


def parse(text: str, where: str) -> Federation:
    """Read a ``federation.toml``.

    Raises
    ------
    ProvisionError
        Naming the file and the key, or the line where the text is no TOML.
    """
    try:
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ProvisionError(f"{where}: not valid TOML: {error}") from None
    _only(tables, {"federation"}, {"server", "silo"}, where)
    head = tables["federation"]
    _only(head, {"name"}, set(DAYS), f"{where}: [federation]")
    days = {key: head.get(key, default) for key, default in DAYS.items()}
    for key, value in days.items():
        if type(value) is not int or not 0 < value <= MAX_DAYS:
            raise ProvisionError(f"{where}: {key} = {value!r}; expected whole days from 1 to {MAX_DAYS}")
    servers = _each(tables, "server", _server, where)
    silos = _each(tables, "silo", _institution, where)
    if not servers:
        raise ProvisionError(f"{where}: no [[server]]; add the coordinator's host")
    _distinct([server.host for server in servers], f"{where}: [[server]] host")
    _distinct([silo.name for silo in silos], f"{where}: [[silo]] name")
    return Federation(names.federation_name(head["name"], f"{where}: name"), tuple(servers), tuple(silos), **days)


def _server(entry: Any, at: str) -> Server:
    _only(entry, {"host"}, {"port", "names", "addresses"}, at)
    known, addresses = entry.get("names", []), entry.get("addresses", [])
    if not (isinstance(known, list) and isinstance(addresses, list)):
        raise ProvisionError(f"{at}: names and addresses: expected lists")
    return Server.of(entry["host"], entry.get("port", 443), known, addresses, at)


def _institution(entry: Any, at: str) -> Institution:
    _only(entry, {"name"}, {"organisation"}, at)
    name = names.silo_name(entry["name"], f"{at}: name")
    return Institution(name, names.organisation(entry.get("organisation", ""), f"{at}: organisation"))


def _each(tables: dict[str, Any], key: str, build: Callable[[Any, str], T], where: str) -> list[T]:
    entries = tables.get(key, [])
    if not isinstance(entries, list) or len(entries) > MAX_SILOS:
        raise ProvisionError(f"{where}: expected at most {MAX_SILOS} tables [[{key}]]")
    return [build(entry, f"{where}: [[{key}]] number {number}") for number, entry in enumerate(entries, 1)]


def _only(table: object, needed: set[str], allowed: set[str], where: str) -> None:
    if not isinstance(table, dict):
        raise ProvisionError(f"{where}: expected a table")
    if missing := sorted(needed - set(table)):
        raise ProvisionError(f"{where}: missing {missing[0]}")
    if odd := sorted(set(table) - needed - allowed):
        raise ProvisionError(
            f"{where}: unknown key {ascii(odd[0])[:80]}; known keys are {', '.join(sorted(needed | allowed))}"
        )


def _distinct(values: Sequence[str], what: str) -> None:
    if twice := sorted({value for value in values if values.count(value) > 1}):
        raise ProvisionError(f"{what}: {twice[0]} occurs twice; every one needs a name of its own")


def _quoted(text: str) -> str:
    # A JSON string is a TOML string as long as nothing is escaped as a pair of surrogates.
    return json.dumps(text, ensure_ascii=False)
