"""Whole-or-nothing writing of files and directories."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from data_prep.errors import DataError

__all__ = ["fingerprint", "scratch_directory", "sync_directory", "work_directory", "write_json", "write_whole"]


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


@contextmanager
def work_directory(parent: Path) -> Iterator[Path]:
    """Give the directory `.preparing` below `parent`, on the same file system as its siblings.

    It is removed at the end and after a `DataError`, then with `parent` if nothing else is in it. After any other
    end, a kill included, it stays, and the next preparation finds in it what this one finished.

    Raises
    ------
    DataError
        If another process has it.
    """
    path = parent / ".preparing"
    path.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(
                f"{parent}: another preparation is writing there, expected one at a time; wait, or use another folder"
            ) from None
        try:
            yield path
        except DataError:
            shutil.rmtree(path, ignore_errors=True)
            with suppress(OSError):
                parent.rmdir()
            raise
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(handle)


def sync_directory(directory: Path) -> None:
    """Flush the files of a directory and its list of entries to the disk."""
    for path in [*sorted(entry for entry in directory.iterdir() if entry.is_file()), directory]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
