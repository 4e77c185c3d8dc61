"""Start-up kits: what a silo gets back, as one tar file whose manifest the authority has signed.

Pure: bytes in, bytes out. The same input gives the same bytes (tar without times or owners, RFC 6979 signatures).
Nothing in a kit is secret, and nothing in it is another silo's but its line in the roster.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from experiments.provision import certificates
from experiments.provision.errors import ProvisionError
from experiments.provision.federation import Federation
from experiments.provision.state import Member, State
from experiments.provision.template import connection_text, example_settings

FORMAT = "fcfl-start-up-kit/1"
LABEL = b"fcfl-provision/1/start-up-kit\0"
MANIFEST, SIGNATURE = "manifest.json", "manifest.sig"
FILES = ("ca.crt", "connection.toml", "roster.toml", "silo.example.toml")
# A roster of the most silos a federation may have, with the longest names and comments.
MAX_BYTES = 1 << 24
_FIELDS = {"format", "federation", "revision", "silo", "identity", "node_key", "files"}


@dataclass(frozen=True)
class Kit:
    """A kit whose signature and checksums were checked."""

    federation: str
    revision: int
    silo: str
    identity: bytes
    node_key: str
    files: Mapping[str, bytes]
    manifest: bytes


def build(
    federation: Federation, state: State, silo: str, ca: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> bytes:
    """Return the kit of an enrolled silo.

    Raises
    ------
    ProvisionError
        If the silo is not enrolled.
    """
    member = state.need(silo)
    files = {
        "ca.crt": certificates.pem(ca),
        "connection.toml": connection_text(federation, silo).encode(),
        "roster.toml": state.roster(federation).encode(),
        "silo.example.toml": example_settings(silo).encode(),
    }
    manifest = _manifest(federation, state.revision, member, files)
    # The label keeps these signatures apart from those under certificates.
    signature = key.sign(LABEL + manifest, ec.ECDSA(hashes.SHA384(), deterministic_signing=True))
    return _packed({MANIFEST: manifest, SIGNATURE: signature, **files})


def read(data: bytes, fingerprint: str, now: datetime, where: str) -> Kit:
    """Open a kit.

    Guarantee: what comes back was put together by who holds the key of the authority with this fingerprint, and is
    whole.

    Parameters
    ----------
    data : bytes
        The tar file.
    fingerprint : str
        Fingerprint of the authority, from the operator by another way than the kit.
    now : datetime
    where : str
        The kit in errors.

    Raises
    ------
    ProvisionError
        If it is another authority's, was changed, or is no kit.
    """
    found = _unpacked(data, where)
    ca = certificates.read(found["ca.crt"], f"{where}: ca.crt")
    if _plain(certificates.fingerprint(ca)) != _plain(fingerprint):
        raise ProvisionError(
            f"{where}: made by the authority {certificates.fingerprint(ca)}, not by the one whose fingerprint was "
            "given; ask the federation's operator by telephone for its fingerprint before going on"
        )
    if not ca.not_valid_before_utc <= now < ca.not_valid_after_utc:
        raise ProvisionError(f"{where}: its authority is not valid now; check this machine's clock, ask for a new kit")
    public = ca.public_key()
    try:
        if not isinstance(public, ec.EllipticCurvePublicKey):
            raise InvalidSignature
        public.verify(found[SIGNATURE], LABEL + found[MANIFEST], ec.ECDSA(hashes.SHA384()))
    except InvalidSignature:
        raise ProvisionError(
            f"{where}: not signed by its authority; it was changed on the way, ask for it again"
        ) from None
    table = _table(found[MANIFEST], where)
    files = {name: found[name] for name in FILES}
    if table["files"] != _sums(files):
        raise ProvisionError(f"{where}: a file is not the one that was signed; ask for the kit again")
    return Kit(
        table["federation"],
        table["revision"],
        table["silo"],
        bytes.fromhex(table["identity"]),
        table["node_key"],
        files,
        found[MANIFEST],
    )


def overtaken(manifest: bytes, installed: bytes, where: str) -> tuple[int, int] | None:
    """Return the revisions of a kit and of the one that is installed if the first is older; None otherwise.

    Revisions count within one authority: another one begins anew, and its fingerprint was compared anew.
    """
    coming, there = _table(manifest, where), _table(installed, where)
    if coming["files"]["ca.crt"] != there["files"]["ca.crt"] or coming["revision"] >= there["revision"]:
        return None
    return coming["revision"], there["revision"]


def _manifest(federation: Federation, revision: int, member: Member, files: Mapping[str, bytes]) -> bytes:
    table = {
        "format": FORMAT,
        "federation": federation.name,
        "revision": revision,
        "silo": member.name,
        "identity": member.identity,
        "node_key": member.node_key,
        "files": _sums(files),
    }
    return (json.dumps(table, indent=2) + "\n").encode()


def _sums(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


def _table(manifest: bytes, where: str) -> dict[str, Any]:
    try:
        table = json.loads(manifest)
    except ValueError:
        table = None
    if not isinstance(table, dict) or set(table) != _FIELDS or table["format"] != FORMAT:
        raise ProvisionError(f"{where}: {MANIFEST} is of another version; use the release the operator uses")
    return table


def _packed(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(files):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(files[name]), 0o644
            tar.addfile(entry, io.BytesIO(files[name]))
    return buffer.getvalue()


def _unpacked(data: bytes, where: str) -> dict[str, bytes]:
    """Return the files of a tar by name; nothing is ever written where the tar says."""
    wanted = {MANIFEST, SIGNATURE, *FILES}
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            for entry in tar:
                stream = tar.extractfile(entry) if entry.isreg() else None
                # A sparse entry may claim more than there is.
                if stream is None or entry.size > len(data) or entry.name not in wanted or entry.name in found:
                    raise ProvisionError(f"{where}: holds {ascii(entry.name)[:80]}, which is no part of a kit")
                found[entry.name] = stream.read()
    except (tarfile.TarError, EOFError, ValueError, OSError) as error:
        if isinstance(error, ProvisionError):
            raise
        raise ProvisionError(f"{where}: no start-up kit, or cut off; ask for it again") from None
    if missing := sorted(wanted - set(found)):
        raise ProvisionError(f"{where}: {missing[0]} is missing; ask for the kit again")
    return found


def _plain(fingerprint: str) -> str:
    return "".join(fingerprint.split()).replace("-", "").upper()
