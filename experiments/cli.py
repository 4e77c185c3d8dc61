"""The ``fcfl`` command."""

import json
import os
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from client_app.errors import SiloError
from data_prep.errors import DataError
from experiments.arena.cli import experiment_cli
from experiments.arena.errors import StudyError
from experiments.deployment.cli import conduct
from experiments.fetch_cli import fetch_cli
from experiments.market_cli import (
    Alpha,
    MinSamples,
    Seed,
    Silos,
    Universes,
    chosen_universe,
    federation_spec,
    partition,
    synth,
)
from experiments.metrics_cli import export, metrics
from experiments.provision.cli import provision_cli
from experiments.provision.errors import ProvisionError
from experiments.roster_cli import roster_cli
from experiments.run_settings import Preset, Set, read_settings
from experiments.silo_cli import silo_cli
from fcfl_strategy.errors import RunError
from privacy.errors import PrivacyError
from secagg.errors import SecAggError
from server_app.config import KEYS, ConfigError, RunConfig
from server_app.report.data import ReportError

EXPECTED = (
    ConfigError,
    DataError,
    PrivacyError,
    ProvisionError,
    ReportError,
    RunError,
    SecAggError,
    SiloError,
    StudyError,
)

cli = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__, pretty_exceptions_enable=False)
data_cli = typer.Typer(no_args_is_help=True, help="Judge price files and prepare samples from them.")
run_cli = typer.Typer(
    no_args_is_help=True, help="Start and resume runs, of a simulated federation or over deployed silos."
)
ledger_cli = typer.Typer(no_args_is_help=True, help="Privacy ledgers.")
secagg_cli = typer.Typer(no_args_is_help=True, help="Secure aggregation.")
GROUPS = {
    "data": data_cli,
    "run": run_cli,
    "silo": silo_cli,
    "roster": roster_cli,
    "provision": provision_cli,
    "ledger": ledger_cli,
    "secagg": secagg_cli,
    "experiment": experiment_cli,
}
for name, group in GROUPS.items():
    cli.add_typer(group, name=name)
run_cli.command("conduct")(conduct)
run_cli.command("metrics")(metrics)
run_cli.command("export")(export)
data_cli.add_typer(fetch_cli, name="fetch")

data_cli.command("synth")(synth)
data_cli.command("partition")(partition)

console = Console()


class Engine(StrEnum):
    """What carries the messages of a run."""

    SIMULATION = "simulation"
    LOCAL = "local"


Folders = Annotated[
    list[Path], typer.Argument(help="Folders of price files; macro and factor folders may be among them.")
]
Layout = Annotated[
    str | None, typer.Option(help="Layout of all text files, where it cannot be detected; docs/data.md lists them.")
]
Exclude = Annotated[list[str] | None, typer.Option(help="File to leave out.")]
Market = Annotated[list[str] | None, typer.Option(help="Exchange of a folder as folder=code, for example us=XNYS.")]
Strict = Annotated[bool, typer.Option(help="Refuse what would be left out or repaired.")]
Processes = Annotated[int | None, typer.Option("--workers", help="Processes, by default one per core.")]
OnEngine = Annotated[
    Engine, typer.Option("--engine", help="simulation: Flower's engine through 'flwr run'; local: in this process.")
]


def main() -> None:
    """Entry point: expected errors are one line and exit code 2, an interrupt is 130."""
    code = 0
    try:
        # Typer turns an interrupt into a returned exit code.
        code = cli(standalone_mode=False) or 0
    except EXPECTED as error:
        _stop(str(error), 2)
    except OSError as error:
        _stop(f"{error.filename or 'a file'}: {error.strerror or error}; check the path, its rights and the disk", 2)
    except typer.Abort:
        _stop("stopped", 130)
    except KeyboardInterrupt:
        _stop("stopped", 130)
    except Exception as error:  # typer's own usage errors carry their exit code
        if not hasattr(error, "exit_code"):
            raise
        describe = getattr(error, "format_message", lambda: "")
        _stop("" if type(error).__name__ == "NoArgsIsHelpError" else describe(), int(error.exit_code))
    if code:
        _stop("stopped" if code == 130 else "", code)


