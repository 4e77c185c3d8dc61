"""The operator's project folder, and what is done in it.

Layout (every folder 0700, every file 0600)::

    federation.toml            what the operator declares
    state.json                 who is expected, enrolled, revoked; holds the codes' keys (secret)
    ca/ca.key, ca/ca.crt       the authority; the key is secret
    servers/<host>/<serial>/server.key, server.crt    each certificate with a key of its own (secret)
    servers/<host>/current     symbolic link to the one in use
    silos/<name>.pub           node key of an enrolled silo, for 'flwr supernode register'
    roster.toml                who is enrolled, made from state.json

The two changes that must not be half done are each one rename: of ``state.json``, and of ``current``.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509

from experiments.provision import certificates, federation, state
from experiments.provision.errors import ProvisionError
from experiments.provision.federation import Federation, Institution, Server
from experiments.provision.keys import (
    Key,
    is_locked,
    load_pkcs8,
    new_key,
    pkcs8,
    private_folder,
    read_public,
    read_secret,
    write_once,
)
from experiments.provision.state import State
from privacy.files import replace as write
from privacy.files import sync_folder

MAX_TEXT = 1 << 24
# Renewed without being asked for once less than this is left.
RENEW_BEFORE = timedelta(days=30)


@dataclass(frozen=True)
class Project:
    """A project folder that was opened; nothing in it is read before it is asked for."""

    root: Path

    @classmethod
    def create(cls, root: Path, declared: Federation, now: datetime, passphrase: bytes = b"") -> "Project":
        """Make a project with its authority and server certificates, whole or not at all.

        Raises
        ------
        ProvisionError
            If there is something in the folder; an authority is never replaced.
        """
        if root.is_symlink() or (root.exists() and (not root.is_dir() or any(root.iterdir()))):
            raise ProvisionError(
                f"{root}: there is something already; an authority is never replaced, choose another folder"
            )
        root.parent.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=f".{root.name}.", dir=root.parent))
        try:
            made = cls(building)
            key = new_key()
            (building / "ca").mkdir(mode=0o700)
            (building / "silos").mkdir(mode=0o700)
            write_once(made.ca_key, pkcs8(key, passphrase))
            issuer = certificates.authority(key, declared.name, now, declared.ca_days)
            write(made.ca_file, certificates.pem(issuer))
            write(building / "federation.toml", declared.render().encode())
            made._store(State(), declared)
            for server in declared.servers:
                made._issue(server, key, issuer, declared.server_days, now)
            building.replace(root)
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise
        sync_folder(root.parent)
        return cls(root.resolve())

    @classmethod
    def open(cls, root: Path) -> "Project":
        """Open a project.

        Raises
        ------
        ProvisionError
            If there is none, or others may look into it.
        """
        if not (root / "federation.toml").is_file():
            raise ProvisionError(
                f"{root}: no federation.toml in it; give the project's folder (--project), or make one with 'fcfl "
                "provision init'"
            )
        if (mode := root.stat().st_mode & 0o777) & 0o077:
            raise ProvisionError(
                f"{root}: others than its owner may look into it (mode {mode:04o}); run: chmod 700 '{root}'"
            )
        return cls(root.resolve())

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the project, so that no two commands change it at the same time.

        Raises
        ------
        ProvisionError
            If another process holds it.
        """
        handle = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise ProvisionError(f"{self.root}: another command works in it; wait until it has ended") from None
        try:
            yield
        finally:
            os.close(handle)

    @property
    def ca_key(self) -> Path:
        """File of the authority's private key."""
        return self.root / "ca" / "ca.key"

    @property
    def ca_file(self) -> Path:
        """File of the authority's certificate."""
        return self.root / "ca" / "ca.crt"

    @property
    def locked(self) -> bool:
        """Whether the authority's key wants a passphrase."""
        return is_locked(self.ca_key)

    def declared(self) -> Federation:
        """Return what ``federation.toml`` declares."""
        path = self.root / "federation.toml"
        try:
            return federation.parse(read_public(path, MAX_TEXT, "declaration").decode(), str(path))
        except UnicodeDecodeError:
            raise ProvisionError(f"{path}: not valid TOML: not UTF-8") from None

    def state(self) -> State:
        """Return ``state.json``."""
        path = self.root / "state.json"
        return state.parse(read_secret(path, "state", MAX_TEXT), str(path))

    def ca(self) -> x509.Certificate:
        """Return the authority's certificate."""
        return certificates.read(read_public(self.ca_file, MAX_TEXT, "authority's certificate"), str(self.ca_file))

    def authority(self, passphrase: bytes = b"") -> tuple[Key, x509.Certificate]:
        """Return the authority's key and certificate.

        Raises
        ------
        ProvisionError
            If they do not belong together.
        """
        key, issuer = load_pkcs8(self.ca_key, passphrase), self.ca()
        if not certificates.belongs(issuer, key):
            raise ProvisionError(f"{self.ca_file}: not the certificate of {self.ca_key}; restore both from one backup")
        return key, issuer

    def server_folder(self, server: Server) -> Path:
        """Return the folder of the server's certificate in use."""
        return self.root / "servers" / server.host / "current"

    def certificate(self, server: Server) -> x509.Certificate | None:
        """Return the server's certificate in use; None before the first."""
        path = self.server_folder(server) / "server.crt"
        return certificates.read(read_public(path, MAX_TEXT, "certificate"), str(path)) if path.exists() else None

    def why_renew(self, server: Server, now: datetime) -> str:
        """Return why a server needs another certificate, or ""."""
        held = self.certificate(server)
        if held is None:
            return "none yet"
        if not certificates.covers(held, server):
            return "its names are not the declared ones"
        if held.issuer != self.ca().subject:
            return "of another authority"
        left = held.not_valid_after_utc - now
        return "" if left > RENEW_BEFORE else f"{max(left.days, 0)} days left"

    def renew(self, server: Server, now: datetime, passphrase: bytes = b"") -> x509.Certificate:
        """Give a server another key and certificate by the same authority; the old one stays valid until it ends.

        Returns
        -------
        Certificate
            The new one, in use from now on in `server_folder`.
        """
        key, issuer = self.authority(passphrase)
        return self._issue(server, key, issuer, self.declared().server_days, now)

    def _issue(self, server: Server, key: Key, issuer: x509.Certificate, days: int, now: datetime) -> x509.Certificate:
        own = new_key()
        certificate = certificates.server_certificate(key, issuer, own.public_key(), server, now, days)
        serial = f"{certificate.serial_number:040x}"
        folder = self.root / "servers" / server.host / serial
        for path in (folder.parent.parent, folder.parent, folder):
            private_folder(path)
        write_once(folder / "server.key", pkcs8(own))
        write_once(folder / "server.crt", certificates.pem(certificate))
        # Key and certificate change together: one rename of a link to both.
        fresh = folder.with_name("next")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(serial)
        fresh.replace(folder.with_name("current"))
        sync_folder(folder.parent)
        return certificate

    def add(self, silo: Institution) -> Federation:
        """Declare a silo; one that is declared already stays as it is.

        Raises
        ------
        ProvisionError
            If it is declared as another institution's.
        """
        declared = self.declared()
        there = declared.silo(silo.name)
        if there is None:
            path = self.root / "federation.toml"
            text = read_public(path, MAX_TEXT, "declaration").decode().rstrip("\n") + "\n" + silo.render()
            declared = federation.parse(text, str(path))
            write(path, text.encode())
        elif silo.organisation not in ("", there.organisation):
            raise ProvisionError(
                f"{self.root / 'federation.toml'}: {silo.name} is declared as {there.organisation!r}; correct the "
                "file or leave out --organisation"
            )
        return declared

    def store(self, fresh: State) -> None:
        """Make a state the current one, and write what follows from it."""
        self._store(fresh, self.declared())

    def _store(self, fresh: State, declared: Federation) -> None:
        write(self.root / "state.json", fresh.render())
        write(self.root / "roster.toml", fresh.roster(declared).encode())
        for member in fresh.enrolled():
            write(self.public_key(member.name), f"{member.node_key} {member.name}\n".encode())
        kept = {self.public_key(member.name) for member in fresh.enrolled()}
        for path in (self.root / "silos").glob("*.pub"):
            if path not in kept:
                path.unlink()

    def public_key(self, name: str) -> Path:
        """Return the file of an enrolled silo's node key."""
        return self.root / "silos" / f"{name}.pub"
