"""Krum and Multi-Krum: contributions are chosen by the distance to their neighbours."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedzero.links.combining import Liars, distances, liars_of, stacked
from fedzero.links.contract import F32, Combiner


class ByNearness(Combiner):
    """Scores of Krum: s(i) = Σ of the n − f − 2 smallest ‖v_i − v_j‖², j ≠ i. n ≥ 2f + 3."""

    fraction: Liars = 0.2
    """f/n, how many of the contributions may be anything; f = ⌊fraction · n⌋, at least 1"""

    def least(self) -> int:
        return 5

    def withstands(self, count: int) -> int:
        return liars_of(self.fraction, count, 3)


class Krum(ByNearness, tag="krum"):
    """Krum (Blanchard et al., NeurIPS 2017): the contribution whose neighbours are nearest, and no other.

        s(i) = Σ of the n − f − 2 smallest ‖v_i − v_j‖², j ≠ i;   v_i with the least s(i)

    On equal scores the lowest client number wins. n ≥ 2f + 3.
    """

    def combine(self, contributions: Mapping[int, F32], weights: Mapping[int, int]) -> F32:
        rows = stacked(contributions, weights)
        best: F32 = rows[_order(rows, self.withstands(len(rows)))[0]].astype(np.float32)
        return best


class MultiKrum(ByNearness, tag="multi-krum"):
    """Multi-Krum (Blanchard et al., NeurIPS 2017): the mean of the n − f contributions with the least s(i) of Krum."""

    def combine(self, contributions: Mapping[int, F32], weights: Mapping[int, int]) -> F32:
        rows = stacked(contributions, weights)
        liars = self.withstands(len(rows))
        kept = np.sort(_order(rows, liars)[: len(rows) - liars])
        middle: F32 = rows[kept].mean(axis=0).astype(np.float32)
        return middle


def _order(rows: NDArray[np.float64], liars: int) -> NDArray[np.int64]:
    """The indices of contributions by Krum's score, the best first."""
    near = max(1, len(rows) - liars - 2)
    scores = np.sort(distances(rows), axis=1)[:, 1 : 1 + near].sum(axis=1)  # the nearest is itself, at distance 0
    return np.argsort(scores, kind="stable")
