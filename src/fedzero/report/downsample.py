"""Long curves for a screen: the lowest and the highest value of every stretch of points, so that no peak is lost."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

MOST = 1200
"""Points of a curve that are kept: a screen has no more columns than half of that."""


def kept(values: NDArray[np.float64], most: int = MOST) -> NDArray[np.intp]:
    """Positions of at most `most` of the values, (n,) → (≤ most,): the ends, and the extremes of stretches of equal
    length in between, in order. NaN is neither an extreme nor dropped where a stretch has nothing else."""
    n = len(values)
    if n <= most:
        return np.arange(n)
    edges = np.linspace(1, n - 1, (most - 2) // 2 + 1).astype(np.intp)
    low, high = np.where(np.isnan(values), np.inf, values), np.where(np.isnan(values), -np.inf, values)
    found = {0, n - 1}
    for start, end in pairwise(edges):
        found |= {int(start + low[start:end].argmin()), int(start + high[start:end].argmax())}
    return np.array(sorted(found), np.intp)
