"""The mean of a cohort, and functions that the rules which replace it share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from fedzero.links.contract import F32


def mean(contributions: Mapping[int, F32], weights: Mapping[int, int]) -> F32:
    """The weighted average in float64, summed in the order of client numbers."""
    clients = sorted(contributions)
    total = np.zeros(len(contributions[clients[0]]))
    for client in clients:
        values = contributions[client]
        total += values if weights[client] == 1 else weights[client] * values.astype(np.float64)
    return (total / sum(weights[client] for client in clients)).astype(np.float32)


def stacked(contributions: Mapping[int, F32], weights: Mapping[int, int]) -> NDArray[np.float64]:
    """The contributions as a float64 array (turns, numbers), in the order of client numbers."""
    return np.stack([contributions[c] for c in sorted(contributions) for _ in range(weights[c])]).astype(np.float64)


Liars = Annotated[float, Meta(gt=0, lt=0.5)]
"""f/n, the share of contributions that may be arbitrary."""


def liars_of(fraction: float, count: int, spare: int) -> int:
    """f = ⌊fraction · n⌋, at least 1, but only so large that n ≥ 2f + spare."""
    return max(0, min(max(1, int(fraction * count)), (count - spare) // 2))


def distances(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """‖v_i − v_j‖² of all pairs, (n, n). It uses differences, because scalar products of long vectors would cancel."""
    return np.stack([np.square(rows - row).sum(axis=1) for row in rows])
