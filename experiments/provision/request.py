"""The request of a silo: public keys, and proofs by the private halves that whoever made it holds all of them."""

import hashlib
import hmac
import json
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

from experiments.provision import names
from experiments.provision.code import short_fingerprint
from experiments.provision.errors import ProvisionError
from experiments.provision.moments import SKEW, moment, stamp
from secagg import cbor
from secagg.errors import RosterFileError
from secagg.identity import Signer, holds
from secagg.pins import identity_of

FORMAT = "fcfl-enrolment-request/1"
LABEL = b"fcfl-provision/1/enrolment-request"
LIFETIME = timedelta(days=30)
MAX_BYTES = 1 << 14
FIELDS = ("format", "silo", "created", "expires", "identity", "node_key", "replaces", "proofs")
PROOFS = ("identity", "node", "code")


@dataclass(frozen=True)
class Request:
    """What travels from a silo to the operator; nothing in it is secret.

    Attributes
    ----------
    silo : str
        Name under which the silo wants to be enrolled.
    created, expires : datetime
        In UTC, whole seconds.
    identity : bytes
        Ed25519 public key, 32 bytes.
    node_key : str
        ECDSA P-384 public key for Flower's node authentication, one OpenSSH line without comment.
    replaces : str
        Node key this one takes the place of; "" for a first enrolment.
    identity_proof, node_proof : bytes
        Signatures over `statement` by both private keys: Ed25519, and ECDSA with SHA-384 in DER.
    code_proof : bytes
        HMAC-SHA256 of `statement` under the enrolment code's key; empty where a node key is replaced.
    """

    silo: str
    created: datetime
    expires: datetime
    identity: bytes
    node_key: str
    replaces: str = ""
    identity_proof: bytes = b""
    node_proof: bytes = b""
    code_proof: bytes = b""

    def statement(self) -> bytes:
        """Return what all proofs are over: CBOR of a label of its own and everything but the proofs."""
        when = [int(self.created.timestamp()), int(self.expires.timestamp())]
        return cbor.encode([LABEL, self.silo, *when, self.identity, self.node_key, self.replaces])

    @property
    def fingerprint(self) -> str:
        """What operator and institution compare; covers name, keys and dates."""
        return short_fingerprint(hashlib.sha256(self.statement()).digest())

    def render(self) -> bytes:
        """Return the request's file."""
        proofs = {"identity": self.identity_proof, "node": self.node_proof, "code": self.code_proof}
        table = {
            "format": FORMAT,
            "silo": self.silo,
            "created": stamp(self.created),
            "expires": stamp(self.expires),
            "identity": self.identity.hex(),
            "node_key": self.node_key,
            "replaces": self.replaces,
            "proofs": {name: proof.hex() for name, proof in proofs.items()},
        }
        return (json.dumps(table, indent=2) + "\n").encode()

    @classmethod
    def make(
        cls,
        silo: str,
        now: datetime,
        identity: Signer,
        node_key: ec.EllipticCurvePrivateKey,
        node_public: str,
        *,
        key_of_code: bytes = b"",
        replaces: str = "",
    ) -> "Request":
        """Return a request with its proofs.

        Guarantee: only who holds the Ed25519 key, the ECDSA key and, for a first enrolment, the code can make it, if
        both signatures are unforgeable and HMAC-SHA256 is a MAC; none of them can be taken from it.
        """
        start = now.replace(microsecond=0)
        bare = cls(silo, start, start + LIFETIME, identity.public_key, node_public, replaces)
        said = bare.statement()
        return replace(
            bare,
            identity_proof=identity.sign(said),
            node_proof=node_key.sign(said, ec.ECDSA(hashes.SHA384())),
            code_proof=hmac.digest(key_of_code, said, "sha256") if key_of_code else b"",
        )

    @classmethod
    def parse(cls, data: bytes, where: str) -> "Request":
        """Read a request's file; `verify` checks the proofs.

        Raises
        ------
        ProvisionError
            Naming the file and the field.
        """
        table = _table(data, where)
        proofs = table["proofs"]
        if not isinstance(proofs, dict) or set(proofs) != set(PROOFS):
            raise ProvisionError(f"{where}: proofs: expected exactly {', '.join(PROOFS)}")
        if table["format"] != FORMAT:
            raise ProvisionError(
                f"{where}: format = {ascii(table['format'])[:80]}; expected {FORMAT}, use the same release on both "
                "sides"
            )
        try:
            identity = identity_of(table["identity"], f"{where}: identity")
        except RosterFileError as error:
            raise ProvisionError(str(error)) from None
        return cls(
            names.silo_name(table["silo"], f"{where}: silo"),
            moment(table["created"], f"{where}: created"),
            moment(table["expires"], f"{where}: expires"),
            identity,
            node_key_of(table["node_key"], f"{where}: node_key"),
            "" if table["replaces"] == "" else node_key_of(table["replaces"], f"{where}: replaces"),
            *(_hex(proofs[name], f"{where}: proofs.{name}") for name in PROOFS),
        )

    def verify(self, now: datetime, where: str) -> None:
        """Check dates and both signatures; the code is the operator's to check (`has_code`).

        Raises
        ------
        ProvisionError
            If it is not valid now, or was changed since it was made.
        """
        if not self.created <= self.expires <= self.created + LIFETIME:
            raise ProvisionError(f"{where}: valid for more than {LIFETIME.days} days; ask the silo for a new request")
        if now > self.expires:
            raise ProvisionError(f"{where}: expired on {stamp(self.expires)}; ask the silo for a new request")
        if now < self.created - SKEW:
            raise ProvisionError(f"{where}: made in the future, {stamp(self.created)}; compare the clocks")
        said = self.statement()
        again = "it was changed on the way; ask the silo for a new request"
        if not holds(self.identity, said, self.identity_proof):
            raise ProvisionError(f"{where}: not signed by its identity key: {again}")
        try:
            _public(self.node_key).verify(self.node_proof, said, ec.ECDSA(hashes.SHA384()))
        except InvalidSignature:
            raise ProvisionError(f"{where}: not signed by its node key: {again}") from None

    def has_code(self, key_of_code: bytes) -> bool:
        """Whether the request was made with the enrolment code of this key; takes the same time either way."""
        return hmac.compare_digest(hmac.digest(key_of_code, self.statement(), "sha256"), self.code_proof)


