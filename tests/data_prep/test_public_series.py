"""FRED and Ken French files: read with their quirks, in the right unit, usable only once published."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from data_prep.errors import DataError
from data_prep.features.context import factor_features, macro_features
from data_prep.readers.factors import FACTORS, DailyFactors, is_factor_folder, read_factors
from data_prep.readers.macro import PUBLICATION_LAG_DAYS, SERIES, MonthlySeries, is_macro_folder, read_macro


def test_macro_folder_is_read_and_missing_months_left_out(macro_folder: Path) -> None:
    series = read_macro(macro_folder)
    assert set(series) == set(SERIES)
    assert np.datetime64("2017-04") not in series["INDPRO"].months
    assert len(series["INDPRO"].months) == 95


def test_the_older_fred_header_and_blank_cells_are_read(macro_folder: Path) -> None:
    (macro_folder / "UNRATE.csv").write_text("DATE,UNRATE\n2020-01-01,3.5\n2020-02-01,\n2020-03-01,4.4\n")
    unrate = read_macro(macro_folder)["UNRATE"]
    np.testing.assert_array_equal(unrate.values, [3.5, 4.4])


def test_a_point_alone_is_missing_and_a_point_before_digits_is_a_number(macro_folder: Path) -> None:
    (macro_folder / "UNRATE.csv").write_text("DATE,UNRATE\n2010-01-01,.\n2010-02-01,.52\n2010-03-01,\n2010-04-01,1.\n")
    unrate = read_macro(macro_folder)["UNRATE"]
    assert [str(month) for month in unrate.months] == ["2010-02", "2010-04"]
    np.testing.assert_array_equal(unrate.values, [0.52, 1.0])


@pytest.mark.parametrize(
    ("row", "column", "value"),
    [
        ("2020-02-01,3;5", "UNRATE", "'3;5'"),
        ("2020-02-15,3.5", "DATE", "'2020-02-15'"),
        ("2020-01-01,3", "DATE", "'2020-01-01'"),
    ],
)
def test_a_bad_macro_cell_is_named(macro_folder: Path, row: str, column: str, value: str) -> None:
    (macro_folder / "UNRATE.csv").write_text(f"DATE,UNRATE\n2020-01-01,3.5\n{row}\n")
    with pytest.raises(DataError) as caught:
        read_macro(macro_folder)
    assert f"UNRATE.csv, line 3, column {column}: found {value}" in str(caught.value)


def test_points_and_blanks_of_fred_are_missing_and_not_zero(macro_folder: Path) -> None:
    rows = ["2020-01-01,3.5", "2020-02-01,.", "2020-03-01,", "2020-04-01, . ", "2020-05-01,0"]
    (macro_folder / "UNRATE.csv").write_text("observation_date,UNRATE\r\n" + "\r\n".join(rows))
    unrate = read_macro(macro_folder)["UNRATE"]
    assert [str(month) for month in unrate.months] == ["2020-01", "2020-05"]
    np.testing.assert_array_equal(unrate.values, [3.5, 0.0])


@pytest.mark.parametrize("cell", [b"3\xff", b"3\0"])
def test_bytes_that_are_no_text_are_named_not_a_traceback(macro_folder: Path, cell: bytes) -> None:
    (macro_folder / "UNRATE.csv").write_bytes(b"DATE,UNRATE\n2020-01-01,3.5\n2020-02-01," + cell + b"\n")
    with pytest.raises(DataError, match=r"UNRATE\.csv, line 3"):
        read_macro(macro_folder)


def test_a_missing_macro_series_is_named(macro_folder: Path) -> None:
    (macro_folder / "INDPRO.csv").unlink()
    with pytest.raises(DataError, match="observation_date,INDPRO"):
        read_macro(macro_folder)


def test_one_series_in_two_files_is_refused(macro_folder: Path) -> None:
    (macro_folder / "other.csv").write_text("DATE,INDPRO\n2020-01-01,3.5\n")
    with pytest.raises(DataError, match=r"other\.csv: holds INDPRO"):
        read_macro(macro_folder)


def test_a_macro_value_enters_on_its_publication_day_and_not_before() -> None:
    months = np.arange(np.datetime64("2018-01"), np.datetime64("2020-01"))
    series = {name: MonthlySeries(name, months, np.arange(1.0, 25.0)) for name in SERIES}
    released = np.datetime64("2019-06-01") + PUBLICATION_LAG_DAYS["FEDFUNDS"]
    days = np.array([released - 1, released], dtype="datetime64[D]")
    level = macro_features(days, series)["fedfunds_level"]
    np.testing.assert_allclose(level, [(17.0 - 2.0) / 2.0, (18.0 - 2.0) / 2.0])


def test_yearly_changes_compare_with_the_same_month_a_year_before() -> None:
    months = np.delete(np.arange(np.datetime64("2018-01"), np.datetime64("2020-01")), 3)
    values = (months - np.datetime64("2018-01")).astype(float) + 1.0
    series = {name: MonthlySeries(name, months, values) for name in SERIES}
    days = np.array([np.datetime64("2019-03-01") + 60, np.datetime64("2019-04-01") + 60], dtype="datetime64[D]")
    change = macro_features(days, series)["unrate_change"]
    # April 2018 is missing, so April 2019 has no change and March's is still the newest known.
    np.testing.assert_allclose(change, [12.0 / 1.5, 12.0 / 1.5])


def test_factor_folder_is_read_in_fractions_on_common_days(factor_folder: Path) -> None:
    factors = read_factors(factor_folder)
    assert set(factors.returns) == set(FACTORS)
    line = (factor_folder / "mom.CSV").read_text().splitlines()[3]
    assert factors.returns["Mom"][0] == float(line.split(",")[1]) / 100.0
    assert all(len(values) == len(factors.dates) for values in factors.returns.values())


def test_factor_codes_for_missing_become_nan(factor_folder: Path) -> None:
    text = (factor_folder / "mom.CSV").read_text().splitlines()
    text[3] = text[3].split(",")[0] + ", -99.99"
    text[4] = text[4].split(",")[0] + ",-999"
    (factor_folder / "mom.CSV").write_text("\n".join(text))
    assert np.isnan(read_factors(factor_folder).returns["Mom"][:2]).all()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("20190604,  1.x", r"mom\.CSV, line 5, column Mom: found '1\.x'"),
        ("20190601,  1.0", r"mom\.CSV, line 5, column date: found '20190601'"),
        ("20190604,  1.0, 2", r"mom\.CSV, line 5: found 3 cells"),
    ],
)
def test_a_bad_factor_row_is_named(factor_folder: Path, row: str, message: str) -> None:
    text = (factor_folder / "mom.CSV").read_text().splitlines()
    text[4] = row
    (factor_folder / "mom.CSV").write_text("\n".join(text))
    with pytest.raises(DataError, match=message):
        read_factors(factor_folder)


def test_yearly_returns_and_the_footer_are_not_data(factor_folder: Path) -> None:
    before = read_factors(factor_folder)
    text = (factor_folder / "mom.CSV").read_text().rsplit("Copyright", 1)
    block = "  Annual Factors: January-December\n,Mom   \n  2019,   12.34\n  2020,  -99.99\n\nCopyright"
    (factor_folder / "mom.CSV").write_text(block.join(text))
    after = read_factors(factor_folder)
    np.testing.assert_array_equal(after.dates, before.dates)
    np.testing.assert_array_equal(after.returns["Mom"], before.returns["Mom"])


def test_daily_rows_below_the_end_of_the_daily_rows_are_refused_not_dropped(factor_folder: Path) -> None:
    text = (factor_folder / "mom.CSV").read_text().splitlines()
    text.insert(10, "")
    (factor_folder / "mom.CSV").write_text("\n".join(text))
    with pytest.raises(DataError, match=r"mom\.CSV, line 12, column date"):
        read_factors(factor_folder)


def test_per_cent_become_fractions_once_and_column_names_lose_their_padding(factor_folder: Path) -> None:
    lines = (factor_folder / "five.CSV").read_text().splitlines()
    lines[3] = lines[3].split(",")[0] + ",  1.25, -0.50,  0.00,  0.10,  0.20, 0.01"
    (factor_folder / "five.CSV").write_text("\n".join(lines))
    returns = read_factors(factor_folder).returns
    assert [returns[name][0] for name in ("Mkt-RF", "SMB", "HML")] == [0.0125, -0.005, 0.0]
    assert "Mom" in returns


def test_a_missing_factor_is_named(factor_folder: Path) -> None:
    (factor_folder / "mom.CSV").unlink()
    with pytest.raises(DataError, match="'Mom'"):
        read_factors(factor_folder)


def test_a_factor_return_enters_after_its_lag_and_not_before() -> None:
    dates = np.arange(np.datetime64("2020-01-01"), np.datetime64("2020-03-01"))
    jump = np.where(dates == np.datetime64("2020-02-10"), 0.1, 0.0)
    factors = DailyFactors(dates, dict.fromkeys(FACTORS, jump))
    published = np.datetime64("2020-02-10") + 63
    days = np.array([published - 1, published], dtype="datetime64[D]")
    market = factor_features(days, factors)["factor_market"]
    np.testing.assert_allclose(market, [0.0, 0.1 / (0.011 * np.sqrt(21))])


def test_folders_of_public_series_are_recognised(macro_folder: Path, factor_folder: Path) -> None:
    assert is_macro_folder(macro_folder)
    assert not is_macro_folder(factor_folder)
    assert is_factor_folder(factor_folder)
    assert not is_factor_folder(macro_folder)
