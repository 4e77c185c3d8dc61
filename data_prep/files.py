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

__all__ = ["fingerprint", "scratch_directory", "sync_directory", "write_json", "write_whole"]


def fingerprint(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON, whole or not at all."""
    write_whole(path, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())


def write_whole(path: Path, content: bytes) -> None:
    """Write a file through one beside it, so that the target is old or new, never half."""
    beside = path.with_name(f".{path.name}.part")
    with beside.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    beside.replace(path)


@contextmanager
def scratch_directory(parent: Path) -> Iterator[Path]:
    """Give a new directory below `parent`, on the same file system as its siblings, removed afterwards.

    Those that an interrupted process left are removed first.
    """
    for left_behind in parent.glob(".preparing-*"):
        shutil.rmtree(left_behind, ignore_errors=True)
    path = Path(tempfile.mkdtemp(prefix=".preparing-", dir=parent))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def sync_directory(directory: Path) -> None:
    """Flush the files of a directory and its list of entries to the disk."""
    for path in [*sorted(entry for entry in directory.iterdir() if entry.is_file()), directory]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
