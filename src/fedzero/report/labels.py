"""Words inside the wide figure: names beside their curves, the size of the model, the gap between two runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedzero.report.compare import Comparison
from fedzero.report.curves import F64, Curve
from fedzero.report.history import History
from fedzero.report.plot import style
from fedzero.report.svg import INK, MUTED, PAPER
from fedzero.report.text import printable
from fedzero.report.units import human_bytes, times

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

Spot = tuple[int, int, str, str]
SPOTS: tuple[Spot, ...] = (
    (10, 0, "left", "center"),
    (0, 9, "right", "bottom"),
    (0, 9, "center", "bottom"),
    (0, 9, "left", "bottom"),
    (-10, 0, "right", "center"),
    (0, -9, "left", "top"),
    (0, -9, "center", "top"),
    (0, -9, "right", "top"),
)
"""Places for a name around the end of its curve, best first: offset in pixels and alignment."""


def yardstick(axes: Axes, copy: float) -> None:
    """A vertical line where a client would have exchanged one copy of the model; its label is above the frame."""
    low, high = axes.get_xlim()
    across = float(np.log(copy / low) / np.log(high / low))
    axes.axvline(copy, color=MUTED, linewidth=1, linestyle=(0, (2, 3)), zorder=1)
    side = "left" if across < 0.2 else "right" if across > 0.8 else "center"
    axes.annotate(f"one copy of the model: {human_bytes(copy)}", (across, 1), xycoords="axes fraction", xytext=(0, 8),
                  textcoords="offset points", ha=side, color=MUTED, annotation_clip=False)  # fmt: skip


def gap(axes: Axes, comparison: Comparison) -> Bbox:
    """The distance between two runs at the goal both met: a line, and how many times it is. Returns its place."""
    low, high, goal = comparison.frugal_bytes, comparison.lavish_bytes, comparison.goal
    axes.plot(
        [low, high], [goal, goal], color=INK, linewidth=1.3, marker="o", markersize=8, markerfacecolor=PAPER, zorder=6
    )
    text = axes.annotate(
        f"{times(comparison.ratio or 1)} times the bytes",
        ((low * high) ** 0.5, goal),
        xytext=(0, -11),
        textcoords="offset points",
        ha="center",
        va="top",
        fontsize=16,
        fontweight="bold",
        color=INK,
        bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 3},
        zorder=6,
    )
    (start, level), (end, _) = axes.transData.transform([(low, goal), (high, goal)])
    if text.get_window_extent().width > end - start - 12:
        text.set_text(f"{times(comparison.ratio or 1)} ×")
    box = text.get_window_extent()
    return type(box).from_extents(start, box.y0, end, level + 3)


def names(
    axes: Axes, histories: Sequence[History], curves: Sequence[Curve], taken: Sequence[Bbox], longest: int
) -> None:
    """Each name beside the end of its curve, at the first spot where it covers nothing, or else the least.

    Names are cut to `longest` letters: the page has them in full elsewhere.
    """
    lines = np.vstack([dense(axes, c) for c in curves])
    boxes = list(taken)
    for index, (history, drawn) in enumerate(zip(histories, curves, strict=True)):
        if not len(drawn):
            continue
        text = axes.annotate(
            printable(history.name, longest),
            (drawn.x[-1], drawn.y[-1]),
            xytext=(0, 0),
            textcoords="offset points",
            color=style(index).colour,
            fontsize=13,
            fontweight="bold",
            parse_math=False,
            annotation_clip=False,
            zorder=7,
        )
        costs = [cost(axes, put(text, spot), lines, boxes) for spot in SPOTS]
        boxes.append(put(text, SPOTS[costs.index(min(costs))]))


def put(text: Annotation, spot: Spot) -> Bbox:
    text.xyann = spot[:2]
    text.set(ha=spot[2], va=spot[3])
    return text.get_window_extent()


def cost(axes: Axes, box: Bbox, lines: F64, taken: Sequence[Bbox]) -> float:
    """What a label in `box` would cover: points of curves, other labels, or worse, the world outside the frame."""
    x, y = lines.T
    covered = (x > box.x0) & (x < box.x1) & (y > box.y0) & (y < box.y1)
    frame = axes.bbox
    outside = box.x0 < frame.x0 or box.x1 > frame.x1 + 24 or box.y0 < frame.y0 or box.y1 > frame.y1 + 4
    shared = sum(1 for other in taken if box.overlaps(other))
    return float(covered.sum()) + 200.0 * shared + 1000.0 * bool(outside)


def dense(axes: Axes, drawn: Curve) -> F64:
    """The curve in pixels, eight points for each one of its own."""
    pixels = np.asarray(axes.transData.transform(np.column_stack([drawn.x, drawn.y])), np.float64).reshape(-1, 2)
    if len(pixels) < 2:
        return pixels
    steps, index = np.linspace(0, len(pixels) - 1, 8 * len(pixels)), np.arange(len(pixels))
    return np.column_stack([np.interp(steps, index, pixels[:, k]) for k in (0, 1)])
