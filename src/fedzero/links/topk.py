"""Only the largest numbers are sent."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedzero.links.contract import F32, Shaper
from fedzero.model.numbers import PositiveFraction


class TopK(Shaper, tag="top-k"):
    """Send only the ⌈fraction · n⌉ largest |v_j|, with their places; the others become 0."""

    fraction: PositiveFraction = 0.1
    """of all numbers"""
    feedback: bool = False
    """Add the part that was left out to the next contribution."""

    sparse = True

    def places(self, values: F32) -> NDArray[np.int64]:
        """The indices of the k largest magnitudes, in ascending order; among equal ones the first."""
        magnitudes, n = np.abs(values), len(values)
        if not n:
            return np.empty(0, np.int64)
        k = self.most_places(n)
        least = np.partition(magnitudes, n - k)[n - k]
        above = np.flatnonzero(magnitudes > least)
        return np.sort(np.concatenate([above, np.flatnonzero(magnitudes == least)[: k - len(above)]]))

    def shape(self, values: F32) -> F32:
        out, places = np.zeros_like(values), self.places(values)
        out[places] = values[places]
        return out

    def most_places(self, count: int) -> int:
        return math.ceil(self.fraction * count)

    def longest(self, length: float) -> float:
        return length
