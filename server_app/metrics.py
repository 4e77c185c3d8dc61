"""A run's progress as measures: one table of names, read by Prometheus, TensorBoard and spreadsheets alike.

Everything comes from the history, which knows sums over silos only; there is nothing here about any one silo.
Names follow https://prometheus.io/docs/practices/naming/: base units, `_total` for what only grows, `_ratio` in [0, 1].
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from server_app.report.data import HISTORY_NAME, Epoch, Metrics, ReportError, load_history

FILE = "metrics.prom"
PREFIX = "fcfl_"


@dataclass(frozen=True)
class Measure:
    """One number of an epoch.

    Attributes
    ----------
    name : str
        Without the prefix.
    text : str
        What it is, with its unit.
    of : callable
        The epoch's value; None where the epoch did not measure it.
    sums : bool
        Whether Prometheus gets the sum over all epochs instead of the last value.
    """

    name: str
    text: str
    of: Callable[[Epoch], float | None]
    sums: bool = False


def _point(name: str, text: str, of: Callable[[Metrics], float | None]) -> tuple[Measure, ...]:
    """Give the measure of the broadcast or served point on the validation split, and on the test split."""

    def on(split: Callable[[Epoch], Metrics | None]) -> Callable[[Epoch], float | None]:
        return lambda epoch: None if (found := split(epoch)) is None else of(found)

    return (
        Measure(f"validation_{name}", f"{text}, validation split.", on(lambda epoch: epoch.validation)),
        Measure(f"test_{name}", f"{text}, test split.", on(lambda epoch: epoch.test)),
    )


MEASURES = (
    Measure("epoch", "Last epoch: attempts at a secure sum so far.", lambda epoch: epoch.epoch),
    Measure("round", "Round of the last epoch.", lambda epoch: epoch.round),
    Measure("epoch_seconds", "Time that the last epoch took.", lambda epoch: epoch.seconds),
    Measure("survivors", "Silos whose masked vector arrived in the last epoch.", lambda epoch: epoch.survivors),
    Measure("enrolled", "Silos of the run.", lambda epoch: epoch.enrolled),
    Measure("contributors", "Silos with an update in the last completed sum.", lambda epoch: epoch.contributors),
    Measure("noise_multiplier", "Noise multiplier of the last training epoch.", lambda epoch: epoch.sigma),
    Measure("privacy_epsilon", "Epsilon of a silo that contributed in every epoch.", lambda epoch: epoch.epsilon),
    Measure(
        "privacy_budget_ratio",
        "Share of the training budget used by a silo that contributed in every epoch.",
        lambda epoch: epoch.budget_fraction,
    ),
    Measure("divergence", "Divergence of the silos' updates, eq. 5 corrected.", lambda epoch: epoch.divergence),
    Measure("update_norm", "Euclidean norm of the last server update.", lambda epoch: epoch.update_norm),
    *_point("records", "Records", lambda metrics: metrics.count),
    *_point("mse", "Mean squared error in squared log returns", lambda metrics: metrics.mse),
    *_point("zero_mse", "Mean squared error of forecasting zero", lambda metrics: metrics.mse_zero),
    *_point("mae", "Mean absolute error in log returns", lambda metrics: metrics.mae),
    *_point("direction_ratio", "Share of directions forecast rightly", lambda metrics: metrics.directional_accuracy),
    Measure("received_bytes", "Bytes of the silos' replies.", lambda epoch: epoch.bytes_up, sums=True),
    Measure("sent_bytes", "Bytes of the coordinator's requests.", lambda epoch: epoch.bytes_down, sums=True),
)


def families(history: Sequence[Epoch], run: str, written: float) -> Iterator[Metric]:
    """Yield a run's state as Prometheus metrics.

    Parameters
    ----------
    history : sequence of Epoch
        All epochs; a measure that the last one does not have is that of the last one that has it.
    run : str
        Value of the label ``run``.
    written : float
        When the last epoch was entered, in seconds since 1970.
    """
    for measure in MEASURES:
        found = [value for epoch in history if (value := measure.of(epoch)) is not None]
        family = (CounterMetricFamily if measure.sums else GaugeMetricFamily)(
            PREFIX + measure.name, measure.text, labels=["run"]
        )
        if measure.sums:
            family.add_metric([run], sum(found))
        elif found:
            family.add_metric([run], found[-1])
        yield family
    ends = CounterMetricFamily(
        PREFIX + "epochs", "Epochs by purpose and by how they ended.", labels=["run", "purpose", "status"]
    )
    for (purpose, status), count in sorted(Counter((epoch.purpose, epoch.status) for epoch in history).items()):
        ends.add_metric([run, purpose, status], count)
    yield ends
    last = GaugeMetricFamily(
        PREFIX + "last_epoch_timestamp_seconds", "When the last epoch ended, since 1970.", labels=["run"]
    )
    if history:
        last.add_metric([run], written)
    yield last


@dataclass(frozen=True, eq=False)
class _Fixed(Collector):
    found: tuple[Metric, ...]

    def collect(self) -> Iterator[Metric]:
        yield from self.found


def exposition(history: Sequence[Epoch], run: str, written: float) -> bytes:
    """Return the metrics in Prometheus' text format, as node_exporter's textfile collector reads it."""
    registry = CollectorRegistry()
    registry.register(_Fixed(tuple(families(history, run, written))))
    return generate_latest(registry)


@dataclass(frozen=True, eq=False)
class RunCollector(Collector):
    """Reads the history of a run's folder at every scrape, whichever process conducts the run.

    A history that cannot be read is a metric too, so that an alert can say so.
    """

    folder: Path

    def describe(self) -> Iterator[Metric]:
        """Name the one metric that is always there; nothing is read before the first scrape."""
        yield GaugeMetricFamily(PREFIX + "history_readable", "")

    def collect(self) -> Iterator[Metric]:
        """Yield what the history says now."""
        path = self.folder / HISTORY_NAME
        try:
            history = load_history(self.folder) if path.exists() else ()
            written = path.stat().st_mtime if history else 0.0
        except (ReportError, OSError):
            history, written, readable = (), 0.0, False
        else:
            readable = True
        yield GaugeMetricFamily(PREFIX + "history_readable", "1 if the run's history can be read.", value=readable)
        if readable:
            yield from families(history, self.folder.name, written)


def serve(folder: Path, host: str, port: int) -> WSGIServer:
    """Serve a run's metrics at ``/metrics`` from a thread of its own; ``shutdown`` ends it.

    Raises
    ------
    OSError
        If the address cannot be used.
    """
    registry = CollectorRegistry()
    registry.register(RunCollector(folder))
    server, _ = start_http_server(port, addr=host, registry=registry)
    return server
