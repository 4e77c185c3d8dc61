"""Sector labels: read as written, an unlabelled ticker is named, and labels reach partition and manifests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.bars import Bars
from data_prep.errors import DataError
from data_prep.prepare import FederationSpec, Splits, prepare_files
from data_prep.sectors import Sectors, label, read_sectors, sectors_text
from data_prep.shards import open_shard
from tests.data_prep.conftest import random_bars

SPEC = FederationSpec(
    silos=2, min_samples=50, splits=Splits(train=(2020, 2021), validation=(2022, 2022), test=(2023, 2023))
)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def make(text: str) -> Path:
        path = tmp_path / "sectors.csv"
        path.write_bytes(text.encode())
        return path

    return make


def test_labels_are_read_with_mark_crlf_quotes_and_upper_case_header(write: Callable[[str], Path]) -> None:
    found = read_sectors(write('\ufeffTicker,Sector\r\nAAPL,"Information Technology"\r\n\r\nJPM, Financials \r\n'))
    assert found.of("us", "AAPL") == "Information Technology"
    assert found.of("us", "JPM") == "Financials"
    assert found.of("us", "jpm") is None


def test_a_row_with_a_region_comes_before_one_without_and_both_before_the_star(write: Callable[[str], Path]) -> None:
    found = read_sectors(write("ticker,sector,region\nSAN,Banks,\nSAN,Health,paris\n*,Other,paris\n*,unknown,\n"))
    assert found.of("madrid", "SAN") == "Banks"
    assert found.of("paris", "SAN") == "Health"
    assert found.of("paris", "AI") == "Other"
    assert found.of("madrid", "BBVA") == "unknown"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: found header ''"),
        ("Symbol,Security\nA,B\n", "line 1: found header 'symbol,security'"),
        ("ticker,sector\n", "no row after the header"),
        ("ticker,sector\nA,X\nB,\n", "line 3: found 'B,'"),
        ("ticker,sector\nA\n", "line 2: found 'A'"),
        ("ticker,sector\nA,X,Y\n", "line 2: found 'A,X,Y'"),
        ("ticker,sector\nA,X\nA,Z\n", "line 3: found A in sector 'Z', which line 2 puts into 'X'"),
    ],
)
def test_a_bad_file_of_labels_is_refused_by_line(write: Callable[[str], Path], text: str, message: str) -> None:
    with pytest.raises(DataError, match=r"sectors\.csv") as caught:
        read_sectors(write(text))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_bytes("ticker,sector\nA,Santé\n".encode("cp1252"))
    with pytest.raises(DataError, match="not UTF-8"):
        read_sectors(tmp_path / "s.csv")


def test_tickers_without_a_label_are_named_and_a_star_says_that_they_are_unknown() -> None:
    bars = [random_bars(i, 10, ticker=f"T{i}") for i in range(8)]
    with pytest.raises(DataError, match=r"no sector for r/T1, r/T2, r/T3, r/T4, r/T5 and 2 more"):
        label(bars, Sectors("s.csv", {("", "T0"): "Energy"}))
    found = label(bars, Sectors("s.csv", {("", "T0"): "Energy", ("", "*"): "unknown"}))
    assert [item.sector for item in found] == ["Energy", *[None] * 7]


NAMES = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=8)


@given(st.dictionaries(st.tuples(st.sampled_from(["us", "eu"]), NAMES), st.none() | NAMES, min_size=1, max_size=12))
def test_the_file_written_from_labels_gives_the_same_labels(
    tmp_path_factory: pytest.TempPathFactory, sectors: dict[tuple[str, str], str | None]
) -> None:
    plain = random_bars(0, 3)
    bars = [
        Bars(ticker, region, sector, plain.dates, plain.open, plain.high, plain.low, plain.close, plain.volume)
        for (region, ticker), sector in sectors.items()
        if sector != "unknown"
    ]
    if not bars:
        return
    path = tmp_path_factory.mktemp("labels") / "sectors.csv"
    path.write_text(sectors_text(bars), encoding="utf-8")
    again = label([random_bars(0, 3, ticker=item.ticker, region=item.region) for item in bars], read_sectors(path))
    assert [item.sector for item in again] == [item.sector for item in bars]


def test_labels_reach_the_manifests_and_a_changed_file_is_noticed(
    write_folder: Callable[..., Path], write: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = write_folder("us", 4)
    stages: list[str] = []

    def prepare(text: str) -> list[str]:
        stages.clear()
        paths = prepare_files(
            [folder], tmp_path / "out", SPEC, sectors=write(text), progress=lambda stage, *_: stages.append(stage)
        )
        return sorted(str(sector) for path in paths for sector in open_shard(path).manifest["sectors"])

    rows = "ticker,sector\nUS0,Energy\nUS1,Energy\nUS2,Health\n"
    assert prepare(f"{rows}*,unknown\n") == ["Energy", "Energy", "Health", "None"]
    assert prepare(f"{rows}*,unknown\n") == ["Energy", "Energy", "Health", "None"]
    assert stages == ["unchanged"]
    assert prepare(f"{rows}US3,Banks\n") == ["Banks", "Energy", "Energy", "Health"]
    with pytest.raises(DataError, match="no sector for us/US3"):
        prepare(rows)
