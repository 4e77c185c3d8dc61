"""From a run directory to `report.html`."""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from server_app.report import wording
from server_app.report.data import Metrics, Run, Summary, load_run
from server_app.report.figures import charts
from server_app.report.template import PAGE, STYLE

REPORT_NAME = "report.html"


@dataclass(frozen=True)
class _Warning:
    title: str
    text: str


@dataclass(frozen=True)
class _Card:
    label: str
    value: str
    unit: str = ""
    detail: str = ""
    tone: str = ""


@dataclass(frozen=True)
class _Fact:
    label: str
    value: str
    detail: str = ""
    meter: str | None = None
    code: bool = False


@dataclass(frozen=True)
class _Open:
    text: str
    label: str = ""


@dataclass(frozen=True)
class _Row:
    name: str
    cells: tuple[str, ...]
    ours: bool = False
    tone: str = ""


@dataclass(frozen=True)
class _Split:
    name: str
    count: str
    label: str
    rows: tuple[_Row, ...]


@dataclass(frozen=True)
class _Column:
    name: str
    unit: str = ""
    text: bool = False


@dataclass(frozen=True)
class _EpochRow:
    cells: tuple[str, ...]
    completed: bool


def write_report(run_dir: Path) -> Path:
    """Write `report.html` into a run directory, atomically: readers see the old page or the new one, never a part.

    Parameters
    ----------
    run_dir
        The directory the coordinator wrote.

    Returns
    -------
    Path
        The page.

    Raises
    ------
    ReportError
        The run directory is not as the format says; an older page is left as it is.
    """
    page = render_report(load_run(run_dir)).encode("utf-8")
    target = run_dir / REPORT_NAME
    temporary = run_dir / f".{REPORT_NAME}.{os.getpid()}-{secrets.token_hex(4)}.tmp"
    try:
        with temporary.open("xb") as file:
            file.write(page)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    if os.name == "posix":
        directory = os.open(run_dir, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    return target


def render_report(run: Run) -> str:
    """Return the page of a run as HTML. The same run gives the same page, byte for byte."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    drawn = charts(run)
    splits = _splits(run)
    summary = run.summary
    return environment.from_string(
        PAGE
    ).render(
        style=Markup(STYLE),  # noqa: S704  # a constant of this package
        run_short=summary.run_id[:12],
        headline=wording.headline(run),
        lede=wording.lede(run),
        message=summary.message.strip(),
        when=f"{wording.moment(summary.started)}, took {wording.duration(summary.finished - summary.started)}",
        outcome=summary.outcome,
        warnings=_warnings(run),
        cards=_cards(run),
        splits=splits,
        skill_known=any(metrics.skill is not None for metrics in _measured(run)),
        evaluated=(
            "the served model"
            if summary.evaluation is not None
            else "the last measured broadcast point, not of a served model"
        ),
        guarantee="The accounting, which is no guarantee" if _void(run) else "The guarantee",
        facts=_facts(run),
        open=_open(run),
        charts=[
            # The SVG is made by figures.py from numbers and fixed words, its alternative text escaped there.
            {**vars(chart), "svg": Markup(chart.svg)}  # noqa: S704
            for chart in drawn
            if chart.svg
        ],
        not_drawn=[chart.title.lower() for chart in drawn if not chart.svg],
        columns=_columns(run),
        rows=_epoch_rows(run),
        rounds_caption=_rounds_caption(run),
        config=[(key, value if isinstance(value, str) else json.dumps(value)) for key, value in run.config.items()],
        config_hash=run.config_hash,
        provenance=_provenance(run),
    )


def _void(run: Run) -> bool:
    return run.summary.seeded or math.isinf(run.summary.epsilon)


def _warnings(run: Run) -> list[_Warning]:
    summary = run.summary
    found: list[_Warning] = []
    if summary.seeded:
        found.append(
            _Warning(
                wording.SEEDED,
                "Noise, masks or coins came from a seed. Whoever knows the seed can regenerate the noise and subtract "
                "it: the epsilon on this page is an accounting figure of an experiment, not a guarantee.",
            )
        )
    if math.isinf(summary.epsilon):
        found.append(
            _Warning(
                "not private: no bound on epsilon",
                "The run has no finite epsilon; differential privacy protects no record of it.",
            )
        )
    if not summary.secure_aggregation:
        found.append(
            _Warning(
                "no secure aggregation", "The coordinator received each silo’s update by itself, not only the sum."
            )
        )
    return found


def _measured(run: Run) -> list[Metrics]:
    if run.summary.evaluation is not None:
        return [run.summary.evaluation.test, run.summary.evaluation.validation]
    last = run.last_validation
    return [] if last is None else [last[1]]


def _cards(run: Run) -> list[_Card]:
    summary = run.summary
    split, metrics = run.judged if run.judged is not None else ("test", None)
    where = "Test" if split == "test" else "Validation"
    if metrics is None:
        loss = _Card(f"{where} MSE", wording.MISSING, detail="not evaluated")
        r2 = _Card("R² vs. zero", wording.MISSING, detail="not evaluated")
        direction = _Card("Direction", wording.MISSING, detail="not evaluated")
    else:
        tone = {"wins": "good", "loses": "bad"}.get(wording.verdict(metrics), "")
        loss = _Card(f"{where} MSE × 10⁻⁴", wording.mse(metrics.mse), detail=f"zero {wording.mse(metrics.mse_zero)}")
        r2 = _Card(
            "R² vs. zero",
            wording.percent(metrics.r2),
            "%",
            "" if metrics.r2_optimal is None else f"optimum {wording.percent(metrics.r2_optimal)}{wording.THIN}%",
            tone,
        )
        direction = _Card("Direction", wording.percent(metrics.directional_accuracy, 1), "%", "called correctly")
    abandoned = len(run.history) - sum(epoch.completed for epoch in run.history)
    return [
        loss,
        r2,
        direction,
        _Card(
            "Epsilon",
            wording.bound(summary.epsilon),
            detail=f"target {wording.plain(summary.epsilon_target, 3)}",
            tone="bad" if _void(run) else "",
        ),
        _Card("Delta", wording.general(summary.delta)),
        _Card("Rounds", wording.whole(summary.rounds), detail=f"{wording.counted(abandoned, 'attempt')} without a sum"),
        _Card("Silos", wording.whole(summary.silos), detail=f"threshold {wording.whole(summary.threshold)}"),
    ]


def _splits(run: Run) -> list[_Split]:
    label = "" if run.summary.validation_protected else wording.UNPROTECTED_VALIDATION
    evaluation = run.summary.evaluation
    measured = _measured(run)
    skill_known = any(metrics.skill is not None for metrics in measured)
    if evaluation is not None:
        return [
            _split(run.method, "Test", evaluation.test, "", skill_known),
            _split(run.method, "Validation", evaluation.validation, label, skill_known),
        ]
    last = run.last_validation
    return (
        [] if last is None else [_split(run.method, f"Validation, round {last[0].round}", last[1], label, skill_known)]
    )


def _split(method: str, name: str, metrics: Metrics, label: str, skill_known: bool) -> _Split:
    def row(name: str, cells: list[str], skill: float | None, ours: bool = False, tone: str = "") -> _Row:
        return _Row(name, (*cells, wording.plain(skill, 3)) if skill_known else tuple(cells), ours, tone)

    dash = wording.MISSING
    known = metrics.skill is not None
    zero = [wording.mse(metrics.mse_zero), dash, dash, wording.percent(0.0 if metrics.mse_zero > 0 else None)]
    ours = [
        wording.mse(metrics.mse),
        wording.mae(metrics.mae),
        wording.percent(metrics.directional_accuracy),
        wording.percent(metrics.r2),
    ]
    tone = {"wins": "good", "loses": "bad"}.get(wording.verdict(metrics), "")
    rows = [
        row("Zero forecast", zero, 0.0 if known else None),
        row(method, ours, metrics.skill, ours=True, tone=tone),
    ]
    if metrics.mse_optimal is not None:
        best = [wording.mse(metrics.mse_optimal), dash, dash, wording.percent(metrics.r2_optimal)]
        rows.append(row("Optimum", best, 1.0 if known else None))
    return _Split(name, wording.counted(metrics.count, "record"), label, tuple(rows))


def _facts(run: Run) -> list[_Fact]:
    summary = run.summary
    share = wording.used(summary.budget_fraction)
    counted = summary.accountant == "pld"
    further = [
        _Fact(
            f"Epsilon of the {name}",
            f"{wording.bound(spent)} (granted {wording.plain(granted, 3)})",
            "A budget of its own with the same delta; what is spent adds up.",
        )
        for name, (spent, granted) in summary.further_budgets.items()
    ]
    order = _Fact(
        "Order α*", wording.general(summary.order, 6), "Fixed at calibration; no other order is tried afterwards."
    )
    return [
        _Fact(
            "Epsilon" if counted else "Epsilon at α*",
            f"{wording.bound(summary.epsilon)} (target {wording.plain(summary.epsilon_target, 3)})",
            "Upper bound, rounded up, for a silo that contributed in every round. "
            "Each silo’s own ledger is the authority.",
        ),
        *further,
        _Fact("Delta", wording.general(summary.delta)),
        *([] if counted else [order]),
        _Fact(
            "Contributions used" if counted else "Rényi budget used",
            f"{share}{wording.THIN}%",
            meter=f"{100 * summary.budget_fraction:.2f}",
        ),
        _Fact("Adjacency", summary.adjacency, wording.hidden(summary.adjacency)),
        _Fact(
            "Secure aggregation",
            f"on, threshold {wording.whole(summary.threshold)} of {wording.whole(summary.silos)} silos"
            if summary.secure_aggregation
            else "off",
            "The coordinator sees sums over silos and how many contributed." if summary.secure_aggregation else "",
        ),
        _Fact("Randomness", wording.SEEDED if summary.seeded else "from the operating system; not seeded"),
    ]


def _open(run: Run) -> list[_Open]:
    summary = run.summary
    if summary.validation_protected:
        validation = _Open(
            "Validation and test records. Their metrics are noised sums, paid for in each silo’s ledger from a budget "
            "of their own, beside the epsilon of training."
        )
    else:
        validation = _Open(
            "Validation metrics are computed without noise and may have decided which model is served. Epsilon covers "
            "the training records only; the test metrics are not noised either.",
            wording.UNPROTECTED_VALIDATION,
        )
    return [
        validation,
        _Open(
            "Prices and tickers. One price enters many samples (every window it falls into), and a group of records is "
            f"protected far less than a single one{_group_text(summary)}. That a silo holds a ticker, or a price of "
            "it, is not hidden."
        ),
        _Open(
            f"Record counts. Each silo told how many records it trains on when it enrolled; "
            f"together {wording.counted(summary.records_total, 'record')}."
        ),
        _Open("A record held by several silos: each of them spends on it, and the spends add up."),
        _Open("That a silo takes part in the federation, its software version, and when its messages arrive."),
    ]


def _group_text(summary: Summary) -> str:
    if summary.group is None:
        return ""
    records, epsilon = summary.group
    return f": the {records} samples that one price may enter have epsilon {wording.bound(epsilon, 1)} together"


def _columns(run: Run) -> list[_Column]:
    purpose = [_Column("Purpose", text=True)] if _purposes_differ(run) else []
    return [
        _Column("Epoch"),
        _Column("Round"),
        *purpose,
        _Column("Status", text=True),
        _Column("Contri-", "butors"),
        _Column("Survi-", "vors"),
        _Column("En-", "rolled"),
        _Column("σ"),
        _Column("ε", "bound"),
        _Column("Budget", "%"),
        _Column("D̂"),
        _Column("Update", "norm"),
        _Column("Val. MSE", "× 10⁻⁴"),
        _Column("R²", "%"),
        _Column("DA", "%"),
        _Column("Time", "s"),
        _Column("Up"),
        _Column("Down"),
    ]


def _purposes_differ(run: Run) -> bool:
    return any(epoch.purpose != "train" for epoch in run.history)


def _epoch_rows(run: Run) -> list[_EpochRow]:
    rows: list[_EpochRow] = []
    for epoch in run.history:
        measured = epoch.validation
        rows.append(
            _EpochRow(
                (
                    wording.whole(epoch.epoch),
                    wording.whole(epoch.round),
                    *((epoch.purpose,) if _purposes_differ(run) else ()),
                    epoch.status,
                    wording.whole(epoch.contributors),
                    wording.whole(epoch.survivors),
                    wording.whole(epoch.enrolled),
                    wording.plain(epoch.sigma, 3),
                    wording.bound(epoch.epsilon),
                    wording.used(epoch.budget_fraction),
                    wording.significant(epoch.divergence),
                    wording.significant(epoch.update_norm),
                    wording.mse(measured.mse if measured else None),
                    wording.percent(measured.r2 if measured else None),
                    wording.percent(measured.directional_accuracy if measured else None),
                    wording.plain(epoch.seconds, 1),
                    wording.size(epoch.bytes_up),
                    wording.size(epoch.bytes_down),
                ),
                epoch.completed,
            )
        )
    return rows


def _rounds_caption(run: Run) -> str:
    attempts = len(run.history)
    without = attempts - sum(epoch.completed for epoch in run.history)
    text = f"{wording.counted(attempts, 'attempt')} at a secure sum, in order"
    if without:
        text += f"; {wording.whole(without)} of them without a result, on a tinted ground"
    up = wording.size(sum(epoch.bytes_up for epoch in run.history))
    down = wording.size(sum(epoch.bytes_down for epoch in run.history))
    return f"{text}. Traffic in all: {up} up, {down} down."


def _provenance(run: Run) -> list[_Fact]:
    summary = run.summary
    entries = "entry" if summary.ledger.entries == 1 else "entries"
    return [
        _Fact("Run", summary.run_id, code=True),
        _Fact("Started", wording.moment(summary.started)),
        _Fact("Finished", wording.moment(summary.finished)),
        _Fact("Software", ", ".join(f"{name} {version}" for name, version in summary.software.items())),
        _Fact(
            "Ledger head",
            summary.ledger.head or "empty",
            f"{wording.whole(summary.ledger.entries)} {entries} in the coordinator’s ledger, "
            "an upper bound of what any silo spent.",
            code=True,
        ),
    ]
