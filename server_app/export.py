"""A run's history for other tools: TensorBoard's event files, a CSV file."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from server_app.metrics import MEASURES
from server_app.report.data import HISTORY_NAME, Epoch, ReportError, load_history
from server_app.run_folder import write_atomic

WHAT = ("epoch", "round", "purpose", "status")


def write_csv(run: Path, file: Path) -> int:
    """Write one line an epoch, and return their number; a value that an epoch did not measure is empty.

    Raises
    ------
    ReportError
        If the history is missing or malformed.
    fcfl_strategy.errors.RunError
        If the file cannot be written.
    """
    history = load_history(run)
    measures = [measure for measure in MEASURES if measure.name not in WHAT]
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow([*WHAT, *(measure.name for measure in measures)])
    for epoch in history:
        values = [measure.of(epoch) for measure in measures]
        table.writerow([*(getattr(epoch, name) for name in WHAT), *("" if v is None else repr(v) for v in values)])
    write_atomic(file, [text.getvalue().encode()])
    return len(history)


def write_tensorboard(run: Path, folder: Path) -> int:
    """Write TensorBoard scalars, one a measure and epoch, and return the number of epochs; the step is the epoch.

    Raises
    ------
    ReportError
        If the history is missing or malformed, the folder holds events already, or TensorBoard is not installed.
    """
    history = load_history(run)
    if any(folder.glob("events.out.tfevents.*")):
        raise ReportError(f"{folder}: holds TensorBoard events already, which would mix; choose another folder")
    writer = _writer(folder)
    try:
        for epoch, moment in zip(history, _moments(history, (run / HISTORY_NAME).stat().st_mtime), strict=True):
            for measure in MEASURES:
                if (value := measure.of(epoch)) is not None:
                    writer.add_scalar(_tag(measure.name), value, epoch.epoch, walltime=moment)
    finally:
        writer.close()
    return len(history)


def _writer(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ReportError("TensorBoard is not installed; pip install 'fcfl[tensorboard]', or use --csv") from None
    return SummaryWriter(log_dir=str(folder))


def _tag(name: str) -> str:
    """TensorBoard groups what stands before a slash."""
    for group in ("validation", "test", "privacy"):
        if name.startswith(f"{group}_"):
            return f"{group}/{name.removeprefix(f'{group}_')}"
    return f"run/{name}"


def _moments(history: tuple[Epoch, ...], end: float) -> Iterator[float]:
    """Give when each epoch ended, taking the times between epochs, which the history does not tell, as zero."""
    left = sum(epoch.seconds for epoch in history)
    for epoch in history:
        left -= epoch.seconds
        yield end - left
