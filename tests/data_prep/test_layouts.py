"""Every layout people have is read as what it says, and a file that may say two things is refused with both names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_prep.errors import DataError
from data_prep.readers.layouts import LAYOUTS, layout_named
from data_prep.readers.series import RawSeries, read_series

GERMAN = "Datum;Erster;Hoch;Tief;Schlusskurs;Stuecke;Volumen\n"
FRENCH = '"Date","Dernier","Ouv.","Plus Haut","Plus Bas","Vol.","Variation %"\n'
DAY = np.datetime64("2020-06-02")


def read(folder: Path, text: str | bytes, name: str = "ABC.csv", layout: str | None = None) -> list[RawSeries]:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_series(path, name, layout=layout)


def refusal(folder: Path, text: str | bytes, layout: str | None = None) -> str:
    with pytest.raises(DataError) as caught:
        read(folder, text, layout=layout)
    message = str(caught.value)
    assert "\n" not in message
    return message


LAYOUT_EXAMPLES = {
    "yahoo": "Date,Open,High,Low,Close,Adj Close,Volume\n2020-06-02,10.5,11,10,10.25,9.5,1200\n",
    "yahoo, old order": "Date,Open,High,Low,Close,Volume,Adj Close\n2020-06-02,10.5,11,10,10.25,1200,9.5\n",
    "yahoo, R export": '"Date","Open","High","Low","Close","Volume","Adjusted"\n'
    '"2020-06-02",10.5,11,10,10.25,1200,9.5\n',
    "yahoo, pandas export": ",Date,Open,High,Low,Close,Adj Close,Volume,Dividends,Stock Splits\n"
    "0,2020-06-02 00:00:00-04:00,10.5,11,10,10.25,9.5,1200,0.0,0.0\n",
    "ohlcv": "date,open,high,low,close,volume\n2020-06-02,10.5,11,10,10.25,1200\n",
    "ohlcv-semicolon": "Date;Open;High;Low;Close;Volume\n2020-06-02;10.5;11;10;10.25;1200\n",
    "ohlcv-semicolon-decimal-comma": "Date;Open;High;Low;Close;Volume\n2020-06-02;10,5;11;10;10,25;1.200\n",
    "ohlcv-tab": "Date\tOpen\tHigh\tLow\tClose\tVolume\n2020-06-02\t10.5\t11\t10\t10.25\t1200\n",
    "ohlcv-mdy": "Date,Open,High,Low,Close,Volume\n6/2/2020,10.5,11,10,10.25,1200\n6/30/2020,1,1,1,1,1\n",
    "ohlcv-dmy": "Date,Open,High,Low,Close,Volume\n02/06/2020,10.5,11,10,10.25,1200\n30/06/2020,1,1,1,1,1\n",
    "ohlcv-grouped": 'Date,Open,High,Low,Close,Volume\n2020-06-02,10.5,11,10,10.25,"1,200"\n'
    '2020-06-03,1,1,1,1,"1,234,567"\n',
    "stooq-bulk": "<TICKER>,<PER>,<DATE>,<TIME>,<OPEN>,<HIGH>,<LOW>,<CLOSE>,<VOL>,<OPENINT>\n"
    "ABC,D,20200602,000000,10.5,11,10,10.25,1200,0\n",
    "stooq-bulk-iso": "<DATE>,<OPEN>,<HIGH>,<LOW>,<CLOSE>,<VOL>\r\n2020-06-02,10.5,11,10,10.25,1200\r\n",
    "stooq-polish": "Data,Otwarcie,Najwyzszy,Najnizszy,Zamkniecie,Wolumen\r\n2020-06-02,10.5,11,10,10.25,1200\r\n",
    "investing-fr": "\ufeff" + FRENCH + '"02/06/2020","10,25","10,50","11,00","10,00","1,2K","0,78%"\n',
    "investing-de": '"Datum","Zuletzt","Eröffn.","Hoch","Tief","Vol.","+/- %"\n'
    '"02.06.2020","10,25","10,50","11,00","10,00","1,20K","0,78%"\n',
    "investing-en": '"Date","Price","Open","High","Low","Vol.","Change %"\n'
    '"06/02/2020","10.25","10.50","11.00","10.00","1.20K","0.78%"\n"06/30/2020","1,010.0","1,010.0","1,010.0","1,010.0","-",""\n',
    "german": GERMAN + "2020-06-02;10,5;11;10;10,25;1.200;12.300\n",
    "german-dmy": GERMAN + "02.06.2020;10,5;11;10;10,25;1.200;12.300\n",
    "french": "Date;Ouverture;Plus haut;Plus bas;Clôture;Volume\n02/06/2020;10,5;11;10;10,25;1\u202f200\n",
    "long": "Date,Open,High,Low,Close,Volume,Name\n2020-06-02,10.5,11,10,10.25,1200,ABC\n",
}


@pytest.mark.parametrize("kind", LAYOUT_EXAMPLES)
def test_a_layout_is_detected_named_and_read(tmp_path: Path, kind: str) -> None:
    (series,) = read(tmp_path, LAYOUT_EXAMPLES[kind])
    assert series.layout == kind.split(",")[0]
    assert series.dates[0] == DAY
    row = {field: values[0] for field, values in series.columns.items()}
    assert (row["open"], row["high"], row["low"], row["close"]) == (10.5, 11.0, 10.0, 10.25)
    assert row["volume"] == 1200.0
    assert row.get("adjusted", 9.5) == 9.5
    assert series.ticker == "ABC"


@pytest.mark.parametrize("kind", LAYOUT_EXAMPLES)
def test_a_layout_given_by_name_reads_the_same(tmp_path: Path, kind: str) -> None:
    (found,) = read(tmp_path, LAYOUT_EXAMPLES[kind])
    (given,) = read(tmp_path, LAYOUT_EXAMPLES[kind], layout=found.layout)
    assert given.columns.keys() == found.columns.keys()
    for field, values in found.columns.items():
        np.testing.assert_array_equal(given.columns[field], values)


def test_layout_names_are_unique_and_an_unknown_one_is_refused() -> None:
    assert len({layout.name for layout in LAYOUTS}) == len(LAYOUTS)
    with pytest.raises(DataError, match=r"'german-us'.*german-dmy"):
        layout_named("german-us")


def test_a_day_that_may_be_two_days_is_refused_with_both_layouts(tmp_path: Path) -> None:
    text = "Date,Open,High,Low,Close,Volume\n03/04/2020,1,2,1,1.5,10\n06/04/2020,1,2,1,1.5,10\n"
    message = refusal(tmp_path, text)
    assert "line 2, column Date: found '03/04/2020'" in message
    assert "2020-04-03 (ohlcv-dmy)" in message
    assert "2020-03-04 (ohlcv-mdy)" in message
    assert "--layout" in message
    assert read(tmp_path, text, layout="ohlcv-mdy")[0].dates[0] == np.datetime64("2020-03-04")
    assert read(tmp_path, text, layout="ohlcv-dmy")[0].dates[0] == np.datetime64("2020-04-03")


def test_one_later_day_decides_how_days_are_written(tmp_path: Path) -> None:
    text = "Date,Open,High,Low,Close,Volume\n03/04/2020,1,2,1,1.5,10\n13/04/2020,1,2,1,1.5,10\n"
    assert read(tmp_path, text)[0].dates[0] == np.datetime64("2020-04-03")


def test_a_point_that_may_be_a_decimal_or_a_group_is_refused_with_both_layouts(tmp_path: Path) -> None:
    text = "Date;Open;High;Low;Close\n2020-01-02;1.234;1.300;1.200;1.234\n"
    message = refusal(tmp_path, text)
    assert "line 2, column Open: found '1.234'" in message
    assert "1.234 (ohlcv-semicolon)" in message
    assert "1234 (ohlcv-semicolon-decimal-comma)" in message
    assert read(tmp_path, text, layout="ohlcv-semicolon-decimal-comma")[0].columns["open"][0] == 1234.0


def test_a_quoted_comma_that_may_be_a_decimal_or_a_group_is_refused(tmp_path: Path) -> None:
    text = 'Date,Open,High,Low,Close\n2020-01-02,"1,234","1,300","1,200","1,234"\n'
    message = refusal(tmp_path, text)
    assert "1234 (ohlcv-grouped) or 1.234 (ohlcv-decimal-comma)" in message


def test_one_cell_decides_what_a_point_is(tmp_path: Path) -> None:
    text = "Date;Open;High;Low;Close\n2020-01-02;1.234;1.300;1.200;1.234\n2020-01-03;1.234;1.300;1.200;1.25\n"
    assert read(tmp_path, text)[0].layout == "ohlcv-semicolon"


def test_two_ways_of_writing_in_one_file_are_refused_by_cell(tmp_path: Path) -> None:
    message = refusal(tmp_path, GERMAN + "2020-01-02;1,5;2;1;1,5;1.000;0\n2020-01-03;1,5;2;1;1.55;1.000;0\n")
    assert "line 3, column Schlusskurs: found '1.55'" in message
    message = refusal(tmp_path, GERMAN + "2020-01-02;1,5;2;1;1,5;10;0\n03.01.2020;1,5;2;1;1,5;10;0\n")
    assert "line 3, column Datum: found '03.01.2020', expected a day written as YYYY-MM-DD" in message


def test_a_layout_that_does_not_fit_the_header_is_refused(tmp_path: Path) -> None:
    message = refusal(tmp_path, LAYOUT_EXAMPLES["yahoo"], layout="german")
    assert "expected columns datum,erster,hoch,tief,schlusskurs,stuecke of layout german" in message


@pytest.mark.parametrize("marker", ["", "null", "NA", "N/A", "NaN", "-"])
def test_missing_markers_are_missing_and_not_zero(tmp_path: Path, marker: str) -> None:
    text = f"Date,Open,High,Low,Close,Volume\n2020-01-02,{marker},2,1,1.5,{marker}\n"
    (series,) = read(tmp_path, text)
    assert np.isnan(series.columns["open"][0])
    assert np.isnan(series.columns["volume"][0])


def test_blank_prices_of_a_german_file_are_missing(tmp_path: Path) -> None:
    (series,) = read(tmp_path, GERMAN + "2000-01-05; ; ; ;27,74;0;0\n\n\n")
    assert np.isnan(series.columns["high"][0])
    assert series.columns["close"][0] == 27.74


def test_volumes_with_units_are_numbers_only_where_the_vendor_writes_them(tmp_path: Path) -> None:
    row = '"02/06/2020","123,30","123,10","123,50","121,85","1,01M","0,78%"\n'
    assert read(tmp_path, FRENCH + row)[0].columns["volume"][0] == pytest.approx(1_010_000.0)
    text = "Date,Open,High,Low,Close,Volume\n2020-01-02,1,2,1,1.5,1.01M\n"
    assert "column Volume: found '1.01M'" in refusal(tmp_path, text)


def test_newest_first_and_ragged_rows_keep_their_lines(tmp_path: Path) -> None:
    text = "Data,Otwarcie,Najwyzszy,Najnizszy,Zamkniecie,Wolumen\n2020-01-03,1,2,1,1.5\n\n2020-01-02,1,2,1,1.5,7\n"
    (series,) = read(tmp_path, text)
    assert list(series.dates.astype(str)) == ["2020-01-03", "2020-01-02"]
    assert np.isnan(series.columns["volume"][0])
    assert series.line(1) == 4


def test_a_long_table_is_split_by_ticker(tmp_path: Path) -> None:
    text = (
        "symbol,date,open,high,low,close,volume\n"
        "B,2020-01-02,1,2,1,1.5,10\nA,2020-01-02,3,4,3,3.5,30\nB,2020-01-03,1,2,1,1.25,20\n"
    )
    series = read(tmp_path, text)
    assert [item.ticker for item in series] == ["B", "A"]
    np.testing.assert_array_equal(series[0].columns["close"], [1.5, 1.25])
    assert (series[0].line(1), series[1].line(0), series[0].cell(1, "close")) == (4, 3, "1.25")


def test_a_long_table_with_a_blank_ticker_is_refused(tmp_path: Path) -> None:
    message = refusal(tmp_path, "date,open,high,low,close,name\n2020-01-02,1,2,1,1.5,A\n2020-01-02,1,2,1,1.5,\n")
    assert "line 3, column name: found ''" in message


def test_a_header_of_several_rows_is_read_per_ticker(tmp_path: Path) -> None:
    text = (
        "Price,Close,Close,High,High,Low,Low,Open,Open,Volume,Volume\n"
        "Ticker,AAA,BBB,AAA,BBB,AAA,BBB,AAA,BBB,AAA,BBB\n"
        "Date,,,,,,,,,,\n"
        "2020-01-02,1.5,15,2,20,1,10,1.2,12,100,7\n"
        "2020-01-03,1.6,16,2,20,1,10,1.2,12,101,8\n"
    )
    first, second = read(tmp_path, text)
    assert (first.ticker, second.ticker) == ("AAA", "BBB")
    np.testing.assert_array_equal(second.columns["close"], [15.0, 16.0])
    np.testing.assert_array_equal(second.columns["volume"], [7.0, 8.0])
    assert (second.line(1), second.cell(1, "close")) == (5, "16")


def test_a_bad_cell_under_a_header_of_several_rows_is_named(tmp_path: Path) -> None:
    text = "Price,Close,High,Low,Open\nTicker,A,A,A,A\n2020-01-02,1.5,2,1,1.2\n2020-01-03,1.6,x,1,1.2\n"
    assert "line 4, column High: found 'x'" in refusal(tmp_path, text)


def test_windows_1252_is_read_and_mixed_encodings_are_refused(tmp_path: Path) -> None:
    header = "Datum;Erster;Hoch;Tief;Schlusskurs;Stücke\n"
    row = "2020-01-02;1,5;2;1;1,5;10\n"
    (series,) = read(tmp_path, (header + row).encode("cp1252"))
    assert series.encoding == "windows-1252"
    assert "mixed encodings" in refusal(tmp_path, header.encode("cp1252") + "# Stücke\n".encode() + row.encode())


@pytest.mark.parametrize(("mark", "encoding"), [(b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be")])
def test_utf_16_with_its_mark_is_read_and_anything_else_with_it_refused(
    tmp_path: Path, mark: bytes, encoding: str
) -> None:
    text = "Date\tOpen\tHigh\tLow\tClose\tVolume\r\n2020-06-02\t10.5\t11\t10\t10.25\t1200\r\n"
    (series,) = read(tmp_path, mark + text.encode(encoding))
    assert (series.layout, series.encoding) == ("ohlcv-tab", f"{encoding} with BOM")
    assert (series.columns["close"][0], series.columns["volume"][0]) == (10.25, 1200.0)
    german = "Datum;Erster;Hoch;Tief;Schlusskurs;Stücke\n2020-01-02;1,5;2;1;1,5;x\n"
    assert "line 2, column Stücke: found 'x'" in refusal(tmp_path, mark + german.encode(encoding))
    assert "byte order mark" in refusal(tmp_path, mark + text.encode(encoding)[:-1])
    assert "byte order mark" in refusal(tmp_path, mark + (text + "\0").encode(encoding))
    assert "a zero byte at byte" in refusal(tmp_path, text.encode(encoding)), "without the mark"
    utf_32 = "utf-32-le" if encoding.endswith("le") else "utf-32-be"
    assert "ABC.csv" in refusal(tmp_path, text.encode(utf_32))
    assert "ABC.csv" in refusal(tmp_path, "\ufeff".encode(utf_32) + text.encode(utf_32))
    assert "is empty" in refusal(tmp_path, mark)


@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_line_ends_do_not_matter(tmp_path: Path, end: str) -> None:
    text = "Date,Open,High,Low,Close\n2020-01-02,1,2,1,1.5\n2020-01-03,1,2,1,1.25"
    (series,) = read(tmp_path, text.replace("\n", end) + end if end else text)
    np.testing.assert_array_equal(series.columns["close"], [1.5, 1.25])


def test_parquet_is_read_like_text(tmp_path: Path) -> None:
    days = pd.to_datetime(["2020-01-02", "2020-01-03"])
    table = pd.DataFrame(
        {"Open": [1.0, 1.0], "High": [2.0, 2.0], "Low": [1, 1], "Close": [1.5, np.nan], "Volume": [10, 20]},
        index=pd.Index(days, name="Date"),
    )
    table.to_parquet(tmp_path / "ABC.parquet")
    (series,) = read_series(tmp_path / "ABC.parquet", "ABC.parquet")
    assert (series.ticker, series.layout, str(series.dates[1])) == ("ABC", "ohlcv (parquet)", "2020-01-03")
    np.testing.assert_array_equal(series.columns["close"], [1.5, np.nan])


def test_a_long_parquet_table_is_split_and_bad_ones_are_named(tmp_path: Path) -> None:
    rows = {"date": ["2020-01-02"] * 2, "open": [1.0, 2.0], "high": [1.0, 2.0], "low": [1.0, 2.0], "close": [1.0, 2.0]}
    pd.DataFrame({**rows, "ticker": ["A", "B"]}).to_parquet(tmp_path / "all.parquet")
    assert [item.ticker for item in read_series(tmp_path / "all.parquet", "all.parquet")] == ["A", "B"]
    pd.DataFrame({**rows, "close": ["1", "2"]}).to_parquet(tmp_path / "text.parquet")
    with pytest.raises(DataError, match=r"text\.parquet, column close: found type"):
        read_series(tmp_path / "text.parquet", "text.parquet")
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "other.parquet")
    with pytest.raises(DataError, match=r"other\.parquet: found columns 'a'"):
        read_series(tmp_path / "other.parquet", "other.parquet")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match=r"broken\.parquet: not a readable Parquet file"):
        read_series(tmp_path / "broken.parquet", "broken.parquet")
    (tmp_path / "empty.parquet").write_bytes(b"")
    with pytest.raises(DataError, match=r"empty\.parquet: the file is empty"):
        read_series(tmp_path / "empty.parquet", "empty.parquet")


@pytest.mark.parametrize("name", ["A#1.csv", "a b.csv", "Münchener Rück.csv", "CON.csv", "nul.csv", "x" * 200 + ".csv"])
def test_any_file_name_is_a_ticker(tmp_path: Path, name: str) -> None:
    (series,) = read(tmp_path, "Date,Open,High,Low,Close\n2020-01-02,1,2,1,1.5\n", name)
    assert series.ticker == name[:-4]


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(sorted(LAYOUT_EXAMPLES)),
    edits=st.lists(
        st.tuples(
            st.integers(0, 250), st.sampled_from(["", "\n", "\r", ",", ";", '"', "\t", ".", "0", "-", "é", " ", "e"])
        ),
        min_size=1,
        max_size=6,
    ),
)
def test_a_damaged_file_is_read_or_refused_and_never_fails_otherwise(
    tmp_path: Path, kind: str, edits: list[tuple[int, str]]
) -> None:
    text = LAYOUT_EXAMPLES[kind]
    for place, sign in edits:
        place %= len(text)
        text = text[:place] + sign + text[place + (sign == "") :]
    series: list[RawSeries] = []
    message = ""
    try:
        series = read(tmp_path, text)
    except DataError as error:
        message = str(error)
    assert "\n" not in message
    assert series or "ABC.csv" in message
    assert all(len(values) == len(item.dates) for item in series for values in item.columns.values())


def test_every_kind_of_line_end_counts_as_one_line(tmp_path: Path) -> None:
    lines = ["Date,Open,High,Low,Close", "2020-01-02,1,2,1,1.5", "2020-01-03,x,2,1,1.25"]
    for end in ("\n", "\r\n", "\r", "\r\r\n"):
        assert "line 3, column Open: found 'x'" in refusal(tmp_path, end.join(lines) + end)


def test_the_documents_name_every_family_and_every_ending() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    families = {layout.family.name for layout in LAYOUTS}
    assert {name for name in families if f"| `{name}` |" not in text} == set()
    endings = {layout.name.removeprefix(layout.family.name) for layout in LAYOUTS}
    parts = {ending.removeprefix("-").replace("decimal-", "decimal_") for ending in endings if ending}
    words = {word.replace("_", "-") for part in parts for word in part.split("-")}
    assert {word for word in words if f"`-{word}`" not in text} == set()
