"""The synthetic market as ordinary files: prices per region, FRED and Ken French files, sector labels."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from data_prep.bars import Bars
from data_prep.errors import DataError
from data_prep.files import scratch_directory, sync_directory, write_json
from data_prep.readers.factors import FACTORS, DailyFactors
from data_prep.readers.macro import MonthlySeries
from data_prep.sectors import sectors_text
from data_prep.spec import Progress
from data_prep.synthetic.forms import PARQUET_COLUMNS, Form, form_named, render
from data_prep.synthetic.market import GENERATOR_VERSION, simulate
from data_prep.synthetic.public_series import MACRO_DIGITS, public_series
from data_prep.synthetic.spec import MarketSpec

__all__ = ["FACTOR_FOLDER", "MACRO_FOLDER", "SECTOR_FILE", "write_market"]

MACRO_FOLDER, FACTOR_FOLDER, SECTOR_FILE = "macro", "factors", "sectors.csv"
_RECORD = "market.json"
_FIVE = "F-F_Research_Data_5_Factors_2x3_daily.CSV"
_MOMENTUM = "F-F_Momentum_Factor_daily.CSV"


def write_market(out: Path, spec: MarketSpec, layout: str, *, progress: Progress | None = None) -> list[Path]:
    """Write a synthetic market into a folder.

    Parameters
    ----------
    out : Path
        Gets a folder per region, `macro` and `factors`, the file `sectors.csv`, and `market.json` with the settings.
        Appears whole or not at all. Left alone if it holds the same market already. The conditional mean is in none of
        the files.
    spec : MarketSpec
        Settings.
    layout : str
        One of the readers' layouts, or `stooq`, `yahoo-old`, `yfinance`, `parquet`.
    progress : callable, optional
        Called with "files", done, total.

    Returns
    -------
    list of Path
        The regions' folders.

    Raises
    ------
    DataError
        For an unknown layout, or a folder that holds something else.
    """
    form = form_named(layout)
    record = json.loads(
        json.dumps({"version": GENERATOR_VERSION, "layout": layout, "market": asdict(spec)}, default=str)
    )
    folders = [out / region.name for region in spec.regions]
    reserved = {MACRO_FOLDER, FACTOR_FOLDER} & {region.name for region in spec.regions}
    if reserved:
        raise DataError(f"synthetic market: found a region named {reserved.pop()!r}, a name the public series need")
    if out.exists() and any(out.iterdir()):
        if _is_record(out / _RECORD, record):
            return folders
        raise DataError(f"{out}: found files of something else, expected an empty or a new folder; name another one")
    bars = simulate(spec)
    series = public_series(spec, bars)
    out.parent.mkdir(parents=True, exist_ok=True)
    with scratch_directory(out.parent) as scratch:
        fresh = scratch / "market"
        fresh.mkdir()
        _write_prices(fresh, form, bars, [region.name for region in spec.regions], progress)
        _write_macro(fresh / MACRO_FOLDER, series.macro)
        _write_factors(fresh / FACTOR_FOLDER, series.factors)
        (fresh / SECTOR_FILE).write_text(sectors_text(bars), encoding="utf-8")
        write_json(fresh / _RECORD, record)
        for folder in [*sorted(path for path in fresh.iterdir() if path.is_dir()), fresh]:
            sync_directory(folder)
        if out.exists():
            out.rmdir()
        fresh.rename(out)
        sync_directory(out)
    return folders


def _is_record(path: Path, record: Mapping[str, object]) -> bool:
    try:
        return bool(json.loads(path.read_text(encoding="utf-8")) == record)
    except (OSError, ValueError):
        return False


def _write_prices(
    out: Path, form: Form, bars: Sequence[Bars], regions: Sequence[str], progress: Progress | None
) -> None:
    done = 0
    for region in regions:
        (out / region).mkdir()
        items = [item for item in bars if item.region == region]
        files = {"prices": items} if form.one_file else {item.ticker: [item] for item in items}
        for stem, group in files.items():
            path = out / region / f"{stem}{form.suffix}"
            if form.layout is None:
                _write_parquet(path, group[0])
            else:
                path.write_text(render(form, group), encoding="utf-8", newline="\n")
            done += len(group)
            if progress is not None:
                progress("files", done, len(bars))


def _write_parquet(path: Path, bars: Bars) -> None:
    columns = {name: bars.dates if name == "date" else getattr(bars, name) for name in PARQUET_COLUMNS}
    pd.DataFrame(columns).to_parquet(path, index=False)


def _write_macro(folder: Path, macro: Mapping[str, MonthlySeries]) -> None:
    folder.mkdir()
    for name, series in macro.items():
        rows = [f"{m}-01,{v:.{MACRO_DIGITS[name]}f}" for m, v in zip(series.months, series.values, strict=True)]
        text = "\n".join([f"observation_date,{name}", *rows]) + "\n"
        (folder / f"{name}.csv").write_text(text, encoding="utf-8", newline="\n")


def _write_factors(folder: Path, factors: DailyFactors) -> None:
    folder.mkdir()
    for file, names in ((_FIVE, FACTORS[:5]), (_MOMENTUM, FACTORS[5:])):
        columns = [100.0 * factors.returns[name] for name in names]
        rows = [
            ",".join([str(day).replace("-", ""), *(f"{value:8.2f}" for value in values)])
            for day, *values in zip(factors.dates, *columns, strict=True)
        ]
        head = ["Made by the synthetic market. Missing data are indicated by -99.99 or -999.", ""]
        text = "\r\n".join([*head, "," + ",".join(names), *rows, "", "Copyright: none"]) + "\r\n"
        (folder / file).write_text(text, encoding="utf-8", newline="")
