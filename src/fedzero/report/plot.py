"""One pair of axes: an empty frame in our style, scales with readable ticks, and lines."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedzero.errors import FedzeroError
from fedzero.lines import said_of
from fedzero.report.curves import F64, Axis, Curve, bounds, log_ticks, wide
from fedzero.report.history import Metric
from fedzero.report.svg import GRID, MUTED, PAPER, SERIES, inline
from fedzero.report.units import human_bytes, human_count

if TYPE_CHECKING:  # matplotlib takes half a second to import, and few commands draw
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Transform

MARKERS = "osD^vP"
SIZES = (7.0, 6.5, 6.0, 8.0, 8.0, 8.5)

SETTINGS: dict[Any, object] = {  # Any: matplotlib 3.11 types its keys as literals, older ones as strings
    "svg.fonttype": "none",
    "svg.hashsalt": "fedzero",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.edgecolor": MUTED,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": GRID,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 4,
    "xtick.major.pad": 4,
    "ytick.major.size": 0,
    "ytick.major.pad": 6,
}


@dataclass(frozen=True)
class Style:
    """How the n-th run is drawn, everywhere on the page; shapes tell runs apart where colours do not."""

    colour: str
    marker: str
    dashed: bool


def style(index: int) -> Style:
    return Style(SERIES[index % len(SERIES)], MARKERS[index % len(MARKERS)], index >= len(SERIES))


@contextmanager
def canvas(
    size: tuple[int, int], left: int, right: int, top: int, bottom: int, font: int = 11
) -> Iterator[tuple[Figure, Axes]]:
    """A figure of `size` pixels with margins in pixels, drawn with our settings whatever the user's are."""
    try:
        import matplotlib
    except Exception as error:  # it reads settings when it is imported, also those of the current folder
        raise FedzeroError(
            f"matplotlib cannot be imported ({said_of(error)}): is there a file matplotlibrc here?"
        ) from error
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with warnings.catch_warnings(), matplotlib.rc_context():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # only widths come from matplotlib's font
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({**SETTINGS, "font.size": font})
        width, height = size
        figure = Figure(figsize=(width / 72, height / 72), dpi=72)
        FigureCanvasAgg(figure)  # measures text; pyplot's global state stays untouched
        axes = figure.add_axes((left / width, bottom / height, 1 - (left + right) / width, 1 - (top + bottom) / height))
        yield figure, axes


def finish(figure: Figure, name: str, label: str) -> str:
    document = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(document, format="svg", transparent=True, metadata=nothing)
    return inline(document.getvalue(), f"fig-{name}", label)


def nothing(axes: Axes, message: str) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(0.5, 0.5, message, transform=axes.transAxes, ha="center", va="center", color=MUTED, fontstyle="italic")


def scale_x(axes: Axes, places: Sequence[F64], axis: Axis, logarithmic: bool, ticks: int) -> None:
    human = human_bytes if axis == "bytes" else human_count
    low, high = bounds(places, logarithmic, 0.04)
    if logarithmic:
        axes.set_xscale("log")
        axes.set_xlim(low, high)
        at = log_ticks(low, high, ticks)
    else:
        axes.set_xlim(low, high)
        at = linear_ticks(max(low, 0.0), high, ticks, whole=True)
    axes.set_xticks(at, [human(t) if logarithmic or axis != "rounds" else f"{t:,.0f}" for t in at])
    axes.set_xticks([], minor=True)


def scale_y(axes: Axes, values: Sequence[F64], metric: Metric) -> None:
    logarithmic = metric == "loss" and wide(np.concatenate(list(values)), 50)
    low, high = bounds(values, logarithmic)
    if metric == "accuracy":
        low, high = max(low, -0.02), min(high, 1.02) if high > low and max(map(peak, values)) <= 1 else high
    axes.set_yscale("log" if logarithmic else "linear")
    axes.set_ylim(low, high)
    at = log_ticks(low, high, 5) if logarithmic else linear_ticks(low, high, 5)
    texts = [f"{100 * t:.4g} %" if metric == "accuracy" else f"{t:.4g}" for t in at]
    axes.set_yticks(at, texts)
    axes.set_yticks([], minor=True)


def peak(values: F64) -> float:
    return float(values.max()) if len(values) else 0.0


def linear_ticks(low: float, high: float, most: int, whole: bool = False) -> list[float]:
    from matplotlib.ticker import MaxNLocator

    found = MaxNLocator(most, steps=[1, 2, 2.5, 5, 10], integer=whole).tick_values(low, high)
    return [float(t) + 0.0 for t in found if low <= t <= high and (t == round(t) or not whole)]


def line(axes: Axes, drawn: Curve, how: Style) -> None:
    """A curve with a mark at its end, and a cross at the top where it stopped being finite."""
    dashes = (0, (4, 2)) if how.dashed else "-"
    axes.plot(drawn.x, drawn.y, color=how.colour, linewidth=2, linestyle=dashes, solid_capstyle="round", zorder=3)
    mark(axes, drawn.x[-1:], drawn.y[-1:], how.colour, how.marker, SIZES[MARKERS.index(how.marker)])
    if len(drawn.lost):
        mark(axes, drawn.lost[:1], np.array([0.97]), how.colour, "X", 9.0, on=axes.get_xaxis_transform())


def mark(axes: Axes, x: F64, y: F64, colour: str, marker: str, size: float, on: Transform | None = None) -> None:
    axes.plot(
        x,
        y,
        linestyle="",
        color=colour,
        marker=marker,
        markersize=size,
        markeredgecolor=PAPER,
        markeredgewidth=0.9,
        clip_on=False,
        zorder=5,
        transform=on or axes.transData,
    )
