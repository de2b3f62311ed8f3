"""Bounds of coordinates: real numbers, whole numbers, options that have no order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedzero.errors import Invalid
from fedzero.model.value import checked, quoted


@dataclass(frozen=True)
class Real:
    """Any number from low to high."""

    low: float
    high: float
    steps: int = 0

    def shown(self, value: float) -> Any:
        return float(value)


@dataclass(frozen=True)
class Integer:
    """A whole number from low to high, both included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            object.__setattr__(self, name, checked(getattr(self, name), int, f"Integer: {name}"))
        if self.low > self.high:
            raise Invalid(f"Integer({self.low}, {self.high}): low is above high")

    @property
    def steps(self) -> int:
        return self.high - self.low + 1

    def shown(self, value: float) -> Any:
        return round(value)


class Choice:
    """One of several options that have no order. Functions get the option itself; `Result.x` has its number."""

    low = 0

    def __init__(self, *options: Any):
        if len(options) < 2:
            raise Invalid(f"Choice{quoted(options)}: give two options or more")
        self.options = options

    @property
    def high(self) -> int:
        return len(self.options) - 1

    @property
    def steps(self) -> int:
        return len(self.options)

    def shown(self, value: float) -> Any:
        return self.options[round(value)]


Coordinate = Real | Integer | Choice


def coordinates_of(bounds: Sequence[Any], dimension: int | None) -> tuple[Coordinate, ...]:
    """Bounds as users give them: pairs, `Integer` and `Choice`; one of them for all coordinates, with `dimension`."""
    if isinstance(bounds, Integer | Choice) and dimension is not None:
        return (bounds,) * dimension
    try:
        found = tuple(_coordinate(each) for each in bounds)
    except (TypeError, ValueError):
        try:
            found = (_coordinate(bounds),) * (dimension or 0)
        except (TypeError, ValueError):
            found = ()
    if not found or dimension not in (None, len(found)):
        raise Invalid(
            f"bounds = {quoted(bounds)} and dimension = {dimension}: give a pair (low, high), an Integer or a Choice "
            "for every coordinate, or one pair and dimension"
        )
    return found


def _coordinate(pair: Any) -> Coordinate:
    if isinstance(pair, Integer | Choice):
        return pair
    low, high = pair
    return Real(float(low), float(high))


def with_options(f: Callable[..., Any], coordinates: tuple[Coordinate, ...], x: NDArray[np.float64]) -> Any:
    """f at numbers (d,) or (n, d), with the options themselves in the place of their numbers."""
    rows = [[each.shown(value) for each, value in zip(coordinates, row, strict=True)] for row in np.atleast_2d(x)]
    return f(rows[0] if x.ndim == 1 else rows)
