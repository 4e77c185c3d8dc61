"""Files get their name only once they are good, keep it, and are not asked for twice."""

from __future__ import annotations

import hashlib
import os
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from data_prep.errors import DataError
from data_prep.fetch.checksums import CHECKSUM_FILE, read_sums
from data_prep.fetch.errors import FetchError, UnexpectedAnswerError
from data_prep.fetch.sources import fred_targets, french_targets, stooq_archive, stooq_targets
from data_prep.fetch.store import Outcome, Status, fetch_all, unpack_archive
from data_prep.fetch.transport import Downloader
from data_prep.prepare import check_folders
from data_prep.readers.factors import FACTORS, read_factors
from data_prep.readers.macro import SERIES, read_macro
from tests.data_prep.fetch.site import (
    FIVE_ZIP,
    MOMENTUM_ZIP,
    POLISH_CSV,
    STOOQ_CSV,
    Reply,
    Site,
    fred_csv,
    text,
    zipped,
)

Fetch = Callable[..., list[Outcome]]
AAPL = "/q/d/l/?s=aapl.us&i=d"
FIVE_PATH = "/F-F_Research_Data_5_Factors_2x3_daily_CSV.zip"
MOMENTUM_PATH = "/F-F_Momentum_Factor_daily_CSV.zip"
BULK = zipped(
    **{
        "data/daily/us/nasdaq stocks/1/aapl.us.txt": "<TICKER>,<PER>,<DATE>,<TIME>,<OPEN>,<HIGH>,<LOW>,<CLOSE>,<VOL>,"
        "<OPENINT>\r\nAAPL.US,D,20240102,000000,1,2,0.5,1.5,10,0\r\n",
        "data/daily/us/nasdaq stocks/2/dead.us.txt": "",
    }
)


