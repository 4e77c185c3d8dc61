"""Writing that survives a power cut: a file is the old one or the new one, never a torn one."""

import os
from pathlib import Path


def write_all(handle: int, data: bytes) -> None:
    """Write all of `data`, however short the single writes are. No guarantee of its own."""
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def sync_folder(folder: Path) -> None:
    """Bring a folder's names to stable storage. Assumption: fsync is honest."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_fresh(path: Path, data: bytes, extra: int) -> None:
    """Write and fsync a file that is about to be renamed, for its owner only whatever the umask says."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | extra, 0o600)
    try:
        os.fchmod(handle, 0o600)
        write_all(handle, data)
        os.fsync(handle)
    finally:
        os.close(handle)


def replace(path: Path, data: bytes) -> None:
    """Replace a file atomically and durably; its owner alone may read it.

    No privacy guarantee; adjacency does not enter. Assumption: fsync is honest, and one writer at a time.
    """
    fresh = path.with_name(path.name + ".new")
    write_fresh(fresh, data, os.O_TRUNC)
    fresh.replace(path)
    sync_folder(path.parent)
