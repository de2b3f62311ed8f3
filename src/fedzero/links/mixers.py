"""What a server may do with contributions before they are combined."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from fedzero.links.bounds import norm_of, shortened
from fedzero.links.combiners import Liars, distances, liars_of, stacked
from fedzero.links.contract import F32, Mixer
from fedzero.model.numbers import Positive


class NearestNeighbours(Mixer, tag="nnm"):
    """Nearest-neighbour mixing (Allouah et al., AISTATS 2023): each contribution becomes the mean of its neighbours.

        v_i ← (1/(n − f)) Σ of the n − f contributions nearest to v_i, itself among them

    To be followed by another rule (trimmed-mean, median, krum), whose error it lowers to the best order that is
    possible, f/n. Of equally near ones those of lower client numbers count.
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


class ServerClip(Mixer, tag="server-clip"):
    """Norm clipping by the server (Sun et al., "Can you really backdoor federated learning?", 2019).

        v_i ← v_i · min(1, norm/‖v_i‖₂)

    `clip` is the same on the clients, who then know what is read; `federation.bound` finds the norm itself.
    """

    norm: Positive
    """the largest norm of a contribution"""

    compares: ClassVar[bool] = False

    def mix(self, contributions: Mapping[int, F32], weights: Mapping[int, int]) -> dict[int, F32]:
        return {client: shortened(values, norm_of(values), self.norm) for client, values in contributions.items()}
