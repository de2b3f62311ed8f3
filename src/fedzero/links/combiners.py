"""How the contributions of a cohort become one: the mean, or a robust statistic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from fedzero.links.contract import F32, Combiner


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


class Median(Combiner, tag="median"):
    """Coordinate-wise median of the contributions: half of them may be arbitrary."""

    def least(self) -> int:
        return 2

    def withstands(self, count: int) -> int:
        return (count - 1) // 2

    def combine(self, contributions: Mapping[int, F32], weights: Mapping[int, int]) -> F32:
        return np.median(stacked(contributions, weights), axis=0).astype(np.float32)


class TrimmedMean(Combiner, tag="trimmed-mean"):
    """Coordinate-wise mean without the largest and the smallest `fraction` of the contributions (at least one each)."""

    fraction: Annotated[float, Meta(gt=0, lt=0.5)] = 0.1

    def least(self) -> int:
        return 3

    def withstands(self, count: int) -> int:
        return min(max(1, int(self.fraction * count)), (count - 1) // 2)

    def combine(self, contributions: Mapping[int, F32], weights: Mapping[int, int]) -> F32:
        rows = np.sort(stacked(contributions, weights), axis=0)
        cut = self.withstands(len(rows))
        middle: F32 = rows[cut : len(rows) - cut].mean(axis=0).astype(np.float32)
        return middle


class Krum(Combiner, tag="krum"):
    """Krum (Blanchard et al., NeurIPS 2017): the contribution whose neighbours are nearest, and no other.

        s(i) = Σ of the n − f − 2 smallest ‖v_i − v_j‖², j ≠ i;   v_i with the least s(i)

    Of equal ones that of the lowest client number counts. n ≥ 2f + 3.
    """

    fraction: Liars = 0.2
    """f/n, how many of the contributions may be anything; f = ⌊fraction · n⌋, at least 1"""

    def least(self) -> int:
        return 5

    def withstands(self, count: int) -> int:
        return liars_of(self.fraction, count, 3)

    def combine(self, contributions: Mapping[int, F32], weights: Mapping[int, int]) -> F32:
        rows = stacked(contributions, weights)
        best: F32 = rows[_order(rows, self.withstands(len(rows)))[0]].astype(np.float32)
        return best


class MultiKrum(Combiner, tag="multi-krum"):
    """Multi-Krum (Blanchard et al., NeurIPS 2017): the mean of the n − f contributions with the least s(i) of Krum."""

    fraction: Liars = 0.2
    """f/n, how many of the contributions may be anything; f = ⌊fraction · n⌋, at least 1"""

    def least(self) -> int:
        return 5

    def withstands(self, count: int) -> int:
        return liars_of(self.fraction, count, 3)

    def combine(self, contributions: Mapping[int, F32], weights: Mapping[int, int]) -> F32:
        rows = stacked(contributions, weights)
        liars = self.withstands(len(rows))
        kept = np.sort(_order(rows, liars)[: len(rows) - liars])
        middle: F32 = rows[kept].mean(axis=0).astype(np.float32)
        return middle


def _order(rows: NDArray[np.float64], liars: int) -> NDArray[np.int64]:
    """Contributions by Krum's score, the best first."""
    near = max(1, len(rows) - liars - 2)
    scores = np.sort(distances(rows), axis=1)[:, 1 : 1 + near].sum(axis=1)  # the nearest is itself, at distance 0
    return np.argsort(scores, kind="stable")
