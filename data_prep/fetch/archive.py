"""Taking files out of other people's zip archives: no path leads out, no bomb goes off, every CRC is checked."""

from __future__ import annotations

import errno
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from data_prep.fetch.errors import UnexpectedAnswerError

__all__ = ["members", "unpack"]

_BLOCK = 2**16
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


@contextmanager
def _opened(path: Path, name: str) -> Iterator[zipfile.ZipFile]:
    """Open an archive; everything that a damaged one can raise becomes one named error."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (
        zipfile.BadZipFile,
        zlib.error,
        struct.error,
        EOFError,
        NotImplementedError,
        RuntimeError,
        ValueError,
        OverflowError,
    ) as error:
        if isinstance(error, UnexpectedAnswerError):
            raise
        reason = str(error)[:80] or type(error).__name__
        raise _damaged(name, reason) from None
    except OSError as error:
        if error.errno != errno.EINVAL:  # a seek to before the beginning
            raise
        raise _damaged(name, "an offset that is not in the file") from None


def _damaged(name: str, reason: str) -> UnexpectedAnswerError:
    return UnexpectedAnswerError(
        f"{name}: not a whole zip archive ({reason!r}), expected one with every checksum right; fetch it again"
    )


def members(path: Path, name: str, *, suffix: str, limit: int) -> list[str]:
    """List the files of an archive with some ending, after checking that all of it is harmless.

    Parameters
    ----------
    path : Path
        Archive.
    name : str
        As the user knows it.
    suffix : str
        Ending of the files that are wanted, in lower case.
    limit : int
        Most bytes that all files together may have.

    Raises
    ------
    UnexpectedAnswerError
        For a damaged archive; a path that leads out of it; a link; an encrypted file; a file twice; too many bytes.
    """
    with _opened(path, name) as archive:
        entries = archive.infolist()
    files = [entry for entry in entries if not entry.is_dir()]
    for entry in entries:
        told = _objection(entry)
        if told:
            raise UnexpectedAnswerError(f"{name}: {entry.filename[:60]!r} {told}; do not use this archive")
    if len({entry.filename.lower() for entry in files}) != len(files):
        raise UnexpectedAnswerError(f"{name}: holds two files of one name; do not use this archive")
    size = sum(entry.file_size for entry in files)
    if size > limit:
        raise UnexpectedAnswerError(
            f"{name}: would unpack to {size} bytes, expected at most {limit}; do not use this archive"
        )
    return [entry.filename for entry in files if entry.filename.lower().endswith(suffix)]


def _objection(entry: zipfile.ZipInfo) -> str:
    parts = PurePosixPath(entry.filename).parts
    if entry.filename.startswith("/") or ".." in parts or "\\" in entry.filename or ":" in entry.filename:
        return "leads out of the archive"
    if not entry.filename.isprintable() or not parts or any(len(part.encode()) > 240 for part in parts):
        return "is no usable file name"
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind and kind not in (stat.S_IFREG, stat.S_IFDIR):
        return "is a link or a device"
    if entry.flag_bits & 0x1:
        return "is encrypted"
    return "" if entry.compress_type in _METHODS else f"is compressed by method {entry.compress_type}"


def unpack(path: Path, name: str, wanted: Mapping[str, Path]) -> None:
    """Write files of a checked archive, their checksums verified; the caller sees to it that they reach the disk.

    Parameters
    ----------
    path : Path
        Archive that `members` has passed.
    name : str
        As the user knows it.
    wanted : Mapping of str to Path
        File in the archive -> where it goes.

    Raises
    ------
    UnexpectedAnswerError
        For content that is damaged or of another length than the archive's table says.
    """
    with _opened(path, name) as archive:
        for member, out in wanted.items():
            size = archive.getinfo(member).file_size
            with archive.open(member) as source, out.open("wb") as stream:
                # The table was checked against the limit, so no more than it says is ever written.
                while stream.tell() < size and (block := source.read(min(_BLOCK, size - stream.tell()))):
                    stream.write(block)
                if stream.tell() != size or source.read(1):
                    raise _damaged(name, f"{member[:60]} is not as long as announced")
