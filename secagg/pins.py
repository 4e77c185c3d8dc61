"""roster.toml: which identity key belongs to which silo, agreed out of band, and the check of a run against it.

Text in, text out; who reads and writes the file is the caller's business. ``where`` names the file in errors.
"""

import json
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass

from secagg.cbor import SILO_ID
from secagg.errors import ProtocolError, RosterFileError
from secagg.identity import acceptable, on_curve
from secagg.roster import MAX_SILOS, RosterEntry

MAX_TEXT = 1 << 22
MAX_COMMENT = 200
HEADER = """\
# The silos of a federation and their identity keys (Ed25519, hexadecimal), agreed out of band: compare fingerprints by
# telephone or on paper, not over the channel the keys came by. 'fcfl roster check' shows them.
"""
KEYS = ("name", "identity", "comment")


@dataclass(frozen=True)
class Pin:
    """One silo: its name, its 32-byte identity key, and a comment for people."""

    name: str
    identity: bytes
    comment: str = ""

    def render(self) -> str:
        """Return the pin as a table of ``roster.toml``."""
        # A JSON string is a TOML string as long as nothing is escaped as a pair of surrogates.
        comment = f"comment = {json.dumps(self.comment, ensure_ascii=False)}\n" if self.comment else ""
        return f'\n[[silo]]\nname = "{self.name}"\nidentity = "{self.identity.hex()}"\n{comment}'


@dataclass(frozen=True)
class PinnedRoster:
    """The content of a ``roster.toml``."""

    where: str
    pins: tuple[Pin, ...]

    @classmethod
    def parse(cls, text: str, where: str) -> "PinnedRoster":
        """Read a ``roster.toml``.

        Guarantee: names and keys occur once each, and every key is a point of Ed25519 that only its holder can sign
        for (RFC 8032, section 5.1.3). That a key is the named institution's rests on how the file came about.

        Raises
        ------
        RosterFileError
            Naming the file, the entry and the key that is wrong, or the line where the text is no TOML.
        """
        if len(text) > MAX_TEXT:
            raise RosterFileError(f"{where}: longer than {MAX_TEXT} characters; expected a roster")
        try:
            tables = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise RosterFileError(f"{where}: not valid TOML: {error}") from None
        entries = tables.get("silo", [])
        if set(tables) - {"silo"} or not isinstance(entries, list) or len(entries) > MAX_SILOS:
            raise RosterFileError(f"{where}: expected at most {MAX_SILOS} tables [[silo]], and nothing else")
        pins = tuple(_pin(entry, f"{where}: [[silo]] number {number}") for number, entry in enumerate(entries, 1))
        for kind in ("name", "identity"):
            seen: dict[object, int] = {}
            for number, pin in enumerate(pins, 1):
                if (first := seen.setdefault(getattr(pin, kind), number)) != number:
                    raise RosterFileError(
                        f"{where}: [[silo]] number {number} ({pin.name}): the {kind} is that of number {first} "
                        f"({pins[first - 1].name}); every silo has a name and an identity of its own"
                    )
        return cls(where, pins)

    def identity(self, name: str) -> bytes | None:
        """Return the identity key pinned for a name, or None."""
        return next((pin.identity for pin in self.pins if pin.name == name), None)

    def check(self, entries: Iterable[RosterEntry]) -> None:
        """Refuse entries of which one is not pinned with exactly its identity key, naming the silo.

        Guarantee: with the signatures of the entries checked (``signatures.check_roster``), each share-encryption key
        comes from the institution that was pinned, whoever relayed it. A subset of the pinned silos is fine.
        """
        pinned = {pin.name: pin.identity for pin in self.pins}
        for entry in entries:
            key = pinned.get(entry.silo_id)
            if key is None:
                raise ProtocolError(f"{entry.silo_id}: not in {self.where}; compare rosters before going on")
            if key != entry.identity_key:
                raise ProtocolError(
                    f"{entry.silo_id}: {self.where} lists another identity key; someone may pose as it, ask it by "
                    "telephone before going on"
                )


def _pin(entry: object, where: str) -> Pin:
    if not isinstance(entry, dict):
        raise RosterFileError(f"{where}: expected a table with name and identity")
    if odd := sorted(set(entry) - set(KEYS)):
        raise RosterFileError(f"{where}: unknown key {ascii(odd[0])[:80]}; known keys are {', '.join(KEYS)}")
    for key in KEYS[:2]:
        if key not in entry:
            raise RosterFileError(f"{where}: missing key {key}")
    name, text, comment = entry["name"], entry["identity"], entry.get("comment", "")
    if not (isinstance(name, str) and SILO_ID.fullmatch(name)):
        raise RosterFileError(
            f"{where}: name = {ascii(name)[:80]}; expected 1 to 64 letters, digits or ._:@- after a letter or digit"
        )
    if not (isinstance(comment, str) and len(comment) <= MAX_COMMENT and (not comment or comment.isprintable())):
        raise RosterFileError(f"{where} ({name}): comment: expected at most {MAX_COMMENT} printable characters")
    return Pin(name, identity_of(text, f"{where} ({name}): identity"), comment)


def identity_of(text: object, where: str) -> bytes:
    """Return the identity key that 64 hexadecimal digits stand for."""
    digits = text.lower() if isinstance(text, str) else ""
    if len(digits) != 64 or set(digits) - set("0123456789abcdef"):
        raise RosterFileError(f"{where} = {ascii(text)[:80]}; expected 64 hexadecimal digits, an Ed25519 public key")
    key = bytes.fromhex(digits)
    if not (acceptable(key) and on_curve(key)):
        raise RosterFileError(f"{where} = {text}; no Ed25519 public key: mistyped, of low order or not canonical")
    return key
