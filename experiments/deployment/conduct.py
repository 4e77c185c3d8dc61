"""Start a run over deployed silos, follow it, and take it up again until it has ended."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from experiments.deployment.control import ONLINE, Coordinator, control, nodes, register, under_way
from experiments.flower import CONNECTION, run_command, toml
from experiments.training import LOOK_SECONDS, ProgressBar, failure
from fcfl_strategy.errors import RunError
from secagg.messages import Run
from server_app.config import RunConfig
from server_app.run_folder import stored_config

WAIT_SECONDS = 2.0

T = TypeVar("T")


@dataclass(frozen=True)
class Patience:
    """How long to wait, and how often to try.

    Attributes
    ----------
    online : float
        Seconds until enough silos must be online.
    missing : float
        Seconds for which a run that has begun waits for silos that it can do without.
    superlink : float
        Seconds for which the SuperLink may be away at the start.
    attempts : int
        Submissions in a row that may end without a further epoch.
    """

    online: float = 600.0
    missing: float = 90.0
    superlink: float = 120.0
    attempts: int = 5


def conduct_deployed(
    run: Path,
    given: Mapping[str, Any],
    coordinator: Coordinator,
    keys: Sequence[Path],
    *,
    app: Path,
    home: Path,
    patience: Patience,
    console: Console,
) -> None:
    """Start the run of a folder, or take it up where its journal ends, until it has ended.

    The ServerApp runs beside the SuperLink and must see ``run`` under the same path. If it, the SuperLink or this
    process dies, the same call takes the run up again.

    Parameters
    ----------
    run : Path
        The coordinator's run folder.
    given : mapping
        Settings that differ from the defaults; a run that has begun keeps its own.
    coordinator : Coordinator
    keys : sequence of Path
        Public keys of the silos' nodes, registered if they are not yet.
    app : Path
        Source folder of the app, which Flower sends to the ServerApp's executor.
    home : Path
        Folder for Flower's own settings.
    patience : Patience
    console : Console

    Raises
    ------
    RunError
        With the coordinator's own reason, if the run could not go on.
    """
    begun = (run / "config.json").exists()
    settings = stored_config(run)["config"] if begun else RunConfig.from_mapping({**given, "run-dir": str(run)}).values
    if (run / "summary.json").exists():
        console.print(f"{run}: the run has ended", highlight=False)
        return
    rounds = int(settings["rounds"])
    _register(coordinator, keys, patience, console)
    run.mkdir(parents=True, exist_ok=True)
    environment = _environment(home, coordinator)
    idle = 0
    # An earlier call of this command may have been killed, and the ServerApp that it started go on.
    _follow(coordinator, run, rounds, patience, console)
    while not (run / "summary.json").exists():
        _await_online(coordinator, run, int(settings["silos"]), patience, console)
        before = _epochs(run)
        resumed = {**settings, "resume": (run / "config.json").exists()}
        (run / "failure.json").unlink(missing_ok=True)
        _submit(resumed, app, home, environment, run, rounds, console)
        # The stream of the log ends with the SuperLink, the ServerApp does not.
        _follow(coordinator, run, rounds, patience, console)
        if (run / "summary.json").exists():
            return
        if (reason := failure(run)) is not None:
            raise RunError(reason)
        idle = 0 if _epochs(run) > before else idle + 1
        if idle >= patience.attempts:
            raise RunError(
                f"the run broke off {idle} times without a further epoch; see {run / 'flower.log'} and the logs of "
                "SuperLink and executor, then give the same command again"
            )
        console.print("the run broke off; it is taken up again", highlight=False)


def _follow(coordinator: Coordinator, run: Path, rounds: int, patience: Patience, console: Console) -> None:
    """Wait until no ServerApp works in the run's folder: a second one there would only fail."""

    def working() -> bool:
        with control(coordinator) as client:
            return under_way(client, run)

    if not _retried(working, patience.superlink):
        return
    console.print("a ServerApp is at work on the run; following it", highlight=False)
    with ProgressBar(run, rounds, console) as bar:
        while _retried(working, patience.superlink):
            bar.look()
            time.sleep(WAIT_SECONDS)
        bar.look()


def _submit(
    settings: Mapping[str, Any],
    app: Path,
    home: Path,
    environment: Mapping[str, str],
    run: Path,
    rounds: int,
    console: Console,
) -> None:
    overrides = home / "run-config.toml"
    overrides.write_text(toml(settings), encoding="utf-8")
    log = run / "flower.log"
    with ProgressBar(run, rounds, console) as bar, log.open("ab") as output:
        command = run_command(app, overrides)
        following = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=dict(environment)
        )
        try:
            while following.poll() is None:
                bar.look()
                time.sleep(LOOK_SECONDS)
            bar.look()
        finally:
            if following.poll() is None:
                following.terminate()
                following.wait()


def _epochs(run: Path) -> int:
    try:
        return (run / "history.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def _environment(home: Path, coordinator: Coordinator) -> Mapping[str, str]:
    home.mkdir(parents=True, exist_ok=True)
    table = f"address = {json.dumps(coordinator.superlink)}\n"
    table += f"root-certificates = {json.dumps(str(coordinator.root_certificates.resolve()))}\n"
    text = f"[superlink]\ndefault = '{CONNECTION}'\n[superlink.{CONNECTION}]\n{table}"
    (home / "config.toml").write_text(text, encoding="utf-8")
    return {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
    }


def _register(coordinator: Coordinator, keys: Sequence[Path], patience: Patience, console: Console) -> None:
    def attempt() -> None:
        with control(coordinator) as client:
            new = register(client, keys)
        if keys:
            console.print(f"{len(keys)} nodes registered, {new} of them now", highlight=False)

    _retried(attempt, patience.superlink)


def _await_online(coordinator: Coordinator, run: Path, silos: int, patience: Patience, console: Console) -> None:
    """Wait until all silos are online; a run that has begun goes on without those that stay away, if it can."""
    least, begun = silos, time.monotonic()
    if (stored := run / "journal" / "run").exists():
        least = Run.from_bytes(stored.read_bytes()).minimum

    def online() -> int:
        with control(coordinator) as client:
            return sum(status == ONLINE for status in nodes(client).values())

    seen = -1
    while (found := _retried(online, patience.superlink)) < silos:
        if found != seen:
            console.print(f"{found} of {silos} silos are online", highlight=False)
            seen = found
        waited = time.monotonic() - begun
        if found >= least and waited >= patience.missing:
            console.print(f"the run goes on without the others; {least} are enough", highlight=False)
            return
        if waited >= patience.online:
            raise RunError(f"{found} of {silos} silos are online after {patience.online:g} s; see the others' logs")
        time.sleep(WAIT_SECONDS)
    console.print(f"{found} of {silos} silos are online", highlight=False)


def _retried(attempt: Callable[[], T], seconds: float) -> T:
    """Try again while the SuperLink is not there; it may be about to come up."""
    end = time.monotonic() + seconds
    while True:
        try:
            return attempt()
        except RunError:
            if time.monotonic() >= end:
                raise
            time.sleep(WAIT_SECONDS)
