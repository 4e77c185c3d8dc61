"""Strict loading of a run directory: `config.json`, `history.jsonl`, `summary.json`.

Every key of the format must be there, `null` included where the format allows it. Keys this version does not know are
ignored, so that a newer coordinator can add some. Everything else that is not as the format says is a `ReportError`
that names the file, the line (of `history.jsonl`, or of a JSON syntax error) and the key.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from server_app.methods import METHODS

CONFIG_NAME = "config.json"
HISTORY_NAME = "history.jsonl"
SUMMARY_NAME = "summary.json"

PURPOSES = ("scale", "train", "evaluate")
STATUSES = ("completed", "abandoned", "empty")

_HEX = re.compile(r"[0-9a-fA-F]+")
_ROUNDING = 1e-9
"""Relative slack for quantities that are bounded or monotone up to floating-point rounding."""


class ReportError(ValueError):
    """A run directory is missing a file, or a file is not as the format says."""


@dataclass(frozen=True)
class Metrics:
    """How well a point forecasts on one split, in raw return units.

    Attributes
    ----------
    count
        Records in the split.
    mse, mae
        Mean squared and mean absolute error.
    directional_accuracy
        Share of records whose direction was forecast correctly, in [0, 1].
    mse_zero
        Mean squared error of forecasting zero for every record.
    mse_optimal
        Mean squared error of the optimal forecast; only a synthetic market knows it.
    """

    count: int
    mse: float
    mae: float
    directional_accuracy: float
    mse_zero: float
    mse_optimal: float | None

    @property
    def r2(self) -> float | None:
        """Out-of-sample R^2 against the zero forecast; None where the zero forecast makes no error."""
        return 1.0 - self.mse / self.mse_zero if self.mse_zero > 0 else None

    @property
    def r2_optimal(self) -> float | None:
        """Out-of-sample R^2 of the optimal forecast, where that is known."""
        if self.mse_optimal is None or self.mse_zero <= 0:
            return None
        return 1.0 - self.mse_optimal / self.mse_zero

    @property
    def skill(self) -> float | None:
        """Share of the predictable part that was learned: 0 for the zero forecast, 1 for the optimum.

        None where the optimum is not known, or does not beat the zero forecast.
        """
        if self.mse_optimal is None or self.mse_zero <= self.mse_optimal:
            return None
        return (self.mse_zero - self.mse) / (self.mse_zero - self.mse_optimal)


@dataclass(frozen=True)
class Epoch:
    """One attempt at a secure sum; an abandoned round is followed by another epoch with the same round.

    `epsilon` and `budget_fraction` are upper bounds so far, as if a silo had contributed in every round; `epsilon` is
    infinite where nothing bounds it. `validation` describes the broadcast point, not the served model, which the
    evaluation at the end measures on both splits.
    """

    epoch: int
    round: int
    purpose: str
    status: str
    contributors: int | None
    survivors: int
    enrolled: int
    sigma: float | None
    epsilon: float
    budget_fraction: float
    divergence: float | None
    update_norm: float | None
    validation: Metrics | None
    test: Metrics | None
    seconds: float
    bytes_up: int
    bytes_down: int

    @property
    def completed(self) -> bool:
        """Whether this attempt gave a sum over at least one contributor."""
        return self.status == "completed"


@dataclass(frozen=True)
class Evaluation:
    """Metrics of the served model."""

    validation: Metrics
    test: Metrics


@dataclass(frozen=True)
class Ledger:
    """Length and last hash of the coordinator's ledger."""

    entries: int
    head: str


@dataclass(frozen=True)
class Summary:
    """What the coordinator says about the whole run.

    `epsilon` and `epsilon_target` are those of training and may be infinite (no bound); `further_budgets` are the
    epsilon spent and granted for other purposes, which add up to it.
    """

    run_id: str
    outcome: str
    message: str
    rounds: int
    epsilon: float
    epsilon_target: float
    delta: float
    order: float
    budget_fraction: float
    seeded: bool
    validation_protected: bool
    adjacency: str
    accountant: str
    further_budgets: Mapping[str, tuple[float, float]]
    group: tuple[int, float] | None
    evaluation: Evaluation | None
    silos: int
    records_total: int
    secure_aggregation: bool
    threshold: int
    started: datetime
    finished: datetime
    software: Mapping[str, str]
    ledger: Ledger


@dataclass(frozen=True)
class Run:
    """A run directory, checked."""

    directory: Path
    config: Mapping[str, object]
    config_hash: str
    history: tuple[Epoch, ...]
    summary: Summary

    @property
    def method(self) -> str:
        """Name of the run's method, as tables and figures call it."""
        found = METHODS.get(str(self.config.get("method")))
        return "FCFL" if found is None else found.label

    @property
    def trained_rounds(self) -> int:
        """Rounds whose training sum completed, counted in the history."""
        return len({epoch.round for epoch in self.history if epoch.completed and epoch.purpose == "train"})

    @property
    def last_validation(self) -> tuple[Epoch, Metrics] | None:
        """The last epoch that measured its broadcast point."""
        for epoch in reversed(self.history):
            if epoch.validation is not None:
                return epoch, epoch.validation
        return None

    @property
    def judged(self) -> tuple[str, Metrics] | None:
        """The split the run is judged by and the metrics there: the test split, else the last validation point."""
        if self.summary.evaluation is not None:
            return "test", self.summary.evaluation.test
        last = self.last_validation
        return None if last is None else ("validation", last[1])


