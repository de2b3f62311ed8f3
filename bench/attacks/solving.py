"""From scalars to a gradient, from a gradient to rows, and how near they are.

    y = Z g + noise,  Z (n, d) known:    ĝ = ΣZᵀ (ZΣZᵀ + ρI)⁻¹ y

Σ is the prior covariance of g with trace 1, ρ the variance of the noise of a measurement divided by the expected ‖g‖².
With Σ = I/d and ρ → 0 this is least squares: the solution of minimum norm for n < d, and g itself for n ≥ d.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from bench.attacks.digits import Perceptron, Prior
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from fedzero.oracles.contract import F32, F64

FLOOR = 1e-6
"""ρ at least: slopes come from float32 losses."""
RANGE = 0.15
"""How far pixels of a candidate may lie outside [0, 1]."""


class Solver:
    """Z and a prior; ZΣZᵀ is made once for all numbers of measurements."""

    def __init__(self, Z: F32, prior: Prior):
        self._cross = prior.times(Z)
        self._gram = self._cross @ Z.T.astype(np.float64)

    def solve(self, seen: F64, noise: float = 0.0) -> F64:
        """ĝ (m, d) of the first n measurements `seen` (n, m). noise: ρ."""
        n = len(seen)
        system = self._gram[:n, :n] + max(noise, FLOOR) * np.eye(n)
        found: F64 = (self._cross[:n].T @ cho_solve(cho_factor(system, overwrite_a=True), seen)).T
        return found


def rows_of(model: Perceptron, gradient: F64, count: int) -> F64:
    """(count, p): digits in a gradient of the mean loss of `count` rows; zeros where there are no more.

    One row: the best multiple of (x, 1) for all neurons, x = ∂Wᵀ∂b/‖∂b‖². Several: a neuron that is active for one of
    them only has (∂W)_j/(∂b)_j = x. Candidates are taken by how far they leave [0, 1], each unlike those before it.
    """
    W, b = model.first_layer(gradient)
    if count == 1:
        return (W.T @ b / max(b @ b, 1e-300))[None]
    use = np.abs(b) > 1e-3 * np.abs(b).max()
    candidates = W[use] / b[use, None]
    outside = np.maximum(0, np.maximum(-candidates, candidates - 1)).mean(1)
    chosen: list[F64] = []
    for candidate in candidates[np.argsort(outside, kind="stable")]:
        if all(correlation(candidate, other) < 0.95 for other in chosen):
            chosen.append(candidate)
    chosen = chosen[:count]
    return np.stack(chosen + [np.zeros(W.shape[1])] * (count - len(chosen)))


def correlation(a: F64, b: F64) -> float:
    a, b = a - a.mean(), b - b.mean()
    scale = np.linalg.norm(a) * np.linalg.norm(b)
    return float(a @ b / scale) if scale > 0 else 0.0


def correlations(found: F64, others: F64) -> F64:
    """(len(found), len(others))."""
    first, second = (each - each.mean(1, keepdims=True) for each in (found, others))
    scale = np.linalg.norm(first, axis=1)[:, None] * np.linalg.norm(second, axis=1)
    return (first @ second.T) / np.maximum(scale, 1e-300)


def error(found: F64, true: F64) -> float:
    """‖found − true‖/‖true‖."""
    return float(np.linalg.norm(found - true) / np.linalg.norm(true))


def pixel_error(found: F64, true: F64) -> float:
    """The same after an affine map of the grey levels, the best one: √(1 − corr²) for centred digits."""
    return float(np.sqrt(max(0.0, 1 - correlation(found, true) ** 2)))


def matched(found: F64, true: F64) -> Iterator[tuple[int, int]]:
    """Pairs (place in true, place in found), the most similar first, each once."""
    table = correlations(true, found)
    for _ in range(len(true)):
        place = np.unravel_index(int(table.argmax()), table.shape)
        yield int(place[0]), int(place[1])
        table[place[0]], table[:, place[1]] = -2, -2


def identified(found: F64, own: int, pool: F64) -> bool:
    """Whether the row of a pool that is most like `found` is the client's own."""
    return int(correlations(found[None], pool)[0].argmax()) == own


def nearest(seen: F64, candidates: NDArray[np.float64]) -> int:
    """The candidate whose scalars (n, candidates) are nearest to what was seen (n,)."""
    return int(((candidates - seen[:, None]) ** 2).sum(0).argmin())
