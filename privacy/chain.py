"""The bytes of the ledger: signed, canonical JSON lines in a SHA-256 chain. Reading only, no locks."""

import dataclasses
import hashlib
import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from privacy.errors import LedgerError
from privacy.signing import Signer, fingerprint, signed_by, usable

FORMAT = "fcfl/privacy/ledger/v2"
OPENING = "ledger_opened"
GENESIS = "0" * 64
_DOMAIN = FORMAT.encode("ascii") + b"\0"
_ENTRY_LABEL = FORMAT.encode("ascii") + b"/entry\0"
_NO_SIGNATURE = "0" * 128
_FIELDS = {"body", "count", "hash", "kind", "previous", "signature"}
_OPENING_FIELDS = {"composition", "format", "nonce", "public_key"}
_COMPOSITION = "epsilon and delta of the runs add up"
_SIGNATURE = re.compile(r"[0-9a-f]{128}")
_KEY = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the ledger.

    Attributes
    ----------
    count : int
        Position, from 1.
    kind : str
        What the body is.
    body : mapping
        Read-only content.
    previous, hash : str
        Hexadecimal SHA-256 of the entry before and of this one.
    signature : str
        Hexadecimal Ed25519 signature of `message`; the next entry's hash covers it.
    """

    count: int
    kind: str
    body: Mapping[str, Any]
    previous: str
    hash: str
    signature: str = ""

    @property
    def message(self) -> bytes:
        """What the signature is of: label, 8 bytes of count, hash."""
        return _ENTRY_LABEL + self.count.to_bytes(8, "big") + bytes.fromhex(self.hash)

    def signed(self, signer: Signer) -> "Entry":
        """Return the entry with the signer's signature.

        Guarantee: it commits the signer to this entry and, through the chain, to all before it (Ed25519, SHA-256). No
        privacy guarantee; adjacency does not enter.
        """
        return dataclasses.replace(self, signature=signer.sign(self.message).hex())

    def line(self) -> bytes:
        """Return the canonical line with its newline."""
        fields = {name: getattr(self, name) for name in sorted(_FIELDS)}
        return canonical(fields | {"body": dict(self.body)}) + b"\n"


def canonical(value: Mapping[str, Any]) -> bytes:
    """Return canonical JSON: sorted keys, no blanks, ASCII, no NaN or infinity.

    Guarantee: equal mappings have equal bytes. No privacy guarantee; adjacency does not enter. Follows the rules of
    RFC 8785 for what the ledger holds (Python's shortest float text instead of ECMAScript's).

    Raises
    ------
    LedgerError
        If the content is not plain JSON.
    """
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise LedgerError(
            f"entry is not plain JSON ({error}): expected str, int, finite float, bool, null, list, object"
        ) from None
    return text.encode("ascii")


def seal(before: Entry | None, kind: str, body: Mapping[str, Any]) -> Entry:
    """Return the entry that follows `before` (None: the first one), not signed yet.

    Guarantee: its hash, SHA-256(domain, previous hash, previous signature, canonical JSON of count, kind and body),
    commits to the whole chain before it with every signature, if SHA-256 is collision resistant. No privacy guarantee;
    adjacency does not enter.
    """
    count, previous, signature = (
        (1, GENESIS, _NO_SIGNATURE) if before is None else (before.count + 1, before.hash, before.signature)
    )
    content = canonical({"body": dict(body), "count": count, "kind": kind})
    digest = hashlib.sha256(_DOMAIN + bytes.fromhex(previous) + bytes.fromhex(signature) + content).hexdigest()
    return Entry(count, kind, MappingProxyType(json.loads(content)["body"]), previous, digest)


def opening(signer: Signer) -> Entry:
    """Return the signed first entry: format, public key, a nonce that no other ledger has, and how runs compose.

    Guarantee: see `Entry.signed`; the nonce keeps entries of one ledger from fitting into another of the same key. No
    privacy guarantee; adjacency does not enter.
    """
    body = {
        "composition": _COMPOSITION,
        "format": FORMAT,
        "nonce": secrets.token_hex(16),
        "public_key": signer.public_key.hex(),
    }
    return seal(None, OPENING, body).signed(signer)


def key_of(entries: Sequence[Entry]) -> bytes:
    """Return the public key that the first entry states. It is a claim: anyone can begin a ledger with any key."""
    return bytes.fromhex(entries[0].body["public_key"])


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("duplicate key")
    return found


def damage(path: Path, number: int, why: str) -> LedgerError:
    """Return the error for a line that is not as it was written."""
    return LedgerError(
        f"{path}, line {number}: {why}; the ledger was altered: restore it from a copy, do not release anything"
    )


def _check_opening(path: Path, entry: Entry) -> None:
    body, key = entry.body, entry.body.get("public_key")
    if entry.kind != OPENING or set(body) != _OPENING_FIELDS or body["format"] != FORMAT:
        raise damage(path, 1, f"expected {OPENING} of format {FORMAT}")
    if not (isinstance(key, str) and _KEY.fullmatch(key) and usable(bytes.fromhex(key))):
        raise damage(path, 1, "public_key is not an Ed25519 public key")


def _parse(path: Path, number: int, line: bytes, before: Entry | None) -> Entry:
    try:
        fields = json.loads(line, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        raise damage(path, number, "expected one JSON object") from None
    if not isinstance(fields, dict) or set(fields) != _FIELDS:
        raise damage(path, number, f"expected the fields {', '.join(sorted(_FIELDS))}")
    kind, body, signature = fields["kind"], fields["body"], fields["signature"]
    if not isinstance(kind, str) or not isinstance(body, dict) or not isinstance(signature, str):
        raise damage(path, number, "expected text in kind and signature and an object in body")
    if type(fields["count"]) is not int or fields["count"] != number:
        raise damage(path, number, f"count is {fields['count']!r}, expected {number}")
    if not signature:
        raise LedgerError(
            f"{path}, line {number}: not signed; every entry must be, so this one was altered, or an older version "
            "wrote the ledger: keep the file, and do not release anything"
        )
    if not _SIGNATURE.fullmatch(signature):
        raise damage(path, number, "the signature is not 128 hexadecimal digits")
    if fields["previous"] != (GENESIS if before is None else before.hash):
        raise damage(path, number, "the previous hash does not match the line before")
    try:
        entry = seal(before, kind, body)
    except LedgerError:
        raise damage(path, number, "the body is not plain JSON") from None
    if fields["hash"] != entry.hash:
        raise damage(path, number, "the hash does not match the content and what is before it")
    if (kind == OPENING) != (before is None):
        raise damage(path, number, f"expected {OPENING} in line 1 and nowhere else")
    sealed = dataclasses.replace(entry, signature=signature)
    if sealed.line() != line + b"\n":
        raise damage(path, number, "the line is not in canonical form")
    if before is None:
        _check_opening(path, sealed)
    return sealed


def read(path: Path, data: bytes) -> tuple[list[Entry], int]:
    """Return the entries of a ledger's bytes, and how many bytes of a torn last line follow them.

    Guarantee: every complete line is canonical, in place and chained to the one before and its signature (SHA-256), the
    first one states a key; a last line without newline is left out, because its append never returned. Signatures are
    `check_signatures`' work. No privacy guarantee; adjacency does not enter.

    Parameters
    ----------
    path : Path
        Named in errors.
    data : bytes
        The file.

    Raises
    ------
    LedgerError
        Naming the line.
    """
    *lines, torn = data.split(b"\n")
    entries: list[Entry] = []
    before: Entry | None = None
    for number, line in enumerate(lines, start=1):
        before = _parse(path, number, line, before)
        entries.append(before)
    return entries, len(torn)


def check_signatures(path: Path, entries: Iterable[Entry], public_key: bytes) -> None:
    """Refuse entries whose signature is not by this key.

    Guarantee: what passes was signed by the holder of the key; the last entry of a chain commits its signer to all
    before it, signatures included, so it is enough to check that one (Ed25519, SHA-256). No privacy guarantee;
    adjacency does not enter.

    Raises
    ------
    LedgerError
        Naming the line.
    """
    for entry in entries:
        if not signed_by(public_key, entry.message, bytes.fromhex(entry.signature)):
            raise damage(path, entry.count, f"the signature is not by key {fingerprint(public_key)} over this entry")
