"""From bars in memory to silo directories on disk: the one pipeline for files and for the synthetic market."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.bars import Bars, Dates
from data_prep.calendar import Aligned, align
from data_prep.errors import DataError
from data_prep.features.compute import Context, compute_features
from data_prep.features.table import MEMORY_ROWS, N_FEATURES, feature_hash
from data_prep.files import scratch_directory, sync_directory, write_json
from data_prep.partition import Member, partition
from data_prep.shards import SCHEMA_VERSION, SPLIT_NAMES, Split, is_shard_file, scale_targets, write_shard
from data_prep.spec import FederationSpec, Progress
from data_prep.splits import SampleRows, sample_rows, split_days

__all__ = ["build_federation", "is_up_to_date", "run_fingerprint", "silo_paths"]

FEDERATION = "federation.json"


@dataclass(frozen=True)
class _Instrument:
    aligned: Aligned
    samples: SampleRows


def run_fingerprint(spec: FederationSpec, sources: Mapping[str, Any]) -> str:
    """Return the SHA-256 of everything the output depends on: settings, sources, feature table, schema."""
    content = {
        "schema": SCHEMA_VERSION,
        "features": feature_hash(),
        "spec": asdict(spec),
        "sources": sources,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def silo_paths(out: Path, silos: int) -> list[Path]:
    """Return the silo directories, `silo-00` onwards."""
    return [out / f"silo-{number:02d}" for number in range(silos)]


def is_up_to_date(out: Path, spec: FederationSpec, fingerprint: str) -> bool:
    """Tell whether `out` holds the complete result of exactly this preparation."""
    try:
        found = json.loads((out / FEDERATION).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    complete = all((path / "manifest.json").is_file() for path in silo_paths(out, spec.silos))
    return complete and found.get("fingerprint") == fingerprint


def build_federation(
    bars: Sequence[Bars],
    contexts: Mapping[str, Context],
    out: Path,
    spec: FederationSpec,
    *,
    sources: Mapping[str, Any],
    checked: Mapping[str, Mapping[str, Any]] | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Align, split, partition, compute features and write one shard per silo.

    Each silo directory appears whole or not at all. `federation.json` is removed first and written last, so an
    interrupted preparation is seen as such and repeated.

    Parameters
    ----------
    bars : sequence of Bars
        All instruments.
    contexts : Mapping of str to Context
        Trading days and shared features per region.
    out : Path
        Target; created if missing.
    spec : FederationSpec
        Settings.
    sources : Mapping
        JSON-able description of the input, part of the fingerprint.
    checked : Mapping, optional
        JSON-able account of the check, per ticker by `Bars.key`; what is under another key was left out as a whole.
    progress : callable, optional
        Called with stage, done, total.

    Returns
    -------
    list of Path
        Silo directories.

    Raises
    ------
    DataError
        If no instrument has a sample, or the partition is impossible.
    """
    report = progress or (lambda _stage, _done, _total: None)
    out.mkdir(parents=True, exist_ok=True)
    _refuse_foreign_files(out)
    instruments = _align_all(bars, contexts, spec)
    if not any(len(rows) for item in instruments.values() for rows in item.samples.rows.values()):
        first, last = spec.splits.first_day, spec.splits.last_day
        raise DataError(
            f"{', '.join(sorted(contexts))}: none of {len(bars)} instruments has a sample, expected gap-free daily "
            f"bars of more than {MEMORY_ROWS} days within {first} to {last}; check the dates of the files, or set "
            "other splits"
        )
    members = [
        Member(key, item.aligned.bars.region, item.aligned.bars.sector, len(item.samples.rows["train"]))
        for key, item in instruments.items()
        if any(len(rows) for rows in item.samples.rows.values())
    ]
    if spec.tickers:
        members = sorted(members, key=lambda member: (-member.samples, member.key))[: spec.tickers]
    groups = partition(
        members,
        silos=spec.silos,
        alpha=spec.alpha,
        seed=spec.seed,
        floor=spec.floor,
        min_samples=spec.min_samples,
        min_share=spec.min_share,
    )
    paths = silo_paths(out, spec.silos)
    summaries = []
    with scratch_directory(out) as scratch:
        for number, (path, keys) in enumerate(zip(paths, groups, strict=True)):
            directory = scratch / path.name
            directory.mkdir()
            manifest = _write_silo(directory, [instruments[key] for key in keys], contexts, spec, checked or {})
            sync_directory(directory)
            summaries.append({"silo": path.name, "regions": manifest["regions"], "counts": manifest["counts"]})
            report("silos", number + 1, spec.silos)
        (out / FEDERATION).unlink(missing_ok=True)
        for stale in _silos_in(out):
            shutil.rmtree(stale)
        for path in paths:
            (scratch / path.name).replace(path)
        sync_directory(out)
    used = {key for keys in groups for key in keys}
    sampled = {key for key, item in instruments.items() if any(len(rows) for rows in item.samples.rows.values())}
    keys_of_bars = {item.key for item in bars}
    write_json(
        out / FEDERATION,
        {
            "fingerprint": run_fingerprint(spec, sources),
            "schema_version": SCHEMA_VERSION,
            "feature_hash": feature_hash(),
            "spec": asdict(spec),
            "sources": dict(sources),
            "instruments_without_samples": sorted(b.key for b in bars if b.key not in sampled),
            "instruments_beyond_the_number_wanted": sorted(sampled - used),
            "tickers_left_out": {key: dict(entry) for key, entry in (checked or {}).items() if key not in keys_of_bars},
            "silos": summaries,
        },
    )
    return paths


