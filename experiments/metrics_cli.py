"""``fcfl run metrics`` and ``fcfl run export``: a run's figures for what watches it."""

import signal
import threading
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

console = Console()


def metrics(
    run: Annotated[Path, typer.Argument(help="Run folder, of a run that is under way or has ended.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 9100,
    host: Annotated[str, typer.Option(help="Address to listen on; the metrics are neither encrypted nor locked.")] = (
        "127.0.0.1"
    ),
) -> None:
    """Serve a run's metrics over HTTP for Prometheus until it is stopped."""
    from server_app.metrics import serve
    from server_app.run_folder import stored_config

    run = run.resolve()
    stored_config(run)
    try:
        server = serve(run, host, port)
    except OSError as error:
        raise typer.BadParameter(f"{host}:{port} cannot be used ({error.strerror}); choose another") from None
    shown = f"[{host}]" if ":" in host else host
    console.print(f"http://{shown}:{server.server_port}/metrics", highlight=False, markup=False, soft_wrap=True)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    stopping.wait()
    server.shutdown()
    server.server_close()


def export(
    run: Annotated[Path, typer.Argument(help="Run folder, of a run that is under way or has ended.")],
    tensorboard: Annotated[Path | None, typer.Option(help="Folder for TensorBoard's event files.")] = None,
    csv: Annotated[Path | None, typer.Option(help="File for one line an epoch.")] = None,
) -> None:
    """Write a run's history for TensorBoard, or as CSV."""
    from server_app.export import write_csv, write_tensorboard

    if tensorboard is None and csv is None:
        raise typer.BadParameter("nothing to write; give --tensorboard DIR, --csv FILE, or both")
    if tensorboard is not None:
        console.print(f"{write_tensorboard(run, tensorboard)} epochs in {tensorboard}", highlight=False, soft_wrap=True)
    if csv is not None:
        console.print(f"{write_csv(run, csv)} epochs in {csv}", highlight=False, soft_wrap=True)
