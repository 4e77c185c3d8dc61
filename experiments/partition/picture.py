"""The partition as a picture: what each silo holds, and its distance from all together.

The background is transparent, and every colour has a contrast of at least 3 against white and against a page that is
almost black, so one file serves light and dark pages. Drawn without pyplot and without anybody's style files; equal
tables give equal bytes.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from data_prep.errors import DataError
from data_prep.sectors import UNKNOWN
from experiments.partition.table import PartitionTable

__all__ = ["COLOURS", "INK", "OTHER", "check_ending", "draw", "own_colours", "render"]

INK = "#777777"
# Neighbours in a bar differ in hue and lightness.
COLOURS = (
    "#3b7dd8",
    "#c96f1a",
    "#1f8a5f",
    "#b8509e",
    "#8d7a12",
    "#6a5fd0",
    "#d0453f",
    "#3495a8",
    "#9a6244",
    "#5f8f2a",
    "#a55fc4",
)
OTHER = "other"
_ENDINGS = (".png", ".svg")
_BAR_INCHES, _LEAST_INCHES, _MOST_INCHES = 0.21, 2.6, 14.0
_NAMED_SILOS = 64


def check_ending(path: Path) -> None:
    """Refuse a file that is neither .png nor .svg.

    Raises
    ------
    DataError
        Naming the file.
    """
    if path.suffix.lower() not in _ENDINGS:
        raise DataError(f"{path}: found ending {path.suffix!r}, expected {' or '.join(_ENDINGS)}; rename the picture")


def own_colours(table: PartitionTable) -> tuple[str, ...]:
    """Return the sectors that get a colour of their own, largest first; the others and unknown ones share one."""
    return tuple(sector for sector in table.pooled.sectors if sector != UNKNOWN)[: len(COLOURS)]


def draw(table: PartitionTable, title: str) -> Figure:
    """Draw training samples by sector and the distances of each silo.

    Parameters
    ----------
    table : PartitionTable
        What to draw; names only up to 64 silos.
    title : str
        Above the figure.
    """
    silos = table.silos
    height = min(max(1.4 + _BAR_INCHES * len(silos), _LEAST_INCHES), _MOST_INCHES)
    figure = Figure(figsize=(9.0, height), layout="constrained")
    figure.patch.set_alpha(0.0)
    bars, distances = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    groups = own_colours(table)
    rest = set(table.pooled.sectors) - set(groups)
    parts = [({group}, colour, group) for group, colour in zip(groups, COLOURS, strict=False)]
    parts.append((rest, INK, UNKNOWN if rest == {UNKNOWN} else OTHER))
    left = [0.0] * len(silos)
    places = range(len(silos))
    for inside, colour, group in parts:
        sizes = [float(sum(item.sectors.get(sector, 0) for sector in inside)) for item in silos]
        if any(sizes):
            bars.barh(places, sizes, left=left, color=colour, height=0.72, label=group)
        left = [start + size for start, size in zip(left, sizes, strict=True)]
    bars.set_title("training samples by sector", loc="left", fontsize=9, color=INK)
    bars.xaxis.set_major_formatter(EngFormatter(sep=""))
    # No colour here, since colours mean sectors.
    for values, mean, marker, fill, dashes, label in (
        ([item.sector_distance for item in silos], table.sector_distance, "o", INK, (4, 3), "sectors"),
        ([item.label_distance for item in silos], table.label_distance, "D", "none", (1, 2), "labels"),
    ):
        style = {"color": INK, "markerfacecolor": fill, "markersize": 4.5, "linestyle": "none"}
        distances.plot(values, places, marker=marker, label=f"{label}, mean {mean:.2f}", **style)
        distances.axvline(mean, color=INK, linewidth=1.0, linestyle=(0, dashes))
    distances.set_xlim(-0.02, 1.02)
    distances.set_title("total-variation distance from all silos", loc="left", fontsize=9, color=INK)
    names = [f"{item.silo} {'+'.join(item.regions)}" for item in silos]
    _dress(bars, names)
    _dress(distances, names)
    bars.set_ylim(len(silos) - 0.5, -0.5)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, color=INK)
    handles = [axes.get_legend_handles_labels() for axes in (bars, distances)]
    figure.legend(
        [handle for found, _ in handles for handle in found],
        [label for _, found in handles for label in found],
        loc="outside lower left",
        ncols=5,
        frameon=False,
        fontsize=8,
        labelcolor=INK,
    )
    return figure


def _dress(axes: Axes, names: Sequence[str]) -> None:
    axes.patch.set_alpha(0.0)
    axes.set_axisbelow(True)
    axes.grid(axis="x", color=INK, alpha=0.35, linewidth=0.6)
    axes.tick_params(colors=INK, labelsize=8, length=0)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    for side in axes.spines.values():
        side.set_visible(False)
    if len(names) <= _NAMED_SILOS:
        axes.set_yticks(range(len(names)), names)
    else:
        axes.set_yticks([])


def render(table: PartitionTable, title: str, ending: str) -> bytes:
    """Return the picture as a file's content.

    Parameters
    ----------
    table, title
        As for `draw`.
    ending : str
        ".png" or ".svg".
    """
    stream = io.BytesIO()
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update({"svg.hashsalt": "partition", "svg.fonttype": "none"})
        figure = draw(table, title)
        if ending == ".svg":
            FigureCanvasSVG(figure)
            figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
        else:
            FigureCanvasAgg(figure)
            figure.savefig(stream, format="png", dpi=144, metadata={"Software": None})
    return stream.getvalue()