def _silos_in(out: Path) -> list[Path]:
    return sorted(p for p in out.iterdir() if p.is_dir() and re.fullmatch(r"silo-\d{2,}", p.name))


def _refuse_foreign_files(out: Path) -> None:
    """Refuse to replace silo directories that hold anything this room did not write, a ledger for example."""
    for silo in _silos_in(out):
        for path in sorted(silo.iterdir()):
            if not is_shard_file(path.name):
                raise DataError(
                    f"{path}: found a file that the preparation did not write and would delete, expected only samples "
                    f"in {silo.name}; move it away or prepare into another directory"
                )


def _align_all(bars: Sequence[Bars], contexts: Mapping[str, Context], spec: FederationSpec) -> dict[str, _Instrument]:
    day_splits = {
        region: split_days(context.days, spec.splits, embargo_days=spec.embargo_days)
        for region, context in contexts.items()
    }
    result = {}
    for item in bars:
        days = contexts[item.region].days
        aligned = align(item, days, limit=spec.fill_limit)
        if aligned is not None:
            result[item.key] = _Instrument(aligned, sample_rows(aligned, days, day_splits[item.region]))
    return result


def _write_silo(
    directory: Path,
    items: Sequence[_Instrument],
    contexts: Mapping[str, Context],
    spec: FederationSpec,
    checked: Mapping[str, Mapping[str, Any]],
) -> Mapping[str, Any]:
    sizes = {name: sum(len(item.samples.rows[name]) for item in items) for name in SPLIT_NAMES}
    known = all(item.aligned.bars.truth is not None for item in items)
    splits = {name: _empty_split(sizes[name], truth=known) for name in SPLIT_NAMES}
    filled = dict.fromkeys(SPLIT_NAMES, 0)
    clipped = 0
    for number, item in enumerate(items):
        bars = item.aligned.bars
        features = compute_features(item.aligned, contexts[bars.region])
        log_close = np.log(bars.close)
        for name, rows in item.samples.rows.items():
            part = slice(filled[name], filled[name] + len(rows))
            filled[name] = part.stop
            split = splits[name]
            returns = log_close[rows + 1] - log_close[rows]
            clipped += int(np.count_nonzero(np.abs(returns) > spec.target_scale * spec.target_clip))
            split.features[part] = features[rows]
            split.targets[part] = scale_targets(returns, target_scale=spec.target_scale, target_clip=spec.target_clip)
            if split.truth is not None and bars.truth is not None:
                split.truth[part] = bars.truth[rows]
            if split.dates is not None and split.instruments is not None:
                split.dates[part] = bars.dates[rows].astype(np.int64)
                split.instruments[part] = number
    manifest = {
        **_manifest(items, contexts, splits, spec, clipped),
        "checked": [dict(checked.get(item.aligned.bars.key, {})) for item in items],
    }
    write_shard(directory, splits, manifest)
    return manifest


def _empty_split(size: int, *, truth: bool) -> Split:
    return Split(
        features=np.empty((size, N_FEATURES), dtype=np.float32),
        targets=np.empty(size, dtype=np.float32),
        truth=np.empty(size, dtype=np.float32) if truth else None,
        dates=np.empty(size, dtype=np.int32),
        instruments=np.empty(size, dtype=np.int32),
    )


def _manifest(
    items: Sequence[_Instrument],
    contexts: Mapping[str, Context],
    splits: Mapping[str, Split],
    spec: FederationSpec,
    clipped: int,
) -> dict[str, Any]:
    regions = sorted({item.aligned.bars.region for item in items})
    left_out: dict[str, int] = {}
    for item in items:
        for reason, count in item.samples.counts.items():
            left_out[reason] = left_out.get(reason, 0) + count
    days: Dates = np.concatenate([split.dates for split in splits.values() if split.dates is not None]).astype(
        "datetime64[D]"
    )
    return {
        "target": "log(P[t+1] / P[t]) / target_scale, clipped to +- target_clip",
        "target_scale": spec.target_scale,
        "target_clip": spec.target_clip,
        "units": {
            "features": "dimensionless, clipped to the public ranges of the feature table",
            "targets": "log return of the next trading day / target_scale",
            "truth": "log return of the next trading day",
            "dates": "days since 1970-01-01",
            "instruments": "index into tickers",
        },
        "first_date": str(days.min()),
        "last_date": str(days.max()),
        "years": {name: list(years) for name, years in spec.splits.items()},
        "embargo_days": spec.embargo_days,
        "fill_limit": spec.fill_limit,
        "memory_rows": MEMORY_ROWS,
        # A bar is in the target of the day before it, in the features of MEMORY_ROWS days, and stands in for the days
        # filled from it.
        "samples_per_bar": MEMORY_ROWS + 1 + spec.fill_limit,
        "regions": regions,
        "tickers": [item.aligned.bars.ticker for item in items],
        "sectors": [item.aligned.bars.sector for item in items],
        "bases": [item.aligned.bars.basis for item in items],
        "neutral_groups": sorted({group for region in regions for group in contexts[region].neutral_groups}),
        "neutral_days": {region: dict(contexts[region].neutral_days) for region in regions},
        "counts": {
            "tickers": len(items),
            **{f"{name}_samples": len(split.targets) for name, split in splits.items()},
            "rows_filled_forward": sum(item.aligned.filled for item in items),
            "rows_off_calendar": sum(item.aligned.off_calendar for item in items),
            "targets_clipped": clipped,
            "left_out": left_out,
        },
    }
