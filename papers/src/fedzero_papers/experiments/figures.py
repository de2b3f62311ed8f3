"""Figures as PNG. The only module here that imports matplotlib, and only when something is drawn."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedzero.model.files import draft_of
from fedzero.report.curves import HUGE
from fedzero.report.units import human_count
from fedzero_papers.experiments.outcome import Figure, Line, Panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5b3a99", "#6b6b6b")
"""Okabe and Ito's, which people with any colour vision can tell apart; markers say the same again."""
MARKERS = "osD^vPX<"
LOG_FROM = 8.0
"""A loss whose largest value is more than so many times the smallest gets a logarithmic axis, where it may have one."""
PAPER = "#222222"
"""The paper's own numbers are drawn in black, dashed."""
WIDTH, DPI = 9.2, 160
"""Inches and dots an inch: letters of 10 points are still readable when a README shows 900 pixels."""
SIZES = {1: (4.6, 11.0, 105), 2: (3.9, 10.5, 110), 3: (2.75, 9.5, 120)}
"""By the number of panels in a row: its inches, points of the letters, and how many of them fit into a legend's row."""
SETTINGS: dict[Any, object] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#666666",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e2e2e2",
    "grid.linewidth": 0.7,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "axes.labelcolor": "#222222",
    "legend.frameon": False,
    "lines.linewidth": 2.0,
    "lines.markersize": 5.0,
    "savefig.facecolor": "white",
}


def draw(figure: Figure, path: Path) -> None:
    """Write the figure, all or nothing."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    columns = min(figure.columns, len(figure.panels))
    rows, (inches, font, letters) = -(-len(figure.panels) // columns), SIZES[min(columns, 3)]
    labels = list(dict.fromkeys(line.label for panel in figure.panels for line in panel.lines))
    fitting = max(1, int(letters / (max(map(len, labels), default=0) + 7)))
    legend_rows = -(-len(labels) // fitting)
    header = (0.36 if not figure.setting else 0.62) * font / 10
    height = header + rows * inches + 0.25 + 0.27 * legend_rows
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        thin: dict[Any, object] = {"lines.linewidth": 1.5, "lines.markersize": 3.8} if columns > 2 else {}
        matplotlib.rcParams.update({**SETTINGS, "font.size": font, **thin})
        # The layout keeps clear of the header; pyplot's global state stays untouched.
        layout = ConstrainedLayoutEngine(rect=(0, 0, 1, 1 - header / height), h_pad=0.05, w_pad=0.06)
        canvas = Canvas(figsize=(WIDTH, height), dpi=DPI, layout=layout)
        FigureCanvasAgg(canvas)
        left: dict[str, Any] = {"x": 0.012, "ha": "left", "va": "top"}
        canvas.text(y=1 - 0.1 / height, s=figure.title, fontsize=font + 1.5, fontweight="bold", **left)
        canvas.text(y=1 - 0.036 * font / height, s=figure.setting, color="#444444", **left)
        handles: dict[str, Any] = {}
        for index, panel in enumerate(figure.panels):
            axes = canvas.add_subplot(rows, columns, index + 1)
            # Where all panels of a grid have the same axes, the words stand at its edges only.
            last_row, first_column = index + columns >= len(figure.panels), index % columns == 0
            same = len({(p.x, p.y) for p in figure.panels}) == 1
            _panel(axes, panel, handles, last_row or not same, first_column or not same)
        wide = -(-len(labels) // legend_rows)
        canvas.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=wide)
        with draft_of(path) as draft:
            canvas.savefig(draft, format="png", metadata={"Software": None})


def _panel(axes: Axes, panel: Panel, handles: dict[str, Any], x_label: bool, y_label: bool) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    shown = [y for line in panel.lines for x, y in zip(line.x, line.y, strict=True) if _drawable(x, y, panel)]
    logarithmic = panel.log_y and bool(shown) and max(shown) > LOG_FROM * min(shown)
    axes.set_xscale("log" if panel.log_x else "linear")
    axes.set_yscale("log" if logarithmic else "linear")
    for line in panel.lines:
        handles.setdefault(line.label, _line(axes, line, panel))
    axes.set_title(panel.title, loc="left", fontsize="medium")
    axes.set_xlabel(panel.x if x_label else "")
    axes.set_ylabel(panel.y if y_label else "")
    axes.margins(x=0.03, y=0.06)
    if not panel.log_x and axes.get_xlim()[1] >= 10_000:
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: human_count(x)))
    if logarithmic:
        _readable_ticks(axes)


def _line(axes: Axes, line: Line, panel: Panel) -> Any:
    """The curve where it is finite (and positive, on a logarithmic axis), with its band."""
    good = [i for i, (x, y) in enumerate(zip(line.x, line.y, strict=True)) if _drawable(x, y, panel)]
    x, y = (np.array([values[i] for i in good]) for values in (line.x, line.y))
    paper = line.style < 0
    colour = PAPER if paper else COLOURS[line.style % len(COLOURS)]
    if line.low is not None and line.high is not None:
        low, high = (np.array([values[i] for i in good]) for values in (line.low, line.high))
        axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
    (drawn,) = axes.plot(
        x,
        y,
        color=colour,
        linestyle=(0, (3, 3)) if paper else "-",
        linewidth=1.1 if paper else None,
        marker="x" if paper else MARKERS[line.style % len(MARKERS)],
        markersize=7 if paper else None,
        # Markers of different lines stand at different places, so that none hides another.
        markevery=1 if len(x) <= 12 else (0.03 + 0.035 * line.style, 0.15),
        label=line.label,
        zorder=4 if paper else 3 - 0.1 * line.style,  # the method that the paper is about lies on top
    )
    return drawn


def _drawable(x: float, y: float, panel: Panel) -> bool:
    finite = math.isfinite(x) and math.isfinite(y) and abs(y) < HUGE
    return finite and (x > 0 or not panel.log_x) and (y > 0 or not panel.log_y)


def _readable_ticks(axes: Axes) -> None:
    """0.2 and 0.5 instead of 2 × 10⁻¹, where the range is less than a power of ten or two."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    low, high = axes.get_ylim()
    if high / low < 300:
        steps = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0) if high / low < 6 else (1.0, 2.0, 5.0)
        axes.yaxis.set_major_locator(LogLocator(subs=steps))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
