"""Entry points: folders of files, or the synthetic market -> one directory of samples per silo."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

from data_prep.bars import Dates
from data_prep.calendar import common_days, exchange_days
from data_prep.check.file import CHECK_VERSION
from data_prep.check.findings import Level
from data_prep.check.folder import Checked, check_files
from data_prep.errors import DataError
from data_prep.features.compute import Context, build_context
from data_prep.federation import build_federation, is_up_to_date, run_fingerprint, silo_paths
from data_prep.files import fingerprint, work_directory
from data_prep.readers.factors import factor_files, is_factor_folder, read_factors
from data_prep.readers.folder import PriceFile, check_exclude, list_price_files
from data_prep.readers.macro import is_macro_folder, macro_files, read_macro
from data_prep.sectors import label, read_sectors
from data_prep.spec import HISTORY_DAYS, FederationSpec, Progress
from data_prep.splits import Splits
from data_prep.store import StoredBars, store_bars
from data_prep.synthetic import GENERATOR_VERSION, MarketSpec, simulate
from data_prep.workers import Workers

__all__ = ["FederationSpec", "Splits", "check_folders", "prepare_files", "prepare_synthetic"]


def check_folders(
    folders: Sequence[Path],
    *,
    exclude: Collection[str] = (),
    layout: str | None = None,
    markets: Mapping[str, str] | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Checked:
    """Judge folders of price files as the preparation would; folders of macro and factor files are read, too.

    Parameters
    ----------
    folders : sequence of Path
        As for `prepare_files`.
    exclude, layout, markets, progress
        As for `check_files`.
    workers : int, optional
        Processes, by default one per core; the result does not depend on it.

    Raises
    ------
    DataError
        For a folder that is missing or empty, and for macro or factor files that cannot be read.
    """
    price_folders, macro, factors = _sort_folders(folders, None, None)
    if macro is not None:
        read_macro(macro)
    if factors is not None:
        read_factors(factors)
    files = [file for folder in price_folders for file in list_price_files(folder)]
    check_exclude(files, exclude)
    _check_markets(markets or {}, {file.region for file in files})
    with Workers(workers) as pool:
        return check_files(files, exclude=exclude, layout=layout, markets=markets, workers=pool, progress=progress)


def prepare_files(
    folders: Sequence[Path],
    out: Path,
    spec: FederationSpec,
    *,
    macro: Path | None = None,
    factors: Path | None = None,
    sectors: Path | None = None,
    exclude: Collection[str] = (),
    markets: Mapping[str, str] | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Prepare folders of daily price files.

    Parameters
    ----------
    folders : sequence of Path
        One folder per region bucket; its name becomes the region. A folder that itself holds FRED or Ken French files
        is used as `macro` or `factors` instead.
    out : Path
        Where the silo directories go. Left alone, and reported to `progress` as stage "unchanged", if it holds the
        result of the same files and settings already.
    spec : FederationSpec
        Settings.
    macro, factors : Path, optional
        Folders of public series; without one its features are 0 and the manifests list the group in `neutral_groups`.
    sectors : Path, optional
        File of sector labels (see `data_prep.sectors`); without one all tickers are of unknown sector.
    exclude : collection of str
        Files to leave out, each by name, stem, or path below its folder.
    markets : Mapping of str to str, optional
        Exchange code per region, for example {"fr_cac40": "XPAR"}, instead of the one that the check finds. A region
        without any trades on the days on which at least a fifth of its listed files have a bar.
    workers : int, optional
        Processes, by default one per core; the result does not depend on it.
    progress : callable, optional
        Called with stage, done, total.

    Returns
    -------
    list of Path
        `out/silo-00` and so on.

    Raises
    ------
    DataError
        For any input that cannot be used; nothing in `out` is changed then.

    Notes
    -----
    After an interruption, a kill included, `out/.preparing` holds what was finished; the next call with the same `out`
    goes on from there.
    """
    report = progress or (lambda _stage, _done, _total: None)
    price_folders, macro, factors = _sort_folders(folders, macro, factors)
    files = [file for folder in price_folders for file in list_price_files(folder)]
    check_exclude(files, exclude)
    _check_markets(markets or {}, {file.region for file in files})
    sources = {
        **_describe(files, macro, factors, exclude, markets or {}),
        "sectors": fingerprint(sectors) if sectors is not None else None,
    }
    if is_up_to_date(out, spec, run_fingerprint(spec, sources)):
        report("unchanged", spec.silos, spec.silos)
        return silo_paths(out, spec.silos)
    monthly = read_macro(macro) if macro else None
    daily = read_factors(factors) if factors else None
    labels = read_sectors(sectors) if sectors is not None else None
    with work_directory(out) as work, Workers(workers) as pool:
        shelf = work / "bars"
        shelf.mkdir(exist_ok=True)
        checked = check_files(
            files,
            exclude=exclude,
            layout=spec.layout or None,
            markets=markets or {},
            workers=pool,
            shelf=shelf,
            progress=report,
        )
        bars = [item.stored for item in checked.require(strict=spec.strict)]
        if labels is not None:
            bars = label(bars, labels)
        contexts, calendars = {}, {}
        for region in sorted({item.region for item in bars}):
            days, calendars[region] = _trading_days(region, bars, spec, checked)
            contexts[region] = build_context(days, macro=monthly, factors=daily)
        return build_federation(
            bars,
            contexts,
            out,
            spec,
            work=work,
            workers=pool,
            sources=sources,
            calendars=calendars,
            checked=_account(checked),
            progress=report,
        )


