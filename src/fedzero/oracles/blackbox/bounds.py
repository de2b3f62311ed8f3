"""The bounds of a function's arguments, and the unit box in which the federation works.

    x = low + u (high − low),   u projected to [0, 1]^d first        u = (x − low) / (high − low)

A coordinate with n steps has n values only, evenly spaced from low to high: x is the nearest of them.

Both in float64, coordinate by coordinate. However u was rounded, x never leaves its bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedzero.errors import FedzeroError
from fedzero.oracles.contract import F64


@dataclass(frozen=True, eq=False)
class Bounds:
    """low and high, (d,) each; steps: how many values each coordinate has, 0: any; (d,) or empty."""

    low: F64
    high: F64
    steps: tuple[int, ...] = ()

    @staticmethod
    def of(
        low: float | Sequence[float], high: float | Sequence[float], dimension: int, steps: tuple[int, ...] = ()
    ) -> Bounds:
        """One number for all coordinates, or one for each."""
        if steps and (len(steps) != dimension or min(steps) < 0 or 1 in steps):
            raise FedzeroError(f"task.steps = {steps}: give 0, or 2 and more, for each of {dimension} coordinates")
        lower, upper = _spread("low", low, dimension), _spread("high", high, dimension)
        for i in np.flatnonzero(~(lower < upper))[:1]:
            raise FedzeroError(
                f"task.low = {lower[i]} and task.high = {upper[i]} for coordinate {i} are not valid: "
                "low must be less than high"
            )
        with np.errstate(over="ignore"):
            wide = np.flatnonzero(~np.isfinite(upper - lower))
        for i in wide[:1]:
            raise FedzeroError(
                f"task.low = {lower[i]} and task.high = {upper[i]} for coordinate {i} are too far apart: "
                "high - low overflows; give closer bounds"
            )
        return Bounds(lower, upper, steps)

    @property
    def dimension(self) -> int:
        return len(self.low)

    def from_unit(self, u: F64) -> F64:
        """The point a box is asked at, (…, d). The second clip takes back what rounding may have added."""
        x = np.clip(self.low + np.clip(u, 0.0, 1.0) * (self.high - self.low), self.low, self.high)
        for i, steps in enumerate(self.steps):
            if steps:
                level = np.rint(np.clip(u[..., i], 0.0, 1.0) * (steps - 1))
                x[..., i] = self.low[i] + level * ((self.high[i] - self.low[i]) / (steps - 1))
        return x

    def to_unit(self, x: F64) -> F64:
        return (np.clip(x, self.low, self.high) - self.low) / (self.high - self.low)

    def same_model(self, x: F64, other: F64) -> bool:
        """Whether two points are one when they are rounded to float32 in the unit box, as models are."""
        return bool(np.abs(self.to_unit(x) - self.to_unit(other)).max() <= 2.0**-24)

    def starting_at(self, start: Sequence[float] | None) -> F64:
        """The starting point as u, (d,); None: the middle."""
        if start is None:
            return np.full(self.dimension, 0.5)
        x = _spread("start", start, self.dimension)
        for i in np.flatnonzero((x < self.low) | (x > self.high))[:1]:
            raise FedzeroError(
                f"task.start = {x[i]} for coordinate {i} is outside its bounds [{self.low[i]}, {self.high[i]}]: "
                "start inside them"
            )
        return self.to_unit(x)


def _spread(name: str, value: float | Sequence[float], dimension: int) -> F64:
    array = np.asarray(value, np.float64)
    if array.ndim == 0:
        array = np.full(dimension, float(array))
    if array.shape != (dimension,):
        raise FedzeroError(
            f"task.{name} has {array.size} numbers but task.dimension = {dimension}: give one for each coordinate"
        )
    for i in np.flatnonzero(~np.isfinite(array))[:1]:
        raise FedzeroError(f"task.{name} = {array[i]} for coordinate {i}: give a finite number")
    return array
