"""The anchor: count and hash of the ledger's head in a second file, signed by the ledger's key."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from privacy.chain import FORMAT, Entry, damage
from privacy.errors import LedgerError
from privacy.files import replace
from privacy.signing import Signer, fingerprint, signed_by

_LABEL = FORMAT.encode("ascii") + b"/anchor\0"
_HASH, _SIGNATURE = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{128}")


@dataclass(frozen=True, slots=True)
class Anchor:
    """What the anchor file says.

    Attributes
    ----------
    count, hash : int, str
        Head of the ledger when it was written.
    signature : str
        Hexadecimal Ed25519 signature of `message`.
    """

    count: int
    hash: str
    signature: str

    @classmethod
    def of(cls, head: Entry, signer: Signer) -> "Anchor":
        """Return the signed anchor of a head. Guarantee: only the key's holder can make it (Ed25519)."""
        return cls(head.count, head.hash, signer.sign(_message(head.count, head.hash)).hex())

    def write(self, path: Path) -> None:
        """Replace the anchor file atomically and durably; assumption: fsync is honest."""
        fields = {"count": self.count, "hash": self.hash, "signature": self.signature}
        replace(path, json.dumps(fields).encode("ascii") + b"\n")


def _message(count: int, digest: str) -> bytes:
    return _LABEL + count.to_bytes(8, "big") + bytes.fromhex(digest)


def read_anchor(path: Path) -> Anchor:
    """Return the anchor in a file; its signature is `check_anchor`'s work.

    No privacy guarantee; adjacency does not enter. Assumption: the anchor is replaced atomically, so it is never torn.

    Raises
    ------
    LedgerError
        If the file is missing, not signed or damaged.
    """
    try:
        fields = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise LedgerError(
            f"{path}: the anchor is missing; restore it, or start a new ledger with Ledger.create if nothing was ever "
            "recorded"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise LedgerError(
            f"{path}: the anchor cannot be read ({type(error).__name__}); restore it from a copy"
        ) from None
    if not isinstance(fields, dict) or set(fields) != {"count", "hash", "signature"}:
        raise LedgerError(f"{path}: the anchor is damaged or not signed; restore it from a copy")
    count, digest, signature = fields["count"], fields["hash"], fields["signature"]
    if not (
        type(count) is int
        and 0 < count < 1 << 63
        and isinstance(digest, str)
        and _HASH.fullmatch(digest)
        and isinstance(signature, str)
        and _SIGNATURE.fullmatch(signature)
    ):
        raise LedgerError(f"{path}: the anchor is damaged; restore it from a copy")
    return Anchor(count, digest, signature)


def check_anchor(path: Path, entries: Sequence[Entry], anchor: Anchor) -> None:
    """Refuse a ledger that is behind its anchor or departs from it.

    Guarantee: a ledger that passes contains everything that was anchored, if SHA-256 is collision resistant. No privacy
    guarantee of its own; adjacency does not enter.

    Raises
    ------
    LedgerError
        Naming the ledger and both counts.
    """
    if len(entries) < anchor.count:
        raise LedgerError(
            f"{path}: {len(entries)} entries, but the anchor has {anchor.count}; the ledger was cut or restored "
            "from an old copy: restore the newest copy, do not release anything"
        )
    if entries[anchor.count - 1].hash != anchor.hash:
        raise damage(path, anchor.count, "the hash differs from the anchor")


def check_anchor_signature(path: Path, anchor: Anchor, public_key: bytes) -> None:
    """Refuse an anchor that this key did not sign.

    Guarantee: only the holder of the ledger's key can move the anchor (Ed25519). No privacy guarantee; adjacency does
    not enter.

    Raises
    ------
    LedgerError
        Naming the anchor.
    """
    if not signed_by(public_key, _message(anchor.count, anchor.hash), bytes.fromhex(anchor.signature)):
        raise LedgerError(
            f"{path}: the anchor is not signed by the ledger's key {fingerprint(public_key)}; it was altered, or "
            "belongs to another ledger: restore it from a copy, do not release anything"
        )
