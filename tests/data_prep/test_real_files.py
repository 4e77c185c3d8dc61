"""Real files, where a machine has them: they prepare, or are refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from data_prep.check.strict import read_bars
from data_prep.prepare import FederationSpec, prepare_files
from data_prep.readers.factors import read_factors
from data_prep.readers.macro import read_macro
from data_prep.shards import open_shard


@pytest.mark.slow
def test_american_and_parisian_folders_prepare_with_public_series(real: Path, tmp_path: Path) -> None:
    folders = [
        real / "us_yahoo",
        real / "fr_cac40",
        real / "macro_fred" / "2026_vintage_observation_date",
        real / "factors_french" / "202407_original",
    ]
    shards = [open_shard(path) for path in prepare_files(folders, tmp_path / "out", FederationSpec())]
    assert len(shards) == 20
    assert sum(shard.manifest["counts"]["tickers"] for shard in shards) == 234
    assert all(shard.manifest["neutral_groups"] == [] for shard in shards)
    assert all(np.isfinite(shard.test.features).all() for shard in shards)
    x = np.concatenate([np.asarray(shard.train.features) for shard in shards])
    assert (np.abs(x.mean(axis=0)) < 1.0).all()
    assert ((x.std(axis=0) > 0.3) & (x.std(axis=0) < 1.5)).all()


def test_adjusted_returns_of_two_vendors_agree(real: Path) -> None:
    yahoo = read_bars(real / "us_yahoo" / "AAPL.csv", region="r")
    stooq_file = next((real / "stooq_bulk_us").rglob("aapl.us.txt"))
    stooq = read_bars(stooq_file, region="r")
    days, a, b = np.intersect1d(yahoo.dates, stooq.dates, return_indices=True)
    recent = days >= np.datetime64("2015-01-01")
    first, second = (np.diff(np.log(item.close[rows]))[recent[1:]] for item, rows in ((yahoo, a), (stooq, b)))
    assert float(np.corrcoef(first, second)[0, 1]) > 0.999


def test_a_special_dividend_is_no_crash(real: Path) -> None:
    bars = read_bars(real / "us_yahoo" / "KDP.csv", region="r")
    row = int(np.flatnonzero(bars.dates == np.datetime64("2018-07-10"))[0])
    assert float(np.log(bars.close[row] / bars.close[row - 1])) == pytest.approx(0.11, abs=0.02)


def test_both_fred_layouts_are_read_and_a_revised_value_is_as_documented(real: Path) -> None:
    new = read_macro(real / "macro_fred" / "2026_vintage_observation_date")
    old = read_macro(real / "macro_fred" / "2020_vintage_DATE")
    december = new["INDPRO"].values[new["INDPRO"].months == np.datetime64("2023-12")]
    assert float(december[0]) == pytest.approx(100.60, abs=0.005)
    assert old["INDPRO"].months[-1] == np.datetime64("2020-02")
    assert np.datetime64("2025-10") not in new["UNRATE"].months


def test_factors_are_fractions_up_to_the_last_day_before_the_footer(real: Path) -> None:
    factors = read_factors(real / "factors_french" / "202407_original")
    assert str(factors.dates[-1]) == "2024-07-31"
    assert factors.returns["Mkt-RF"][-1] == pytest.approx(0.0152)
    assert factors.returns["Mom"][-1] == pytest.approx(0.0102)
