"""A silo's samples on disk: plain memory-mapped arrays beside a manifest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from data_prep.errors import DataError
from data_prep.features.table import N_FEATURES, feature_hash
from data_prep.files import fingerprint

SPLIT_NAMES: tuple[str, ...] = ("train", "validation", "test")

__all__ = [
    "DTYPES",
    "MANIFEST",
    "OPTIONAL",
    "SCHEMA_VERSION",
    "SPLIT_NAMES",
    "Shard",
    "Split",
    "is_shard_file",
    "open_shard",
    "scale_targets",
]

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
OPTIONAL = ("truth",)
DTYPES: Mapping[str, str] = {
    "features": "float32",
    "targets": "float32",
    "dates": "int32",
    "instruments": "int32",
    "truth": "float32",
}


@dataclass(frozen=True)
class Split:
    """Samples of one split, ordered by instrument, then by date.

    Attributes
    ----------
    features : ndarray, shape (n, 52), float32
        Clipped, scale-free.
    targets : ndarray, shape (n,), float32
        Next day's log return / target_scale, clipped to the manifest's `target_clip`.
    truth : ndarray, shape (n,), float32, or None
        Conditional mean of the next day's log return in raw units; synthetic market only.
    dates : ndarray, shape (n,), int32, or None
        Day of the features, as days since 1970-01-01; `dates.astype("datetime64[D]")` makes days of them.
    instruments : ndarray, shape (n,), int32, or None
        Index into the manifest's `tickers`.
    """

    features: NDArray[np.float32]
    targets: NDArray[np.float32]
    truth: NDArray[np.float32] | None = None
    dates: NDArray[np.int32] | None = None
    instruments: NDArray[np.int32] | None = None


@dataclass(frozen=True)
class Shard:
    """All samples of one silo.

    Attributes
    ----------
    train, validation, test : Split
        Memory-mapped, read-only.
    target_scale : float
        Public divisor of the raw log return.
    feature_hash : str
        See `data_prep.features.feature_hash`.
    first_date, last_date : date
        First and last day on which features were taken, over all splits.
    manifest : Mapping
        The whole manifest. Its tickers and counts are the silo's own and stay with it.
    """

    train: Split
    validation: Split
    test: Split
    target_scale: float
    feature_hash: str
    first_date: date
    last_date: date
    manifest: Mapping[str, Any]


def is_shard_file(name: str) -> bool:
    """Tell whether a file name is one of a silo's samples."""
    return name == MANIFEST or name in {f"{split}.{part}.npy" for split in SPLIT_NAMES for part in DTYPES}


def scale_targets(returns: NDArray[np.float64], *, target_scale: float, target_clip: float) -> NDArray[np.float32]:
    """Divide raw log returns by the public scale and clip to the public range +- target_clip (in scaled units)."""
    return np.clip(returns / target_scale, -target_clip, target_clip).astype(np.float32)


def open_shard(directory: Path, *, verify: bool = False) -> Shard:
    """Open a silo's shard for reading.

    Parameters
    ----------
    directory : Path
        Written by `prepare_files` or `prepare_synthetic`.
    verify : bool
        Also compare each array's SHA-256 with the manifest; reads every byte.

    Returns
    -------
    Shard
        With memory-mapped arrays.

    Raises
    ------
    DataError
        Missing or unreadable manifest or array, another schema version, another feature table, shape or type that
        differs from the manifest, or (with `verify`) other bytes.
    """
    path = directory / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(
            f"{path}: no such file, expected a prepared silo directory; run the preparation or correct the path"
        ) from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not a readable manifest ({error}); run the preparation again") from None
    found = manifest.get("schema_version")
    if found != SCHEMA_VERSION:
        raise DataError(f"{path}: found schema version {found}, expected {SCHEMA_VERSION}; run the preparation again")
    if manifest.get("feature_hash") != feature_hash():
        raise DataError(
            f"{path}: found feature hash {str(manifest.get('feature_hash'))[:12]}, expected {feature_hash()[:12]} of "
            "this version's feature table; run the preparation again"
        )
    for key in ("target_scale", "first_date", "last_date", "arrays"):
        if key not in manifest:
            raise DataError(f"{path}: lacks the entry {key!r}, expected a complete manifest; run the preparation again")
    splits = {name: _open_split(directory, name, manifest["arrays"], verify=verify) for name in SPLIT_NAMES}
    return Shard(
        train=splits["train"],
        validation=splits["validation"],
        test=splits["test"],
        target_scale=float(manifest["target_scale"]),
        feature_hash=str(manifest["feature_hash"]),
        first_date=date.fromisoformat(manifest["first_date"]),
        last_date=date.fromisoformat(manifest["last_date"]),
        manifest=manifest,
    )


def _open_split(directory: Path, split: str, arrays: Mapping[str, Any], *, verify: bool) -> Split:
    parts: dict[str, Any] = {}
    rows: int | None = None
    for part, dtype in DTYPES.items():
        name = f"{split}.{part}.npy"
        if not isinstance(arrays.get(name), dict) or not {"shape", "sha256"} <= arrays[name].keys():
            if part in OPTIONAL:
                parts[part] = None
                continue
            raise DataError(f"{directory / MANIFEST}: lists no {name}, expected it; run the preparation again")
        values = _open_array(directory / name, arrays[name], dtype, verify=verify)
        rows = len(values) if rows is None else rows
        width = (N_FEATURES,) if part == "features" else ()
        if values.shape != (rows, *width):
            raise DataError(
                f"{directory / name}: found shape {values.shape}, expected {(rows, *width)}; run the preparation again"
            )
        parts[part] = values
    return Split(**parts)


def _open_array(path: Path, entry: Mapping[str, Any], dtype: str, *, verify: bool) -> NDArray[Any]:
    try:
        # An empty file region cannot be mapped.
        mode: Literal["r"] | None = "r" if entry["shape"][0] else None
        values: NDArray[Any] = np.load(path, mmap_mode=mode, allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file, expected it from the manifest; run the preparation again") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not a readable array ({error}); run the preparation again") from None
    if list(values.shape) != entry["shape"] or values.dtype != np.dtype(dtype):
        raise DataError(
            f"{path}: found {values.dtype} {list(values.shape)}, expected {dtype} {entry['shape']} as in the manifest; "
            "run the preparation again"
        )
    if verify and fingerprint(path) != entry["sha256"]:
        raise DataError(f"{path}: SHA-256 differs from the manifest, the file was changed; run the preparation again")
    return values
