"""The checksum file of an output folder, in the format of `sha256sum`, so that `sha256sum -c SHA256SUMS` checks it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from data_prep.errors import DataError

__all__ = ["CHECKSUM_FILE", "format_sums", "parse_sums", "read_sums", "write_sums"]

CHECKSUM_FILE = "SHA256SUMS"
_LINE = re.compile(r"(\\?)([0-9a-f]{64}) [ *](.+)")
_ESCAPES = {"\\\\": "\\", "\\n": "\n", "\\r": "\r"}


def parse_sums(text: str, name: str) -> dict[str, str]:
    """Read the lines of a checksum file.

    Parameters
    ----------
    text : str
        Lines `<64 hexadecimal digits>  <file>`; a line whose file name has special characters begins with a backslash.
    name : str
        File as the user knows it.

    Returns
    -------
    dict of str to str
        File name -> checksum.

    Raises
    ------
    DataError
        For a line of another form, and a file listed twice with two checksums.
    """
    sums: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line:
            continue
        found = _LINE.fullmatch(line)
        if not found:
            raise DataError(
                f"{name}, line {number}: found {line[:40]!r}, expected a SHA-256 checksum, two blanks and a file name; "
                "correct the line, or move the file away to have everything fetched again"
            )
        escaped, digest, file = found.groups()
        if escaped:
            file = re.sub(r"\\[\\nr]", lambda match: _ESCAPES[match.group()], file)
        if sums.setdefault(file, digest) != digest:
            raise DataError(f"{name}, line {number}: {file!r} has another checksum above; remove one of the lines")
    return sums


def format_sums(sums: Mapping[str, str]) -> str:
    """Write checksums as `sha256sum` does, sorted by file name."""
    lines = []
    for file in sorted(sums):
        shown = file.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
        lines.append(f"{'' if shown == file else chr(92)}{sums[file]}  {shown}\n")
    return "".join(lines)


def read_sums(folder: Path) -> dict[str, str]:
    """Read a folder's checksum file; empty if there is none.

    Raises
    ------
    DataError
        For a line that cannot be read.
    """
    path = folder / CHECKSUM_FILE
    try:
        return parse_sums(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError:
        raise DataError(f"{path}: not UTF-8 text, expected checksums; move the file away and fetch again") from None


def write_sums(folder: Path, sums: Mapping[str, str]) -> None:
    """Write a folder's checksum file whole or not at all, and on the disk when this returns."""
    path = folder / CHECKSUM_FILE
    beside = path.with_name(f".{path.name}.part")
    with beside.open("w", encoding="utf-8", newline="") as stream:
        stream.write(format_sums(sums))
        stream.flush()
        os.fsync(stream.fileno())
    beside.replace(path)
