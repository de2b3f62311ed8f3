"""Nearest-neighbour mixing on the server."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedzero.links.combining import Liars, distances, liars_of, stacked
from fedzero.links.contract import F32, Mixer


class NearestNeighbours(Mixer, tag="nnm"):
    """Nearest-neighbour mixing (Allouah et al., AISTATS 2023): each contribution becomes the mean of its neighbours.

        v_i ← (1/(n − f)) Σ of the n − f contributions nearest to v_i, itself among them

    Put another rule after it (trimmed-mean, median, krum); it lowers the error of that rule to the best possible order,
    f/n. On equal distances the lower client numbers count.
    """

    fraction: Liars = 0.2
    """f/n, how many of the contributions may be anything; f = ⌊fraction · n⌋, at least 1"""

    def least(self) -> int:
        return 3

    def withstands(self, count: int) -> int:
        return liars_of(self.fraction, count, 2)

    def mix(self, contributions: Mapping[int, F32], weights: Mapping[int, int]) -> dict[int, F32]:
        rows, clients = stacked(contributions, weights), sorted(contributions)
        keep, apart = len(rows) - self.withstands(len(rows)), distances(rows)
        first = np.cumsum([0, *(weights[client] for client in clients)])
        return {
            client: rows[np.sort(np.argsort(apart[i], kind="stable")[:keep])].mean(axis=0).astype(np.float32)
            for client, i in zip(clients, first, strict=False)
        }
