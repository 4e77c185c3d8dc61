"""``fcfl experiment``: studies of methods, tuned alike."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from data_prep.workers import usable_cores

experiment_cli = typer.Typer(no_args_is_help=True, help="Studies: methods tuned alike and compared.")
console = Console()

Name = Annotated[str, typer.Argument(help="Name of a study that comes with the software, or a .toml file.")]
Root = Annotated[Path, typer.Option("--root", help="Folder of cached runs, data sets and results.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Processes, by default one per core.")]
HERE = Path("runs/arena")


@experiment_cli.command("list")
def list_studies() -> None:
    """List the studies that come with the software."""
    from experiments.arena.conduct import Work
    from experiments.arena.study import load, studies

    table = Table("study", "title", "methods", "cases", "runs to tune", "runs to report")
    for path in studies():
        study, work = load(path), Work.of(load(path))
        row = (len(study.methods), work.cases, work.tuning, work.report)
        table.add_row(study.name, study.title, *map(str, row))
    console.print(table)


@experiment_cli.command("run")
def run(name: Name, jobs: Jobs = None, root: Root = HERE) -> None:
    """Run what is missing of a study, then show it; an interrupted study goes on where it was."""
    from experiments.arena.conduct import conduct
    from experiments.arena.study import find, load

    study = load(find(name))
    conduct(study, root, jobs or usable_cores(), console)
    _show(study.name, root, None)


@experiment_cli.command("show")
def show(
    name: Name,
    root: Root = HERE,
    markdown: Annotated[Path | None, typer.Option(help="Also write the tables as Markdown.")] = None,
) -> None:
    """Show the tables of a study from its results, and draw its figure."""
    from experiments.arena.study import find

    _show(find(name).stem, root, markdown)


def _show(name: str, root: Path, markdown: Path | None) -> None:
    from data_prep.files import write_whole
    from experiments.arena.conduct import results_path
    from experiments.arena.figures import render, skill_by_round
    from experiments.arena.results import Results
    from experiments.arena.tables import sheets

    path = results_path(root, name)
    results = Results.read(path)
    made = sheets(results)
    for sheet in made:
        table = Table(title=sheet.title, title_justify="left", box=None, pad_edge=False)
        for number, head in enumerate(sheet.head):
            table.add_column(head, justify="right" if number else "left", no_wrap=True)
        for row in sheet.rows:
            table.add_row(*row)
        # Figures that are cut off say nothing.
        Console(width=max(console.width, 190), file=console.file).print(table)
        for note in sheet.notes:
            console.print(note, highlight=False, soft_wrap=True, markup=False)
    if markdown is not None:
        write_whole(markdown, "\n".join(sheet.markdown() for sheet in made).encode())
    figure = path.with_suffix(".svg")
    write_whole(figure, render(skill_by_round(results), "svg"))
    console.print(f"results: {path}, figure: {figure}", highlight=False, soft_wrap=True, markup=False)
