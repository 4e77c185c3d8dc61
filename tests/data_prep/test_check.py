"""A check names what it finds, leaves out no more than it says, and its exit code tells what follows."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from data_prep.bars import Bars
from data_prep.check.findings import Level
from data_prep.check.folder import Checked, check_files
from data_prep.check.report import as_mapping, reading, summary, ticker_table, write_html, write_report_json
from data_prep.errors import DataError
from data_prep.readers.folder import list_price_files

HEADER = "Date,Open,High,Low,Close,Volume\n"
Rows = list[list[str]]


def table(bars: Bars) -> Rows:
    columns = (bars.open, bars.high, bars.low, bars.close)
    return [
        [str(day), *(f"{values[i]:.6f}" for values in columns), f"{bars.volume[i]:.0f}"]
        for i, day in enumerate(bars.dates)
    ]


def text(rows: Rows, header: str = HEADER) -> str:
    return header + "".join(",".join(row) + "\n" for row in rows)


@pytest.fixture
def rows(make_bars: Callable[..., Bars]) -> Rows:
    return table(make_bars(1, 400))


@pytest.fixture
def check(tmp_path: Path) -> Callable[..., Checked]:
    def run(files: dict[str, str], **options: object) -> Checked:
        folder = tmp_path / "us"
        folder.mkdir(exist_ok=True)
        for name, content in files.items():
            (folder / name).write_text(content, encoding="utf-8")
        return check_files(list_price_files(folder), **options)  # type: ignore[arg-type]

    return run


Check = Callable[..., Checked]


def only(checked: Checked, kind: str) -> str:
    (found,) = [finding for finding in checked.findings if finding.kind == kind]
    assert "\n" not in found.text
    return found.text


def scaled(rows: Rows, first: int, last: int, factor: float) -> Rows:
    changed = [list(row) for row in rows]
    for row in changed[first:last]:
        row[1:5] = [f"{float(cell) * factor:.6f}" for cell in row[1:5]]
    return changed


def test_a_sound_file_is_clean_and_nothing_is_left_out(check: Check, rows: Rows) -> None:
    checked = check({"A.csv": text(rows)})
    assert checked.exit_code(strict=True) == 0
    (item,) = checked.usable
    assert item.figures.usable == item.figures.rows == 400
    assert item.figures.left_out == {}


@pytest.mark.parametrize(
    ("column", "value", "kind"),
    [
        (4, "", "missing cell"),
        (1, "null", "missing cell"),
        (4, "0", "no positive price"),
        (4, "-3", "no positive price"),
        (2, "inf", "no positive price"),
        (5, "-1", "no volume"),
        (2, "0.01", "high below low"),
        (1, "9000", "open outside low to high"),
        (4, "0.01", "close outside low to high"),
    ],
)
def test_a_bad_row_is_left_out_and_named_by_line_column_and_value(
    check: Check, rows: Rows, column: int, value: str, kind: str
) -> None:
    rows[200][column] = value
    checked = check({"A.csv": text(rows)})
    message = only(checked, kind)
    assert "us/A.csv, line 202, column" in message
    assert "(1 row, " in message
    assert message.endswith("left out)")
    (item,) = checked.usable
    assert item.figures.left_out == {kind: 1}
    assert np.datetime64(rows[200][0]) not in item.bars.dates
    assert len(item.bars.dates) == 399
    assert (checked.exit_code(), checked.exit_code(strict=True)) == (1, 2)
    with pytest.raises(DataError, match="line 202"):
        checked.require(strict=True)


def test_a_row_without_any_price_is_no_row(check: Check, rows: Rows) -> None:
    rows[200][1:] = ["", "", "", "", ""]
    assert "found ''" in only(check({"A.csv": text(rows)}), "no prices")


def test_missing_and_infinite_prices_give_no_return_and_are_never_filled(check: Check, rows: Rows) -> None:
    closes = ["nan", "1", "2", "3", "nan", "4", "nan"]
    for row, close in zip(rows[-14:-7], closes, strict=True):
        row[1:5] = [close] * 4
    for row, close in zip(rows[-4:], ["10", "inf", "42", "50"], strict=True):
        row[1:5] = [close] * 4
    (item,) = check({"A.csv": text(rows)}).judged
    close = dict(zip(item.bars.dates.astype(str), item.bars.close, strict=True))

    def simple_returns(part: Rows) -> list[float]:
        days = [row[0] for row in part]
        pairs = zip([None, *days[:-1]], days, strict=True)
        return [close[b] / close[a] - 1.0 if a in close and b in close else np.nan for a, b in pairs]  # type: ignore[index]

    nan = np.nan
    np.testing.assert_allclose(simple_returns(rows[-14:-7]), [nan, nan, 1.0, 0.5, nan, nan, nan])
    np.testing.assert_allclose(simple_returns(rows[-4:]), [nan, nan, nan, 50 / 42 - 1])
    assert np.diff(item.bars.close).min() / item.bars.close.max() > -1.0
    assert np.isfinite(item.bars.close).all()


def test_exact_copies_of_a_row_are_dropped_and_different_ones_all_left_out(check: Check, rows: Rows) -> None:
    other = [*rows[300][:5], "1"]
    checked = check({"A.csv": text([*rows, rows[10], other])})
    texts = [finding.text for finding in checked.findings if finding.kind == "repeated day"]
    assert "expected each date once (line 12 has it already)" in texts[0]
    assert "exact copies are dropped" in texts[0]
    assert "(line 302 has it already)" in texts[1]
    (item,) = checked.usable
    assert np.datetime64(rows[10][0]) in item.bars.dates
    assert np.datetime64(rows[300][0]) not in item.bars.dates


def with_adjusted(rows: Rows, ratio: float) -> Rows:
    return [[*row, f"{float(row[4]) * ratio:.6f}"] for row in rows]


ADJUSTED = "Date,Open,High,Low,Close,Volume,Adj Close\n"


def test_a_bar_on_two_bases_is_repaired_with_a_line_and_never_silently_used(check: Check, rows: Rows) -> None:
    rows = with_adjusted(scaled(rows, 0, 400, 0.05), 0.9427)
    rows[200] = [rows[200][0], "2.545275", "2.601836", "2.542447", "2.758", "100", "2.599951"]
    checked = check({"A.csv": text(rows, ADJUSTED)})
    message = only(checked, "two bases in one row")
    assert "found '2.758', expected a close from 2.542447 to 2.601836, where the adjusted close lies" in message
    assert "repaired" in message
    (item,) = checked.usable
    row = int(np.flatnonzero(item.bars.dates == np.datetime64(rows[200][0]))[0])
    bar = [float(getattr(item.bars, name)[row]) for name in ("open", "high", "low", "close")]
    assert bar == [2.545275, 2.601836, 2.542447, 2.599951]
    assert checked.exit_code() == 1


def test_a_special_dividend_is_explained_and_returns_come_from_the_adjusted_close(check: Check, rows: Rows) -> None:
    rows = [[*row, row[4]] for row in rows]
    for row in rows[:200]:
        row[6] = f"{float(row[4]) * 0.18:.6f}"
    for row in rows[200:]:
        row[1:5] = [f"{float(cell) * 0.18:.6f}" for cell in row[1:5]]
        row[6] = row[4]
    checked = check({"A.csv": text(rows, ADJUSTED)})
    assert "special dividend or spin-off" in only(checked, "jump")
    (item,) = checked.usable
    assert np.abs(np.diff(np.log(item.bars.close))).max() < 0.1
    assert (item.bars.basis, len(item.bars.breaks), checked.exit_code()) == ("adjusted", 0, 0)


def test_an_adjustment_that_turns_negative_is_left_out_with_all_before_it(check: Check, rows: Rows) -> None:
    rows = with_adjusted(rows, 1.0)
    for number, row in enumerate(rows[:100]):
        row[6] = "-1.5" if number >= 50 else "0.01"
    (item,) = check({"A.csv": text(rows, ADJUSTED)}).usable
    assert str(item.bars.dates[0]) == rows[100][0]
    assert item.figures.left_out == {"no positive price": 50, "adjustment without a reason": 50}


def test_an_adjustment_that_steps_once_cuts_the_series(check: Check, rows: Rows) -> None:
    rows = with_adjusted(rows, 1.0)
    for row in rows[:200]:
        row[6] = f"{float(row[4]) / 4:.6f}"
    checked = check({"A.csv": text(rows, ADJUSTED)})
    assert "the adjusted close steps and the close hardly moves" in only(checked, "cut")
    assert [str(day) for day in checked.usable[0].bars.breaks] == [rows[200][0]]


@pytest.mark.parametrize(("factor", "shown"), [(0.25, "4:1"), (0.5, "2:1"), (10.0, "1:10")])
def test_a_split_that_is_not_adjusted_for_cuts_the_series(check: Check, rows: Rows, factor: float, shown: str) -> None:
    for row in rows[199:201]:
        row[1:5] = [rows[199][4]] * 4
    checked = check({"A.csv": text(scaled(rows, 200, 400, factor))})
    assert f"split {shown} that the prices are not adjusted for" in only(checked, "cut")
    assert [str(day) for day in checked.usable[0].bars.breaks] == [rows[200][0]]
    assert checked.exit_code() == 1


def test_a_fall_that_is_no_split_ratio_is_a_note(check: Check, rows: Rows) -> None:
    checked = check({"A.csv": text(scaled(rows, 200, 400, 0.44))})
    assert "market move" in only(checked, "jump")
    assert checked.exit_code() == 0


def test_a_change_of_units_cuts_and_a_day_in_other_units_is_left_out(check: Check, rows: Rows) -> None:
    assert "factor of a hundred" in only(check({"A.csv": text(scaled(rows, 200, 400, 100.0))}), "cut")
    for row in rows[199:202]:
        row[1:5] = [rows[199][4]] * 4
    checked = check({"A.csv": text(scaled(rows, 200, 201, 100.0))})
    assert rows[200][0] in only(checked, "other price basis")
    assert len(checked.usable[0].bars.dates) == 399


def test_days_on_another_basis_are_left_out(check: Check, rows: Rows) -> None:
    checked = check({"A.csv": text(scaled(rows, 200, 205, 0.2))})
    assert f"5 rows, {rows[200][0]} to {rows[204][0]}, left out" in only(checked, "other price basis")
    assert len(checked.usable[0].bars.dates) == 395


def test_a_level_that_differs_after_days_on_another_basis_cuts_the_series(check: Check, rows: Rows) -> None:
    checked = check({"A.csv": text(scaled(scaled(rows, 200, 400, 0.3), 200, 205, 0.67))})
    assert "5 rows" in only(checked, "other price basis")
    assert "another level after the rows left out" in only(checked, "cut")
    assert [str(day) for day in checked.usable[0].bars.breaks] == [rows[205][0]]


def test_a_spike_of_a_day_is_named_and_kept(check: Check, rows: Rows) -> None:
    checked = check({"A.csv": text(scaled(rows, 200, 201, 3.0))})
    assert {finding.kind for finding in checked.findings} == {"jump"}
    assert all("spike of one day" in finding.text for finding in checked.findings)
    assert len(checked.usable[0].bars.dates) == 400


@pytest.mark.parametrize(("step", "frequency"), [(5, "weekly"), (21, "monthly"), (63, "quarterly")])
def test_other_frequencies_posing_as_daily_are_refused(
    check: Check, make_bars: Callable[..., Bars], step: int, frequency: str
) -> None:
    checked = check({"A.csv": text(table(make_bars(1, 200 * step))[::step])})
    assert f"{frequency} rows after it, expected daily rows" in only(checked, "not daily")
    assert checked.exit_code() == 2


def test_months_without_days_are_refused(check: Check) -> None:
    months = np.arange("2000-01", "2020-01", dtype="datetime64[M]")
    checked = check({"A.csv": HEADER + "".join(f"{month},1,2,1,1.5,10\n" for month in months)})
    assert "found '2000-01' and monthly rows after it" in only(checked, "not daily")


def test_one_series_under_several_tickers_leaves_all_of_them_out(check: Check, rows: Rows) -> None:
    checked = check({name: text(rows) for name in ("A.csv", "B.csv", "C.csv")})
    assert len([finding for finding in checked.findings if finding.kind == "same series"]) == 3
    assert checked.exit_code() == 2
    assert check({}, exclude=["B.csv", "C.csv"]).exit_code() == 0


def test_gaps_stale_runs_and_days_without_trade_are_notes(check: Check, rows: Rows) -> None:
    for row in rows[100:108]:
        row[1:] = [rows[99][4]] * 4 + ["0"]
    checked = check({"A.csv": text(rows[:200] + rows[220:])})
    assert "8 rows in a row repeat a close" in only(checked, "stale")
    assert "8 rows with volume 0" in only(checked, "zero volume")
    assert "1 gaps of more than 10 days" in only(checked, "gap")
    assert checked.exit_code() == 0


def test_prices_that_jump_all_the_time_leave_the_ticker_out(check: Check, rows: Rows) -> None:
    for number in range(0, 400, 8):
        rows[number : number + 4] = scaled(rows[number : number + 4], 0, 4, 1.8)
    assert "expected prices of a traded stock" in only(check({"A.csv": text(rows)}), "erratic")


def test_mostly_bad_rows_leave_the_ticker_out(check: Check, rows: Rows) -> None:
    for row in rows[:250]:
        row[2] = "0.01"
    assert "150 of 400 rows with prices are usable" in only(check({"A.csv": text(rows)}), "mostly unusable")


@pytest.mark.parametrize(("content", "kind"), [("", "empty"), (HEADER, "empty"), ("one", "too short")])
def test_empty_and_short_files_leave_only_their_ticker_out(check: Check, rows: Rows, content: str, kind: str) -> None:
    checked = check({"A.csv": text(rows), "B.csv": text(rows[:1]) if content == "one" else content})
    assert only(checked, kind).startswith("us/B.csv")
    assert [item.bars.ticker for item in checked.usable] == ["A"]
    assert (checked.exit_code(), checked.exit_code(strict=True)) == (1, 2)


def test_files_that_cannot_be_read_refuse_the_folder_and_are_all_named(check: Check, rows: Rows) -> None:
    rows_with_text = [list(row) for row in rows]
    rows_with_text[3][1] = "x"
    checked = check({"A.csv": text(rows), "B.csv": text(rows_with_text), "C.csv": "a,b\n1,2\n"})
    assert checked.exit_code() == 2
    with pytest.raises(DataError, match=r"us/B\.csv, line 5, column Open: found 'x'.*1 more files.*us/C\.csv"):
        checked.require()


@pytest.fixture
def paris(make_bars: Callable[..., Bars]) -> Rows:
    """Bars on the sessions of Paris, with a holiday filled in by the vendor."""
    from datetime import date

    from data_prep.calendar import exchange_days

    days = exchange_days("XPAR", first=date(2018, 6, 1), last=date(2020, 6, 30))
    rows = table(replace(make_bars(3, len(days)), dates=days))
    place = next(i for i, row in enumerate(rows) if row[0] > "2019-12-25")
    filled = ["2019-12-25", *[rows[place - 1][4]] * 4, "0"]
    return [*rows[:place], filled, *rows[place:]]


def test_a_holiday_that_was_filled_in_is_left_out(check: Check, paris: Rows) -> None:
    checked = check({"AI.PA.csv": text(paris)})
    assert "on days without a session of XPAR; 1 row, 2019-12-25, left out" in only(checked, "filled holiday")
    (item,) = checked.usable
    assert item.figures.coverage == 1.0
    assert checked.markets == {"us": "XPAR"}


def test_the_exchange_is_found_by_the_days_and_a_wrong_one_is_refused(check: Check, paris: Rows) -> None:
    assert check({"AI.csv": text(paris)}).markets == {"us": "XPAR"}
    checked = check({}, markets={"us": "XNYS"})
    assert "those of XPAR to" in only(checked, "wrong calendar")
    assert checked.exit_code() == 2


def test_mixed_encodings_and_layouts_of_a_folder_are_named(check: Check, rows: Rows, tmp_path: Path) -> None:
    check({"A.csv": text(rows)})
    german = "Datum;Erster;Hoch;Tief;Schlusskurs;Stücke\n"
    lines = [";".join([row[0], *(cell.replace(".", ",") for cell in row[1:5]), row[5]]) for row in rows[5:]]
    (tmp_path / "us" / "B.csv").write_bytes((german + "\n".join(lines)).encode("cp1252"))
    checked = check({})
    assert "utf-8 (1), windows-1252 (1)" in only(checked, "mixed encodings")
    assert "german (1), ohlcv (1)" in only(checked, "several layouts")
    assert len(checked.usable) == 2


def test_the_report_is_the_same_for_people_and_programs(check: Check, rows: Rows, tmp_path: Path) -> None:
    other = scaled(rows, 0, 400, 2.0)
    other[200][4] = "0"
    checked = check({"A.csv": text(rows), "<b>&.csv": text(other), "E.csv": ""})
    write_report_json(tmp_path / "check.json", checked)
    stored = json.loads((tmp_path / "check.json").read_text())
    assert stored == json.loads(json.dumps(as_mapping(checked)))
    assert (stored["exit_code"], stored["usable_tickers"], stored["files"]) == (1, 2, 3)
    assert [item["ticker"] for item in stored["tickers"]] == ["<b>&", "A"]
    assert {item["level"] for item in stored["findings"]} == {"ticker left out", "rows left out"}
    console = Console(width=80, record=True)
    console.print(ticker_table(checked))
    assert "rows left out" in console.export_text()
    assert reading(checked)[0] == "layouts: ohlcv (2)"
    assert summary(checked).startswith("usable, with something left out or repaired: 2 of 2 tickers in 3 files usable")


def test_the_page_is_self_contained_escaped_and_the_same_each_time(check: Check, rows: Rows, tmp_path: Path) -> None:
    other = scaled(rows, 0, 400, 2.0)
    other[200][4] = "0"
    checked = check({"A.csv": text(rows), "<b>&.csv": text(other)})
    write_html(tmp_path / "a.html", checked, title="us")
    write_html(tmp_path / "b.html", checked, title="us")
    page = (tmp_path / "a.html").read_text()
    assert page == (tmp_path / "b.html").read_text()
    assert page.count("<svg") == 2
    assert "&lt;b&gt;&amp;" in page
    assert "<b>" not in page
    assert "http" not in page.replace("http://www.w3.org", "").replace("http-equiv", "")
    assert "id=" not in page.split("<tbody>")[1].split("</tbody>")[0]


def test_levels_are_ordered_from_harmless_to_decisive() -> None:
    assert [level.value for level in Level] == ["note", "repaired", "rows left out", "ticker left out", "refused"]
