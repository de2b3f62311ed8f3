"""The unit box with coordinates that have steps or are choices, and how models see it.

A point u (d,) in [0, 1]^d is what is asked. Models see it *lifted*, (D,): a choice among n options is n coordinates, of
which that of the option is 1 and the others 0, because options have no order; all others are as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedzero.estimators.surface.trust_region import F64


@dataclass(frozen=True)
class Space:
    """steps[i]: how many values coordinate i has, evenly spaced from 0 to 1; 0: any. choices: which are choices."""

    dimension: int
    steps: tuple[int, ...] = ()
    choices: tuple[int, ...] = ()

    @property
    def discrete(self) -> bool:
        return any(self.steps)

    @cached_property
    def columns(self) -> tuple[tuple[int, int, int], ...]:
        """(first lifted coordinate, how many, steps) of every coordinate."""
        found, first = [], 0
        for i in range(self.dimension):
            steps = self.steps[i] if self.steps else 0
            width = steps if i in self.choices else 1
            found.append((first, width, steps))
            first += width
        return tuple(found)

    @cached_property
    def stepped(self) -> NDArray[np.bool_]:
        """Which lifted coordinates have steps, or are of a choice; (D,)."""
        return np.repeat([steps > 0 for _, _, steps in self.columns], [width for _, width, _ in self.columns])

    @property
    def lifted(self) -> int:
        """D"""
        return sum(width for _, width, _ in self.columns)

    @property
    def neighbours(self) -> int:
        """How many points a stencil has beside its centre."""
        return sum(max(1, width - 1) for _, width, _ in self.columns)

    def lift(self, u: F64) -> F64:
        """(n, d) → (n, D)"""
        if not self.choices:
            return u
        out = np.zeros((len(u), self.lifted))
        for i, (first, width, _) in enumerate(self.columns):
            if width == 1:
                out[:, first] = u[:, i]
            else:
                option = np.rint(u[:, i] * (width - 1)).astype(np.int64)
                out[np.arange(len(u)), first + option] = 1.0
        return out

    def lower(self, lifted: F64) -> F64:
        """(n, D) → (n, d): within the box, steps to the nearest, of a choice the option with the largest number."""
        if not self.discrete:
            return np.clip(lifted, 0.0, 1.0)
        out = np.empty((len(lifted), self.dimension))
        for i, (first, width, steps) in enumerate(self.columns):
            if width == 1:
                u = np.clip(lifted[:, first], 0.0, 1.0)
                out[:, i] = np.rint(u * (steps - 1)) / (steps - 1) if steps else u
            else:
                out[:, i] = lifted[:, first : first + width].argmax(axis=1) / (width - 1)
        return out

    def stencil(self, centre: F64, h: float) -> F64:
        """The neighbours of a point (d,): h further along each coordinate, a step, or another option; (n, d).

        Sums and quotients of two numbers: the same bits on every machine.
        """
        rows = []
        for i, (_, width, steps) in enumerate(self.columns):
            if width > 1:
                option = int(np.rint(centre[i] * (width - 1)))
                others = [other / (width - 1) for other in range(width) if other != option]
            elif steps:
                level = int(np.rint(centre[i] * (steps - 1)))
                others = [(level - 1 if level == steps - 1 else level + 1) / (steps - 1)]
            else:
                others = [centre[i] - h if centre[i] + h > 1 else centre[i] + h]
            for other in others:
                row = centre.copy()
                row[i] = other
                rows.append(row)
        return np.array(rows)
