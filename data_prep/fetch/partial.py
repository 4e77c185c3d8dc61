"""The part of a file that has arrived, and whether the rest can be asked for (RFC 9110, 13.1.5 and 14)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path

from data_prep.files import write_json

__all__ = ["Partial", "continues", "validator"]

_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")
_SURE_AFTER_SECONDS = 60


@dataclass(frozen=True)
class Partial:
    """Where an interrupted answer came from.

    Attributes
    ----------
    url : str
        Address without a key.
    validator : str
        Strong entity tag or date that the rest has to agree with.
    total : int
        Bytes of the whole file.
    """

    url: str
    validator: str
    total: int

    @staticmethod
    def note_of(part: Path) -> Path:
        """Return where the note about a partial file lies."""
        return part.with_name(f"{part.name}.json")

    def save(self, part: Path) -> None:
        """Write the note, before the first byte of the part."""
        write_json(self.note_of(part), asdict(self))

    @classmethod
    def load(cls, part: Path, url: str) -> Partial | None:
        """Return the note about a part that can be continued; None, and the part removed, if there is none."""
        try:
            note = json.loads(cls.note_of(part).read_text(encoding="utf-8"))
            found = cls(str(note["url"]), str(note["validator"]), int(note["total"]))
            if found.url == url and 0 < part.stat().st_size < found.total:
                return found
        except (OSError, ValueError, KeyError, TypeError):
            pass
        cls.discard(part)
        return None

    @classmethod
    def discard(cls, part: Path) -> None:
        """Remove a part and its note."""
        part.unlink(missing_ok=True)
        cls.note_of(part).unlink(missing_ok=True)


def validator(headers: Mapping[str, str]) -> str:
    """Return what tells this version of a file from every other, "" if nothing does.

    A strong entity tag, else a modification date that lies a minute before the answer.
    """
    tag = headers.get("etag", "")
    if tag:
        return tag if re.fullmatch(r'"[\x21\x23-\x7e]*"', tag) else ""
    modified, answered = headers.get("last-modified", ""), headers.get("date", "")
    try:
        age = parsedate_to_datetime(answered) - parsedate_to_datetime(modified)
    except (ValueError, TypeError, OverflowError):
        return ""
    return modified if age.total_seconds() >= _SURE_AFTER_SECONDS else ""


def continues(partial: Partial, have: int, headers: Mapping[str, str]) -> bool:
    """Tell whether a 206 answer is the rest of the very file whose first `have` bytes are there."""
    found = _CONTENT_RANGE.fullmatch(headers.get("content-range", "").strip())
    if not found:
        return False
    first, last, total = (int(digits) for digits in found.groups())
    same = validator(headers) in ("", partial.validator)
    return same and first == have and last == partial.total - 1 and total == partial.total
