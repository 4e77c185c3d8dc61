"""Small pictures of a series for the report, as inline SVG that takes its colours from the page."""

from __future__ import annotations

import io
import re

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from data_prep.bars import Bars

__all__ = ["close_line"]

_WIDTH, _HEIGHT = 150.0, 34.0
_POINTS = 240
_LINE, _CUT = "#010206", "#010207"
_VARIABLES = {_LINE: "var(--series)", _CUT: "var(--bad)"}


def close_line(bars: Bars) -> str:
    """Draw the close of a ticker on a logarithmic axis, gaps left open and cuts marked.

    Parameters
    ----------
    bars : Bars
        Usable rows.

    Returns
    -------
    str
        An `<svg>` element without size or text of its own, the same for the same bars; empty for fewer than two rows.
    """
    if len(bars.dates) < 2:
        return ""
    step = max(1, len(bars.dates) // _POINTS)
    days = bars.dates[::step].astype(np.float64)
    values = np.log10(bars.close[::step])
    wide = np.flatnonzero(np.diff(days) > max(30.0, 4.0 * float(np.median(np.diff(days))) if len(days) > 1 else 30.0))
    days, values = np.insert(days, wide + 1, days[wide]), np.insert(values, wide + 1, np.nan)
    figure = Figure(figsize=(_WIDTH / 72.0, _HEIGHT / 72.0))
    FigureCanvasSVG(figure)
    axes = figure.add_axes((0.0, 0.02, 1.0, 0.96))
    axes.set_axis_off()
    axes.plot(days, values, color=_LINE, linewidth=0.9)
    for day in bars.breaks.astype(np.float64):
        axes.axvline(float(day), color=_CUT, linewidth=0.8)
    axes.margins(0.01, 0.08)
    out = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "fcfl", "svg.fonttype": "none", "path.simplify": True}):
        figure.savefig(
            out, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
        )
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"<style[^>]*>.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r"(<svg[^>]*?) width=\"[^\"]*\"", r"\1", text, count=1)
    text = re.sub(r"(<svg[^>]*?) height=\"[^\"]*\"", r'\1 aria-hidden="true"', text, count=1)
    # Several pictures share the page: ids would collide, and clipping is not needed.
    text = re.sub(r' (?:id|clip-path)="[^"]*"', "", text)
    text = re.sub(r"<defs>.*?</defs>\s*", "", text, flags=re.DOTALL)
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, variable)
    return re.sub(r"\s*\n\s*", " ", text).strip()