def visible(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def test_stooq_files_land_where_the_check_reads_them(site: Site, fetch: Fetch, tmp_path: Path) -> None:
    site.give(AAPL, text(STOOQ_CSV))
    site.give("/q/d/l/?s=%5Espx&i=d", text(POLISH_CSV))
    outcomes = fetch(stooq_targets(["AAPL.US", "^spx", "aapl.us"], base_url=site.url))
    assert [outcome.status for outcome in outcomes] == [Status.FETCHED, Status.FETCHED]
    assert visible(tmp_path / "out") == {"aapl.us.csv", "^spx.csv", CHECKSUM_FILE}
    checked = check_folders([tmp_path / "out"])
    assert {item.figures.ticker: item.figures.layout for item in checked.judged} == {
        "aapl.us": "ohlcv",
        "^spx": "stooq-polish",
    }


def test_fred_series_become_a_macro_folder(site: Site, fetch: Fetch, tmp_path: Path) -> None:
    for series in SERIES:
        site.give(f"/graph/fredgraph.csv?id={series}", text(fred_csv(series)))
    fetch(fred_targets(base_url=site.url))
    assert {name: len(found.values) for name, found in read_macro(tmp_path / "out").items()} == dict.fromkeys(SERIES, 2)


def test_factor_archives_become_a_factor_folder(site: Site, fetch: Fetch, tmp_path: Path) -> None:
    site.give(FIVE_PATH, Reply(FIVE_ZIP))
    site.give(MOMENTUM_PATH, Reply(MOMENTUM_ZIP))
    fetch(french_targets(base_url=site.url))
    assert set(read_factors(tmp_path / "out").returns) == set(FACTORS)


def test_the_archives_of_the_data_library_are_taken_byte_for_byte(
    site: Site, fetch: Fetch, tmp_path: Path, real: Path
) -> None:
    original = real / "factors_french" / "202407_original"
    for target in french_targets(base_url=site.url):
        site.give(f"/{target.name}", Reply((original / target.name).read_bytes()))
    fetch(french_targets(base_url=site.url))
    for target in french_targets(base_url=site.url):
        for name in (target.name, target.unpacked):
            assert (tmp_path / "out" / name).read_bytes() == (original / name).read_bytes()


@pytest.mark.parametrize("name", ["english_header/tsm_us_d.csv", "polish_header/^spx_d.csv"])
def test_stooqs_own_files_are_good_answers(site: Site, fetch: Fetch, tmp_path: Path, real: Path, name: str) -> None:
    body = (real / "stooq_symbol_csv" / name).read_bytes()
    site.give(AAPL, Reply(body))
    assert fetch(stooq_targets(["aapl.us"], base_url=site.url))[0].fault is None
    assert (tmp_path / "out" / "aapl.us.csv").read_bytes() == body


@pytest.mark.parametrize("vintage", ["2026_vintage_observation_date", "2020_vintage_DATE"])
def test_freds_own_files_are_good_answers(site: Site, fetch: Fetch, real: Path, vintage: str) -> None:
    for series in SERIES:
        body = (real / "macro_fred" / vintage / f"{series}.csv").read_bytes()
        site.give(f"/graph/fredgraph.csv?id={series}", Reply(body))
    assert [outcome.fault for outcome in fetch(fred_targets(base_url=site.url))] == [None] * 4


def test_a_file_with_the_right_checksum_is_not_asked_for_again(site: Site, fetch: Fetch) -> None:
    site.give(AAPL, text(STOOQ_CSV))
    site.give(FIVE_PATH, Reply(FIVE_ZIP))
    targets = [*stooq_targets(["aapl.us"], base_url=site.url), french_targets(base_url=site.url)[0]]
    fetch(targets)
    assert [outcome.status for outcome in fetch(targets)] == [Status.KEPT, Status.KEPT]
    assert len(site.asked) == 2


def test_a_damaged_file_is_fetched_again(site: Site, fetch: Fetch, tmp_path: Path) -> None:
    site.give(AAPL, text(STOOQ_CSV))
    targets = stooq_targets(["aapl.us"], base_url=site.url)
    fetch(targets)
    (tmp_path / "out" / "aapl.us.csv").write_text(STOOQ_CSV[:-20])
    assert fetch(targets)[0].status is Status.REPAIRED
    assert (tmp_path / "out" / "aapl.us.csv").read_text() == STOOQ_CSV


def test_a_lost_content_comes_from_the_archive_that_is_there(site: Site, fetch: Fetch, tmp_path: Path) -> None:
    site.give(FIVE_PATH, Reply(FIVE_ZIP))
    targets = french_targets(base_url=site.url)[:1]
    fetch(targets)
    content = tmp_path / "out" / targets[0].unpacked
    before = content.read_bytes()
    content.unlink()
    assert fetch(targets)[0].status is Status.KEPT
    assert content.read_bytes() == before
    assert len(site.asked) == 1


def test_somebody_elses_file_is_never_replaced_unasked(site: Site, fetch: Fetch, tmp_path: Path) -> None:
    site.give(AAPL, text(STOOQ_CSV))
    targets = stooq_targets(["aapl.us"], base_url=site.url)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "aapl.us.csv").write_text("mine")
    fault = fetch(targets)[0].fault
    assert type(fault) is FetchError
    assert "move it away" in str(fault)
    assert site.asked == []
    assert (tmp_path / "out" / "aapl.us.csv").read_text() == "mine"
    assert fetch(targets, refresh=True)[0].status is Status.FETCHED


def test_refresh_replaces_by_a_good_answer_and_never_by_a_bad_one(site: Site, fetch: Fetch, tmp_path: Path) -> None:
    site.give(AAPL, text(STOOQ_CSV), text("Exceeded the daily hits limit"), text(STOOQ_CSV + "2024-01-10,1,1,1,1,1\n"))
    targets = stooq_targets(["aapl.us"], base_url=site.url)
    fetch(targets)
    sums = (tmp_path / "out" / CHECKSUM_FILE).read_bytes()
    assert fetch(targets, refresh=True)[0].status is Status.FAILED
    assert (tmp_path / "out" / "aapl.us.csv").read_text() == STOOQ_CSV
    assert (tmp_path / "out" / CHECKSUM_FILE).read_bytes() == sums
    assert fetch(targets, refresh=True)[0].status is Status.FETCHED
    assert "2024-01-10" in (tmp_path / "out" / "aapl.us.csv").read_text()


def test_sha256sum_accepts_the_checksum_file(site: Site, fetch: Fetch, tmp_path: Path) -> None:
    site.give(AAPL, text(STOOQ_CSV))
    site.give(FIVE_PATH, Reply(FIVE_ZIP))
    fetch([*stooq_targets(["aapl.us"], base_url=site.url), french_targets(base_url=site.url)[0]])
    done = subprocess.run(
        ["sha256sum", "--check", "--strict", CHECKSUM_FILE], cwd=tmp_path / "out", capture_output=True, text=True
    )
    assert done.returncode == 0
    assert done.stdout.count(": OK") == 3