class _Object:
    """One JSON object with typed access; errors name the place and the key."""

    def __init__(self, where: str, path: str, value: object) -> None:
        self.where = where
        self.path = path
        if not isinstance(value, dict):
            raise ReportError(f"{where}: {path or 'the content'}: expected an object, found {_shown(value)}")
        self.value: dict[str, object] = value

    def error(self, key: str, message: str) -> ReportError:
        return ReportError(f"{self.where}: {self.path}{'.' if self.path else ''}{key}: {message}")

    def get(self, key: str) -> object:
        if key not in self.value:
            raise self.error(key, "missing")
        return self.value[key]

    def null(self, key: str) -> bool:
        return self.get(key) is None

    def child(self, key: str) -> _Object:
        return _Object(self.where, f"{self.path}{'.' if self.path else ''}{key}", self.get(key))

    def integer(self, key: str, least: int = 0) -> int:
        value = self.get(key)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(key, f"expected an integer, found {_shown(value)}")
        if value < least:
            raise self.error(key, f"expected at least {least}, found {value}")
        return value

    def number(self, key: str, least: float = -math.inf, most: float = math.inf) -> float:
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(key, f"expected a number, found {_shown(value)}")
        if not math.isfinite(value):
            raise self.error(key, f"expected a finite number, found {_shown(value)}")
        if not least <= value <= most:
            bounds = f"at least {least:g}" if most == math.inf else f"a number in [{least:g}, {most:g}]"
            raise self.error(key, f"expected {bounds}, found {value!r}")
        return float(value)

    def maybe_integer(self, key: str) -> int | None:
        return None if self.null(key) else self.integer(key)

    def maybe_number(self, key: str, least: float = -math.inf) -> float | None:
        return None if self.null(key) else self.number(key, least)

    def epsilon(self, key: str) -> float:
        value = self.get(key)
        if value is None or value == math.inf:
            return math.inf
        return self.number(key, least=0.0)

    def share(self, key: str) -> float:
        return min(self.number(key, least=0.0, most=1.0 + _ROUNDING), 1.0)

    def flag(self, key: str) -> bool:
        value = self.get(key)
        if not isinstance(value, bool):
            raise self.error(key, f"expected true or false, found {_shown(value)}")
        return value

    def text(self, key: str) -> str:
        value = self.get(key)
        if not isinstance(value, str):
            raise self.error(key, f"expected a string, found {_shown(value)}")
        return value

    def choice(self, key: str, choices: tuple[str, ...]) -> str:
        value = self.text(key)
        if value not in choices:
            raise self.error(key, f"expected one of {', '.join(choices)}, found {_shown(value)}")
        return value

    def hexadecimal(self, key: str) -> str:
        value = self.text(key)
        if not _HEX.fullmatch(value):
            raise self.error(key, f"expected hexadecimal digits, found {_shown(value)}")
        return value

    def moment(self, key: str) -> datetime:
        value = self.text(key)
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            raise self.error(key, f"expected an ISO 8601 date and time, found {_shown(value)}") from None


def load_run(run_dir: Path) -> Run:
    """Read and check a run directory.

    Parameters
    ----------
    run_dir
        The directory the coordinator wrote.

    Returns
    -------
    Run
        Its content.

    Raises
    ------
    ReportError
        A file is missing, unreadable or malformed; the message names file, line and key.
    """
    config = _Object(CONFIG_NAME, "", _parse(CONFIG_NAME, 1, _read(run_dir, CONFIG_NAME)))
    values = config.child("config").value
    config_hash = config.hexadecimal("hash")
    return Run(
        directory=run_dir,
        config=values,
        config_hash=config_hash,
        history=load_history(run_dir),
        summary=_summary(_Object(SUMMARY_NAME, "", _parse(SUMMARY_NAME, 1, _read(run_dir, SUMMARY_NAME)))),
    )


def load_history(run_dir: Path) -> tuple[Epoch, ...]:
    """Read and check the history alone, also of a run that has not ended.

    Raises
    ------
    ReportError
        The file is missing, unreadable or malformed; the message names file, line and key.
    """
    return _history(_read(run_dir, HISTORY_NAME))