def node_key_of(text: object, where: str) -> str:
    """Return the canonical OpenSSH line, without comment, of an ECDSA P-384 public key."""
    try:
        key = _public(text) if isinstance(text, str) and len(text) < 1024 else None
        if key is not None and isinstance(key.curve, ec.SECP384R1):
            # Written anew, so that one key has one spelling and cannot be enrolled twice.
            return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    except (ValueError, UnsupportedAlgorithm, AttributeError):
        pass
    raise ProvisionError(f"{where}: expected an ECDSA P-384 public key as ecdsa-sha2-nistp384 AAAA...")


def _public(line: str) -> ec.EllipticCurvePublicKey:
    key = load_ssh_public_key(line.encode())
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError("no elliptic-curve key")
    return key


def _table(data: bytes, where: str) -> dict[str, Any]:
    table: object = None
    if len(data) <= MAX_BYTES:
        try:
            table = json.loads(data.decode())
        except (ValueError, RecursionError):
            table = None
    if not isinstance(table, dict) or set(table) != set(FIELDS):
        raise ProvisionError(
            f"{where}: no enrolment request; expected JSON of at most {MAX_BYTES} bytes with {', '.join(FIELDS)}, as "
            "'fcfl provision csr' writes it"
        )
    return table


def _hex(text: object, where: str) -> bytes:
    try:
        if isinstance(text, str):
            return bytes.fromhex(text)
    except ValueError:
        pass
    raise ProvisionError(f"{where}: expected hexadecimal digits")
