"""Figures as inline SVG, for readers without scripts and for notebooks: loss and accuracy against rounds, bytes per
client and queries. Colours are stand-ins that `svg.inline` turns into CSS variables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedzero.report.compare import Comparison
from fedzero.report.curves import Axis, Curve, curve, queries_logarithmic
from fedzero.report.history import History, Metric
from fedzero.report.labels import gap, names, yardstick
from fedzero.report.plot import canvas, finish, line, nothing, scale_x, scale_y, style
from fedzero.report.svg import INK, MUTED
from fedzero.report.tables import loss_of
from fedzero.report.text import printable
from fedzero.report.units import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLES: dict[Metric, str] = {"accuracy": "Accuracy", "loss": "Loss"}
LABELS: dict[Axis, str] = {
    "rounds": "rounds",
    "bytes": "bytes per client",
    "queries": "queries, all clients",
    "epsilon": "ε",
    "time": "simulated seconds",
}
EMPTY: dict[Axis, str] = {
    "rounds": "nothing was measured",
    "bytes": "no bytes were exchanged",
    "queries": "no queries were counted",
    "epsilon": "the run has no [privacy]",
    "time": "the run has no simulated clock",
}


def metrics(histories: Sequence[History]) -> tuple[Metric, ...]:
    """Accuracy has a row only if a run measured it."""
    return ("accuracy", "loss") if any(h.measured for h in histories) else ("loss",)


def black_boxes(histories: Sequence[History]) -> bool:
    return all(h.found is not None for h in histories)


def title(histories: Sequence[History], metric: Metric) -> str:
    return "Value" if black_boxes(histories) else TITLES[metric]


def panel(histories: Sequence[History], metric: Metric, axis: Axis, size: tuple[int, int] = (360, 250)) -> str:
    """One small figure, `size` in CSS pixels at full width."""
    with canvas(size, left=50, right=22, top=30, bottom=42) as (figure, axes):
        axes.set_title(title(histories, metric), loc="left", fontsize=12, fontweight="bold", color=INK, pad=10)
        draw(axes, histories, metric, axis, ticks=5)
        return finish(figure, f"{metric}-{axis}", describe(histories, metric, axis))


def view(histories: Sequence[History], comparison: Comparison | None, size: tuple[int, int], name: str) -> str:
    """The wide figure: bytes per client against the result, the size of the model, and the gap between two runs.

    Black boxes have no model, and their cost is queries: these are the axis where there is nothing else.
    """
    metric = comparison.metric if comparison else metrics(histories)[0]
    with canvas(size, left=58, right=26, top=36, bottom=48, font=12 if size[0] > 600 else 11) as (figure, axes):
        boxes = black_boxes(histories)
        axis: Axis = "queries" if boxes else "bytes"
        sizes = set() if boxes else {float(h.model_bytes) for h in histories}
        copies = [copy for copy in sizes if copy > 0 and len(sizes) == 1]
        curves = draw(axes, histories, metric, axis, ticks=7 if size[0] > 600 else 4, extra=copies)
        if any(len(c) for c in curves):
            if copies:
                yardstick(axes, copies[0])
            apart = comparison is not None and not boxes and (comparison.ratio or 0) >= 1.5
            taken = [gap(axes, comparison)] if comparison and apart else []
            names(axes, histories, curves, taken, 32 if size[0] > 600 else 16)
        return finish(figure, name, describe(histories, metric, axis))


def draw(
    axes: Axes, histories: Sequence[History], metric: Metric, axis: Axis, ticks: int, extra: Sequence[float] = ()
) -> list[Curve]:
    """Curves, limits and ticks; `extra` are places on the x axis that must be in sight."""
    logarithmic = axis == "bytes" or (axis == "queries" and queries_logarithmic(histories))
    curves = [curve(h, metric, axis, logarithmic) for h in histories]
    if axis == "queries" and not any(h.queries for h in histories):
        curves = [Curve(np.empty(0), np.empty(0), np.empty(0)) for _ in histories]
    axes.set_xlabel(LABELS[axis], color=MUTED, labelpad=5)
    if not any(len(c) for c in curves):
        nothing(axes, "never finite" if any(len(c.lost) for c in curves) else EMPTY[axis])
        return curves
    places = [np.concatenate([c.x, c.lost]) for c in curves]
    scale_x(axes, [*places, np.array(extra)], axis, logarithmic, ticks)
    scale_y(axes, [c.y for c in curves], metric)
    for index, drawn in enumerate(curves):
        line(axes, drawn, style(index))
    return curves


def describe(histories: Sequence[History], metric: Metric, axis: Axis) -> str:
    """What a screen reader says in place of the figure."""
    ends = "; ".join(
        f"{printable(h.name)} ends at {percent(h.final_accuracy) if metric == 'accuracy' else loss_of(h)}"
        for h in histories
    )
    return f"{title(histories, metric)} against {LABELS[axis]}. {ends}."
