"""The table of a partition: its distances are what they say, and the picture is readable and repeatable."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.errors import DataError
from data_prep.features.table import N_FEATURES
from data_prep.prepare import FederationSpec, prepare_synthetic
from data_prep.shard_writer import write_shard
from data_prep.shards import SPLIT_NAMES, Shard, Split, open_shard
from data_prep.synthetic import MarketSpec
from experiments.partition.picture import COLOURS, INK, check_ending, draw, own_colours, render
from experiments.partition.table import BINS, PartitionTable, partition_table, read_partition, total_variation

COUNTS = st.dictionaries(st.integers(0, 6), st.integers(0, 50), min_size=1).filter(lambda x: sum(x.values()) > 0)


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("market") / "samples"
    prepare_synthetic(out, FederationSpec(silos=5, min_samples=500), market=MarketSpec(tickers=40))
    return out


@pytest.fixture(scope="module")
def table(market: Path) -> PartitionTable:
    return partition_table(read_partition(market))


def shard(folder: Path, targets: list[float], sectors: list[str | None], owners: list[int]) -> Shard:
    folder.mkdir(parents=True)
    size = len(targets)
    train = Split(
        np.zeros((size, N_FEATURES), np.float32),
        np.array(targets, np.float32),
        None,
        np.arange(size, dtype=np.int32),
        np.array(owners, np.int32),
    )
    empty = Split(
        np.zeros((0, N_FEATURES), np.float32),
        np.zeros(0, np.float32),
        None,
        np.zeros(0, np.int32),
        np.zeros(0, np.int32),
    )
    manifest = {
        "target_scale": 0.01,
        "first_date": "2020-01-01",
        "last_date": "2021-01-01",
        "regions": ["us"],
        "tickers": [f"T{i}" for i in range(len(sectors))],
        "sectors": sectors,
    }
    write_shard(folder, {"train": train, "validation": empty, "test": empty}, manifest)
    return open_shard(folder)


@given(COUNTS, COUNTS)
def test_total_variation_is_a_distance_between_distributions(one: dict[int, int], other: dict[int, int]) -> None:
    distance = total_variation(one, other)
    assert 0.0 <= distance <= 1.0 + 1e-12
    assert distance == pytest.approx(total_variation(other, one))
    assert total_variation(one, {key: 3 * value for key, value in one.items()}) == pytest.approx(0.0, abs=1e-12)
    # The largest difference in probability of any event.
    first, second = sum(one.values()), sum(other.values())
    event = [k for k in one.keys() | other.keys() if one.get(k, 0) / first > other.get(k, 0) / second]
    gap = sum(one.get(k, 0) / first - other.get(k, 0) / second for k in event)
    assert distance == pytest.approx(gap, abs=1e-12)


def test_total_variation_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no samples"):
        total_variation({}, {1: 1})


def test_figures_of_a_small_partition_by_hand(tmp_path: Path) -> None:
    shards = {
        "silo-00": shard(tmp_path / "silo-00", [1, 1, 1, 2], ["energy", "health"], [0, 0, 1, 1]),
        "silo-01": shard(tmp_path / "silo-01", [-1, -2, -1, 0], ["energy", None], [0, 0, 0, 1]),
    }
    found = partition_table(shards)
    one, two = found.silos
    assert one.sectors == {"energy": 2, "health": 2}
    assert two.sectors == {"energy": 3, "unknown": 1}
    # Pooled: energy 5/8, health 2/8, unknown 1/8.
    assert one.sector_distance == pytest.approx((1 / 8 + 2 / 8 + 1 / 8) / 2)
    assert two.sector_distance == pytest.approx((1 / 8 + 2 / 8 + 1 / 8) / 2)
    # No label of one silo occurs in the other, and half of all are each one's.
    assert (one.label_distance, two.label_distance) == (0.5, 0.5)
    assert one.label_mean == pytest.approx(0.0125)
    assert one.label_variance == pytest.approx(np.var([0.01, 0.01, 0.01, 0.02]))
    assert found.pooled.samples == {"train": 8, "validation": 0, "test": 0}
    assert (found.sector_distance, found.label_distance) == (0.25, 0.5)


def test_the_weighted_mean_counts_samples(tmp_path: Path) -> None:
    shards = {
        "silo-00": shard(tmp_path / "silo-00", [0.0] * 6, ["a"], [0] * 6),
        "silo-01": shard(tmp_path / "silo-01", [0.0] * 2, ["b"], [0] * 2),
    }
    found = partition_table(shards)
    assert found.sector_distance == pytest.approx((0.25 + 0.75) / 2)
    assert found.weighted_sector_distance == pytest.approx((6 * 0.25 + 2 * 0.75) / 8)


def test_one_silo_alone_is_at_no_distance(tmp_path: Path) -> None:
    found = partition_table({"silo-00": shard(tmp_path / "silo-00", [1.0, 2.0], ["a"], [0, 0])})
    assert (found.silos[0].sector_distance, found.silos[0].label_distance) == (0.0, 0.0)


def test_a_silo_without_training_samples_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="silo-00: no training samples"):
        partition_table({"silo-00": shard(tmp_path / "silo-00", [], ["a"], [])})


def test_a_folder_without_silos_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no silo-00"):
        read_partition(tmp_path)


def test_figures_of_the_market_agree_with_its_samples(market: Path, table: PartitionTable) -> None:
    shards = read_partition(market)
    assert [item.silo for item in table.silos] == sorted(shards)
    for item in table.silos:
        labels = shards[item.silo].train.targets.astype(float) * 0.01
        assert item.label_variance == pytest.approx(labels.var())
        assert item.samples["train"] == len(labels) == sum(item.sectors.values())
    everything = np.concatenate([s.train.targets.astype(float) * 0.01 for s in shards.values()])
    assert table.pooled.label_variance == pytest.approx(everything.var())
    bins = np.searchsorted(table.label_edges, everything, side="right")
    shares = np.bincount(bins) / len(bins)
    np.testing.assert_allclose(shares, 1 / BINS, atol=0.01)


def test_a_smaller_alpha_gives_larger_sector_distances(tmp_path: Path) -> None:
    means = []
    for alpha in (0.1, 100.0):
        spec = FederationSpec(silos=5, min_samples=500, alpha=alpha)
        out = tmp_path / f"{alpha}"
        prepare_synthetic(out, spec, market=MarketSpec(tickers=80))
        means.append(partition_table(read_partition(out)).sector_distance)
    assert means[0] > means[1] + 0.1


def test_json_and_csv_hold_the_table(table: PartitionTable) -> None:
    data = json.loads(json.dumps(table.as_json(), allow_nan=False))
    rows = list(csv.DictReader(io.StringIO(table.as_csv())))
    assert [row["silo"] for row in rows] == [*(item["silo"] for item in data["silos"]), "pooled", "mean"]
    for row, item in zip(rows, [*data["silos"], data["pooled"]], strict=False):
        assert [int(row[f"{name}_samples"]) for name in SPLIT_NAMES] == list(item["samples"].values())
        assert float(row["label_variance"]) == pytest.approx(item["label_variance"], rel=1e-8)
        assert float(row["sector_distance"]) == pytest.approx(item["sector_distance"], abs=1e-6)
    assert float(rows[-1]["sector_distance"]) == pytest.approx(table.sector_distance, abs=1e-6)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("page", ["#ffffff", "#111111"])
@pytest.mark.parametrize("colour", [INK, *COLOURS])
def test_every_colour_can_be_seen_on_light_and_dark_pages(colour: str, page: str) -> None:
    high, low = sorted((luminance(colour), luminance(page)), reverse=True)
    assert (high + 0.05) / (low + 0.05) >= 3.0


def test_the_picture_has_no_background_and_repeats_to_the_byte(table: PartitionTable) -> None:
    png = render(table, "Partition of a market", ".png")
    assert png.startswith(b"\x89PNG")
    assert png == render(table, "Partition of a market", ".png")
    svg = render(table, "Partition of a market", ".svg")
    assert svg == render(table, "Partition of a market", ".svg")
    text = svg.decode()
    for item in table.silos:
        assert f"{item.silo} {item.regions[0]}" in text
    painted = set(re.findall(r"(?:fill|stroke): ?(#[0-9a-f]{6})", text))
    assert painted <= {INK, *COLOURS, "#ffffff"}
    assert "opacity: 0" in text


def test_sectors_beyond_the_colours_share_one(tmp_path: Path) -> None:
    names: list[str | None] = [f"s{i:02d}" for i in range(15)]
    labels = [float(i) for i in range(15)]
    found = partition_table({"silo-00": shard(tmp_path / "silo-00", labels, names, list(range(15)))})
    assert len(own_colours(found)) == len(COLOURS)
    _, legend = draw(found, "many").axes[0].get_legend_handles_labels()
    assert legend[-1] == "other"
    assert len(legend) == len(COLOURS) + 1


def test_an_unknown_sector_is_grey_and_called_so(tmp_path: Path) -> None:
    found = partition_table({"silo-00": shard(tmp_path / "silo-00", [1.0, 2.0, 3.0], [None, "a"], [0, 0, 1])})
    assert own_colours(found) == ("a",)
    _, legend = draw(found, "one unknown").axes[0].get_legend_handles_labels()
    assert legend == ["a", "unknown"]


@pytest.mark.parametrize("name", ["picture.pdf", "picture"])
def test_another_ending_is_refused(name: str) -> None:
    with pytest.raises(DataError, match=r"expected \.png or \.svg"):
        check_ending(Path(name))
