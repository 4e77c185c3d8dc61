"""Figures of a partition: what each silo holds, and how far it is from all silos together.

This looks into every silo's samples, so it belongs to simulated federations, where one machine has them all.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.errors import DataError
from data_prep.sectors import UNKNOWN
from data_prep.shards import SPLIT_NAMES, Shard, open_shard

__all__ = ["BINS", "Holding", "PartitionTable", "partition_table", "read_partition", "total_variation"]

BINS = 10
"""Labels are put into bins with equal numbers of all silos' training samples."""
_CSV_HEADER = (
    "silo",
    "regions",
    "tickers",
    *(f"{name}_samples" for name in SPLIT_NAMES),
    "sectors",
    "label_mean",
    "label_variance",
    "sector_distance",
    "label_distance",
)


@dataclass(frozen=True)
class Holding:
    """What one silo has, or all together.

    Attributes
    ----------
    silo : str
        Name, `pooled` for all together.
    regions : tuple of str
        Sorted.
    tickers : int
        Number of instruments.
    samples : Mapping of str to int
        Per split.
    sectors : Mapping of str to int
        Training samples per sector, most first.
    label_mean, label_variance : float
        Of the training labels: next day's log returns, clipped to the preparation's range; the variance has divisor n.
    sector_distance, label_distance : float
        Total-variation distance, in [0, 1], of the silo's training samples from the pooled ones: over sectors, and over
        labels in `BINS` bins.
    """

    silo: str
    regions: tuple[str, ...]
    tickers: int
    samples: Mapping[str, int]
    sectors: Mapping[str, int]
    label_mean: float
    label_variance: float
    sector_distance: float
    label_distance: float


@dataclass(frozen=True)
class PartitionTable:
    """All silos.

    Attributes
    ----------
    silos : tuple of Holding
        In the order of their names.
    pooled : Holding
        All together, with distances 0.
    label_edges : tuple of float
        Inner edges of the bins of labels.
    sector_distance, label_distance : float
        Mean over silos, each counting the same.
    weighted_sector_distance, weighted_label_distance : float
        Mean over silos, each counting its training samples.
    """

    silos: tuple[Holding, ...]
    pooled: Holding
    label_edges: tuple[float, ...]
    sector_distance: float
    label_distance: float
    weighted_sector_distance: float
    weighted_label_distance: float

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return asdict(self)

    def as_csv(self) -> str:
        """Return one row per silo, one for all together and one with the mean distances."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(_CSV_HEADER)
        for item in (*self.silos, self.pooled):
            writer.writerow(
                (
                    item.silo,
                    " ".join(item.regions),
                    item.tickers,
                    *item.samples.values(),
                    len(item.sectors),
                    f"{item.label_mean:.9g}",
                    f"{item.label_variance:.9g}",
                    f"{item.sector_distance:.6f}",
                    f"{item.label_distance:.6f}",
                )
            )
        blank = [""] * (len(_CSV_HEADER) - 3)
        writer.writerow(("mean", *blank, f"{self.sector_distance:.6f}", f"{self.label_distance:.6f}"))
        return stream.getvalue()


def total_variation(one: Mapping[Any, float], other: Mapping[Any, float]) -> float:
    """Return half the sum of absolute differences between two distributions given as counts, in [0, 1].

    Raises
    ------
    ValueError
        If one of them counts nothing.
    """
    first, second = sum(one.values()), sum(other.values())
    if not first or not second:
        raise ValueError("a distribution of no samples")
    return 0.5 * sum(abs(one.get(key, 0) / first - other.get(key, 0) / second) for key in one.keys() | other.keys())


def read_partition(samples: Path) -> dict[str, Shard]:
    """Open the silos of a folder that `fcfl data prepare` or `fcfl data synth` wrote.

    Raises
    ------
    DataError
        If it holds none, or a silo is damaged.
    """
    paths = sorted(path for path in samples.glob("silo-*") if path.is_dir())
    if not paths:
        raise DataError(
            f"{samples}: no silo-00, silo-01, ... in it, expected prepared samples; make them with 'fcfl data prepare' "
            "or 'fcfl data synth'"
        )
    return {path.name: open_shard(path) for path in paths}


def partition_table(shards: Mapping[str, Shard]) -> PartitionTable:
    """Describe a partition.

    Parameters
    ----------
    shards : Mapping of str to Shard
        Per silo; each has training samples.

    Raises
    ------
    DataError
        If a silo has no training samples.
    """
    labels = {name: _labels(name, shard) for name, shard in shards.items()}
    pooled_labels = np.concatenate(list(labels.values()))
    edges = np.unique(np.quantile(pooled_labels, np.arange(1, BINS) / BINS))
    sectors = {name: _sectors(shard) for name, shard in shards.items()}
    pooled_sectors: Counter[str] = sum(sectors.values(), Counter())
    pooled_bins = _histogram(pooled_labels, edges)
    silos = tuple(
        Holding(
            silo=name,
            regions=tuple(sorted(shard.manifest["regions"])),
            tickers=len(shard.manifest["tickers"]),
            samples=_samples(shard),
            sectors=dict(sectors[name].most_common()),
            label_mean=float(labels[name].mean()),
            label_variance=float(labels[name].var()),
            sector_distance=total_variation(sectors[name], pooled_sectors),
            label_distance=total_variation(_histogram(labels[name], edges), pooled_bins),
        )
        for name, shard in sorted(shards.items())
    )
    pooled = Holding(
        silo="pooled",
        regions=tuple(sorted({region for item in silos for region in item.regions})),
        tickers=sum(item.tickers for item in silos),
        samples={name: sum(item.samples[name] for item in silos) for name in SPLIT_NAMES},
        sectors=dict(pooled_sectors.most_common()),
        label_mean=float(pooled_labels.mean()),
        label_variance=float(pooled_labels.var()),
        sector_distance=0.0,
        label_distance=0.0,
    )
    weights = [item.samples["train"] for item in silos]
    return PartitionTable(
        silos=silos,
        pooled=pooled,
        label_edges=tuple(float(edge) for edge in edges),
        sector_distance=_mean([item.sector_distance for item in silos]),
        label_distance=_mean([item.label_distance for item in silos]),
        weighted_sector_distance=_mean([item.sector_distance for item in silos], weights),
        weighted_label_distance=_mean([item.label_distance for item in silos], weights),
    )


def _labels(name: str, shard: Shard) -> NDArray[np.float64]:
    labels = shard.train.targets.astype(np.float64) * shard.target_scale
    if not len(labels):
        raise DataError(f"{name}: no training samples, expected some; prepare with fewer silos or a higher floor")
    return labels


def _samples(shard: Shard) -> dict[str, int]:
    return {name: len(getattr(shard, name).targets) for name in SPLIT_NAMES}


def _sectors(shard: Shard) -> Counter[str]:
    names = [sector or UNKNOWN for sector in shard.manifest["sectors"]]
    assert shard.train.instruments is not None
    per_ticker = np.bincount(shard.train.instruments, minlength=len(names))
    counts: Counter[str] = Counter()
    for sector, number in zip(names, per_ticker.tolist(), strict=True):
        counts[sector] += number
    return +counts


def _histogram(labels: NDArray[np.float64], edges: NDArray[np.float64]) -> dict[int, int]:
    counts = np.bincount(np.searchsorted(edges, labels, side="right"), minlength=len(edges) + 1)
    return dict(enumerate(counts.tolist()))


def _mean(values: Sequence[float], weights: Sequence[float] | None = None) -> float:
    return float(np.average(values, weights=weights))