def _stop(message: str, code: int) -> None:
    if message:
        Console(stderr=True).print(f"fcfl: {message}", style="bold red", highlight=False, markup=False, soft_wrap=True)
    sys.exit(code)


@cli.command()
def demo(
    data: Annotated[
        list[Path] | None, typer.Option(help="Folders of real price files instead of the synthetic market.")
    ] = None,
    silos: Annotated[int, typer.Option(help="Number of silos.")] = 20,
    rounds: Annotated[int, typer.Option(help="Optimisation rounds.")] = 15,
    tickers: Annotated[int, typer.Option(help="Stocks of the synthetic market.")] = 320,
    out: Annotated[Path, typer.Option(help="Folder for prepared samples and runs.")] = Path("runs"),
    engine: OnEngine = Engine.SIMULATION,
    preset: Preset = "",
    settings: Set = None,
) -> None:
    """Train one model over simulated silos and open the way to its report."""
    from data_prep.prepare import FederationSpec, prepare_files, prepare_synthetic

    given = {
        "silos": silos,
        "rounds": rounds,
        "participation.cohort": min(10.0, silos / 2),
        **read_settings(settings, preset),
    }
    _checked(given)
    spec = FederationSpec(silos=silos)
    if data:
        label = "-".join(folder.resolve().name for folder in data)
        shards = prepare_files(data, out / "samples" / f"{label}-{silos}", spec)
    else:
        shards = prepare_synthetic(out / "samples" / f"synthetic-{tickers}-{silos}", spec, tickers=tickers)
    console.print(f"{len(shards)} silos, samples in {shards[0].parent}", highlight=False)
    name = "real" if data else "synthetic"
    _train(out / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}", shards, given, engine)


@data_cli.command("prepare")
def prepare(
    folders: Folders,
    out: Annotated[Path, typer.Option(help="Where the silos' samples go.")],
    silos: Silos = None,
    alpha: Alpha = 0.2,
    min_samples: MinSamples = 1000,
    seed: Seed = 2025,
    universe: Universes = None,
    sectors: Annotated[
        Path | None, typer.Option(help="CSV file ticker,sector[,region]: deals out tickers sector by sector.")
    ] = None,
    exclude: Exclude = None,
    layout: Layout = None,
    market: Market = None,
    strict: Strict = False,
    workers: Processes = None,
) -> None:
    """Turn price files into samples, partitioned over silos."""
    from data_prep.prepare import prepare_files

    chosen = chosen_universe(universe)
    spec = federation_spec(
        chosen, silos, alpha=alpha, seed=seed, min_samples=min_samples, layout=layout or "", strict=strict
    )
    shards = prepare_files(
        folders,
        out,
        spec,
        sectors=sectors,
        exclude=tuple(exclude or ()),
        markets=_markets(market),
        workers=workers,
    )
    for line in _read_as(shards):
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    if chosen is not None and (note := chosen.shortfall(_tickers_in(shards))):
        console.print(note, highlight=False, soft_wrap=True)
    console.print(f"{len(shards)} silos in {out}", highlight=False)


@data_cli.command("check")
def check(
    folders: Folders,
    json_file: Annotated[Path | None, typer.Option("--json", help="File for everything found, as JSON.")] = None,
    html_file: Annotated[Path | None, typer.Option("--html", help="File for a page with a picture per ticker.")] = None,
    exclude: Exclude = None,
    layout: Layout = None,
    market: Market = None,
    strict: Strict = False,
    workers: Processes = None,
) -> None:
    """Judge price files; exit code 0 for clean, 1 for usable with something left out, 2 for refused."""
    from data_prep.check.findings import Level
    from data_prep.check.report import reading, summary, ticker_table, write_html, write_report_json
    from data_prep.prepare import check_folders

    checked = check_folders(
        folders, exclude=tuple(exclude or ()), layout=layout, markets=_markets(market), workers=workers
    )
    console.print(ticker_table(checked))
    for finding in sorted(checked.findings, key=lambda finding: list(Level).index(finding.level)):
        console.print(f"{finding.level}: {finding.text}", highlight=False, soft_wrap=True, markup=False)
    for line in reading(checked):
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    if json_file is not None:
        write_report_json(json_file, checked, strict=strict)
    if html_file is not None:
        title = "Price files: " + ", ".join(folder.resolve().name for folder in folders)
        write_html(html_file, checked, title=title, strict=strict)
    console.print(summary(checked, strict=strict), highlight=False, soft_wrap=True)
    raise typer.Exit(checked.exit_code(strict=strict))


