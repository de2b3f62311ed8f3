"""The mean of a cohort, and what rules that replace it share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from fedzero.links.contract import F32


def mean(contributions: Mapping[int, F32], weights: Mapping[int, int]) -> F32:
    """The average, in float64, by client number."""
    clients = sorted(contributions)
    total = np.zeros(len(contributions[clients[0]]))
    for client in clients:
        values = contributions[client]
        total += values if weights[client] == 1 else weights[client] * values.astype(np.float64)
    return (total / sum(weights[client] for client in clients)).astype(np.float32)


def stacked(contributions: Mapping[int, F32], weights: Mapping[int, int]) -> NDArray[np.float64]:
    """(turns, numbers), float64, by client number."""
    return np.stack([contributions[c] for c in sorted(contributions) for _ in range(weights[c])]).astype(np.float64)


Liars = Annotated[float, Meta(gt=0, lt=0.5)]
"""f/n, the share of contributions that may be anything."""


def liars_of(fraction: float, count: int, spare: int) -> int:
    """f = ⌊fraction · n⌋, at least 1, as far as n ≥ 2f + spare: so many must be left to be believed."""
    return max(0, min(max(1, int(fraction * count)), (count - spare) // 2))


def distances(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """‖v_i − v_j‖² of all pairs, (n, n). By differences: products of long vectors would cancel."""
    return np.stack([np.square(rows - row).sum(axis=1) for row in rows])
