"""What of the clients' scalars reaches the attacker: `observe(values of a turn, (P, clients)) -> (P,)`.

The first column is the client that is attacked. A mechanism of the library takes the place of one of these by a
function of the same form.

    noised    Σ_i clip(v_i, C) + N(0, (σC)² I)            one clip of the whole vector of a turn

σ for `turns` turns in which the client takes part, as the attacker knows: with sensitivity C and add/remove, T turns
of the Gaussian mechanism are one with μ = √T/σ, and (Balle and Wang 2018, Theorem 8; Dong, Roth and Su 2022)

    δ(ε) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedzero.oracles.contract import F64

Observe = Callable[[F64], F64]


def alone(values: F64) -> F64:
    """The client's own scalars."""
    return values[:, 0]


def summed(values: F64) -> F64:
    """All that an ideal secure sum shows."""
    return values.sum(1)


def clipped(values: F64, clip: float) -> F64:
    """Columns of norm `clip` at most."""
    norms = np.linalg.norm(values, axis=0)
    return values * np.minimum(1, clip / np.maximum(norms, 1e-300))


@dataclass(frozen=True)
class Noised:
    """The Gaussian mechanism on the sum of clipped vectors."""

    clip: float
    sigma: float
    generator: np.random.Generator

    def __call__(self, values: F64) -> F64:
        total = clipped(values, self.clip).sum(1)
        return total + self.generator.normal(0, self.sigma * self.clip, total.shape)


def tail(x: float) -> float:
    """Φ(x)."""
    return math.erfc(-x / math.sqrt(2)) / 2


def delta_of(epsilon: float, mu: float) -> float:
    return tail(-epsilon / mu + mu / 2) - math.exp(epsilon) * tail(-epsilon / mu - mu / 2)


def mu_of(epsilon: float, delta: float) -> float:
    """The largest μ with δ(ε) ≤ delta, by bisection."""
    low, high = 1e-6, 100.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(epsilon, middle) <= delta else (low, middle)
    return low


def sigma_of(epsilon: float, delta: float, turns: int) -> float:
    """σ of the noise of each of so many turns."""
    return math.sqrt(turns) / mu_of(epsilon, delta)
