"""A folder of price files -> the bars of every instrument in it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from data_prep.bars import Bars
from data_prep.errors import DataError
from data_prep.readers.prices import read_bars

__all__ = ["PriceFile", "check_exclude", "list_price_files", "read_files"]

_SUFFIXES = frozenset({".csv", ".txt"})


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
    """List the `.csv` and `.txt` files below a folder, sorted by name.

    Parameters
    ----------
    folder : Path
        Searched with all its sub-folders; hidden files are left out.
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
        if path.suffix.lower() in _SUFFIXES and path.is_file() and not path.name.startswith(".")
    )
    if not paths:
        raise DataError(
            f"{folder}: no .csv or .txt file in it, expected one file of daily prices per ticker; "
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


def read_files(files: Collection[PriceFile], *, exclude: Collection[str] = ()) -> Iterator[Bars]:
    """Read the files one by one, leaving out those named in `exclude`.

    Yields
    ------
    Bars
        In the order of `files`.

    Raises
    ------
    DataError
        For a file that cannot be read (see `read_bars`), a ticker that two files of one region have, or when
        nothing is left. After the first bad file the others are still looked at, so that the message can name all
        files to correct or exclude.
    """
    seen: dict[str, str] = {}
    errors: list[tuple[str, DataError]] = []
    for file in files:
        if any(file.matches(pattern) for pattern in exclude):
            continue
        try:
            bars = read_bars(file.path, region=file.region, shown=file.name)
            if bars.key in seen:
                raise DataError(
                    f"{file.name}: holds ticker {bars.ticker!r}, which {seen[bars.key]} has already, expected one "
                    "file per ticker; name one of the two in exclude"
                )
        except DataError as error:
            errors.append((file.name, error))
            continue
        seen[bars.key] = file.name
        if not errors:
            yield bars
    if len(errors) > 1:
        others = ", ".join(name for name, _ in errors[1:])
        raise DataError(f"{errors[0][1]} ({len(errors) - 1} more files cannot be read either: {others})")
    if errors:
        raise errors[0][1]
    if not seen:
        raise DataError("every price file is named in exclude, expected at least one to be left; shorten exclude")
