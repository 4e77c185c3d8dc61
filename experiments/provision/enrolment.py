"""The silo's side: make its keys and its request in its own folder, and install the kit that comes back.

Adds to the folder of a silo (``client_app.home``)::

    supernode.key, supernode.pub     ECDSA P-384, OpenSSH: Flower's node authentication; the key is secret
    supernode-next.key               the node key that is to take its place, until the kit that confirms it is installed
    enrolment-request.json           what travels to the operator; public
    ca.crt, connection.toml, roster.toml, silo.example.toml, kit.json     from the kit

Identity and ledger are born together, here or in 'fcfl silo init': a ledger is never made for an identity that was
there before, whose old ledger may hold what was spent.
"""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from client_app.policy import load_settings
from experiments.provision import kit as kits
from experiments.provision.errors import ProvisionError
from experiments.provision.keys import (
    Key,
    load_openssh,
    new_key,
    openssh,
    openssh_public,
    private_folder,
    read_public,
    write_once,
)
from experiments.provision.kit import Kit
from experiments.provision.request import Request
from privacy.files import replace as write
from privacy.files import sync_folder
from privacy.ledger import Ledger
from privacy.signing import SigningKey
from secagg.identity import fingerprint
from secagg.pins import PinnedRoster

NODE_KEY, NEXT, PUBLIC = "supernode.key", "supernode-next.key", "supernode.pub"
REQUEST, INSTALLED = "enrolment-request.json", "kit.json"


@dataclass(frozen=True)
class RosterChange:
    """What a kit's roster changes in the one a silo has, as lines for people; empty if nothing."""

    lines: tuple[str, ...]
    first: bool


def make_request(home: Path, silo: str, now: datetime, key_of_code: bytes, *, new_node_key: bool = False) -> Request:
    """Make what is missing of a silo's keys, and write its request to ``enrolment-request.json``.

    Keys that are there stay; a second call makes a request with the same keys and new dates.

    Parameters
    ----------
    home : Path
        The silo's folder; made if it is not there.
    silo : str
        The silo's name in the federation.
    now : datetime
    key_of_code : bytes
        Key of the enrolment code; empty to replace the node key of an enrolled silo.
    new_node_key : bool
        Whether the request is for another node key than the one in use.

    Raises
    ------
    ProvisionError
        If the folder belongs to another silo, or its keys are incomplete or open to others.
    privacy.errors.IdentityError
        If the identity key cannot be used.
    """
    private_folder(home)
    if (home / "silo.toml").exists() and (name := load_settings(home / "silo.toml").name) != silo:
        raise ProvisionError(f"{home / 'silo.toml'}: the folder of {name}, not of {silo}; give the name it has")
    identity = _identity(home)
    if not (home / NODE_KEY).exists() and new_node_key:
        raise ProvisionError(f"{home / NODE_KEY}: no node key yet that another could replace; leave out --new-node-key")
    current = _node_key(home / NODE_KEY)
    write(home / PUBLIC, f"{openssh_public(current)} {silo}\n".encode())
    key = _node_key(home / NEXT) if new_node_key else current
    request = Request.make(
        silo,
        now,
        identity,
        key,
        openssh_public(key),
        key_of_code=key_of_code,
        replaces=openssh_public(current) if new_node_key else "",
    )
    write(home / REQUEST, request.render())
    return request


def _identity(home: Path) -> SigningKey:
    key, ledger, anchor = (home / name for name in ("identity.key", "ledger.jsonl", "ledger.anchor"))
    if not any(path.exists() for path in (key, key.with_suffix(".pub"), ledger, anchor)):
        identity = SigningKey.create(key)
        Ledger.create(ledger, anchor, signer=identity).close()
        return identity
    identity = SigningKey.load(key)
    if not (ledger.exists() and anchor.exists()):
        raise ProvisionError(
            f"{home}: an identity without its ledger; restore ledger.jsonl and ledger.anchor from their backup. Only "
            "if no request ever left this folder, remove identity.key and identity.pub and run this again"
        )
    return identity


