"""Conduct a run of a simulated federation, on Flower's simulation engine or in this process."""

import json
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from client_app.app import app as client_app
from experiments.flower import superlink
from experiments.local_grid import LocalGrid
from fcfl_strategy.errors import RunError
from server_app.app import conduct
from server_app.config import RunConfig
from server_app.run_folder import RunFolder

LOOK_SECONDS = 0.3


def simulate(run: Path, settings: Mapping[str, Any], flower_home: Path, *, processes: int, console: Console) -> None:
    """Run the apps on Flower's simulation engine through ``flwr run`` and show progress until the end.

    Parameters
    ----------
    run : Path
        The coordinator's run folder.
    settings : mapping
        Settings that differ from the defaults, ``simulation-root`` among them.
    flower_home : Path
        Folder for all of Flower's state.
    processes : int
        Ray actors.
    console : Console

    Raises
    ------
    RunError
        With the coordinator's own reason, if the run could not go on.
    """
    config = RunConfig.from_mapping({**settings, "run-dir": str(run)})
    run.mkdir(parents=True, exist_ok=True)
    log = run / "flower.log"
    with ProgressBar(run, config.whole("rounds"), console) as bar:
        bar.say("starting Flower's simulation engine")
        with superlink(flower_home, simulation=True) as flower:
            given = {**settings, "run-dir": str(run)}
            following = flower.run(given, log, nodes=config.whole("silos"), processes=processes)
            try:
                while following.poll() is None:
                    bar.look()
                    time.sleep(LOOK_SECONDS)
                bar.look()
            finally:
                _end(following)
    reason = failure(run)
    if reason is not None:
        raise RunError(reason)
    if not (run / "summary.json").exists():
        raise RunError(f"the run ended without a result; see {log}")


def run_in_process(run: Path, settings: Mapping[str, Any], *, console: Console) -> None:
    """Run the very same apps in this process, without Flower's servers."""
    config = RunConfig.from_mapping({**settings, "run-dir": str(run)})
    grid = LocalGrid(client_app, config.whole("silos"), config.values)
    with ProgressBar(run, config.whole("rounds"), console) as bar:
        done = threading.Event()
        watcher = threading.Thread(target=_watch, args=(bar, done), daemon=True)
        watcher.start()
        try:
            conduct(grid, config, run)
        finally:
            done.set()
            watcher.join()
            bar.look()


def _watch(bar: "ProgressBar", done: threading.Event) -> None:
    while not done.wait(LOOK_SECONDS):
        bar.look()


def _end(following: subprocess.Popen[bytes]) -> None:
    if following.poll() is None:
        following.terminate()
        following.wait()


def failure(run: Path) -> str | None:
    """Return why the run could not go on, if it said so."""
    try:
        return str(json.loads((run / "failure.json").read_text(encoding="utf-8"))["message"])
    except (FileNotFoundError, json.JSONDecodeError, KeyError):
        return None


class ProgressBar:
    """A live line of the run: round, validation loss, epsilon spent, survivors, seconds a round."""

    def __init__(self, run: Path, rounds: int, console: Console) -> None:
        self._folder = RunFolder(run)
        self._seen = len(self._folder.history())
        self._console = console
        self._progress = Progress(
            TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(bar_width=24),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=rounds)

    def __enter__(self) -> "ProgressBar":
        self._progress.start()
        self.look()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """Show a line of text beside the bar."""
        self._progress.update(self._task, description=text)

    def look(self) -> None:
        """Read the history and redraw."""
        rows = self._folder.history()
        if not rows:
            return
        row = rows[-1]
        validation = row["validation"]
        loss = f"validation MSE {validation['mse'] * 1e4:.4f}e-4" if validation else f"epoch {row['status']}"
        text = (
            f"{loss}  epsilon {row['epsilon']:.3f}  survivors {row['survivors']}/{row['enrolled']}  "
            f"{row['seconds']:.1f} s a round"
        )
        done = row["round"] if row["status"] != "abandoned" else max(row["round"] - 1, 0)
        self._progress.update(self._task, completed=done, description=text)
        if not self._console.is_terminal:
            for fresh in rows[self._seen :]:
                self._console.print(_line(fresh), highlight=False, soft_wrap=True)
        self._seen = len(rows)


def _line(row: Mapping[str, Any]) -> str:
    validation = row["validation"]
    loss = f"validation MSE {validation['mse']:.4e}" if validation else "no metrics"
    return (
        f"{row['purpose']} epoch {row['epoch']}, round {row['round']}: {row['status']}, {loss}, "
        f"epsilon {row['epsilon']:.4f}, survivors {row['survivors']}/{row['enrolled']}, {row['seconds']:.1f} s"
    )
