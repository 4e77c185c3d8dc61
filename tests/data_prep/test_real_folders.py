"""Every folder of real files, where a machine has them: what its description says is found, the rest is used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from data_prep.check.folder import Checked, check_files
from data_prep.readers.folder import list_price_files

Check = Callable[[str], Checked]


@pytest.fixture
def check(real: Path) -> Check:
    def run(folder: str) -> Checked:
        if not (real / folder).is_dir():
            pytest.skip(f"the folder {folder} is not on this machine")
        return check_files(list_price_files(real / folder))

    return run


def kinds(checked: Checked) -> set[tuple[str, str]]:
    return {(finding.level.value, finding.kind) for finding in checked.findings}


def files_with(checked: Checked, kind: str) -> list[str]:
    return sorted({finding.file.rsplit("/", 1)[-1] for finding in checked.findings if finding.kind == kind})


@pytest.mark.slow
def test_us_yahoo_is_clean_adjusted_and_complete(check: Check) -> None:
    checked = check("us_yahoo")
    assert checked.exit_code(strict=True) == 0
    assert checked.markets == {"us_yahoo": "XNYS"}
    assert len(checked.usable) == 200
    assert {item.figures.layout for item in checked.judged} == {"yahoo"}
    assert {item.bars.basis for item in checked.judged} == {"adjusted"}
    days = [item.bars.dates[item.bars.dates >= np.datetime64("2015-01-02")] for item in checked.judged]
    assert {len(found) for found in days} == {len(days[0])}
    texts = [finding.text for finding in checked.findings if finding.ticker == "KDP" and finding.kind == "jump"]
    assert any("-82% on 2018-07-10: special dividend or spin-off, +11% in the adjusted close" in text for text in texts)
    assert files_with(checked, "zero volume")


def test_paris_has_a_filled_holiday_and_five_days_on_another_basis(check: Check) -> None:
    checked = check("fr_cac40")
    assert checked.exit_code() == 1
    assert len(checked.usable) == 34
    assert {item.bars.basis for item in checked.judged} == {"as published"}
    assert len(files_with(checked, "filled holiday")) == 32
    assert all("2019-12-25" in finding.text for finding in checked.findings if finding.kind == "filled holiday")
    (basis,) = [finding for finding in checked.findings if finding.kind == "other price basis"]
    assert (basis.ticker, basis.rows) == ("VIV.PA", 5)
    assert "2024-12-09 to 2024-12-13" in basis.text
    vivendi = next(item.bars for item in checked.usable if item.bars.ticker == "VIV.PA")
    assert [str(day) for day in vivendi.breaks] == ["2024-12-16"]
    assert not np.isin(np.arange("2024-12-09", "2024-12-14", dtype="datetime64[D]"), vivendi.dates).any()


def test_madrid_has_missing_cells_crossed_ranges_broken_adjustments_and_a_monthly_file(check: Check) -> None:
    checked = check("es_madrid")
    assert checked.exit_code() == 1
    assert files_with(checked, "not daily") == ["SGRE.MC.csv"]
    assert len(checked.usable) == 32
    assert len(files_with(checked, "no prices")) == 32
    crossed = {"high below low", "open outside low to high", "close outside low to high", "two bases in one row"}
    assert len({name for kind in crossed for name in files_with(checked, kind)}) >= 22
    assert files_with(checked, "no positive price") == [
        f"{name}.MC.csv" for name in ("ANA", "ELE", "ITX", "MEL", "NEA", "PVA")
    ]
    assert "BKT.MC.csv" in files_with(checked, "other price basis")
    assert all((item.bars.close > 0).all() and np.isfinite(item.bars.close).all() for item in checked.usable)
    assert checked.markets == {"es_madrid": "XMAD"}


def test_xetra_is_read_with_decimal_commas_and_its_blank_years_left_out(check: Check) -> None:
    checked = check("de_dax_german_locale")
    assert checked.exit_code() == 1
    assert {item.figures.layout for item in checked.judged} == {"german"}
    assert len(checked.usable) == 32
    assert len(files_with(checked, "missing cell")) == 29
    lufthansa = next(item.bars for item in checked.usable if "840400" in item.bars.ticker)
    assert files_with(checked, "high below low") == ["wkn_840400_historic.csv"]
    assert 10.0 < float(np.median(lufthansa.close)) < 300.0
    bank = next(item.bars for item in checked.usable if "514000" in item.bars.ticker)
    assert (str(bank.dates[-1]), float(bank.close[-1]), float(bank.volume[-1])) == ("2020-01-16", 7.629, 13169865.0)


def test_stooq_bulk_has_empty_short_sparse_and_erratic_files_and_keeps_the_others(check: Check) -> None:
    checked = check("stooq_bulk_us/data")
    assert checked.exit_code() == 1
    assert files_with(checked, "empty") == ["viri.us.txt", "vsacu.us.txt", "wtmau.us.txt"]
    assert files_with(checked, "too short") == ["acabu.us.txt", "capnr.us.txt", "gdst.us.txt"]
    assert "snyr.us.txt" in files_with(checked, "no positive price")
    assert files_with(checked, "high below low") == ["fitb.us.txt", "psec.us.txt"]
    assert "snyr.us.txt" in files_with(checked, "erratic")
    assert files_with(checked, "gap")
    assert len(checked.usable) == 36
    assert any((item.bars.volume % 1.0 != 0.0).any() for item in checked.usable)


@pytest.mark.parametrize(
    ("language", "layout", "tickers"), [("polish_header", "stooq-polish", 4), ("english_header", "ohlcv", 2)]
)
def test_stooq_symbol_files_are_read_in_both_languages(check: Check, language: str, layout: str, tickers: int) -> None:
    checked = check(f"stooq_symbol_csv/{language}")
    assert checked.exit_code() < 2
    assert {item.figures.layout for item in checked.judged} == {layout}
    assert len(checked.usable) == tickers
    assert any(np.isnan(item.bars.volume).any() for item in checked.judged)
    assert files_with(checked, "not daily at first")


def test_french_numbers_and_days_are_read(check: Check) -> None:
    checked = check("ugly/01_investing_fr")
    assert checked.exit_code() == 0
    assert {(item.figures.layout, item.figures.encoding) for item in checked.judged} == {
        ("investing-fr", "utf-8 with BOM")
    }
    bars = next(item.bars for item in checked.usable if item.bars.ticker.startswith("AIRP"))
    assert str(bars.dates[-1]) == "2020-06-02"
    assert (float(bars.close[-1]), float(bars.volume[-1])) == (123.3, 1_010_000.0)


def test_one_series_in_two_german_layouts_is_read_in_both_and_reported(check: Check) -> None:
    checked = check("ugly/03_german_semicolon")
    assert [item.figures.layout for item in checked.judged] == ["german", "german-dmy"]
    np.testing.assert_array_equal(*(item.bars.close for item in checked.judged))
    assert len(files_with(checked, "same series")) == 2
    assert checked.exit_code() == 2


def test_months_posing_as_days_are_refused(check: Check) -> None:
    checked = check("ugly/04_monthly_posing_as_daily")
    assert checked.exit_code() == 2
    (finding,) = [finding for finding in checked.findings if finding.kind == "not daily"]
    assert "line 2, column Date: found '2002-01'" in finding.text


def test_zero_null_and_single_rows_are_left_out(check: Check) -> None:
    checked = check("ugly/08_yahoo_zero_null_single")
    assert checked.exit_code() == 1
    left = {item.figures.ticker: item.figures.left_out for item in checked.judged}
    assert left["EMP"]["no prices"] == 1316
    assert left["PRTA"]["no positive price"] == 3
    assert left["USAS"]["no positive price"] == 1073
    assert left["SHPW"]["no prices"] == 27
    assert files_with(checked, "too short") == ["AACIW.csv"]
    assert files_with(checked, "erratic") == ["EMP.csv", "NCPL.csv", "RCAT.csv"]
    assert [item.bars.ticker for item in checked.usable] == ["PRTA", "SHPW", "USAS"]


def test_empty_single_row_and_erratic_bulk_files_are_left_out(check: Check) -> None:
    checked = check("ugly/09_stooq_bulk")
    assert checked.exit_code() == 1
    assert files_with(checked, "empty") == ["wtmau.us.txt"]
    assert files_with(checked, "too short") == ["acabu.us.txt"]
    assert [item.bars.ticker for item in checked.usable] == ["DGICB.US", "DTSS.US", "GYRO.US"]


def test_one_series_under_three_tickers_is_refused(check: Check) -> None:
    checked = check("ugly/12_same_series_every_ticker")
    assert checked.exit_code() == 2
    assert len(files_with(checked, "same series")) == 3
    assert [item.bars.ticker for item in checked.judged] == ["AAPL", "XOM", "ZTS"]


def test_blank_cells_are_left_out_and_never_filled(check: Check) -> None:
    checked = check("ugly/13_missing_cells")
    assert checked.exit_code() == 1
    bars = {item.bars.ticker: item.bars for item in checked.judged}
    assert np.datetime64("2017-07-26") not in bars["BHF"].dates
    assert not np.isin(np.array(["2015-07-17", "2016-01-12"], dtype="datetime64[D]"), bars["DHR"].dates).any()
    assert next(item for item in checked.judged if item.bars.ticker == "SAP.DE").figures.left_out["no prices"] == 7


def test_a_file_without_volume_is_used_and_its_volume_unknown(check: Check) -> None:
    checked = check("ugly/16_no_volume_column")
    assert checked.exit_code() == 0
    (item,) = checked.usable
    assert item.figures.layout == "stooq-bulk-iso"
    assert np.isnan(item.bars.volume).all()


def test_old_yahoo_newest_first_is_sorted_and_cut_where_its_adjustment_steps(check: Check) -> None:
    checked = check("ugly/18_old_yahoo_descending")
    assert checked.exit_code() == 1
    (item,) = checked.usable
    assert (item.figures.first, item.figures.last, item.bars.basis) == ("1988-07-01", "2013-11-13", "adjusted")
    assert [str(day) for day in item.bars.breaks] == ["2002-04-29"]