def _node_key(path: Path) -> Key:
    if not path.exists():
        write_once(path, openssh(new_key()))
    return load_openssh(path)


def open_kit(home: Path, data: bytes, ca_fingerprint: str, now: datetime, where: str) -> Kit:
    """Check that a kit is whole, from the authority with this fingerprint, for this silo, and not an old one.

    Raises
    ------
    ProvisionError
        Naming what does not fit.
    """
    kit = kits.read(data, ca_fingerprint, now, where)
    identity = SigningKey.load(home / "identity.key")
    if kit.identity != identity.public_key:
        raise ProvisionError(
            f"{where}: for {kit.silo} with the identity {fingerprint(kit.identity)}; the one of {home} is "
            f"{identity.fingerprint}. Ask the operator for this silo's kit"
        )
    settings = home / "silo.toml"
    if settings.exists() and (name := load_settings(settings).name) != kit.silo:
        raise ProvisionError(f"{where}: for {kit.silo}, but {settings} says {name}")
    if kit.node_key not in [
        openssh_public(load_openssh(home / name)) for name in (NODE_KEY, NEXT) if (home / name).exists()
    ]:
        raise ProvisionError(
            f"{where}: for another node key than {home / NODE_KEY}; send a new request ('fcfl provision csr')"
        )
    if (
        PinnedRoster.parse(kit.files["roster.toml"].decode(), f"{where}: roster.toml").identity(kit.silo)
        != kit.identity
    ):
        raise ProvisionError(f"{where}: its roster does not list {kit.silo}; ask the operator for another kit")
    before = home / INSTALLED
    if before.exists():
        there = read_public(before, kits.MAX_BYTES, "installed kit")
        if older := kits.overtaken(kit.manifest, there, str(before)):
            raise ProvisionError(
                f"{where}: older (revision {older[0]}) than the kit that is installed (revision {older[1]}); its "
                "roster may list silos that were revoked. Ask for the newest"
            )
    return kit


def roster_change(home: Path, kit: Kit) -> RosterChange:
    """Return in what the kit's roster differs from the silo's own; comments do not count."""
    path = home / "roster.toml"
    if not path.exists():
        return RosterChange((), first=True)
    old = _pins(read_public(path, kits.MAX_BYTES, "roster"), str(path))
    new = _pins(kit.files["roster.toml"], "the kit's roster.toml")
    lines = [f"- {name} {fingerprint(old[name])}" for name in sorted(old.keys() - new.keys())]
    lines += [f"+ {name} {fingerprint(new[name])}" for name in sorted(new.keys() - old.keys())]
    changed = sorted(name for name in old.keys() & new.keys() if old[name] != new[name])
    lines += [f"! {name} {fingerprint(old[name])} -> {fingerprint(new[name])}" for name in changed]
    return RosterChange(tuple(lines), first=False)


def install(home: Path, kit: Kit) -> None:
    """Write a kit that `open_kit` returned into the silo's folder; again if it was cut off.

    Never touched: ``silo.toml``, identity, ledger. A node key that the kit confirms takes the old one's place.
    """
    for name in ("ca.crt", "connection.toml", "silo.example.toml", "roster.toml"):
        write(home / name, kit.files[name])
    coming = home / NEXT
    if coming.exists() and openssh_public(load_openssh(coming)) == kit.node_key:
        coming.replace(home / NODE_KEY)
        sync_folder(home)
    write(home / PUBLIC, f"{kit.node_key} {kit.silo}\n".encode())
    # Last, so that an installation that was cut off does not look whole.
    write(home / INSTALLED, kit.manifest)


def _pins(data: bytes, where: str) -> dict[str, bytes]:
    return {pin.name: pin.identity for pin in PinnedRoster.parse(data.decode(), where).pins}
