"""The synthetic market as files: layouts say the same, a check finds no fault, and preparing gives its samples."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from data_prep.bars import Bars
from data_prep.calendar import common_days
from data_prep.errors import DataError
from data_prep.features.compute import build_context
from data_prep.features.table import FEATURES
from data_prep.federation import build_federation
from data_prep.prepare import FederationSpec, Splits, check_folders, prepare_files, prepare_synthetic
from data_prep.readers.factors import read_factors
from data_prep.readers.layouts import LAYOUTS
from data_prep.readers.macro import read_macro
from data_prep.readers.notation import MONTH
from data_prep.readers.series import read_series
from data_prep.shards import Shard, open_shard
from data_prep.store import store_bars
from data_prep.synthetic import MarketSpec, Region, simulate
from data_prep.synthetic.forms import FORMS, form_named, render
from data_prep.synthetic.public_series import PublicSeries, public_series
from data_prep.synthetic.write import write_market
from data_prep.workers import Workers

VENDORS = [*FORMS, *sorted({layout.family.name for layout in LAYOUTS})]
DAILY = [layout.name for layout in LAYOUTS if layout.dates is not MONTH]
MARKET = MarketSpec(
    tickers=6,
    seed=5,
    first=date(2020, 1, 1),
    last=date(2022, 12, 31),
    calibration_years=(2022, 2022),
    regions=(Region("us", 0.5, "XNYS"), Region("eu", 0.5, "XPAR")),
    jumps=1.0,
)
SPEC = FederationSpec(
    silos=2, min_samples=50, splits=Splits(train=(2020, 2020), validation=(2021, 2021), test=(2022, 2022))
)


@pytest.fixture(scope="module")
def bars() -> list[Bars]:
    return simulate(MARKET)


@pytest.fixture(scope="module")
def series(bars: list[Bars]) -> PublicSeries:
    return public_series(MARKET, bars)


@pytest.fixture(scope="module")
def in_memory(bars: list[Bars], series: PublicSeries, tmp_path_factory: pytest.TempPathFactory) -> list[Shard]:
    contexts = {
        region: build_context(
            common_days(
                [item.dates for item in bars if item.region == region], first=MARKET.first, last=SPEC.splits.last_day
            ),
            macro=series.macro,
            factors=series.factors,
        )
        for region in ("us", "eu")
    }
    out, work = tmp_path_factory.mktemp("memory"), tmp_path_factory.mktemp("work")
    stored = [store_bars(item, work / f"{number}.npy") for number, item in enumerate(bars)]
    calendars: dict[str, dict[str, str]] = {region: {} for region in contexts}
    with Workers(1) as workers:
        paths = build_federation(
            stored, contexts, out, SPEC, work=work, workers=workers, sources={}, calendars=calendars
        )
    return [open_shard(path) for path in paths]


def contents(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def same_samples(one: Shard, other: Shard, *, tolerance: Mapping[str, float]) -> None:
    for key in ("tickers", "sectors", "regions"):
        assert one.manifest[key] == other.manifest[key]
    for name in ("train", "validation", "test"):
        first, second = getattr(one, name), getattr(other, name)
        np.testing.assert_array_equal(first.dates, second.dates)
        np.testing.assert_array_equal(first.instruments, second.instruments)
        np.testing.assert_allclose(first.targets, second.targets, rtol=0, atol=tolerance["price"])
        for column, feature in enumerate(FEATURES):
            off = tolerance.get(feature.group, tolerance["price"])
            x, y = first.features[:, column], second.features[:, column]
            np.testing.assert_allclose(x, y, rtol=0, atol=off, err_msg=feature.name)


@pytest.mark.parametrize("layout", VENDORS)
def test_from_file_to_samples_every_layout_gives_the_market_in_memory(
    layout: str, in_memory: list[Shard], tmp_path: Path
) -> None:
    folders = write_market(tmp_path / "market", MARKET, layout)
    public = [tmp_path / "market" / "macro", tmp_path / "market" / "factors"]
    checked = check_folders([*folders, *public])
    assert checked.exit_code() == 0, [finding.text for finding in checked.findings]
    assert checked.markets == {"us": "XNYS", "eu": "XPAR"}
    paths = prepare_files([*folders, *public], tmp_path / "out", SPEC, sectors=tmp_path / "market" / "sectors.csv")
    # Prices have six decimals, and volumes with a letter three digits; Parquet has all of them.
    exact = layout == "parquet"
    rounded = 0.02 if layout.startswith("investing") else 1e-4
    tolerance = {"price": 0.0 if exact else 1e-4, "volume": 0.0 if exact else rounded}
    for path, expected in zip(paths, in_memory, strict=True):
        same_samples(open_shard(path), expected, tolerance=tolerance)


@pytest.mark.parametrize("layout", DAILY)
def test_every_layout_that_can_be_read_can_be_written_and_reads_back(
    layout: str, bars: list[Bars], tmp_path: Path
) -> None:
    form, item = form_named(layout), bars[0]
    path = tmp_path / f"{item.ticker}{form.suffix}"
    path.write_text(render(form, [item]), encoding="utf-8", newline="\n")
    (raw,) = read_series(path, path.name)
    order = np.argsort(raw.dates)
    np.testing.assert_array_equal(raw.dates[order], item.dates)
    assert raw.ticker == item.ticker
    for name in ("open", "high", "low", "close"):
        np.testing.assert_allclose(raw.columns[name][order], getattr(item, name), rtol=0, atol=5.1e-7)
    off = 0.0051 if form.layout is not None and form.layout.family.suffixes else 0.0
    np.testing.assert_allclose(raw.columns["volume"][order], item.volume, rtol=off)


def test_thousands_are_grouped_as_the_layout_has_them(bars: list[Bars], tmp_path: Path) -> None:
    dear = replace(bars[0], **{name: 1e4 * getattr(bars[0], name) for name in ("open", "high", "low", "close")})
    for layout in ("german", "investing-en", "investing-fr", "french"):
        form = form_named(layout)
        path = tmp_path / f"{layout}.csv"
        path.write_text(render(form, [dear]), encoding="utf-8", newline="\n")
        (raw,) = read_series(path, path.name)
        np.testing.assert_allclose(np.sort(raw.columns["close"]), np.sort(dear.close), rtol=0, atol=5.1e-7)


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    for layout in ("german", "parquet"):
        write_market(tmp_path / layout / "a", MARKET, layout)
        write_market(tmp_path / layout / "b", MARKET, layout)
        one, other = contents(tmp_path / layout / "a"), contents(tmp_path / layout / "b")
        assert one == other
        write_market(tmp_path / layout / "c", replace(MARKET, seed=6), layout)
        changed = contents(tmp_path / layout / "c")
        assert all(changed[name] != digest for name, digest in one.items() if name.startswith(("us/", "macro/")))


def test_macro_and_factor_files_hold_exactly_the_series_of_the_market(series: PublicSeries, tmp_path: Path) -> None:
    write_market(tmp_path / "market", MARKET, "stooq")
    for name, found in read_macro(tmp_path / "market" / "macro").items():
        np.testing.assert_array_equal(found.months, series.macro[name].months)
        np.testing.assert_array_equal(found.values, series.macro[name].values)
    factors = read_factors(tmp_path / "market" / "factors")
    np.testing.assert_array_equal(factors.dates, series.factors.dates)
    for name, returns in factors.returns.items():
        np.testing.assert_array_equal(returns, series.factors.returns[name])


def test_the_market_factor_is_the_mean_return_of_the_bars(bars: list[Bars], series: PublicSeries) -> None:
    day = series.factors.dates[100]
    moves = []
    for item in bars:
        place = int(np.searchsorted(item.dates, day))
        if place < len(item.dates) and item.dates[place] == day:
            moves.append(item.close[place] / item.close[place - 1] - 1.0)
    assert series.factors.returns["Mkt-RF"][100] == pytest.approx(np.mean(moves), abs=5.1e-5)


def test_without_public_series_files_give_the_samples_of_the_embedded_market(tmp_path: Path) -> None:
    folders = write_market(tmp_path / "market", MARKET, "parquet")
    files = prepare_files(folders, tmp_path / "files", SPEC, sectors=tmp_path / "market" / "sectors.csv")
    embedded = prepare_synthetic(tmp_path / "embedded", SPEC, market=MARKET)
    for one, other in zip(files, embedded, strict=True):
        same_samples(open_shard(one), open_shard(other), tolerance={"price": 0.0})


def test_a_market_that_is_there_is_left_alone_and_anything_else_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "market"
    write_market(out, MARKET, "yahoo")
    stamp = (out / "sectors.csv").stat().st_mtime_ns
    write_market(out, MARKET, "yahoo")
    assert (out / "sectors.csv").stat().st_mtime_ns == stamp
    with pytest.raises(DataError, match="expected an empty or a new folder"):
        write_market(out, MARKET, "german")
    assert json.loads((out / "market.json").read_text())["layout"] == "yahoo"
    assert [path.name for path in tmp_path.iterdir()] == ["market"]


@pytest.mark.parametrize("layout", ["yaho", "ohlcv-monthly", "xls"])
def test_an_unknown_layout_is_refused_before_anything_is_written(layout: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="layout: found"):
        write_market(tmp_path / "market", MARKET, layout)
    assert not (tmp_path / "market").exists()
