"""fcfl data synth and partition: from a market in files to the table of its partition, by commands alone."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from data_prep.shards import open_shard
from tests.experiments.tiny import fcfl

Run = Callable[..., int]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    return lambda *arguments: fcfl(monkeypatch, "data", *arguments)


@pytest.fixture
def refused(run: Run, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def check(*arguments: object) -> str:
        capsys.readouterr()
        assert run(*arguments) == 2
        shown = capsys.readouterr()
        assert shown.err.startswith("fcfl: ")
        assert shown.err.count("\n") == 1
        return shown.err

    return check


def test_a_market_in_files_is_checked_prepared_and_shown(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    market, samples = tmp_path / "market", tmp_path / "samples"
    options = ("--layout", "german", "--universe", "U3", "--tickers", 12, "--jumps", 1, "--stress", "2023-06-01")
    assert run("synth", "--out", market, *options) == 0
    shown = capsys.readouterr().out
    assert "12 tickers in layout german" in shown
    regions = [market / name for name in ("us", "eu", "jp")]
    assert all(str(folder) in shown for folder in regions)
    assert run("check", *regions, market / "macro", market / "factors") == 0
    prepare = "prepare", *regions, market / "macro", market / "factors", "--out", samples, "--silos", 4
    assert run(*prepare, "--sectors", market / "sectors.csv", "--universe", "U3") == 0
    assert "U3 (Global Small): 12 of its 180 tickers" in capsys.readouterr().out
    assert open_shard(samples / "silo-00").manifest["neutral_groups"] == []
    files = {ending: tmp_path / f"partition.{ending}" for ending in ("json", "csv", "png", "svg")}
    assert run("partition", samples, "--json", files["json"], "--csv", files["csv"], "--picture", files["png"]) == 0
    shown = capsys.readouterr().out
    assert "mean total-variation distance from all silos" in shown
    found = json.loads(files["json"].read_text())
    assert len(found["silos"]) == 4
    for item in found["silos"]:
        assert item["silo"] in shown
        assert "unknown" not in item["sectors"]
    assert len(list(csv.reader(files["csv"].open()))) == 1 + 4 + 2
    assert files["png"].stat().st_size > 10_000
    assert run("partition", samples, "--picture", files["svg"]) == 0
    assert files["svg"].read_text().count("silo-0") == 4


def test_a_universe_sets_what_is_not_given(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "samples"
    assert run("synth", "--out", out, "--universe", "u1", "--tickers", 30) == 0
    record = json.loads((out / "federation.json").read_text())
    assert record["spec"]["silos"] == 20
    assert record["spec"]["tickers"] == 320
    assert record["sources"]["synthetic"]["regions"] == [{"name": "us", "share": 1.0, "exchange": "XNYS"}]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--layout", "yaho"), "layout: found 'yaho'"),
        (("--universe", "U9"), "universe: found 'U9'"),
        (("--stress", "June"), "--stress: found 'June'"),
        (("--stress", "2030-01-01"), "stress window: found 60 days from 2030-01-01"),
        (("--stress", "2023-06-01", "--stress-correlation", 2), "found correlation=2"),
        (("--jumps", -1), "found jumps=-1"),
    ],
)
def test_an_option_that_cannot_be_is_refused_and_nothing_is_written(
    refused: Callable[..., str], tmp_path: Path, options: tuple[object, ...], message: str
) -> None:
    assert message in refused("synth", "--out", tmp_path / "out", "--tickers", 8, *options)
    assert not list((tmp_path / "out").glob("*"))


def test_partition_refuses_what_is_not_prepared_and_pictures_it_cannot_draw(
    refused: Callable[..., str], tmp_path: Path
) -> None:
    assert "no silo-00" in refused("partition", tmp_path)
    assert "expected .png or .svg" in refused("partition", tmp_path, "--picture", tmp_path / "p.pdf")


def test_a_missing_file_of_sectors_is_named(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "us").mkdir()
    (tmp_path / "us" / "A.csv").write_text("Date,Open,High,Low,Close,Volume\n2020-01-02,1,1,1,1,1\n")
    line = refused("prepare", tmp_path / "us", "--out", tmp_path / "out", "--sectors", tmp_path / "none.csv")
    assert "none.csv" in line
