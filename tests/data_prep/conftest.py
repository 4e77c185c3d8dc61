"""Small inputs that the tests write themselves, and where the real files lie on machines that have them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from data_prep.bars import Bars
from data_prep.calendar import Aligned, align

REAL = Path(__file__).resolve().parents[2].parent / "shared" / "data"


@pytest.fixture
def real() -> Path:
    if not REAL.is_dir():
        pytest.skip("real market files are not on this machine (../shared/data)")
    return REAL


def random_bars(seed: int, n: int = 400, *, start: str = "2020-01-01", ticker: str = "T", region: str = "r") -> Bars:
    rng = np.random.default_rng(seed)
    days = np.arange(np.datetime64(start), np.datetime64(start) + 2 * n)
    days = days[np.is_busday(days)][:n]
    close = 50.0 * np.exp(np.cumsum(rng.normal(0.0, 0.015, n)))
    open_ = np.r_[50.0, close[:-1]] * np.exp(rng.normal(0.0, 0.006, n))
    high = np.maximum(open_, close) * np.exp(np.abs(rng.normal(0.0, 0.006, n)))
    low = np.minimum(open_, close) * np.exp(-np.abs(rng.normal(0.0, 0.006, n)))
    volume = np.round(np.exp(rng.normal(12.0, 0.6, n)))
    return Bars(ticker, region, None, days, open_, high, low, close, volume)


@pytest.fixture
def make_bars() -> Callable[..., Bars]:
    return random_bars


@pytest.fixture
def make_aligned() -> Callable[[Bars], Aligned]:
    def make(bars: Bars) -> Aligned:
        aligned = align(bars, bars.dates, limit=3)
        assert aligned is not None
        return aligned

    return make


def yahoo_text(bars: Bars, *, adjust: float | None = None) -> str:
    header = "Date,Open,High,Low,Close,Adj Close,Volume" if adjust else "Date,Open,High,Low,Close,Volume"
    lines = [header]
    for i, day in enumerate(bars.dates):
        cells = [f"{v[i]:.6f}" for v in (bars.open, bars.high, bars.low, bars.close)]
        if adjust:
            cells.append(f"{bars.close[i] * adjust:.6f}")
        lines.append(",".join([str(day), *cells, f"{bars.volume[i]:.0f}"]))
    return "\n".join(lines) + "\n"


@pytest.fixture
def write_folder(tmp_path: Path) -> Callable[..., Path]:
    def write(name: str, tickers: int, *, n: int = 900, start: str = "2020-01-01", seed: int = 0) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        for i in range(tickers):
            bars = random_bars(seed + i, n, start=start)
            (folder / f"{name.upper()}{i}.csv").write_text(yahoo_text(bars), encoding="utf-8")
        return folder

    return write


@pytest.fixture
def macro_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "macro"
    folder.mkdir()
    months = np.arange(np.datetime64("2017-01"), np.datetime64("2025-01"))
    rng = np.random.default_rng(5)
    for name, base in (("FEDFUNDS", 2.0), ("INDPRO", 100.0), ("UNRATE", 5.0), ("CPIAUCSL", 250.0)):
        values = base * np.exp(np.cumsum(rng.normal(0.001, 0.01, len(months))))
        rows = [f"{month}-01,{value:.4f}" for month, value in zip(months, values, strict=True)]
        rows[3] = f"{months[3]}-01,."
        (folder / f"{name}.csv").write_text(f"observation_date,{name}\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return folder


@pytest.fixture
def factor_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "factors"
    folder.mkdir()
    days = np.arange(np.datetime64("2019-06-03"), np.datetime64("2024-12-31"))
    days = days[np.is_busday(days)]
    rng = np.random.default_rng(6)
    for file, names in (("five.CSV", ("Mkt-RF", "SMB", "HML", "RMW", "CMA", "RF")), ("mom.CSV", ("Mom   ",))):
        lines = ["This file was created by somebody.  Missing data are -99.99, or -999.", "", "," + ",".join(names)]
        for day in days:
            cells = [f"{value:7.2f}" for value in rng.normal(0.0, 0.8, len(names))]
            lines.append(",".join([str(day).replace("-", ""), *cells]))
        lines += ["", "Copyright 2024 Somebody"]
        (folder / file).write_text("\r\n".join(lines), encoding="utf-8")
    return folder