def _markets(given: list[str] | None) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in given or []]
    for region, equals, code in pairs:
        if not equals or not region or not code:
            raise DataError(f"--market: found {region!r}, expected folder=code such as us=XNYS; correct the option")
    return {region: code for region, _, code in pairs}


def _tickers_in(shards: list[Path]) -> int:
    return sum(len(json.loads((shard / "manifest.json").read_text(encoding="utf-8"))["tickers"]) for shard in shards)


def _read_as(shards: list[Path]) -> list[str]:
    """Say in which layouts the files were read and what was left out, from the manifests."""
    from collections import Counter

    layouts: Counter[str] = Counter()
    rows: Counter[str] = Counter()
    for shard in shards:
        for entry in json.loads((shard / "manifest.json").read_text(encoding="utf-8"))["checked"]:
            layouts[entry["layout"]] += 1
            rows.update(entry["left_out"])
    tickers = json.loads((shards[0].parent / "federation.json").read_text(encoding="utf-8"))["tickers_left_out"]
    lines = ["layouts: " + ", ".join(f"{name} ({number})" for name, number in sorted(layouts.items()))]
    if rows:
        found = ", ".join(f"{kind} ({number})" for kind, number in sorted(rows.items()))
        lines.append(f"rows left out or repaired: {found}")
    lines += [f"ticker left out: {text}" for entry in tickers.values() for text in entry["ticker_left_out"]]
    return lines


@run_cli.command("start")
def start(
    samples: Annotated[Path, typer.Argument(help="Folder written by 'fcfl data'.")],
    out: Annotated[Path, typer.Option(help="Run folder to make.")],
    engine: OnEngine = Engine.SIMULATION,
    preset: Preset = "",
    settings: Set = None,
) -> None:
    """Train over the silos of a folder of samples."""
    shards = sorted(samples.glob("silo-*"))
    if not shards:
        raise ConfigError(f"{samples}: no silo-00, silo-01, ... in it; make them with 'fcfl data prepare' or 'synth'")
    _train(out, shards, {"silos": len(shards), **read_settings(settings, preset)}, engine)


@run_cli.command("resume")
def resume(
    run: Annotated[Path, typer.Argument(help="Folder of an interrupted run.")], engine: OnEngine = Engine.SIMULATION
) -> None:
    """Continue an interrupted run where its journal ends."""
    from server_app.run_folder import stored_config

    if (run / "summary.json").exists():
        raise ConfigError(f"{run}: the run has ended; 'fcfl report' writes its report again")
    stored = stored_config(run)["config"]
    (run / "failure.json").unlink(missing_ok=True)
    _conduct(run.resolve(), {**stored, "resume": True}, engine)


@ledger_cli.command("verify")
def ledger_verify(
    file: Annotated[Path, typer.Argument(help="ledger.jsonl of a silo or a run.")],
    anchor: Annotated[Path | None, typer.Option(help="Its anchor file.")] = None,
    key: Annotated[
        Path | None, typer.Option(help="identity.pub of the silo, from a source other than the ledger.")
    ] = None,
) -> None:
    """Check a ledger's chain and signatures, and recompute what every run spent."""
    from privacy.ledger import verify
    from privacy.signing import read_public_key

    found = verify(file, anchor, None if key is None else read_public_key(key))
    table = Table("run", "unit", "releases", "epsilon", "of", "delta", "order", "status", title=str(file))
    for run in found.runs:
        opened = run.opened
        name, dot, budget = opened.run.partition(".")
        row = (f"{name[:12]}{dot}{budget}", opened.unit, run.releases, f"{run.epsilon:.6f}", f"{opened.epsilon:g}")
        table.add_row(*map(str, row), f"{opened.delta:g}", f"{opened.order:g}", opened.status)
    console.print(table)
    if not found.one_adjacency:
        console.print("the runs have different units or neighbours: their epsilons do not add up", highlight=False)
    if found.notice:
        console.print(found.notice, highlight=False, soft_wrap=True)
    if found.unknown_kinds:
        console.print(f"entries of unknown kinds, not accounted: {', '.join(found.unknown_kinds)}", highlight=False)
    console.print(f"{found.count} entries, head {found.hash}", highlight=False, soft_wrap=True)
    whose = "the given key" if found.signer_given else "as the file claims, checked against no key (--key identity.pub)"
    console.print(f"signed by {found.signer}, {whose}", highlight=False, soft_wrap=True)
    if not found.anchored:
        console.print("no anchor given: entries cut off at the end would not be noticed", highlight=False)


