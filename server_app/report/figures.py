"""The learning curves as inline SVG.

Drawn with matplotlib's object interface on its SVG canvas: no pyplot, no global state, the user's style files ignored.
The output is deterministic: fixed hash salt, no metadata, ids prefixed by the figure. Text stays text. Colours are CSS
variables of the page (`--ink`, `--muted`, `--grid`, `--series-1` to `--series-3`), so light, dark and print share one
drawing.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from server_app.report import wording
from server_app.report.data import Epoch, Run

WIDTH, HEIGHT = 430.0, 218.0
FONT_SIZE = 11.5
LEFT, TOP, BOTTOM = 42.0, 8.0, 22.0
MANY = 40
"""More rounds than this are drawn without a marker on each."""

INK, MUTED, GRID = "#010203", "#010204", "#010205"
SERIES_1, SERIES_2, SERIES_3 = "#010206", "#010207", "#010208"
_VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--grid)",
    SERIES_1: "var(--series-1)",
    SERIES_2: "var(--series-2)",
    SERIES_3: "var(--series-3)",
}


@dataclass(frozen=True)
class Chart:
    """One figure of the page.

    Attributes
    ----------
    key
        Short name; the element id is `figure-<key>`.
    title, unit
        What is drawn, and in which unit.
    caption
        How to read it.
    alt
        The content in words, for those who do not see it.
    svg
        The `<svg>` element; empty where the run has nothing to draw.
    """

    key: str
    title: str
    unit: str
    caption: str
    alt: str
    svg: str


@dataclass(frozen=True)
class _Label:
    """A name at the right end of a line."""

    y: float
    text: str
    colour: str


Point = tuple[float, float]


def charts(run: Run) -> tuple[Chart, ...]:
    """Draw the learning curves of a run.

    Parameters
    ----------
    run
        A loaded run directory.

    Returns
    -------
    tuple of Chart
        Validation loss, epsilon, sigma, D_hat, silos, seconds. A chart without data has an empty `svg`.
    """
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(
            {
                "svg.fonttype": "none",
                "svg.hashsalt": "fcfl-report",
                "font.size": FONT_SIZE,
                "text.color": INK,
                "axes.edgecolor": MUTED,
                "axes.linewidth": 0.8,
                "axes.spines.top": False,
                "axes.spines.right": False,
                "axes.spines.left": False,
                "xtick.color": MUTED,
                "ytick.color": MUTED,
                "xtick.major.size": 3.5,
                "ytick.major.size": 0,
                "ytick.major.pad": 6,
                "axes.unicode_minus": True,
                "lines.linewidth": 1.8,
                "lines.markersize": 4.2,
                "lines.solid_capstyle": "round",
                "path.simplify": False,
            }
        )
        return (_loss(run), _epsilon(run), _sigma(run), _divergence(run), _silos(run), _seconds(run))


def _loss(run: Run) -> Chart:
    measured = {epoch.round: epoch.validation for epoch in run.history if epoch.validation is not None}
    curve = [(float(k), v.mse * 1e4) for k, v in measured.items()]
    zero = [(float(k), v.mse_zero * 1e4) for k, v in measured.items()]
    best = [(float(k), v.mse_optimal * 1e4) for k, v in measured.items() if v.mse_optimal is not None]
    alt = ""
    if curve:
        alt = (
            f"Validation mean squared error by round, in units of 1e-4: {_told(curve, 4)}. "
            f"The zero forecast has {wording.plain(zero[-1][1], 4)}"
            + (f", the optimal forecast {wording.plain(best[-1][1], 4)}." if best else ".")
        )

    def draw(axes: Axes) -> list[_Label]:
        _reference(axes, zero, MUTED, (5, 3))
        _reference(axes, best, SERIES_3, (1.5, 2.2))
        _line(axes, curve, SERIES_1)
        values = [y for _, y in (*curve, *zero, *best)]
        if min(values) > 0 and max(values) > 20 * min(values):
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(numticks=6))
            axes.yaxis.set_minor_locator(NullLocator())
        else:
            _padded(axes, values)
        labels = [_Label(zero[-1][1], "zero forecast", MUTED), _Label(curve[-1][1], run.method, SERIES_1)]
        return labels + ([_Label(best[-1][1], "optimum", SERIES_3)] if best else [])

    return _chart(
        run,
        "loss",
        "Validation loss",
        "MSE × 10⁻⁴",
        "Measured at the broadcast point of each round. Below the dashed line, the model beats forecasting zero.",
        alt,
        draw,
        curve,
    )


def _epsilon(run: Run) -> Chart:
    spent = [(float(k), e.epsilon) for k, e in _last(run.history).items() if math.isfinite(e.epsilon)]
    target = run.summary.epsilon_target
    alt = f"Upper bound of epsilon by round: {_told(spent, 3)}." if spent else ""
    if spent and math.isfinite(target):
        alt += f" The target is {wording.plain(target, 3)}."

    def draw(axes: Axes) -> list[_Label]:
        labels = [_Label(spent[-1][1], "spent", SERIES_1)]
        top = max(y for _, y in spent)
        if math.isfinite(target):
            axes.axhline(target, color=MUTED, linewidth=1.2, dashes=(5, 3))
            labels.append(_Label(target, "target", MUTED))
            top = max(top, target)
        _line(axes, spent, SERIES_1)
        axes.set_ylim(0, 1.12 * top or 1)
        return labels

    return _chart(
        run,
        "epsilon",
        "Privacy spent",
        "ε at α*",
        "For a silo that contributed in every round; abandoned attempts count too.",
        alt,
        draw,
        spent,
    )


def _sigma(run: Run) -> Chart:
    noise = [(float(e.round), e.sigma) for e in _train(run.history) if e.sigma is not None]

    def draw(axes: Axes) -> list[_Label]:
        _line(axes, noise, SERIES_1)
        axes.set_ylim(0, 1.15 * max(y for _, y in noise) or 1)
        return []

    return _chart(
        run,
        "sigma",
        "Noise multiplier",
        "σ",
        "Noise added to each clipped gradient sum, relative to the clip norm.",
        f"Noise multiplier sigma by round: {_told(noise, 3)}." if noise else "",
        draw,
        noise,
    )


def _divergence(run: Run) -> Chart:
    residual = [(float(e.round), e.divergence) for e in _train(run.history) if e.divergence is not None]

    def draw(axes: Axes) -> list[_Label]:
        _line(axes, residual, SERIES_1)
        axes.set_ylim(0, 1.15 * max(y for _, y in residual) or 1)
        return []

    return _chart(
        run,
        "divergence",
        "Divergence between silos",
        "D̂",
        "Dispersion of the silos’ updates with the energy of the noise taken out; floored at zero.",
        f"Divergence estimate D-hat by round: {_told(residual, 4)}." if residual else "",
        draw,
        residual,
    )


def _silos(run: Run) -> Chart:
    last = {epoch.round: epoch for epoch in _train(run.history)}
    enrolled = [(float(k), float(e.enrolled)) for k, e in last.items()]
    survived = [(float(k), float(e.survivors)) for k, e in last.items()]
    gave = [(float(k), float(e.contributors)) for k, e in last.items() if e.completed and e.contributors is not None]
    failed = [(float(k), float(e.survivors)) for k, e in last.items() if not e.completed]
    alt = ""
    if survived:
        alt = f"Silos by round. Survivors: {_told(survived, 0)}."
        alt += f" Contributors: {_told(gave, 0)}." if gave else " No round had a known number of contributors."
        if failed:
            alt += f" Rounds without a completed sum: {', '.join(f'{k:.0f}' for k, _ in failed)}."

    def draw(axes: Axes) -> list[_Label]:
        _reference(axes, enrolled, MUTED, (5, 3))
        _line(axes, survived, SERIES_3, width=1.4)
        _line(axes, gave, SERIES_1)
        if failed:
            x, y = zip(*failed, strict=True)
            axes.plot(x, y, "x", color=INK, markersize=7, markeredgewidth=1.6, zorder=5)
        axes.set_ylim(0, 1.12 * max(y for _, y in enrolled) or 1)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        labels = [_Label(enrolled[-1][1], "enrolled", MUTED), _Label(survived[-1][1], "survived", SERIES_3)]
        return labels + ([_Label(gave[-1][1], "contributed", SERIES_1)] if gave else [])

    crosses = " A cross marks a round without a completed sum." if failed else ""
    return _chart(
        run,
        "silos",
        "Silos per round",
        "count",
        f"The run records how many silos contributed, not which.{crosses}",
        alt,
        draw,
        survived,
    )


def _seconds(run: Run) -> Chart:
    useful: dict[float, float] = {}
    lost: dict[float, float] = {}
    for epoch in run.history:
        useful.setdefault(float(epoch.round), 0.0)
        lost.setdefault(float(epoch.round), 0.0)
        (useful if epoch.completed else lost)[float(epoch.round)] += epoch.seconds
    total = [(k, useful[k] + lost[k]) for k in useful]
    some_lost = any(lost.values())
    alt = ""
    if total:
        alt = f"Seconds by round, all attempts together: {_told(total, 1)}."
        if some_lost:
            alt += f" Attempts without a sum took {wording.plain(sum(lost.values()), 1)} seconds in all."

    def draw(axes: Axes) -> list[_Label]:
        x = list(useful)
        axes.bar(x, list(useful.values()), width=0.64, color=SERIES_1, linewidth=0)
        if some_lost:
            axes.bar(x, list(lost.values()), bottom=list(useful.values()), width=0.64, color=SERIES_2, linewidth=0)
        axes.set_ylim(0, 1.12 * max(y for _, y in total) or 1)
        return []

    legend = " Orange: attempts that were abandoned or empty." if some_lost else ""
    return _chart(
        run,
        "seconds",
        "Time per round",
        "seconds",
        f"All attempts of a round together, evaluations included.{legend}",
        alt,
        draw,
        total,
    )


def _train(history: Sequence[Epoch]) -> list[Epoch]:
    """Return the epoch that settled each round: its completed training attempt, else its last one."""
    settled: dict[int, Epoch] = {}
    for epoch in history:
        if epoch.purpose == "train" and not (epoch.round in settled and settled[epoch.round].completed):
            settled[epoch.round] = epoch
    return list(settled.values())


def _last(history: Sequence[Epoch]) -> dict[int, Epoch]:
    return {epoch.round: epoch for epoch in history}


def _told(points: Sequence[Point], digits: int) -> str:
    """Return a series in words."""
    first, last = points[0], points[-1]
    if len(points) == 1:
        return f"{wording.plain(first[1], digits)} in round {first[0]:.0f}"
    values = [y for _, y in points]
    low, high = wording.plain(min(values), digits), wording.plain(max(values), digits)
    ends = (
        f"{wording.plain(first[1], digits)} in round {first[0]:.0f}, "
        f"{wording.plain(last[1], digits)} in round {last[0]:.0f}"
    )
    return f"{low} throughout" if low == high else f"{ends}; lowest {low}, highest {high}"


def _chart(
    run: Run,
    key: str,
    title: str,
    unit: str,
    caption: str,
    alt: str,
    draw: Callable[[Axes], list[_Label]],
    points: Sequence[Point],
) -> Chart:
    if not points:
        return Chart(key, title, unit, caption, "", "")
    figure = Figure(figsize=(WIDTH / 72, HEIGHT / 72))
    FigureCanvasSVG(figure)
    figure.patch.set_visible(False)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.patch.set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
    rounds = sorted({epoch.round for epoch in run.history})
    span = rounds[-1] - rounds[0]
    slack = max(0.6, 0.02 * span) if span >= 3 else 1.8
    axes.set_xlim(rounds[0] - slack, rounds[-1] + slack)
    step = next(size * 10**power for power in range(12) for size in (1, 2, 5) if span < 8 * size * 10**power)
    axes.set_xticks([k for k in range(rounds[0], rounds[-1] + 1) if k % step == 0] or [rounds[0]])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    labels = draw(axes)
    shown = _ticks(axes)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: shown.get(value, "")))
    right = 12.0 if not labels else 14.0 + max(len(label.text) for label in labels) * FONT_SIZE * 0.56
    left = max(LEFT, 12.0 + FONT_SIZE * 0.62 * max(map(len, shown.values()), default=0))
    axes.set_position((left / WIDTH, BOTTOM / HEIGHT, (WIDTH - left - right) / WIDTH, (HEIGHT - TOP - BOTTOM) / HEIGHT))
    _place(axes, labels)
    axes.set_xlabel("round", color=MUTED, fontsize=FONT_SIZE, ha="right", va="top")
    axes.xaxis.set_label_coords(-6.0 / (WIDTH - left - right), -7.0 / (HEIGHT - TOP - BOTTOM))
    return Chart(key, title, unit, caption, alt, _svg(figure, key, alt))


def _ticks(axes: Axes) -> dict[float, str]:
    """Return the labels of the visible y ticks, on a linear scale all with the same number of decimals."""
    low, high = axes.get_ylim()
    slack = 1e-9 * (high - low)
    values = [float(y) for y in axes.get_yticks() if low - slack <= y <= high + slack]
    if any(y != 0 and not 1e-4 <= abs(y) < 1e6 for y in values):
        return {y: wording.general(y, 2) for y in values}
    if axes.get_yscale() == "log":
        return {y: f"{y:g}" for y in values}
    decimals = max((len(f"{y:.6f}".rstrip("0").partition(".")[2]) for y in values), default=0)
    return {y: wording.plain(y, decimals) for y in values}


def _line(axes: Axes, points: Sequence[Point], colour: str, width: float = 1.8) -> None:
    if points:
        x, y = zip(*points, strict=True)
        marker = "o" if len(points) <= MANY else "None"
        axes.plot(x, y, color=colour, linewidth=width, marker=marker, markeredgewidth=0, zorder=3)


def _reference(axes: Axes, points: Sequence[Point], colour: str, dashes: tuple[float, float]) -> None:
    if not points:
        return
    x, y = zip(*points, strict=True)
    if min(y) == max(y):
        axes.axhline(y[0], color=colour, linewidth=1.2, dashes=dashes, zorder=2)
    else:
        axes.plot(x, y, color=colour, linewidth=1.2, dashes=dashes, zorder=2)


def _padded(axes: Axes, values: Sequence[float]) -> None:
    low, high = min(values), max(values)
    pad = 0.12 * (high - low) or 0.05 * abs(high) or 1.0
    axes.set_ylim(low - pad, high + pad)


def _place(axes: Axes, labels: Sequence[_Label]) -> None:
    """Write labels right of the axes at the height of their lines, moved apart where they would touch."""
    height = HEIGHT - TOP - BOTTOM
    gap = FONT_SIZE * 1.15 / height

    def share(y: float) -> float:
        shown = axes.transAxes.inverted().transform(axes.transData.transform((0, y)))
        return min(max(float(shown[1]), 0.0), 1.0)

    ordered = sorted(((share(label.y), index, label) for index, label in enumerate(labels)), reverse=True)
    heights: list[float] = []
    for wanted, _, _ in ordered:
        heights.append(min(wanted, heights[-1] - gap) if heights else wanted)
    short = max(0.0, -heights[-1]) if heights else 0.0
    if heights:
        # Spread around the middle of a crowd instead of pushing it all downwards.
        drift = sum(wanted - placed for (wanted, _, _), placed in zip(ordered, heights, strict=True)) / len(heights)
        short = max(short, min(drift, 1.0 - heights[0]))
    for (_, _, label), placed in zip(ordered, heights, strict=True):
        axes.text(
            1.015,
            placed + short,
            label.text,
            transform=axes.transAxes,
            color=label.colour,
            va="center_baseline",
            ha="left",
            fontsize=FONT_SIZE,
        )


def _svg(figure: Figure, key: str, alt: str) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :].strip()
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\s*<style type="text/css">.*?</style>', "", text, flags=re.DOTALL)
    text = re.sub(r"\s*<!--.*?-->", "", text, flags=re.DOTALL)
    text = text.replace("xlink:href", "href")
    used = set(re.findall(r'href="#([^"]+)"', text)) | set(re.findall(r"url\(#([^)]+)\)", text))

    def identifier(match: re.Match[str]) -> str:
        return f' id="{key}-{match[1]}"' if match[1] in used else ""

    text = re.sub(r' id="([^"]*)"', identifier, text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{key}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{key}-\1)", text)
    text = re.sub(r"font: [^;\"]*", f"font-size: {FONT_SIZE:g}px", text)
    text = re.sub(r"font-family: [^;\"]*;?\s*", "", text)
    for sentinel, variable in _VARIABLES.items():
        text = text.replace(sentinel, variable)
    root = (
        f'<svg class="plot" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" focusable="false" '
        f'aria-label="{escape(alt, quote=True)}" xmlns="http://www.w3.org/2000/svg">'
    )
    return root + text[text.index(">") + 1 :]
