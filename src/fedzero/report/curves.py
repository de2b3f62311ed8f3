"""From histories to the numbers of a curve: what is drawn, before anybody draws it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, inf, isfinite, log10
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedzero.report.downsample import kept
from fedzero.report.history import History, Metric, Point

Axis = Literal["rounds", "bytes", "queries", "epsilon", "time"]
F64 = NDArray[np.float64]

HUGE = 1e30
"""A loss beyond this is as good as infinite, one below its inverse as good as zero: no axis could show them."""


@dataclass(frozen=True)
class Curve:
    """`y` is finite; `lost` are the places on the x axis where it was not."""

    x: F64
    y: F64
    lost: F64

    def __len__(self) -> int:
        return len(self.x)


def place_of(point: Point, axis: Axis) -> float:
    """The place of an evaluation on an axis."""
    places: dict[Axis, float] = {
        "rounds": point.round,
        "bytes": point.bytes,
        "queries": point.queries,
        "epsilon": point.epsilon,
        "time": point.time,
    }
    return places[axis]


def curve(history: History, metric: Metric, axis: Axis, logarithmic: bool = False) -> Curve:
    """On a logarithmic axis there is no zero: points before the first byte or query stay out."""
    places = [place_of(point, axis) for point in history.points]
    pairs = [(x, p.value(metric)) for x, p in zip(places, history.points, strict=True)]
    return of_pairs([(x, y) for x, y in pairs if y is not None and isfinite(x) and (x > 0 or not logarithmic)])


def of_pairs(pairs: Sequence[tuple[float, float]]) -> Curve:
    table = np.array(pairs, np.float64).reshape(-1, 2)
    good = np.isfinite(table[:, 1]) & (np.abs(table[:, 1]) < HUGE)
    table[np.abs(table[:, 1]) < 1 / HUGE, 1] = 0.0
    x, y = thin(table[good])
    return Curve(x, y, table[~good, 0])


def thin(table: F64) -> tuple[F64, F64]:
    """At most `MOST` points."""
    table = table[kept(table[:, 1])]
    return table[:, 0], table[:, 1]


def wide(values: F64, factor: float) -> bool:
    """Whether positive values span more than `factor`, so that a linear axis would flatten most of them."""
    return len(values) > 0 and bool(values.min() > 0) and bool(values.max() > factor * values.min())


def queries_logarithmic(histories: Sequence[History]) -> bool:
    """Runs whose totals differ much share an axis only in powers of ten."""
    return wide(np.array([h.queries for h in histories if h.queries > 0], np.float64), 8)


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """Powers of ten within the bounds, every second or third if they are many; 1-2-5 steps if they are few."""
    first, last = ceil(log10(low) - 1e-9), floor(log10(high) + 1e-9)
    if last - first >= 2:
        stride = ceil((last - first + 1) / most)
        return [10.0**e for e in range(first, last + 1, stride)]
    steps = [m * 10.0**e for e in range(first - 1, last + 1) for m in (1, 2, 5)]
    steps = [t for t in steps if low <= t <= high]
    return steps[:: max(1, ceil(len(steps) / most))] if steps else [low, high]


def bounds(curves: Sequence[F64], logarithmic: bool, pad: float = 0.06) -> tuple[float, float]:
    """Limits with some air around all values; a single value gets air, too."""
    low = min((float(v.min()) for v in curves if len(v)), default=inf)
    high = max((float(v.max()) for v in curves if len(v)), default=-inf)
    if low > high:
        return (1.0, 10.0) if logarithmic else (0.0, 1.0)
    if logarithmic:
        span = max(log10(high / low), 0.5)
        return low / 10 ** (pad * span), high * 10 ** (pad * span)
    span = high - low or abs(high) or 1.0
    return low - pad * span, high + pad * span
