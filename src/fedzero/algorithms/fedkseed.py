"""FedKSeed (Qin et al., "Federated full-parameter tuning of billion-sized language models with communication cost under
18 kilobytes", ICML 2024): directions come from a pool of S keys.

    client i, step k:  s drawn from the pool;  g_i[k] = (f_i(x + μ z_s) − f_i(x − μ z_s)) / 2μ;   x ← x − η g_i[k] z_s
    server:            g[k] = mean_i g_i[k];   A[s] ← A[s] + g[k] (1/P)
    everybody:         x = x_0 − η Σ_s A[s] z_s,   η constant

Draws are a function of (round, step) that all clients share, so scalars travel every round and their mean has a
meaning. The accumulators A are part of the state: S numbers are the whole fine-tune, however many rounds it took. A
replica that is to have the server's bits folds the rounds in their order; from A alone the model is the same up to the
rounding of float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

import numpy as np
import torch
from msgspec import Meta
from torch import Tensor

from fedzero.algorithms.contract import Carry, State
from fedzero.algorithms.seeded import SeededMethod
from fedzero.directions import Keys
from fedzero.estimators.spsa import Difference
from fedzero.model.params import Params
from fedzero.model.schedules import Counts
from fedzero.model.updates import Update


@dataclass(frozen=True)
class Accumulators(Carry):
    """A, (S,), float64; indexed like the pool."""

    A: Tensor


class FedKSeed(SeededMethod, tag="fedkseed"):
    """Directions from a pool of S keys: S accumulated scalars are the whole fine-tune."""

    rate: Annotated[float, Meta(gt=0)]
    """η, constant: accumulators do not record the round of a scalar"""
    pool: Annotated[int, Meta(ge=1, le=1 << 24)] = 4096
    """S"""
    directions: Counts = 1
    local_steps: Annotated[int, Meta(ge=1)] = 20
    """K"""
    radius: Annotated[float, Meta(gt=0)] = 5e-4
    """μ"""
    difference: Difference = "central"

    def direction_keys(self, keys: Keys, round: int, step: int, count: int) -> tuple[int, ...]:
        pool = _pool(keys, self.pool)
        return tuple(pool[s] for s in self.drawn(keys, round, step, count))

    def drawn(self, keys: Keys, round: int, step: int, count: int) -> np.ndarray:
        """Which of the pool a step takes, with replacement, (P,)."""
        return keys.generator("pool", round, step).integers(self.pool, size=count)

    def init(self, params: Params, clients: int) -> State:
        return State(params, Accumulators(torch.zeros(self.pool, dtype=torch.float64)), clients=clients)

    def apply(self, state: State, updates: Sequence[Update], keys: Keys) -> State:
        A: Tensor = state.carry.A
        for update in updates:
            for k, g in enumerate(self.scalars_of(update).reshape(self.local_steps, -1)):
                places = torch.from_numpy(self.drawn(keys, update.round, k, g.size))
                A.index_add_(0, places, torch.from_numpy(g.astype(np.float64) / g.size))
        return SeededMethod.apply(self, state, updates, keys)


@lru_cache(maxsize=4)
def _pool(keys: Keys, size: int) -> tuple[int, ...]:
    """The S keys of a run."""
    return tuple(keys.direction(0, 0, s) for s in range(size))