def _read(run_dir: Path, name: str) -> str:
    try:
        return (run_dir / name).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ReportError(f"{name}: missing in {run_dir}") from None
    except UnicodeDecodeError as error:
        raise ReportError(f"{name}: not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise ReportError(f"{name}: cannot be read: {error.strerror}") from error


def _parse(name: str, line: int, text: str) -> object:
    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found: dict[str, object] = {}
        for key, value in pairs:
            if key in found:
                raise ReportError(f"{name}, line {line}: {key}: given twice")
            found[key] = value
        return found

    try:
        value: object = json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        place = f"{name}, line {line + error.lineno - 1}, column {error.colno}"
        raise ReportError(f"{place}: not valid JSON: {error.msg}") from None
    except RecursionError:
        raise ReportError(f"{name}, line {line}: nested too deeply") from None
    return value


def _history(text: str) -> tuple[Epoch, ...]:
    epochs: list[Epoch] = []
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    for number, line in enumerate(lines, start=1):
        where = f"{HISTORY_NAME}, line {number}"
        if not line.strip():
            raise ReportError(f"{where}: blank line")
        row = _Object(where, "", _parse(HISTORY_NAME, number, line))
        epoch = _epoch(row)
        if epochs:
            before = epochs[-1]
            if epoch.epoch <= before.epoch:
                raise row.error("epoch", f"{epoch.epoch} after {before.epoch}; an epoch is never reused")
            # An abandoned training epoch bears the number of the round it did not finish; the evaluation that may
            # follow it, that of the last round that was done.
            unfinished = before.purpose == "train" and before.status == "abandoned" and epoch.purpose == "evaluate"
            if epoch.round < before.round - unfinished:
                raise row.error("round", f"{epoch.round} after {before.round}; rounds do not go back")
            if epoch.epsilon < before.epsilon * (1 - _ROUNDING):
                raise row.error("epsilon", f"{epoch.epsilon!r} after {before.epsilon!r}; what was spent stays spent")
        epochs.append(epoch)
    return tuple(epochs)


def _epoch(row: _Object) -> Epoch:
    epoch = Epoch(
        epoch=row.integer("epoch"),
        round=row.integer("round"),
        purpose=row.choice("purpose", PURPOSES),
        status=row.choice("status", STATUSES),
        contributors=row.maybe_integer("contributors"),
        survivors=row.integer("survivors"),
        enrolled=row.integer("enrolled"),
        sigma=row.maybe_number("sigma", least=0.0),
        epsilon=row.epsilon("epsilon"),
        budget_fraction=row.share("budget_fraction"),
        divergence=row.maybe_number("divergence", least=0.0),
        update_norm=row.maybe_number("update_norm", least=0.0),
        validation=None if row.null("validation") else _metrics(row.child("validation")),
        test=None if row.value.get("test") is None else _metrics(row.child("test")),
        seconds=row.number("seconds", least=0.0),
        bytes_up=row.integer("bytes_up"),
        bytes_down=row.integer("bytes_down"),
    )
    for key, count in (("contributors", epoch.contributors), ("survivors", epoch.survivors)):
        if count is not None and count > epoch.enrolled:
            raise row.error(key, f"{count} of {epoch.enrolled} enrolled silos")
    return epoch


def _metrics(value: _Object) -> Metrics:
    return Metrics(
        count=value.integer("count"),
        mse=value.number("mse", least=0.0),
        mae=value.number("mae", least=0.0),
        directional_accuracy=value.number("directional_accuracy", least=0.0, most=1.0),
        mse_zero=value.number("mse_zero", least=0.0),
        mse_optimal=value.maybe_number("mse_optimal", least=0.0),
    )


def _summary(value: _Object) -> Summary:
    evaluation: Evaluation | None = None
    if not value.null("evaluation"):
        both = value.child("evaluation")
        evaluation = Evaluation(validation=_metrics(both.child("validation")), test=_metrics(both.child("test")))
    software = value.child("software")
    further = value.child("further_budgets")
    group = None if value.null("group") else value.child("group")
    ledger = value.child("ledger")
    entries = ledger.integer("entries")
    head = "" if entries == 0 and ledger.text("head") == "" else ledger.hexadecimal("head")
    started, finished = value.moment("started"), value.moment("finished")
    if (started.tzinfo is None) != (finished.tzinfo is None):
        raise value.error("finished", "only one of started and finished has a time zone")
    if finished < started:
        raise value.error("finished", "before started")
    delta = value.number("delta", least=0.0, most=1.0)
    silos = value.integer("silos")
    threshold = value.integer("threshold")
    if threshold > silos:
        raise value.error("threshold", f"{threshold} of {silos} silos")
    return Summary(
        run_id=value.hexadecimal("run_id"),
        outcome=value.text("outcome"),
        message=value.text("message"),
        rounds=value.integer("rounds"),
        epsilon=value.epsilon("epsilon"),
        epsilon_target=value.epsilon("epsilon_target"),
        delta=delta,
        order=value.number("order", least=1.0),
        budget_fraction=value.share("budget_fraction"),
        seeded=value.flag("seeded"),
        validation_protected=value.flag("validation_protected"),
        adjacency=value.text("adjacency"),
        accountant=value.text("accountant"),
        further_budgets={
            name: (budget.epsilon("epsilon"), budget.epsilon("epsilon_target"))
            for name in further.value
            for budget in [further.child(name)]
        },
        group=None if group is None else (group.integer("records"), group.epsilon("epsilon")),
        evaluation=evaluation,
        silos=silos,
        records_total=value.integer("records_total"),
        secure_aggregation=value.flag("secure_aggregation"),
        threshold=threshold,
        started=started,
        finished=finished,
        software={name: software.text(name) for name in software.value},
        ledger=Ledger(entries=entries, head=head),
    )


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