def prepare_synthetic(
    out: Path,
    spec: FederationSpec,
    *,
    tickers: int = 320,
    seed: int = 2025,
    market: MarketSpec | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Prepare the synthetic market through the same pipeline as files.

    Parameters
    ----------
    out : Path
        Where the silo directories go; left alone if it holds the same result already.
    spec : FederationSpec
        Settings.
    tickers : int
        Number of instruments.
    seed : int
        Seed of the market (the partition has `spec.seed`).
    market : MarketSpec, optional
        A market with other settings, instead of a plain one of `tickers` and `seed`.
    workers : int, optional
        Processes, by default one per core; the result does not depend on it.
    progress : callable, optional
        Called with stage, done, total.

    Returns
    -------
    list of Path
        `out/silo-00` and so on, each with `truth` arrays.
    """
    report = progress or (lambda _stage, _done, _total: None)
    market = market or MarketSpec(tickers=tickers, seed=seed)
    settings = json.loads(json.dumps(asdict(market), default=str))
    sources: dict[str, Any] = {"synthetic": {"version": GENERATOR_VERSION, **settings}}
    if is_up_to_date(out, spec, run_fingerprint(spec, sources)):
        report("unchanged", spec.silos, spec.silos)
        return silo_paths(out, spec.silos)
    with work_directory(out) as work, Workers(workers) as pool:
        shelf = work / "bars"
        shelf.mkdir(exist_ok=True)
        bars = [store_bars(item, shelf / f"{number}.npy") for number, item in enumerate(simulate(market))]
        report("market", 1, 1)
        contexts: dict[str, Context] = {}
        calendars = {}
        for region in sorted({item.region for item in bars}):
            days, calendars[region] = _trading_days(region, bars, spec, None)
            contexts[region] = build_context(days)
        return build_federation(
            bars,
            contexts,
            out,
            spec,
            work=work,
            workers=pool,
            sources=sources,
            calendars=calendars,
            progress=report,
        )


def _sort_folders(
    folders: Sequence[Path], macro: Path | None, factors: Path | None
) -> tuple[list[Path], Path | None, Path | None]:
    prices: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise DataError(f"{folder}: no such folder, expected a folder of price files; check the path")
        if is_macro_folder(folder):
            if macro is not None and macro != folder:
                raise DataError(f"{folder}: a second folder of FRED files beside {macro}, expected one; remove one")
            macro = folder
        elif is_factor_folder(folder):
            if factors is not None and factors != folder:
                raise DataError(f"{folder}: a second folder of factor files beside {factors}, expected one; remove one")
            factors = folder
        else:
            prices.append(folder)
    if not prices:
        raise DataError("no folder of price files was given, expected at least one; add a folder of daily price files")
    names = [folder.resolve().name for folder in prices]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise DataError(
                f"{prices[i]}: its name {name!r} is that of {prices[names.index(name)]} too, expected distinct names, "
                "which become the regions; rename one"
            )
    return prices, macro, factors


def _check_markets(markets: Mapping[str, str], regions: Collection[str]) -> None:
    for region in markets:
        if region not in regions:
            known = ", ".join(sorted(regions))
            raise DataError(f"markets names {region!r}, which is not among the regions {known}; correct the name")


def _describe(
    files: Sequence[PriceFile],
    macro: Path | None,
    factors: Path | None,
    exclude: Collection[str],
    markets: Mapping[str, str],
) -> dict[str, Any]:
    return {
        "prices": {file.name: fingerprint(file.path) for file in files},
        "macro": {path.name: fingerprint(path) for path in macro_files(macro).values()} if macro else None,
        "factors": {path.name: fingerprint(path) for path in factor_files(factors)} if factors else None,
        "rules": CHECK_VERSION,
        "exclude": sorted(exclude),
        "markets": dict(sorted(markets.items())),
    }


def _account(checked: Checked) -> dict[str, dict[str, Any]]:
    """Return, per ticker in use, how its file was read and what was left out or repaired; the rest under its file."""
    account: dict[str, dict[str, Any]] = {}
    for item in checked.usable:
        account[item.stored.key] = {
            "file": item.figures.file,
            "layout": item.figures.layout,
            "left_out": dict(sorted(item.figures.left_out.items())),
            "findings": [finding.text for finding in item.findings if finding.level is not Level.NOTE],
        }
    for file, ticker in sorted(checked.unusable):
        texts = [x.text for x in checked.findings if (x.file, x.ticker, x.level) == (file, ticker, Level.TICKER)]
        account[f"{file}: {ticker}" if ticker else file] = {"file": file, "ticker_left_out": texts}
    return account


def _trading_days(
    region: str, bars: Sequence[StoredBars], spec: FederationSpec, checked: Checked | None
) -> tuple[Dates, dict[str, Any]]:
    """Return a region's trading days, and which calendar they are of, for the manifest."""
    first, last = spec.splits.first_day - timedelta(days=HISTORY_DAYS), spec.splits.last_day
    market = checked.markets.get(region) if checked is not None else None
    if checked is not None and market is not None:
        days = exchange_days(market, first=first, last=last)
        return days, {"market": market, "by": checked.market_by[region], "sessions": len(days)}
    days = common_days((item.dates() for item in bars if item.region == region), first=first, last=last)
    return days, {"market": None, "by": "days that a fifth of the listed files share", "sessions": len(days)}