def test_a_crash_between_checksum_and_name_costs_a_fetch_and_nothing_else(
    site: Site, fetch: Fetch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.give(AAPL, text(STOOQ_CSV), text(STOOQ_CSV + "2024-01-10,1,1,1,1,1\n"))
    targets = stooq_targets(["aapl.us"], base_url=site.url)
    fetch(targets)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", crash_on("aapl.us.csv"))
        with pytest.raises(KeyboardInterrupt):
            fetch(targets, refresh=True)
    assert (tmp_path / "out" / "aapl.us.csv").read_text() == STOOQ_CSV
    assert fetch(targets)[0].status is Status.REPAIRED
    content = (tmp_path / "out" / "aapl.us.csv").read_bytes()
    assert read_sums(tmp_path / "out") == {"aapl.us.csv": hashlib.sha256(content).hexdigest()}


def crash_on(name: str) -> Callable[[Path, Path], Path]:
    rename = os.replace

    def replace(self: Path, target: Path) -> Path:
        if Path(target).name == name:
            raise KeyboardInterrupt
        rename(self, target)
        return Path(target)

    return replace


def test_two_commands_never_write_to_one_folder(site: Site, fetch: Fetch, tmp_path: Path) -> None:
    from data_prep.fetch.retry import Policy

    site.give(AAPL, text(STOOQ_CSV))
    targets = stooq_targets(["aapl.us"], base_url=site.url)

    def meanwhile(_outcome: Outcome) -> None:
        with pytest.raises(DataError, match="another 'fcfl data fetch'"):
            fetch(targets)

    with Downloader(Policy(delay=0.0)) as downloader:
        fetch_all(targets, tmp_path / "out", downloader, report=meanwhile)


def test_a_market_archive_is_unpacked_for_the_check(site: Site, fetch: Fetch, tmp_path: Path) -> None:
    site.give("/db/d/?b=d_us_txt", Reply(BULK))
    assert fetch([stooq_archive("us", base_url=site.url)])[0].status is Status.FETCHED
    checked = check_folders([tmp_path / "out"])
    assert [(item.figures.ticker, item.figures.layout) for item in checked.judged] == [("AAPL.US", "stooq-bulk")]
    assert fetch([stooq_archive("us", base_url=site.url)])[0].status is Status.KEPT


def test_an_archive_downloaded_by_hand_is_unpacked_for_some_symbols(tmp_path: Path) -> None:
    (tmp_path / "d_us_txt.zip").write_bytes(BULK)
    folder, count = unpack_archive(tmp_path / "d_us_txt.zip", tmp_path / "out", ["AAPL.US"])
    assert (folder, count) == (tmp_path / "out" / "d_us_txt", 1)
    assert [path.name for path in folder.rglob("*.txt")] == ["aapl.us.txt"]
    with pytest.raises(DataError, match="is there already"):
        unpack_archive(tmp_path / "d_us_txt.zip", tmp_path / "out")
    assert unpack_archive(tmp_path / "d_us_txt.zip", tmp_path / "out", refresh=True)[1] == 2


def test_symbols_missing_from_an_archive_are_named_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "d_us_txt.zip").write_bytes(BULK)
    with pytest.raises(FetchError, match=r"no file of msft\.us in it"):
        unpack_archive(tmp_path / "d_us_txt.zip", tmp_path / "out", ["aapl.us", "msft.us"])
    assert visible(tmp_path / "out") == set()
    assert list((tmp_path / "out").glob(".preparing-*")) == []


def test_a_damaged_archive_leaves_the_unpacked_folder_as_it_was(tmp_path: Path) -> None:
    archive = tmp_path / "d_us_txt.zip"
    archive.write_bytes(BULK)
    folder, _ = unpack_archive(archive, tmp_path / "out")
    with zipfile.ZipFile(archive) as opened:
        start = opened.infolist()[0].header_offset + 30 + len(opened.infolist()[0].filename)
    archive.write_bytes(BULK[:start] + bytes([BULK[start] ^ 0xFF]) + BULK[start + 1 :])
    with pytest.raises(UnexpectedAnswerError, match="not a whole zip archive"):
        unpack_archive(archive, tmp_path / "out", refresh=True)
    assert len(list(folder.rglob("*.txt"))) == 2
