"""The few lines a terminal shows at the end of a run."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table
from rich.text import Text

from server_app.report import wording
from server_app.report.data import load_run


def summary_table(run_dir: Path) -> Table:
    """Return a table of what a run reached and spent, for `rich.print`.

    Parameters
    ----------
    run_dir
        The directory the coordinator wrote.

    Returns
    -------
    rich.table.Table
        A grid of two tables: forecasts with their metrics, and the facts of the run.

    Raises
    ------
    ReportError
        The run directory is not as the format says.
    """
    run = load_run(run_dir)
    summary = run.summary
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    if summary.seeded:
        facts.add_row("warning", Text(wording.SEEDED, style="bold red"))
    if not summary.validation_protected:
        facts.add_row("validation", Text(wording.UNPROTECTED_VALIDATION))
    for name, value in (
        ("outcome", summary.outcome),
        (
            "epsilon",
            f"{wording.bound(summary.epsilon)} of {wording.plain(summary.epsilon_target, 3)} "
            f"({wording.used(summary.budget_fraction)} % of the budget)",
        ),
        *(
            (f"epsilon, {name}", f"{wording.bound(spent)} of {wording.plain(granted, 3)}")
            for name, (spent, granted) in summary.further_budgets.items()
        ),
        ("delta", f"{summary.delta:g}"),
        ("rounds", str(summary.rounds)),
        ("ledger head", summary.ledger.head or "empty"),
    ):
        facts.add_row(name, Text(value))

    outer = Table.grid(padding=(0, 0, 1, 0))
    outer.add_column(overflow="fold")
    outer.add_row(Text(wording.headline(run), style="bold"))
    judged = run.judged
    if judged is not None:
        split, metrics = judged
        forecasts = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        forecasts.add_column("forecast", header_style="dim")
        for heading in (f"{split} MSE x1e-4", "R2 vs zero %", "direction %"):
            forecasts.add_column(heading, justify="right", header_style="dim")
        zero_r2 = wording.percent(0.0 if metrics.mse_zero > 0 else None)
        forecasts.add_row("zero forecast", wording.mse(metrics.mse_zero), zero_r2, wording.MISSING)
        forecasts.add_row(
            run.method,
            wording.mse(metrics.mse),
            wording.percent(metrics.r2),
            wording.percent(metrics.directional_accuracy),
            style="bold",
        )
        if metrics.mse_optimal is not None:
            best = wording.percent(metrics.r2_optimal)
            forecasts.add_row("optimum", wording.mse(metrics.mse_optimal), best, wording.MISSING)
        outer.add_row(forecasts)
    outer.add_row(facts)
    return outer
