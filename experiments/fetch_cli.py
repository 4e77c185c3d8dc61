"""``fcfl data fetch``: public files from their publishers."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from data_prep.errors import DataError
from data_prep.fetch.errors import FetchError
from data_prep.fetch.retry import Policy

if TYPE_CHECKING:
    from data_prep.fetch.sources import Target
    from data_prep.fetch.store import Outcome

KEY_VARIABLE = "FCFL_STOOQ_APIKEY"

fetch_cli = typer.Typer(no_args_is_help=True, help="Fetch public files: prices, macroeconomic series, factors.")
console = Console()

Out = Annotated[Path, typer.Option(help="Folder the files go to; files that are there and unharmed are kept.")]
BaseUrl = Annotated[str | None, typer.Option(help="Address of a mirror instead of the publisher's.")]
Refresh = Annotated[bool, typer.Option("--refresh", help="Fetch again what is there.")]
Delay = Annotated[float, typer.Option(min=0.0, max=3600.0, help="Least seconds between two requests.")]
Timeout = Annotated[float, typer.Option(min=0.1, max=3600.0, help="Most seconds of silence from the server.")]
Attempts = Annotated[int, typer.Option(min=1, max=20, help="Most attempts for one file.")]


@fetch_cli.command("stooq")
def stooq(
    out: Out,
    symbols: Annotated[list[str] | None, typer.Argument(help="Stooq's symbols, such as aapl.us or ^spx.")] = None,
    market: Annotated[str | None, typer.Option(help="Fetch the archive of a whole market, such as us.")] = None,
    archive: Annotated[
        Path | None, typer.Option(help="Unpack an archive downloaded with a browser; of the given symbols, or whole.")
    ] = None,
    base_url: BaseUrl = None,
    refresh: Refresh = False,
    delay: Delay = 1.0,
    timeout: Timeout = 30.0,
    attempts: Attempts = 5,
) -> None:
    """Fetch daily prices from Stooq, or unpack its archive; a personal key is taken from FCFL_STOOQ_APIKEY."""
    from data_prep.fetch.sources import BASE_URLS, stooq_archive, stooq_targets
    from data_prep.fetch.store import unpack_archive

    base = base_url or BASE_URLS["stooq"]
    if (market is not None or not symbols) and (market is None or bool(symbols)) and archive is None:
        raise DataError("expected symbols, or --market with none, or --archive; see 'fcfl data fetch stooq --help'")
    if archive is not None:
        if market is not None:
            raise DataError("--archive and --market: expected one of the two; leave one out")
        try:
            folder, count = unpack_archive(archive, out, symbols or (), refresh=refresh)
        except FetchError as fault:
            raise _ended([fault]) from None
        console.print(f"{count} files in {folder}", highlight=False, soft_wrap=True, markup=False)
        return
    if market is not None:
        targets = [stooq_archive(market, base_url=base)]
    else:
        targets = stooq_targets(symbols or (), base_url=base, key=os.environ.get(KEY_VARIABLE, ""))
    _fetch(targets, out, Policy(attempts, delay, timeout), refresh=refresh)


@fetch_cli.command("fred")
def fred(
    out: Out,
    base_url: BaseUrl = None,
    refresh: Refresh = False,
    delay: Delay = 1.0,
    timeout: Timeout = 30.0,
    attempts: Attempts = 5,
) -> None:
    """Fetch FEDFUNDS, INDPRO, UNRATE and CPIAUCSL from FRED."""
    from data_prep.fetch.sources import BASE_URLS, fred_targets

    targets = fred_targets(base_url=base_url or BASE_URLS["fred"])
    _fetch(targets, out, Policy(attempts, delay, timeout), refresh=refresh)


@fetch_cli.command("french")
def french(
    out: Out,
    base_url: BaseUrl = None,
    refresh: Refresh = False,
    delay: Delay = 1.0,
    timeout: Timeout = 30.0,
    attempts: Attempts = 5,
) -> None:
    """Fetch the daily five factors and momentum from Ken French's data library."""
    from data_prep.fetch.sources import BASE_URLS, french_targets

    targets = french_targets(base_url=base_url or BASE_URLS["french"])
    _fetch(targets, out, Policy(attempts, delay, timeout), refresh=refresh)


def _fetch(targets: "list[Target]", out: Path, policy: Policy, *, refresh: bool) -> None:
    from data_prep.fetch.store import Status, fetch_all
    from data_prep.fetch.transport import Downloader

    with Downloader(policy) as downloader:
        outcomes = fetch_all(targets, out, downloader, refresh=refresh, report=_report)
    there = sum(outcome.status not in (Status.FAILED, Status.SKIPPED) for outcome in outcomes)
    console.print(f"{there} of {len(outcomes)} files in {out}", highlight=False, soft_wrap=True, markup=False)
    faults = [outcome.fault for outcome in outcomes if outcome.fault is not None]
    if faults:
        raise _ended(faults)


def _report(outcome: "Outcome") -> None:
    console.print(f"{outcome.target.name}: {outcome.status}", highlight=False, soft_wrap=True, markup=False)


def _ended(faults: list[FetchError]) -> typer.Exit:
    """Print every fault; the exit code is that of the one that stopped the command, else of the first."""
    shown = Console(stderr=True)
    for fault in faults:
        shown.print(f"fcfl: {fault}", style="bold red", highlight=False, markup=False, soft_wrap=True)
    return typer.Exit(next((fault for fault in faults if fault.stops), faults[0]).exit_code)
