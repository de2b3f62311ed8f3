"""What of the clients' scalars reaches the attacker: `observe(values of a turn, (P, clients)) -> (P,)`.

The first column is the client that is attacked. A mechanism of the library takes the place of one of these by a
function of the same form.

    noised    Σ_i clip(v_i, C) + N(0, (σC)² I)            one clip of the whole vector of a turn

σ comes from `fedzero.privacy.gaussian`: of a client that takes part in every turn, as the attacker knows.
"""

from __future__ import annotations

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
