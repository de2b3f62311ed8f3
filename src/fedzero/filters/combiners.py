"""How the contributions of a cohort become one: the mean, or a robust statistic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from fedzero.filters.contract import F32, Combiner


def mean(contributions: Mapping[int, F32], weights: Mapping[int, int]) -> F32:
    """The average, in float64, by client number."""
    clients = sorted(contributions)
    total = np.zeros(len(contributions[clients[0]]))
    for client in clients:
        values = contributions[client]
        total += values if weights[client] == 1 else weights[client] * values.astype(np.float64)
    return (total / sum(weights[client] for client in clients)).astype(np.float32)


def _stacked(contributions: Mapping[int, F32], weights: Mapping[int, int]) -> NDArray[np.float64]:
    """(turns, numbers), float64."""
    return np.stack([contributions[c] for c in sorted(contributions) for _ in range(weights[c])]).astype(np.float64)


class Median(Combiner, tag="median"):
    """Coordinate-wise median of the contributions: half of them may be arbitrary."""

    def least(self) -> int:
        return 2

    def combine(self, contributions: Mapping[int, F32], weights: Mapping[int, int]) -> F32:
        return np.median(_stacked(contributions, weights), axis=0).astype(np.float32)


class TrimmedMean(Combiner, tag="trimmed-mean"):
    """Coordinate-wise mean without the largest and the smallest `fraction` of the contributions (at least one each)."""

    fraction: Annotated[float, Meta(gt=0, lt=0.5)] = 0.1

    def least(self) -> int:
        return 3

    def combine(self, contributions: Mapping[int, F32], weights: Mapping[int, int]) -> F32:
        rows = np.sort(_stacked(contributions, weights), axis=0)
        cut = min(max(1, int(self.fraction * len(rows))), (len(rows) - 1) // 2)
        middle: F32 = rows[cut : len(rows) - cut].mean(axis=0).astype(np.float32)
        return middle
