"""``fcfl data synth`` and ``fcfl data partition``: the synthetic market, and how a federation is divided."""

from datetime import date
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from data_prep.errors import DataError
from data_prep.spec import FederationSpec
from data_prep.synthetic import MarketSpec, Stress
from data_prep.universes import UNIVERSES, Universe, universe_named

console = Console()

Universes = Annotated[
    str | None, typer.Option("--universe", help=f"Universe of the paper: {', '.join(UNIVERSES)}; see docs/data.md.")
]
Silos = Annotated[int | None, typer.Option(help="Number of silos; 20 unless a universe says otherwise.")]
Alpha = Annotated[float, typer.Option(help="Dirichlet concentration of tickers over silos.")]
MinSamples = Annotated[int, typer.Option(help="Least training samples of a silo.")]
Seed = Annotated[int, typer.Option(help="Seed of the partition, and of the synthetic market.")]


def chosen_universe(name: str | None) -> Universe | None:
    """Return the universe of an option."""
    return None if name is None else universe_named(name)


def federation_spec(universe: Universe | None, silos: int | None, **more: Any) -> FederationSpec:
    """Return the settings of a preparation, those that are not given from the universe where there is one."""
    if universe is None:
        return FederationSpec(**more) if silos is None else FederationSpec(silos=silos, **more)
    return FederationSpec(
        silos=universe.silos if silos is None else silos,
        tickers=universe.tickers,
        splits=universe.splits,
        **more,
    )


def synth(
    out: Annotated[Path, typer.Option(help="Where the silos' samples go, or the files of the market.")],
    layout: Annotated[
        str | None,
        typer.Option(
            help="Write price, macro, factor and sector files instead of samples, in this layout: yahoo, stooq, german "
            "and so on; docs/data.md lists them."
        ),
    ] = None,
    universe: Universes = None,
    tickers: Annotated[int | None, typer.Option(help="Number of stocks; 320 unless a universe says otherwise.")] = None,
    jumps: Annotated[float, typer.Option(help="Overnight jumps per stock and year.")] = 0.0,
    stress: Annotated[
        str | None,
        typer.Option(metavar="YYYY-MM-DD", help="Start of a stress window of 60 days with 2.2 times the variance."),
    ] = None,
    stress_correlation: Annotated[
        float, typer.Option(help="Average correlation of the stocks' shocks in the stress window.")
    ] = 0.5,
    silos: Silos = None,
    alpha: Alpha = 0.2,
    min_samples: MinSamples = 1000,
    seed: Seed = 2025,
) -> None:
    """Make the synthetic market: as samples dealt out to silos, or as files."""
    from data_prep.prepare import prepare_synthetic
    from data_prep.synthetic.write import write_market

    chosen = chosen_universe(universe)
    settings: dict[str, Any] = {} if chosen is None else {"tickers": chosen.tickers, "regions": chosen.regions}
    if tickers is not None:
        settings["tickers"] = tickers
    market = MarketSpec(seed=seed, jumps=jumps, stress=_stress(stress, stress_correlation), **settings)
    if layout is None:
        spec = federation_spec(chosen, silos, alpha=alpha, seed=seed, min_samples=min_samples)
        shards = prepare_synthetic(out, spec, market=market)
        console.print(f"{len(shards)} silos in {out}", highlight=False)
        return
    folders = write_market(out, market, layout)
    shown = " ".join(map(str, folders))
    console.print(f"{market.tickers} tickers in layout {layout} in {shown}", highlight=False, soft_wrap=True)
    console.print(
        f"go on with: fcfl data prepare {shown} {out / 'macro'} {out / 'factors'} --sectors {out / 'sectors.csv'} "
        "--out SAMPLES",
        highlight=False,
        soft_wrap=True,
        markup=False,
    )


def _stress(start: str | None, correlation: float) -> Stress | None:
    if start is None:
        return None
    try:
        day = date.fromisoformat(start)
    except ValueError:
        raise DataError(f"--stress: found {start!r}, expected a day as YYYY-MM-DD; correct the option") from None
    return Stress(day, correlation=correlation)


def partition(
    samples: Annotated[Path, typer.Argument(help="Folder written by 'fcfl data prepare' or 'fcfl data synth'.")],
    json_file: Annotated[Path | None, typer.Option("--json", help="File for everything, as JSON.")] = None,
    csv_file: Annotated[Path | None, typer.Option("--csv", help="File for the table, as CSV.")] = None,
    picture: Annotated[Path | None, typer.Option(help="File for a picture: .png or .svg.")] = None,
) -> None:
    """Show what each silo of a prepared federation holds, and how far it is from all silos together."""
    from data_prep.files import write_json, write_whole
    from experiments.partition.picture import check_ending, render
    from experiments.partition.table import BINS, partition_table, read_partition

    if picture is not None:
        check_ending(picture)
    table = partition_table(read_partition(samples))
    shown = Table(title=f"partition of {samples}", title_justify="left")
    shown.add_column("silo", no_wrap=True)
    shown.add_column("regions")
    for name in ("tickers", "train", "validation", "test", "sectors", "label mean", "label variance"):
        shown.add_column(name, justify="right")
    shown.add_column("sector distance", justify="right")
    shown.add_column("label distance", justify="right")
    for item in (*table.silos, table.pooled):
        pooled = item is table.pooled
        if pooled:
            shown.add_section()
        shown.add_row(
            item.silo,
            " ".join(item.regions),
            str(item.tickers),
            *(f"{number:,}" for number in item.samples.values()),
            str(len(item.sectors)),
            f"{item.label_mean:.2e}",
            f"{item.label_variance:.2e}",
            "" if pooled else f"{item.sector_distance:.3f}",
            "" if pooled else f"{item.label_distance:.3f}",
        )
    # Figures that are cut off say nothing.
    Console(width=max(console.width, 132)).print(shown)
    console.print(
        f"mean total-variation distance from all silos: sectors {table.sector_distance:.3f} (by samples "
        f"{table.weighted_sector_distance:.3f}), labels in {BINS} bins {table.label_distance:.3f} "
        f"({table.weighted_label_distance:.3f})",
        highlight=False,
        soft_wrap=True,
    )
    if json_file is not None:
        write_json(json_file, table.as_json())
    if csv_file is not None:
        write_whole(csv_file, table.as_csv().encode())
    if picture is not None:
        write_whole(picture, render(table, f"Partition of {samples.resolve().name}", picture.suffix.lower()))
