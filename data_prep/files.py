"""Whole-or-nothing writing of files and directories."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["fingerprint", "replace_directory", "scratch_directory", "sync_directory", "write_json"]


def fingerprint(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON through a file beside the target, so that the target is old or new, never half."""
    beside = path.with_name(f".{path.name}.part")
    with beside.open("w", encoding="utf-8") as stream:
        json.dump(content, stream, indent=1, allow_nan=False)
        stream.write("\n")
        stream.flush()
        os.fsync(stream.fileno())
    beside.replace(path)


@contextmanager
def scratch_directory(parent: Path) -> Iterator[Path]:
    """Give a new directory below `parent`, on the same file system as its siblings, removed afterwards."""
    path = Path(tempfile.mkdtemp(prefix=".preparing-", dir=parent))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def sync_directory(directory: Path) -> None:
    """Flush the files of a directory and its entries to the disk."""
    for path in [*sorted(directory.iterdir()), directory]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def replace_directory(new: Path, target: Path) -> None:
    """Move a finished directory to its place; an older one there is removed first."""
    if target.exists():
        shutil.rmtree(target)
    new.replace(target)
