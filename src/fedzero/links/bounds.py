"""Norms of contributions, and a bound on them from the cohort's own norms.

    v_i ← v_i · min(1, c · M / ‖v_i‖₂),   M the median of ‖v_j‖₂ over the clients of the round

With fewer than `FEWEST` clients no bound can be made, and nothing is changed. For an even number of norms M is the
upper one of the middle two, so that clients are not held back when half of the others have reached a minimum of their
own. While fewer than half of the clients lie, M is between the smallest and the largest norm of an honest client, so a
single one of n equal clients contributes at most c·M/n to the mean. Norms, unlike numbers, can be compared whatever the
numbers mean. They are computed in float64, where squares of float32 cannot overflow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from fedzero.links.contract import F32

FEWEST = 3
"""The fewest clients from whose norms a bound can be made: with two, nobody knows which one is too long."""


def norm_of(values: F32) -> float:
    """‖v‖₂ in float64, the sum in pairs, as NumPy does it: the same on every machine."""
    return math.sqrt(float(np.square(values, dtype=np.float64).sum()))


def shortened(values: F32, norm: float, longest: float) -> F32:
    """v, whose norm is `norm`, scaled down to `longest` if it is longer. Numbers with an infinite norm stay as they
    are: zeros in their place would have another meaning."""
    if norm <= longest or not math.isfinite(norm):
        return values
    exact = values.astype(np.float64)  # the factor itself may be too small for float32
    return (exact * (longest / norm)).astype(np.float32)


def norms_of(contributions: Mapping[int, F32]) -> dict[int, float]:
    """The norm of each client's numbers, by client."""
    clients = sorted(contributions)
    if clients and len(clients) * contributions[clients[0]].size > 1 << 20:  # one by one: no second copy of all
        return {c: norm_of(contributions[c]) for c in clients}
    rows = np.concatenate([contributions[c] for c in clients]).reshape(len(clients), -1)
    squares = np.square(rows, dtype=np.float64).sum(axis=1)
    return dict(zip(clients, np.sqrt(squares).tolist(), strict=True))


def median_of(norms: Mapping[int, float]) -> float:
    """M, the upper median."""
    return sorted(norms.values())[len(norms) // 2]


def beyond(norms: Mapping[int, float], factor: float) -> tuple[float, list[int]]:
    """(c·M, the clients whose norm is above it); no clients if there are too few for a bound."""
    if len(norms) < FEWEST:
        return math.inf, []
    longest = factor * median_of(norms)
    return longest, [client for client, norm in norms.items() if norm > longest]
