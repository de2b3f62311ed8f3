"""FedKSeed (Qin et al., "Federated full-parameter tuning of billion-sized language models with communication cost under
18 kilobytes", ICML 2024): directions come from a pool of S keys.

    client i, step k:  s drawn from the pool;  g_i[k] = (f_i(x + μ z_s) − f_i(x − μ z_s)) / 2μ;   x ← x − η g_i[k] z_s
    server:            g[k] = mean_i g_i[k];   A[s] ← A[s] + g[k] (1/P)
    everybody:         x = x_0 − η Σ_s A[s] z_s,   η constant

Draws are a function of (round, step) that all clients share, so scalars travel every round and their mean has a
meaning. The accumulators A are S numbers, float32, added up in the order of the rounds.

`order = "pool"` is the paper's: the model *is* x_0 − η Σ_s A[s] z_s, added up in the order of the pool, so that A gives
everybody the server's bits. Who was away is sent A (4S bytes) where that is less than the scalars it missed. Making the
model takes as many directions as the pool has that were ever drawn, S at most, in every round; x_0 is kept beside it.
Parameters of 16 bits are rounded once, from the float32 sum, not once a round.
`order = "rounds"` adds up the rounds in theirs: K·P directions a round, no x_0, and catching up takes all scalars that
were missed; A then gives the model up to the rounding of float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Literal

import numpy as np
import torch
from msgspec import Meta
from numpy.typing import NDArray
from torch import Tensor

from fedzero.directions import Keys, Program, Terms
from fedzero.directions.terms import F32
from fedzero.estimators.spsa import Difference
from fedzero.methods.contract import EVERYTHING, Carry, Numbers, Part, Scale, State, Wire, rounds_of
from fedzero.methods.rules.stepping import factors
from fedzero.methods.shared.seeded import SeededMethod
from fedzero.model.params import Params
from fedzero.model.schedules import Counts
from fedzero.model.updates import Update

Places = NDArray[np.int64]


@dataclass(frozen=True)
class Accumulators(Carry):
    """A, (S,), float32, indexed like the pool; and x_0, where the model is made from both."""

    A: Tensor
    base: Params | None = None

    def part(self, client: int) -> Part:
        return EVERYTHING if self.base is None else Part(params=False)

    def numbers(self) -> Numbers:
        return 0

    def with_numbers(self, numbers: Numbers) -> Carry:
        return self  # x_0 never travels: everybody begins with it


class FedKSeed(SeededMethod, tag="fedkseed"):
    """Directions from a pool of S keys: S accumulated scalars are the whole fine-tune."""

    rate: Annotated[float, Meta(gt=0)]
    """η, constant: accumulators do not record the round of a scalar"""
    pool: Annotated[int, Meta(ge=1, le=1 << 24)] = 4096
    """S"""
    order: Literal["pool", "rounds"] = "pool"
    """in which the model is added up: that of the pool, or that of the rounds"""
    directions: Counts = 1
    local_steps: Annotated[int, Meta(ge=1)] = 20
    """K"""
    radius: Annotated[float, Meta(gt=0)] = 5e-4
    """μ"""
    difference: Difference = "central"
    average: Literal[0] = 0
    """accumulators do not record the round of a scalar"""
    hold: Literal[1] = 1
    """keys of the pool are kept for the whole run"""

    def wire(self, round: int, scale: Scale) -> Wire:
        wire = SeededMethod.wire(self, round, scale)
        return replace(wire, delivery="fewer") if self.order == "pool" else wire

    def directions_of(self, state: State, keys: Keys, round: int, step: int, count: int) -> tuple[int, ...]:
        pool = _pool(keys, self.pool)
        return tuple(pool[s] for s in self.drawn(state, keys, round, step, count))

    def drawn(self, state: State, keys: Keys, round: int, step: int, count: int) -> Places:
        """Which of the pool a step takes, with replacement, (P,)."""
        return keys.generator("pool", round, step).integers(self.pool, size=count)

    def init(self, params: Params, clients: int) -> State:
        base = params.clone() if self.order == "pool" else None
        return State(params, Accumulators(torch.zeros(self.pool), base), clients=clients)

    def apply(self, state: State, updates: Sequence[Update], keys: Keys) -> State:
        rounds = []
        for update in updates:
            parts = self.parts_of(update)
            if self.order == "rounds":
                rounds.append(self._steps(state, update.round, 0, parts, keys, self.rate))
            places = [[self.drawn(state, keys, a, k, len(row)) for k, row in enumerate(g)] for a, g in parts]
            for k, rows in enumerate(zip(*(g for _, g in parts), strict=True)):
                for part, row, weight in zip(places, rows, factors(self.step, rows), strict=True):
                    self.accumulate(state, part[k], row, weight)
        state = rounds_of(self._advance(state, rounds), updates)
        return self.remade(state, keys) if updates else state

    def accumulate(self, state: State, places: Places, g: F32, weight: float) -> None:
        """A[s] ← A[s] + weight · g (1/P), in place, one after the other."""
        added = g.astype(np.float64) * (weight / g.size)
        np.add.at(state.carry.A.numpy(), places, added.astype(np.float32))

    def remade(self, state: State, keys: Keys) -> State:
        """x_0 − η Σ_s A[s] z_s, in the order of the pool; one rounding of 16 bits, the same in every round."""
        base = state.carry.base
        if base is None:
            return state
        A, pool = state.carry.A.numpy().astype(np.float64), _pool(keys, self.pool)
        drawn = np.flatnonzero(A)
        state.params.load(base.tensors)
        if drawn.size:
            terms = Terms.of([pool[s] for s in drawn], -self.rate * A[drawn], self.stream)
            state.params.advance(Program.of([terms], [keys.rounding(0)]))
        return state


@lru_cache(maxsize=4)
def _pool(keys: Keys, size: int) -> tuple[int, ...]:
    """The S keys of a run."""
    return tuple(keys.direction(0, 0, s) for s in range(size))