@secagg_cli.command("parameters")
def secagg_parameters(
    silos: Annotated[int, typer.Option(min=3, max=16384, help="Number of silos.")],
    dropout: Annotated[float, typer.Option(min=0, max=0.5, help="Share that may be missing in an epoch.")] = 0.05,
    corruption: Annotated[float, typer.Option(min=0, max=0.5, help="Share that may collude with the server.")] = 0.05,
    active: Annotated[bool, typer.Option("--active", help="The server may show the silos different lists.")] = False,
) -> None:
    """Print the smallest regular graph for stated rates, or say that the graph has to be complete."""
    from secagg.graph_parameters import Rates, bounds, smallest

    rates = Rates(corruption, dropout, active)
    found = smallest(silos, rates)
    against = "an active" if active else "a semi-honest"
    table = Table(title=f"{silos} silos, {corruption:g} corrupt, {dropout:g} missing, against {against} server")
    table.add_column("quantity")
    table.add_column("value", justify="right")
    if found is None:
        table.add_row("neighbours per silo", f"{silos - 1} (complete: no regular graph will do)")
    else:
        held = bounds(silos, found.k, rates)
        for label, value in (
            ("neighbours per silo k", found.k),
            ("threshold t", found.t),
            ("silos that must survive", silos - rates.missing(silos)),
            ("corrupt neighbours at most", held.corrupt_neighbours),
            (f"missing at most of {found.k // 2} in a row", held.window_missing),
            ("bits of security", rates.security),
            ("bits of correctness", rates.correctness),
        ):
            table.add_row(label, str(value))
    console.print(table)


@cli.command()
def report(run: Annotated[Path, typer.Argument(help="Folder of a run that has ended.")]) -> None:
    """Write a run's report again."""
    from server_app.report.page import write_report

    console.print(str(write_report(run)), highlight=False, soft_wrap=True)


@cli.command()
def settings() -> None:
    """List every setting of a run with its default."""
    table = Table("setting", "default", "meaning")
    for key, entry in KEYS.items():
        table.add_row(key, str(entry.default), entry.doc)
    console.print(table)


def _checked(given: dict[str, Any]) -> RunConfig:
    """Validate settings and the budget they ask for, before anything is written."""
    from server_app.run_settings import settings_of

    config = RunConfig.from_mapping(given)
    settings_of(config, bytes(16))
    return config


def _train(run: Path, shards: list[Path], given: dict[str, Any], engine: Engine) -> None:
    from experiments.silos import make_silos

    run = run.resolve()
    config = _checked({**given, "simulation-root": str(run / "silos")})
    make_silos(
        shards,
        run / "silos",
        epsilon=config.real("dp.epsilon"),
        delta=config.real("dp.delta"),
        allow_seeded=config.whole("noise-seed") >= 0,
    )
    _conduct(run, {**given, "simulation-root": str(run / "silos")}, engine)


def _conduct(run: Path, given: dict[str, Any], engine: Engine) -> None:
    from experiments.training import run_in_process, simulate
    from server_app.report.console import summary_table

    if engine is Engine.SIMULATION:
        simulate(run, given, run / "flower", processes=os.cpu_count() or 1, console=console)
    else:
        run_in_process(run, given, console=console)
    console.print(summary_table(run))
    console.print(f"report: {run / 'report.html'}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
