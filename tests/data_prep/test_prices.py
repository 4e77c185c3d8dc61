"""A file is read as it is or refused by file, line, column and value; a folder is listed and read as a whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from data_prep.check.folder import check_files
from data_prep.check.strict import read_bars
from data_prep.errors import DataError
from data_prep.readers.folder import check_exclude, list_price_files

YAHOO = "Date,Open,High,Low,Close,Adj Close,Volume\n"
PLAIN = "Date,Open,High,Low,Close,Volume\n"
POLISH = "Data,Otwarcie,Najwyzszy,Najnizszy,Zamkniecie,Wolumen\n"
BULK = "<TICKER>,<PER>,<DATE>,<TIME>,<OPEN>,<HIGH>,<LOW>,<CLOSE>,<VOL>,<OPENINT>\n"


def write(folder: Path, text: str, name: str = "ABC.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def refusal(folder: Path, text: str, name: str = "ABC.csv") -> str:
    with pytest.raises(DataError) as caught:
        read_bars(write(folder, text, name), region="r", shown=name)
    message = str(caught.value)
    assert "\n" not in message
    assert name in message
    return message


def test_adjusted_close_puts_all_four_prices_on_one_basis(tmp_path: Path) -> None:
    text = YAHOO + "2020-01-02,10,12,8,10,5,100\n2020-01-03,8,8.8,7.2,8,5,200\n"
    bars = read_bars(write(tmp_path, text), region="us")
    assert bars.basis == "adjusted"
    np.testing.assert_array_equal(bars.open, [5.0, 5.0])
    np.testing.assert_array_equal(bars.high, [6.0, 5.5])
    np.testing.assert_array_equal(bars.low, [4.0, 4.5])
    np.testing.assert_array_equal(bars.close, [5.0, 5.0])
    np.testing.assert_array_equal(bars.volume, [100.0, 200.0])
    assert (bars.ticker, bars.region, bars.key) == ("ABC", "us", "us/ABC")


def test_rows_in_any_order_are_returned_sorted(tmp_path: Path) -> None:
    text = PLAIN + "2020-01-06,3,3,3,3,30\n2020-01-02,2,2,2,2,10\n2020-01-03,2.5,2.5,2.5,2.5,20\n"
    bars = read_bars(write(tmp_path, text), region="r")
    assert [str(day) for day in bars.dates] == ["2020-01-02", "2020-01-03", "2020-01-06"]
    np.testing.assert_array_equal(bars.close, [2.0, 2.5, 3.0])
    np.testing.assert_array_equal(bars.volume, [10.0, 20.0, 30.0])


def test_polish_header_and_rows_without_volume_are_read(tmp_path: Path) -> None:
    text = POLISH + "2020-01-02,1,2,1,1.5\n2020-01-03,1,2,1,1.5,77.25\n"
    bars = read_bars(write(tmp_path, text), region="r")
    assert np.isnan(bars.volume[0])
    assert bars.volume[1] == 77.25


def test_a_file_without_volume_column_has_unknown_volume(tmp_path: Path) -> None:
    bars = read_bars(write(tmp_path, "Date,Open,High,Low,Close\n2020-01-02,1,2,1,1.5\n"), region="r")
    assert np.isnan(bars.volume).all()


def test_stooq_bulk_text_gives_ticker_and_days(tmp_path: Path) -> None:
    text = BULK + "XYZ.US,D,20200102,000000,1,2,1,1.5,10.5,0\r\nXYZ.US,D,20200103,000000,1,2,1,1.6,11,0\r\n"
    bars = read_bars(write(tmp_path, text, "xyz.us.txt"), region="r")
    assert bars.ticker == "XYZ.US"
    assert str(bars.dates[1]) == "2020-01-03"


def test_byte_order_mark_and_windows_line_ends_are_accepted(tmp_path: Path) -> None:
    bars = read_bars(write(tmp_path, "\ufeff" + PLAIN.replace("\n", "\r\n") + "2020-01-02,1,2,1,1,5\r\n"), region="r")
    assert len(bars.dates) == 1


def test_high_and_low_are_widened_by_the_last_printed_digit_only(tmp_path: Path) -> None:
    bars = read_bars(write(tmp_path, PLAIN + "2020-01-02,10.001,10,9,9.5,5\n"), region="r")
    assert bars.high[0] == 10.001


@pytest.mark.parametrize(
    ("row", "column", "value"),
    [
        ("2020-01-03,null,2,1,1,5", "Open", "'null'"),
        ("2020-01-03,1,2,1,,5", "Close", "''"),
        ("2020-01-03,1,2,1,0,5", "Close", "'0'"),
        ("2020-01-03,1,2,-1.5,1,5", "Low", "'-1.5'"),
        ("2020-01-03,1,inf,1,1,5", "High", "'inf'"),
        ("2020-01-03,1,2,1,1,-5", "Volume", "'-5'"),
        ("2020-01-03,1,2,1,1,5k", "Volume", "'5k'"),
        ("2020-01-03,1,1,2,1.5,5", "High", "'1'"),
        ("2020-01-03,30,2,1,1,5", "High", "'2'"),
        ("2020-01-03,1,2,1,2.1,5", "High", "'2'"),
        ("2020-01-03,0.1,2,1,1,5", "Low", "'1'"),
        ("2020-13-03,1,2,1,1,5", "Date", "'2020-13-03'"),
        ("2020-01,1,2,1,1,5", "Date", "'2020-01'"),
        ("03/01/2020,1,2,1,1,5", "Date", "'03/01/2020'"),
        ("2020-01-02,1,2,1,1,5", "Date", "'2020-01-02'"),
    ],
)
def test_a_bad_cell_is_named_by_line_column_and_value(tmp_path: Path, row: str, column: str, value: str) -> None:
    message = refusal(tmp_path, PLAIN + f"2020-01-02,1,2,1,1,5\n{row}\n2020-01-06,1,2,1,1,5\n")
    assert "line 3" in message
    assert f"column {column}" in message
    assert f"found {value}" in message
    assert "expected" in message
    assert "exclude" in message


def test_a_duplicate_date_names_both_lines(tmp_path: Path) -> None:
    message = refusal(tmp_path, PLAIN + "2020-01-03,1,2,1,1,5\n2020-01-02,1,2,1,1,5\n2020-01-03,1,2,1,1,5\n")
    assert "line 4" in message
    assert "line 2 has it already" in message


def test_lines_are_counted_over_blank_lines(tmp_path: Path) -> None:
    assert "line 4" in refusal(tmp_path, PLAIN + "2020-01-02,1,2,1,1,5\n\n2020-01-03,x,2,1,1,5\n")


def test_a_row_with_too_many_cells_is_named(tmp_path: Path) -> None:
    message = refusal(tmp_path, PLAIN + "2020-01-02,1,2,1,1,5\n2020-01-03,1,234,2,1,1,5,9\n")
    assert "line 3" in message
    assert "found 8 cells" in message


def test_an_unknown_header_is_refused_and_the_known_ones_listed(tmp_path: Path) -> None:
    message = refusal(tmp_path, "Datum;Erster;Hoch\n1;2;3\n")
    assert "line 1" in message
    assert "Datum;Erster;Hoch" in message
    assert "yahoo: date,open,high,low,close,volume,adj close" in message
    assert "german: datum,erster,hoch,tief,schlusskurs,stuecke" in message


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_an_empty_file_is_refused(tmp_path: Path, text: str) -> None:
    assert "empty" in refusal(tmp_path, text)


def test_a_header_without_rows_is_refused(tmp_path: Path) -> None:
    assert "no rows" in refusal(tmp_path, PLAIN)


def test_a_weekly_bulk_file_is_refused(tmp_path: Path) -> None:
    message = refusal(tmp_path, BULK + "XYZ.US,W,20200102,000000,1,2,1,1.5,10.5,0\n", "x.txt")
    assert "line 2" in message
    assert "'W'" in message


def test_two_tickers_are_not_read_as_one(tmp_path: Path) -> None:
    row = ",D,20200102,000000,1,2,1,1.5,10.5,0\n"
    message = refusal(tmp_path, BULK + "A.US" + row + "B.US" + row, "x.txt")
    assert "holds 2 tickers (A.US, B.US" in message


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_bytes(b"\x00\xff\xfe\x01")
    with pytest.raises(DataError, match=r"b\.csv: not UTF-8"):
        read_bars(tmp_path / "b.csv", region="r", shown="b.csv")


def test_folders_are_searched_with_their_sub_folders(tmp_path: Path) -> None:
    (tmp_path / "us" / "nested").mkdir(parents=True)
    write(tmp_path / "us", PLAIN + "2020-01-02,1,2,1,1,5\n", "A.csv")
    write(tmp_path / "us" / "nested", PLAIN + "2020-01-02,1,2,1,1,5\n", "B.txt")
    write(tmp_path / "us", "not prices", "readme.md")
    files = list_price_files(tmp_path / "us")
    assert [file.name for file in files] == ["us/A.csv", "us/nested/B.txt"]
    assert [item.bars.key for item in check_files(files).judged] == ["us/A", "us/B"]


def test_hidden_folders_are_not_searched(tmp_path: Path) -> None:
    (tmp_path / "us" / ".preparing-x").mkdir(parents=True)
    write(tmp_path / "us", PLAIN + "2020-01-02,1,2,1,1,5\n", "A.csv")
    write(tmp_path / "us" / ".preparing-x", PLAIN + "2020-01-02,1,2,1,1,5\n", "B.csv")
    assert [file.name for file in list_price_files(tmp_path / "us")] == ["us/A.csv"]


def test_missing_and_empty_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere: no such folder"):
        list_price_files(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"no \.csv or \.txt file"):
        list_price_files(tmp_path)


def test_all_unreadable_files_are_named_at_once_and_can_be_excluded(tmp_path: Path) -> None:
    write(tmp_path, PLAIN + "2020-01-02,1,2,1,1,5\n", "A.csv")
    write(tmp_path, PLAIN + "2020-01-02,x,2,1,1,5\n", "B.csv")
    write(tmp_path, "Datum\n", "C.csv")
    files = list_price_files(tmp_path, region="r")
    with pytest.raises(DataError, match=r"r/B\.csv, line 2, column Open: found 'x'.*1 more files.*r/C\.csv"):
        check_files(files).require()
    assert [x.bars.ticker for x in check_files(files, exclude=["B", "C.csv"]).judged] == ["A"]


def test_exclude_must_name_files_that_exist(tmp_path: Path) -> None:
    write(tmp_path, PLAIN + "2020-01-02,1,2,1,1,5\n", "A.csv")
    with pytest.raises(DataError, match="'Z'"):
        check_exclude(list_price_files(tmp_path), ["Z"])


def test_excluding_everything_is_refused(tmp_path: Path) -> None:
    write(tmp_path, PLAIN + "2020-01-02,1,2,1,1,5\n", "A.csv")
    with pytest.raises(DataError, match="every price file"):
        check_files(list_price_files(tmp_path), exclude=["A"])


def test_one_ticker_in_two_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    for folder in (tmp_path, tmp_path / "x"):
        write(folder, PLAIN + "2020-01-02,1,2,1,1,5\n", "A.csv")
    with pytest.raises(DataError, match=r"r/x/A\.csv: holds ticker 'A', which r/A\.csv has already"):
        check_files(list_price_files(tmp_path, region="r")).require()
