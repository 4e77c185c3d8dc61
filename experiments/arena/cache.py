"""What was computed once is kept: one JSON file for each run, named by the hash of all that decides it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.files import write_whole

CODE_VERSION = 1
"""Goes up with every change of the software that changes what a run gives, so that no old result is taken for a new."""


def key_of(content: Mapping[str, Any]) -> str:
    """SHA-256 of a description in canonical JSON, code version included."""
    text = json.dumps({"code": CODE_VERSION, **content}, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Cache:
    """A folder of results.

    Attributes
    ----------
    folder : Path
    """

    folder: Path

    def path(self, key: str) -> Path:
        """File of a result."""
        return self.folder / f"{key}.json"

    def get(self, key: str) -> Mapping[str, Any] | None:
        """Return a result; None if it is not there, or not whole."""
        try:
            found = json.loads(self.path(key).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found["result"] if isinstance(found, dict) and found.get("key") == key else None

    def put(self, key: str, content: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        """Keep a result with the description it belongs to, whole or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        document = {"key": key, "of": content, "result": result}
        write_whole(self.path(key), (json.dumps(document, allow_nan=False) + "\n").encode())
