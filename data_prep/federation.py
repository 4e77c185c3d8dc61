"""From stored bars to silo directories on disk: the one pipeline for files and for the synthetic market.

Memory holds one instrument at a time in each process, and of all others what an index needs: name, counts, days of the
first and last sample.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from data_prep.errors import DataError
from data_prep.features.compute import Context
from data_prep.features.table import MEMORY_ROWS, feature_hash
from data_prep.files import sync_directory, write_json
from data_prep.partition import Member, partition
from data_prep.samples import Counted, Journal, Market, Task, count_samples, fill_samples
from data_prep.shard_writer import Arrays, seal_shard
from data_prep.shards import SCHEMA_VERSION, SPLIT_NAMES, is_shard_file
from data_prep.spec import FederationSpec, Progress
from data_prep.splits import split_days
from data_prep.store import StoredBars
from data_prep.workers import Workers

__all__ = ["build_federation", "is_up_to_date", "run_fingerprint", "silo_paths"]

FEDERATION = "federation.json"


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
    bars: Sequence[StoredBars],
    contexts: Mapping[str, Context],
    out: Path,
    spec: FederationSpec,
    *,
    work: Path,
    workers: Workers,
    sources: Mapping[str, Any],
    calendars: Mapping[str, Mapping[str, Any]],
    checked: Mapping[str, Mapping[str, Any]] | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Align, split, partition, compute features and write one shard per silo.

    Each silo directory appears whole or not at all. `federation.json` is removed first and written last, so an
    interrupted preparation is seen as such and repeated; what it finished is found in `work`.

    Parameters
    ----------
    bars : sequence of StoredBars
        All instruments.
    contexts : Mapping of str to Context
        Trading days and shared features per region.
    out : Path
        Target; existing.
    spec : FederationSpec
        Settings.
    work : Path
        Directory on the same file system, left by an earlier run or empty.
    workers : Workers
        Processes; the result does not depend on their number.
    sources : Mapping
        JSON-able description of the input, part of the fingerprint.
    calendars : Mapping
        JSON-able account of each region's trading days, for the manifests.
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
    _refuse_foreign_files(out)
    markets = {
        region: Market(context, split_days(context.days, spec.splits, embargo_days=spec.embargo_days))
        for region, context in contexts.items()
    }
    counted = {
        item.key: found
        for item, found in zip(bars, workers.map(partial(count_samples, markets, spec), bars), strict=True)
        if found is not None and any(found.sizes.values())
    }
    if not counted:
        first, last = spec.splits.first_day, spec.splits.last_day
        raise DataError(
            f"{', '.join(sorted(contexts))}: none of {len(bars)} instruments has a sample, expected gap-free daily "
            f"bars of more than {MEMORY_ROWS} days within {first} to {last}; check the dates of the files, or set "
            "other splits"
        )
    members = [
        Member(key, item.stored.region, item.stored.sector, item.sizes["train"]) for key, item in counted.items()
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
    # The fingerprint names the directory: what another preparation left is not mistaken for this one's.
    made = work / f"silos-{run_fingerprint(spec, sources)[:32]}"
    made.mkdir(exist_ok=True)
    paths = silo_paths(made, spec.silos)
    silos = [[counted[key] for key in keys] for keys in groups]
    clipped = _fill(paths, silos, markets, spec, Journal(made / "finished.jsonl"), workers, report)
    manifests = [
        {
            **_manifest(items, contexts, spec, sum(clipped[item.stored.key] for item in items)),
            "calendars": {region: dict(calendars[region]) for region in sorted({x.stored.region for x in items})},
            "checked": [dict((checked or {}).get(item.stored.key, {})) for item in items],
        }
        for items in silos
    ]
    for number, _ in enumerate(workers.map(_seal, list(zip(paths, manifests, strict=True)), chunk=1)):
        report("silos", number + 1, spec.silos)
    final = silo_paths(out, spec.silos)
    (out / FEDERATION).unlink(missing_ok=True)
    for stale in _silos_in(out):
        shutil.rmtree(stale)
    for path, target in zip(paths, final, strict=True):
        path.replace(target)
    sync_directory(out)
    used = {key for keys in groups for key in keys}
    sampled = set(counted)
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
            "silos": [
                {"silo": path.name, "regions": manifest["regions"], "counts": manifest["counts"]}
                for path, manifest in zip(final, manifests, strict=True)
            ],
        },
    )
    return final


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


def _fill(
    paths: Sequence[Path],
    silos: Sequence[Sequence[Counted]],
    markets: Mapping[str, Market],
    spec: FederationSpec,
    journal: Journal,
    workers: Workers,
    report: Progress,
) -> dict[str, int]:
    """Write the samples of all silos and return the clipped targets per instrument."""
    finished = journal.read()
    tasks = []
    for path, items in zip(paths, silos, strict=True):
        path.mkdir(exist_ok=True)
        sizes = {name: sum(item.sizes[name] for item in items) for name in SPLIT_NAMES}
        arrays = Arrays(path, sizes, truth=all(item.stored.truth for item in items))
        arrays.create()
        first = dict.fromkeys(SPLIT_NAMES, 0)
        for number, item in enumerate(items):
            tasks.append(Task(item, number, arrays, dict(first), finished.get(item.stored.key)))
            first = {name: first[name] + item.sizes[name] for name in SPLIT_NAMES}
    clipped = {}
    with journal.append() as note:
        filled = workers.map(partial(fill_samples, markets, spec), tasks)
        for number, (task, found) in enumerate(zip(tasks, filled, strict=True)):
            if found != task.finished:
                note(task.item.stored.key, found)
            clipped[task.item.stored.key] = found.clipped
            report("tickers", number + 1, len(tasks))
    return clipped


def _seal(silo: tuple[Path, Mapping[str, Any]]) -> None:
    directory, manifest = silo
    seal_shard(directory, manifest)
    sync_directory(directory)


def _manifest(
    items: Sequence[Counted], contexts: Mapping[str, Context], spec: FederationSpec, clipped: int
) -> dict[str, Any]:
    regions = sorted({item.stored.region for item in items})
    left_out: dict[str, int] = {}
    for item in items:
        for reason, count in item.left_out.items():
            left_out[reason] = left_out.get(reason, 0) + count
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
        "first_date": str(min(item.first for item in items)),
        "last_date": str(max(item.last for item in items)),
        "years": {name: list(years) for name, years in spec.splits.items()},
        "embargo_days": spec.embargo_days,
        "fill_limit": spec.fill_limit,
        "memory_rows": MEMORY_ROWS,
        # A bar is in the target of the day before it, in the features of MEMORY_ROWS days, and stands in for the days
        # filled from it.
        "samples_per_bar": MEMORY_ROWS + 1 + spec.fill_limit,
        "regions": regions,
        "tickers": [item.stored.ticker for item in items],
        "sectors": [item.stored.sector for item in items],
        "bases": [item.stored.basis for item in items],
        "neutral_groups": sorted({group for region in regions for group in contexts[region].neutral_groups}),
        "neutral_days": {region: dict(contexts[region].neutral_days) for region in regions},
        "counts": {
            "tickers": len(items),
            **{f"{name}_samples": sum(item.sizes[name] for item in items) for name in SPLIT_NAMES},
            "rows_filled_forward": sum(item.filled for item in items),
            "rows_off_calendar": sum(item.off_calendar for item in items),
            "targets_clipped": clipped,
            "left_out": left_out,
        },
    }
