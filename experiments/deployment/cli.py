"""``fcfl run conduct``: the coordinator's side of a run over deployed silos."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from experiments.flower import APP
from experiments.run_settings import Set, read_settings

console = Console()


def conduct(
    run: Annotated[Path, typer.Argument(help="Run folder; a run that began there is taken up again.")],
    superlink: Annotated[str, typer.Option(help="The SuperLink, host:port.")],
    root_certificates: Annotated[Path, typer.Option(help="PEM file with the authority of its certificate.")],
    nodes: Annotated[Path | None, typer.Option(help="Folder with the public keys (*.pub) of the silos' nodes.")] = None,
    app: Annotated[Path, typer.Option(help="Source folder of the app.", envvar="FCFL_APP")] = APP,
    settings: Set = None,
) -> None:
    """Conduct a run over deployed silos: register their nodes, wait for them, train, take up again what broke off."""
    from experiments.deployment.conduct import Patience, conduct_deployed
    from experiments.deployment.control import Coordinator
    from server_app.report.console import summary_table

    keys = sorted(nodes.glob("*.pub")) if nodes is not None else []
    with tempfile.TemporaryDirectory(prefix="fcfl-flower-") as home:
        conduct_deployed(
            run.resolve(),
            read_settings(settings),
            Coordinator(superlink, root_certificates),
            keys,
            app=app,
            home=Path(home),
            patience=Patience(),
            console=console,
        )
    console.print(summary_table(run))
    console.print(f"report: {run / 'report.html'}", highlight=False, soft_wrap=True)
