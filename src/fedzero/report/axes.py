"""Pictures on the axes of matplotlib, in the style of whoever calls: for notebooks and papers.

The page has pictures of its own; these are to be changed: every function returns the axes that it drew on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedzero.errors import FedzeroError, Invalid
from fedzero.lines import printable, said_of
from fedzero.report.curves import Axis, place_of, wide
from fedzero.report.history import History, Point, Slice

LABELS: Mapping[Axis, str] = {
    "rounds": "rounds",
    "bytes": "bytes per client",
    "queries": "queries of all clients",
    "epsilon": "ε against readers of model and ledger",
    "time": "simulated seconds",
}
MOST_NUMBERED = 300
"""Cells of a table of clients and classes in which counts are written."""


def new_axes(count: int = 1) -> list[Any]:
    """Axes side by side in a new figure."""
    try:
        from matplotlib import pyplot
    except Exception as error:  # it reads settings when it is imported, also those of the current folder
        raise FedzeroError(
            f"pictures need matplotlib, which cannot be imported ({said_of(error)}): pip install matplotlib"
        ) from error
    across = min(count, 4)
    size = (1.6 + 4.2 * across, 3.6 * ceil(count / across))
    _, axes = pyplot.subplots(ceil(count / across), across, figsize=size, squeeze=False, layout="constrained")
    for spare in axes.flat[count:]:
        spare.set_axis_off()
    return list(axes.flat[:count])


def measured(histories: Sequence[History]) -> list[str]:
    """What was measured in all of these runs, accuracy first."""
    named = [{*point.others, "loss"} for history in histories for point in history.points[-1:]]
    common = set.intersection(*named) if named else {"loss"}
    return [
        *(["accuracy"] if all(history.measured for history in histories) else []),
        "loss",
        *sorted(common - {"loss"}),
    ]


def curves(histories: Sequence[History], metric: str | None, axis: Axis, ax: Any = None) -> Any:
    """A metric of every run (default: accuracy, or loss) against rounds, bytes or queries."""
    known = measured(histories)
    if metric is not None and metric not in known:
        raise Invalid(f"metric = {metric!r} was not measured: there are {', '.join(known)}")
    if axis not in LABELS:
        raise Invalid(f"axis = {axis!r} is not valid: use one of {', '.join(LABELS)}")
    chosen, ax = metric or known[0], new_axes()[0] if ax is None else ax
    for history in histories:
        pairs = [(place_of(point, axis), _value(point, chosen)) for point in history.points]
        found = [(x, y) for x, y in pairs if y is not None and isfinite(y) and (x > 0 or axis in ("rounds", "time"))]
        ax.plot([x for x, _ in found], [y for _, y in found], marker=".", label=printable(history.title, 60))
        if chosen == "loss" and found and wide(np.array([y for _, y in found]), 50):
            ax.set_yscale("log")
    if axis == "bytes":
        ax.set_xscale("log")
    ax.set_xlabel(LABELS[axis])
    ax.set_ylabel(chosen)
    ax.legend()
    return ax


def _value(point: Point, metric: str) -> float | None:
    return point.others.get(metric) if metric not in ("accuracy", "loss") else getattr(point, metric)


def clients(counts: NDArray[np.int64], classes: Sequence[str], ax: Any = None) -> Any:
    """Who has what: samples of every client (rows) by class (columns)."""
    ax = new_axes()[0] if ax is None else ax
    image = ax.imshow(counts, aspect="auto", cmap="Blues", vmin=0, interpolation="nearest")
    ax.figure.colorbar(image, ax=ax, label="samples")
    ax.set_xlabel("class")
    ax.set_ylabel("client")
    if len(classes) <= 30:
        ax.set_xticks(range(len(classes)), [printable(name, 12) for name in classes])
    if counts.size <= MOST_NUMBERED:
        dark = counts.max() / 2
        for (client, label), count in np.ndenumerate(counts):
            colour = "white" if count > dark else "black"
            ax.text(label, client, f"{count:,}", ha="center", va="center", color=colour, fontsize=8)
    return ax


def values(
    exact: Sequence[tuple[int, float]], estimated: Sequence[tuple[int, float]], best: float | None, ax: Any = None
) -> Any:
    """Values of F against queries: dots, those of estimates hollow, and the least exact one so far as a line."""
    ax = new_axes()[0] if ax is None else ax
    for points, filled, label in ((exact, True, "F at the model"), (estimated, False, "estimate")):
        if points:
            face = None if filled else "none"
            ax.scatter([x for x, _ in points], [y for _, y in points], label=label, facecolors=face, edgecolors="C0")
    if exact:
        least = np.minimum.accumulate([y for _, y in exact])
        ax.step([x for x, _ in exact], least, where="post", color="C1", label="best so far")
    if best is not None:
        ax.axhline(best, color="C2", linestyle=":", label="best point asked")
    ax.set_xlabel(LABELS["queries"])
    ax.set_ylabel("F")
    ax.legend()
    return ax


def slices(
    asked: Mapping[int, Sequence[tuple[NDArray[np.float64], float]]],
    chosen: Sequence[int],
    surrogate: Sequence[Slice],
    x: Sequence[float],
    axes: Sequence[Any] | None = None,
) -> list[Any]:
    """Values of every party against a coordinate each, and the surrogate of F along it through x, ± its deviation."""
    axes, lines = new_axes(len(chosen)) if axes is None else list(axes), {line.coordinate: line for line in surrogate}
    if len(axes) != len(chosen):
        raise Invalid(f"axes has {len(axes)} and there are {len(chosen)} coordinates: give one for each")
    for ax, coordinate in zip(axes, chosen, strict=True):
        for party, pairs in sorted(asked.items()):
            places, found = [point[coordinate] for point, _ in pairs], [value for _, value in pairs]
            ax.scatter(places, found, s=14, alpha=0.6, label=f"party {party}")
        if (line := lines.get(coordinate)) is not None:
            mean, deviation = np.array(line.mean), np.array(line.deviation)
            ax.plot(line.places, mean, color="black", label="model of F")
            ax.fill_between(line.places, mean - deviation, mean + deviation, color="black", alpha=0.12)
        ax.axvline(x[coordinate], color="black", linestyle=":")
        ax.set_xlabel(f"x[{coordinate}]")
    axes[0].set_ylabel("value")
    if len(asked) <= 10:
        axes[0].legend()
    return axes
