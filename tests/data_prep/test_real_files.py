"""Real files, where a machine has them: they prepare, or are refused by name."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pytest

from data_prep.calendar import exchange_days
from data_prep.check.strict import read_bars
from data_prep.prepare import FederationSpec, Splits, prepare_files
from data_prep.readers.factors import read_factors
from data_prep.readers.macro import read_macro
from data_prep.shards import open_shard
from data_prep.spec import HISTORY_DAYS


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


def test_each_folder_has_the_trading_days_of_its_exchange_and_fills_are_counted(real: Path, tmp_path: Path) -> None:
    """Paris has a filled holiday, Madrid rows without prices on holidays, the Americans every session."""
    american = tmp_path / "us"
    american.mkdir()
    for file in sorted((real / "us_yahoo").glob("*.csv"))[:3]:
        (american / file.name).symlink_to(file)
    spec = FederationSpec(silos=3, min_samples=100, splits=Splits((2015, 2019), (2020, 2020), (2021, 2022)))
    folders = [american, real / "fr_cac40", real / "es_madrid"]
    shards = [open_shard(path) for path in prepare_files(folders, tmp_path / "out", spec)]
    counts: dict[str, dict[str, int]] = {}
    for shard in shards:
        (region,) = shard.manifest["regions"]
        market = {"us": "XNYS", "fr_cac40": "XPAR", "es_madrid": "XMAD"}[region]
        calendar = shard.manifest["calendars"][region]
        by = "days of the files" if region == "us" else "endings of the tickers"
        first, last = date(2015, 1, 1) - timedelta(days=HISTORY_DAYS), date(2022, 12, 31)
        sessions = exchange_days(market, first=first, last=last)
        assert calendar == {"market": market, "by": by, "sessions": len(sessions)}
        days = np.concatenate([np.asarray(x.dates) for x in (shard.train, shard.validation, shard.test)])
        assert np.isin(days.astype("datetime64[D]"), sessions).all()
        counts[region] = shard.manifest["counts"]
        filled = [entry["left_out"].get("filled holiday", 0) for entry in shard.manifest["checked"]]
        assert sum(filled) == {"us": 0, "fr_cac40": 32}.get(region, sum(filled))
        assert (sum(filled) > 0) == (region != "us")
    assert counts["us"]["rows_filled_forward"] == counts["us"]["rows_off_calendar"] == 0
    assert counts["fr_cac40"]["rows_filled_forward"] > 0
    assert counts["es_madrid"]["rows_filled_forward"] > 0
    assert any(shard.manifest["counts"]["left_out"]["warm_up"] > 0 for shard in shards)


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


def test_two_vintages_agree_on_growth_far_more_than_on_levels(real: Path) -> None:
    """Revisions, the look ahead that a publication lag leaves: shown on the series that are revised."""
    new = read_macro(real / "macro_fred" / "2026_vintage_observation_date")
    old = read_macro(real / "macro_fred" / "2020_vintage_DATE")
    for name in ("INDPRO", "CPIAUCSL", "UNRATE", "FEDFUNDS"):
        months, a, b = np.intersect1d(old[name].months, new[name].months, return_indices=True)
        first, second = old[name].values[a], new[name].values[b]
        recent = months >= np.datetime64("2010-01")
        level = np.abs(np.log(first / second))[recent].mean()
        growth = np.abs(np.log(first[12:] / first[:-12]) - np.log(second[12:] / second[:-12]))[recent[12:]].mean()
        print(f"{name}: levels differ by {level:.2%}, growth over twelve months by {growth:.2%} on average")
        if name == "INDPRO":
            assert 0.0 < 4.0 * growth < level
        assert growth < 0.01


def test_factors_are_fractions_up_to_the_last_day_before_the_footer(real: Path) -> None:
    factors = read_factors(real / "factors_french" / "202407_original")
    assert str(factors.dates[-1]) == "2024-07-31"
    assert factors.returns["Mkt-RF"][-1] == pytest.approx(0.0152)
    assert factors.returns["Mom"][-1] == pytest.approx(0.0102)
