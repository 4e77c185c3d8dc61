"""The universes have the figures of the paper's Table 5, and a preparation follows them as far as its files go."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from data_prep.errors import DataError
from data_prep.prepare import FederationSpec, Splits, prepare_files
from data_prep.shards import open_shard
from data_prep.synthetic import MarketSpec
from data_prep.universes import UNIVERSES, universe_named

SPEC = FederationSpec(
    silos=2, min_samples=50, splits=Splits(train=(2020, 2021), validation=(2022, 2022), test=(2023, 2023))
)


def test_the_figures_of_table_5() -> None:
    rows = {
        name: (item.title, item.tickers, item.splits.train, item.splits.validation, item.splits.test, item.silos)
        for name, item in UNIVERSES.items()
    }
    years = (2015, 2021), (2022, 2022), (2023, 2024)
    assert rows == {
        "U1": ("US Large/Mid", 320, *years, 20),
        "U2": ("Dev. ex-US", 240, *years, 20),
        "U3": ("Global Small", 180, *years, 20),
    }


def test_each_is_a_market_that_can_be_made() -> None:
    for universe in UNIVERSES.values():
        spec = MarketSpec(tickers=universe.tickers, regions=universe.regions)
        assert sum(region.share for region in spec.regions) == pytest.approx(1.0)
        assert all(region.exchange for region in spec.regions)
    assert {region.exchange for region in UNIVERSES["U1"].regions} == {"XNYS"}
    assert "XNYS" not in {region.exchange for region in UNIVERSES["U2"].regions}


def test_a_name_is_found_in_either_case_or_refused_with_those_there_are() -> None:
    assert universe_named("u2") is UNIVERSES["U2"]
    with pytest.raises(DataError, match="found 'U4', expected one of U1, U2, U3"):
        universe_named("U4")


def test_too_few_tickers_are_told() -> None:
    assert universe_named("U1").shortfall(200) == "U1 (US Large/Mid): 200 of its 320 tickers"
    assert universe_named("U1").shortfall(320) == ""


def test_of_more_tickers_those_with_most_training_samples_are_taken(
    write_folder: Callable[..., Path], tmp_path: Path
) -> None:
    folder = write_folder("us", 3, n=1000)
    for name, rows in (("SHORT", 500), ("LONG", 1000)):
        lines = (folder / "US0.csv").read_text().splitlines()
        changed = [",".join([day, *(str(1.01 * float(x)) for x in rest)]) for day, *rest in map(_cells, lines[1:])]
        (folder / f"{name}.csv").write_text("\n".join([lines[0], *changed[-rows:]]) + "\n")
    paths = prepare_files([folder], tmp_path / "out", replace(SPEC, tickers=4))
    tickers = sorted(ticker for path in paths for ticker in open_shard(path).manifest["tickers"])
    assert tickers == ["LONG", "US0", "US1", "US2"]
    record = json.loads((tmp_path / "out" / "federation.json").read_text())
    assert record["instruments_beyond_the_number_wanted"] == ["us/SHORT"]
    assert record["instruments_without_samples"] == []


def _cells(line: str) -> list[str]:
    return line.split(",")


def test_a_negative_number_of_tickers_is_refused() -> None:
    with pytest.raises(DataError, match="tickers: found -1"):
        replace(SPEC, tickers=-1)
