"""``fcfl data fetch``: what it prints, its exit codes, and that it can be killed at any moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from data_prep.readers.macro import SERIES
from tests.data_prep.fetch.site import FIVE_ZIP, MOMENTUM_ZIP, STOOQ_CSV, Reply, Site, fred_csv, serving, text
from tests.experiments.tiny import fcfl

ROOT = Path(__file__).resolve().parents[2]
Run = Callable[..., int]
FIVE_PATH = "/F-F_Research_Data_5_Factors_2x3_daily_CSV.zip"
MOMENTUM_PATH = "/F-F_Momentum_Factor_daily_CSV.zip"


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as site:
        yield site


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, site: Site, tmp_path: Path) -> Run:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("FCFL_STOOQ_APIKEY", raising=False)
    return lambda *arguments: fcfl(
        monkeypatch, "data", "fetch", *arguments, "--out", tmp_path / "out", "--base-url", site.url, "--delay", 0
    )


def year_of_prices() -> str:
    days = np.arange(np.datetime64("2023-01-03"), np.datetime64("2023-12-30"))
    walk = 100.0 * np.exp(np.cumsum(np.random.default_rng(1).normal(0.0, 0.01, len(days))))
    rows = [
        f"{day},{price:.3f},{price * 1.01:.3f},{price * 0.99:.3f},{price:.3f},{1000 + i}\n"
        for i, (day, price) in enumerate(zip(days, walk, strict=True))
        if np.is_busday(day)
    ]
    return STOOQ_CSV[:32] + "".join(rows)


def test_fetched_folders_are_accepted_by_the_check(
    run: Run, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for series in SERIES:
        site.give(f"/graph/fredgraph.csv?id={series}", text(fred_csv(series)))
    assert run("fred") == 0
    assert "4 of 4 files in" in capsys.readouterr().out
    site.give("/q/d/l/?s=aapl.us&i=d", text(year_of_prices()))
    assert fcfl(monkeypatch, "data", "fetch", "stooq", "aapl.us", "--out", tmp_path / "us", "--base-url", site.url) == 0
    capsys.readouterr()
    assert fcfl(monkeypatch, "data", "check", tmp_path / "us", tmp_path / "out") == 0
    assert "1 of 1 tickers in 1 files usable" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (text("Exceeded the daily hits limit"), 3),
        (text("Get your apikey:"), 4),
        (text("No data"), 5),
        (text("x", status=503), 6),
        (text("<html>"), 7),
    ],
)
def test_every_fault_is_one_line_with_its_own_exit_code(
    run: Run, site: Site, capsys: pytest.CaptureFixture[str], reply: Reply, code: int
) -> None:
    site.give("/q/d/l/?s=aapl.us&i=d", reply)
    assert run("stooq", "aapl.us", "--attempts", 1) == code
    shown = capsys.readouterr()
    assert shown.err.startswith("fcfl: ")
    assert shown.err.count("\n") == 1
    assert "0 of 1 files" in shown.out


def test_the_exit_code_is_that_of_the_fault_that_stopped(run: Run, site: Site) -> None:
    site.give("/q/d/l/?s=a.us&i=d", text("No data"))
    site.give("/q/d/l/?s=b.us&i=d", text("Exceeded the daily hits limit"))
    assert run("stooq", "a.us", "b.us", "c.us") == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ("stooq",),
        ("stooq", "a/b"),
        ("stooq", "a.us", "--market", "us"),
        ("stooq", "--market", "U S"),
        ("stooq", "--market", "us", "--archive", "x.zip"),
        ("stooq", "--archive", "missing.zip"),
    ],
)
def test_a_wrong_command_is_refused_before_anything_is_asked(
    run: Run, site: Site, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert run(*arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert site.asked == []


def test_the_key_comes_from_the_environment(run: Run, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FCFL_STOOQ_APIKEY", "0123456789abcdef")
    site.give("/q/d/l/?s=aapl.us&i=d&apikey=0123456789abcdef", text(STOOQ_CSV))
    assert run("stooq", "aapl.us") == 0


def test_a_killed_download_is_completed_by_the_next_run(run: Run, site: Site, tmp_path: Path) -> None:
    half = len(FIVE_ZIP) // 2
    site.give(FIVE_PATH, Reply(FIVE_ZIP, etag='"a"', stall=half), Reply(FIVE_ZIP, etag='"a"'))
    site.give(MOMENTUM_PATH, Reply(MOMENTUM_ZIP))
    command = [sys.executable, "-m", "experiments.cli", "data", "fetch", "french", "--base-url", site.url]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path / "out")], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    part = tmp_path / "out" / f".{FIVE_PATH[1:]}.part"
    try:
        assert site.stalled.wait(120)
        while not part.exists() or part.stat().st_size < half:
            assert process.poll() is None
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    site.release.set()
    assert not (tmp_path / "out" / FIVE_PATH[1:]).exists()
    assert run("french") == 0
    assert [headers.get("range") for _, headers in site.asked] == [None, f"bytes={half}-", None]
    assert (tmp_path / "out" / FIVE_PATH[1:]).read_bytes() == FIVE_ZIP
    done = subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path / "out", check=False)
    assert done.returncode == 0
