"""A silo's arrays on disk, written a ticker at a time, in any order, by any number of processes."""

from __future__ import annotations

import io
import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.features.table import FEATURES, N_FEATURES, feature_hash
from data_prep.files import fingerprint, write_json
from data_prep.shards import DTYPES, MANIFEST, OPTIONAL, SCHEMA_VERSION, SPLIT_NAMES, Split

__all__ = ["Arrays", "seal_shard", "write_shard"]


@dataclass(frozen=True)
class Arrays:
    """The arrays of one silo, in which each ticker has its rows.

    Attributes
    ----------
    directory : Path
        Of the silo; existing.
    sizes : Mapping of str to int
        Samples per split.
    truth : bool
        Whether there is a truth.
    """

    directory: Path
    sizes: Mapping[str, int]
    truth: bool

    def create(self) -> None:
        """Make the files, unless they are there in these sizes."""
        for split in self.sizes:
            for part in self._parts():
                path, header, row = self._place(split, part)
                length = len(header) + self.sizes[split] * row
                if path.is_file() and path.stat().st_size == length:
                    with path.open("rb") as stream:
                        if stream.read(len(header)) == header:
                            continue
                with path.open("wb") as stream:
                    stream.write(header)
                    stream.truncate(length)

    def write(self, split: str, first: int, samples: Split) -> int:
        """Write samples from row `first` on and return their CRC-32, as `checksum` computes it."""
        found = 0
        for part in self._parts():
            values = getattr(samples, part)
            if not len(values):
                continue
            path, header, row = self._place(split, part)
            content = np.ascontiguousarray(values, dtype=DTYPES[part]).tobytes()
            with path.open("r+b") as stream:
                stream.seek(len(header) + first * row)
                stream.write(content)
            found = zlib.crc32(content, found)
        return found

    def checksum(self, split: str, first: int, number: int) -> int:
        """Return the CRC-32 of `number` samples from row `first` on, as they are in the files."""
        found = 0
        for part in self._parts():
            if number:
                path, header, row = self._place(split, part)
                with path.open("rb") as stream:
                    stream.seek(len(header) + first * row)
                    found = zlib.crc32(stream.read(number * row), found)
        return found

    def _parts(self) -> Iterator[str]:
        return (part for part in DTYPES if self.truth or part not in OPTIONAL)

    def _place(self, split: str, part: str) -> tuple[Path, bytes, int]:
        """Return the file of an array, its header and the bytes of a row."""
        shape = (self.sizes[split], N_FEATURES) if part == "features" else (self.sizes[split],)
        dtype = np.dtype(DTYPES[part])
        header = io.BytesIO()
        fields = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(header, fields)
        return self.directory / f"{split}.{part}.npy", header.getvalue(), dtype.itemsize * math.prod(shape[1:])


def seal_shard(directory: Path, manifest: Mapping[str, Any]) -> None:
    """Write the manifest beside arrays that are complete.

    Parameters
    ----------
    directory : Path
        Of the silo; the caller moves it to its place afterwards.
    manifest : Mapping
        What to record besides schema version, feature hash, and the arrays' shapes and SHA-256. Equal inputs give
        equal bytes.
    """
    arrays: dict[str, dict[str, Any]] = {}
    for split in SPLIT_NAMES:
        for part, dtype in DTYPES.items():
            path = directory / f"{split}.{part}.npy"
            if part in OPTIONAL and not path.is_file():
                continue
            with path.open("rb") as stream:
                np.lib.format.read_magic(stream)
                shape = np.lib.format.read_array_header_1_0(stream)[0]
            arrays[path.name] = {"dtype": dtype, "shape": list(shape), "sha256": fingerprint(path)}
    write_json(
        directory / MANIFEST,
        {
            "schema_version": SCHEMA_VERSION,
            "feature_hash": feature_hash(),
            "features": [feature.name for feature in FEATURES],
            **manifest,
            "arrays": arrays,
        },
    )


def write_shard(directory: Path, splits: Mapping[str, Split], manifest: Mapping[str, Any]) -> None:
    """Write the samples of one silo at once; directory and manifest as for `seal_shard`, keys of `splits` as there."""
    sizes = {name: len(split.targets) for name, split in splits.items()}
    arrays = Arrays(directory, sizes, truth=all(split.truth is not None for split in splits.values()))
    arrays.create()
    for name, split in splits.items():
        arrays.write(name, 0, split)
    seal_shard(directory, manifest)
