"""``fcfl silo``: a silo's own folder, and the node that answers for it."""

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

silo_cli = typer.Typer(no_args_is_help=True, help="A silo's own folder, and the node that answers for it.")
console = Console()

Home = Annotated[Path, typer.Argument(help="The silo's folder.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
STYLES = {"ok": "green", "warning": "yellow", "failed": "bold red"}


@silo_cli.command("init")
def init(
    folder: Annotated[Path, typer.Argument(help="Folder to make.")],
    name: Annotated[str, typer.Option(help="Name in the roster.")],
    data: Annotated[Path, typer.Option(help="Folder of the silo's samples.")],
    epsilon: Annotated[float, typer.Option(help="Budget of the data set over all runs.")] = 1.0,
    delta: Annotated[float, typer.Option(help="Delta of that budget.")] = 1e-5,
) -> None:
    """Make a silo's folder: silo.toml with the policy, an identity, and an empty privacy ledger signed by it."""
    from experiments.silos import make_silo

    home = make_silo(folder, name, data, epsilon=epsilon, delta=delta)
    console.print(f"{home.root / 'silo.toml'} written; read it and set the policy", highlight=False)
    console.print(
        f"identity {home.identity.fingerprint}: give {home.root / 'identity.pub'} to whoever keeps the federation's "
        f"roster or checks its ledger, put that roster at {home.settings.roster}, and keep a copy of "
        f"{home.root / 'identity.key'} that nobody else can read",
        highlight=False,
        soft_wrap=True,
    )


@silo_cli.command("run", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run(context: typer.Context) -> None:
    """Run the node of one silo until it is stopped: HOME, and --busy and --idle, the shortest and longest pause."""
    # A process of its own: its fork server is to hold what a message needs, and nothing of this command.
    os.execv(sys.executable, [sys.executable, "-m", "client_app.node", *context.args])  # noqa: S606


@silo_cli.command("check")
def check(
    home: Home,
    offline: Annotated[bool, typer.Option("--offline", help="Leave out what needs the coordinator.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check whether a silo is fit for a run; exit code 0 for ok, 1 for warnings, 2 for failures."""
    from experiments.silo_check.check import check_silo
    from experiments.silo_check.findings import exit_code

    findings = check_silo(home.resolve(), offline=offline)
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=2, ensure_ascii=False))
    else:
        table = Table("check", "result", "found", "what to do", title=Text(str(home)))
        for finding in findings:
            level = Text(finding.level, style=STYLES[finding.level])
            table.add_row(finding.check, level, Text(finding.text), Text(finding.advice))
        console.print(table)
    raise typer.Exit(exit_code(findings))


@silo_cli.command("status")
def status(home: Home, as_json: AsJson = False) -> None:
    """Show whether the node runs, what each run had of this silo and cost, and why it last refused something."""
    from experiments.silo_status import read_status

    found = read_status(home.resolve())
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(found), indent=2, ensure_ascii=False))
        return
    node = "running" + (", answering" if found.answering else "") if found.running else "not running"
    lines = [
        f"{found.silo}: node {node}; last contact {found.contact or 'never'}",
        f"last message: {found.message} at {found.message_at}" if found.message else "no message yet",
        f"epsilon: {found.spent:.4g} spent, {found.granted:.4g} granted, {found.left:.4g} of {found.total:g} left",
    ]
    if not found.private:
        lines.append("not private: a run was seeded")
    lines.append(f"last refusal {found.refusal_at}: {found.refusal}" if found.refusal else "nothing refused")
    if found.runs:
        table = Table("run", "rounds", "epsilon spent", "granted", "unit", "state")
        for run_ in found.runs:
            state = "ended" if run_.closed else "open"
            shown = (run_.run[:16], run_.rounds, f"{run_.epsilon:.4g}", f"{run_.granted:.4g}", run_.unit, state)
            table.add_row(*map(str, shown))
        console.print(table)
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
