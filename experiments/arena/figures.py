"""Curves of a study, made from its Parquet file and nothing else."""

import io

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from experiments.arena.results import Results
from experiments.arena.tables import reference_errors


def skill_by_round(results: Results) -> Figure:
    """Test skill of the served weights after every round: mean and range over the seeds, one panel for each case."""
    cases = list(results.rows.groupby(["alpha", "epsilon"], sort=False))
    with mpl.rc_context({"font.size": 9.0}):
        drawn = Figure(figsize=(4.4 * len(cases), 3.4), layout="constrained")
        FigureCanvasAgg(drawn)
        panels = drawn.subplots(1, len(cases), squeeze=False, sharey=True)[0]
        for axes, ((alpha, epsilon), rows) in zip(panels, cases, strict=True):
            errors = reference_errors(rows, "test")
            chosen = rows[(rows.role == "report") & (rows.split == "test") & (rows.weights == "served")]
            for label in chosen.label.unique():
                skill = chosen[chosen.label == label].assign(
                    skill=lambda part, e=errors: (e["zero"] - part.mse) / (e["zero"] - e["central"])
                )
                over = skill.groupby("round").skill.agg(["mean", "min", "max"])
                (line,) = axes.plot(over.index, over["mean"], label=label)
                axes.fill_between(over.index, over["min"], over["max"], color=line.get_color(), alpha=0.15, linewidth=0)
            axes.axhline(0.0, color="#999999", linewidth=0.8)
            axes.axhline(1.0, color="#999999", linewidth=0.8, linestyle=":")
            # A method that diverges must not hide the others.
            axes.set_ylim(-0.25, 1.15)
            axes.set(title=f"alpha = {alpha:g}, epsilon = {epsilon:g}", xlabel="round")
        panels[0].set_ylabel("test skill (0: zero forecast, 1: centralised)")
        panels[-1].legend(fontsize=7.5, frameon=False)
    return drawn


def render(figure: Figure, kind: str) -> bytes:
    """Return a figure as the bytes of an SVG or PNG file."""
    buffer = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "fcfl"}):
        figure.savefig(buffer, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    return buffer.getvalue()
