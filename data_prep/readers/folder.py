"""The price files of a folder."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from data_prep.errors import DataError

__all__ = ["PriceFile", "check_exclude", "list_price_files"]

_SUFFIXES = frozenset({".csv", ".parquet", ".pq", ".tsv", ".txt"})


@dataclass(frozen=True)
class PriceFile:
    """One file that will be read.

    Attributes
    ----------
    path : Path
        Where it lies.
    region : str
        Name of the folder it was found under.
    name : str
        Region and path below the folder, with `/`: the name used in messages and in `exclude`.
    """

    path: Path
    region: str
    name: str

    def matches(self, pattern: str) -> bool:
        """Tell whether an entry of `exclude` names this file: its name, file name, or ticker (stem)."""
        return pattern in {self.name, self.name.split("/", 1)[1], self.path.name, self.path.stem}


def list_price_files(folder: Path, *, region: str | None = None) -> list[PriceFile]:
    """List the `.csv`, `.txt`, `.tsv` and `.parquet` files below a folder, sorted by name.

    Parameters
    ----------
    folder : Path
        Searched with all its sub-folders; hidden files and folders are left out.
    region : str, optional
        Region bucket, by default the folder's name.

    Returns
    -------
    list of PriceFile
        At least one.

    Raises
    ------
    DataError
        If the folder is missing or holds no such file.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder, expected a folder of .csv or .txt price files; check the path")
    where = region or folder.resolve().name
    paths = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in _SUFFIXES
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    if not paths:
        raise DataError(
            f"{folder}: no .csv or .txt file in it (nor .tsv or .parquet), expected files of daily prices; "
            "point to the folder that holds them"
        )
    return [PriceFile(path, where, f"{where}/{path.relative_to(folder).as_posix()}") for path in paths]


def check_exclude(files: Collection[PriceFile], exclude: Collection[str]) -> None:
    """Refuse entries of `exclude` that name no file, since they are most likely typing errors.

    Raises
    ------
    DataError
        Naming the first entry without a match.
    """
    for pattern in sorted(exclude):
        if not any(file.matches(pattern) for file in files):
            raise DataError(
                f"exclude names {pattern!r}, which no file matches, expected a file name such as "
                f"{next(iter(files)).name!r}; correct or remove the entry"
            )
