"""The bytes of the ledger: canonical JSON lines in a SHA-256 chain. Reading only, no locks."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from privacy.errors import LedgerError

DOMAIN = b"fcfl/privacy/ledger/v1"
GENESIS = "0" * 64
_FIELDS = {"body", "count", "hash", "kind", "previous", "signature"}


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
        Empty until entries are signed; not covered by the hash.
    """

    count: int
    kind: str
    body: Mapping[str, Any]
    previous: str
    hash: str
    signature: str = ""

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


def seal(count: int, previous: str, kind: str, body: Mapping[str, Any]) -> Entry:
    """Return the entry that follows `previous`.

    Guarantee: its hash, SHA-256(domain, previous hash, canonical JSON of count, kind and body), commits to the whole
    chain before it, if SHA-256 is collision resistant. No privacy guarantee; adjacency does not enter.
    """
    content = canonical({"body": dict(body), "count": count, "kind": kind})
    digest = hashlib.sha256(DOMAIN + b"\0" + bytes.fromhex(previous) + content).hexdigest()
    return Entry(count, kind, MappingProxyType(json.loads(content)["body"]), previous, digest)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("duplicate key")
    return found


def _parse(path: Path, number: int, line: bytes, previous: str) -> Entry:
    def damaged(why: str) -> LedgerError:
        return LedgerError(
            f"{path}, line {number}: {why}; the ledger was altered: restore it from a copy, do not release anything"
        )

    try:
        fields = json.loads(line, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        raise damaged("expected one JSON object") from None
    if not isinstance(fields, dict) or set(fields) != _FIELDS:
        raise damaged(f"expected the fields {', '.join(sorted(_FIELDS))}")
    if (
        not isinstance(fields["kind"], str)
        or not isinstance(fields["body"], dict)
        or not isinstance(fields["signature"], str)
    ):
        raise damaged("expected text in kind and signature and an object in body")
    if type(fields["count"]) is not int or fields["count"] != number:
        raise damaged(f"count is {fields['count']!r}, expected {number}")
    if fields["previous"] != previous:
        raise damaged("the previous hash does not match the line before")
    try:
        entry = seal(number, previous, fields["kind"], fields["body"])
    except LedgerError:
        raise damaged("the body is not plain JSON") from None
    if fields["hash"] != entry.hash:
        raise damaged("the hash does not match the content")
    sealed = Entry(number, entry.kind, entry.body, previous, entry.hash, fields["signature"])
    if sealed.line() != line + b"\n":
        raise damaged("the line is not in canonical form")
    return sealed


def read(path: Path, data: bytes) -> tuple[list[Entry], int]:
    """Return the entries of a ledger's bytes, and how many bytes of a torn last line follow them.

    Guarantee: every complete line is canonical, in place and chained to the one before (SHA-256); a last line without
    newline is left out, because its append never returned. No privacy guarantee; adjacency does not enter.

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
    previous = GENESIS
    for number, line in enumerate(lines, start=1):
        entries.append(_parse(path, number, line, previous))
        previous = entries[-1].hash
    return entries, len(torn)


def read_anchor(path: Path) -> tuple[int, str]:
    """Return (count, hash) of the anchor file.

    No privacy guarantee; adjacency does not enter. Assumption: the anchor is replaced atomically, so it is never torn.

    Raises
    ------
    LedgerError
        If the file is missing or damaged.
    """
    try:
        fields = json.loads(path.read_bytes())
        count, digest = fields["count"], fields["hash"]
        valid = type(count) is int and count >= 0 and len(bytes.fromhex(digest)) == 32
    except FileNotFoundError:
        raise LedgerError(
            f"{path}: the anchor is missing; restore it, or start a new ledger with Ledger.create"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LedgerError(
            f"{path}: the anchor cannot be read ({type(error).__name__}); restore it from a copy"
        ) from None
    if not valid:
        raise LedgerError(f"{path}: the anchor is damaged; restore it from a copy")
    return count, digest


def check_anchor(path: Path, entries: list[Entry], anchor: tuple[int, str]) -> None:
    """Refuse a ledger that is behind its anchor or departs from it.

    Guarantee: a ledger that passes contains everything that was anchored, if SHA-256 is collision resistant. No privacy
    guarantee of its own; adjacency does not enter.

    Raises
    ------
    LedgerError
        Naming the ledger and both counts.
    """
    count, digest = anchor
    if len(entries) < count:
        raise LedgerError(
            f"{path}: {len(entries)} entries, but the anchor has {count}; the ledger was cut or restored "
            "from an old copy: restore the newest copy, do not release anything"
        )
    if (entries[count - 1].hash if count else GENESIS) != digest:
        raise LedgerError(
            f"{path}, line {count}: the hash differs from the anchor; the ledger was altered: "
            "restore it, do not release anything"
        )
