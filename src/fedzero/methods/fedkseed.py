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

from fedzero.methods import (
    EVERYTHING,
    F32,
    Counts,
    Difference,
    Fact,
    Keys,
    Numbers,
    Params,
    Part,
    Program,
    RuleState,
    Scale,
    SeededMethod,
    State,
    Stream,
    Terms,
    Traits,
    Update,
    advance_round,
)

Places = NDArray[np.int64]


@dataclass(frozen=True)
class Accumulators(RuleState):
    """A, (S,), float32, indexed like the pool; η and the directions; and x_0, where the model is made from them."""

    A: Tensor
    rate: float
    stream: Stream
    base: Params | None = None

    def part(self, client: int) -> Part:
        return EVERYTHING if self.base is None else Part(params=False)

    def numbers(self) -> Numbers:
        return 0

    def with_numbers(self, numbers: Numbers) -> RuleState:
        return self  # x_0 never travels: everybody begins with it

    def rebuild_params(self, params: Params, keys: Keys) -> None:
        """x_0 − η Σ_s A[s] z_s, in the order of the pool; one rounding of 16 bits, the same in every round."""
        assert self.base is not None
        A, pool = self.A.numpy().astype(np.float64), _pool(keys, len(self.A))
        drawn = np.flatnonzero(A)
        params.load(self.base.tensors)
        if drawn.size:
            terms = Terms.of([pool[s] for s in drawn], -self.rate * A[drawn], self.stream)
            params.advance(Program.of([terms], [keys.rounding(0)]))


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

    def lacks(self) -> dict[Fact, str]:
        why = f"{self.name} adds scalars up by key of its pool, whatever their round: leave it out"
        return SeededMethod.lacks(self) | {"sum": why, "rounds": why, "state": why, "step": why}

    def traits(self, scale: Scale) -> Traits:
        traits = SeededMethod.traits(self, scale)
        return replace(traits, delivery="fewer") if self.order == "pool" else traits

    def directions_of(self, state: State, keys: Keys, round: int, step: int, count: int) -> tuple[int, ...]:
        return self.keys_at(keys, self.drawn(state, keys, round, step, count))

    def keys_at(self, keys: Keys, places: Places) -> tuple[int, ...]:
        pool = _pool(keys, self.pool)
        return tuple(pool[s] for s in places)

    def drawn(self, state: State, keys: Keys, round: int, step: int, count: int) -> Places:
        """Which of the pool a step takes, with replacement, (P,)."""
        return keys.generator("pool", round, step).integers(self.pool, size=count)

    def init(self, params: Params, clients: int) -> State:
        base = params.clone() if self.order == "pool" else None
        return State(params, Accumulators(torch.zeros(self.pool), self.rate, self.stream, base), clients=clients)

    def apply(self, state: State, updates: Sequence[Update], keys: Keys) -> State:
        chain, rounds, K = self.chain, [], self.local_steps
        for update in updates:
            parts = self.parts_of(update)
            places = [[self.drawn(state, keys, asked, k, g[k].size) for asked, g in parts] for k in range(K)]
            own = [
                self._step(
                    [(a, self.keys_at(keys, drawn), g[k]) for (a, g), drawn in zip(parts, places[k], strict=True)],
                    update.round,
                    k,
                    keys,
                )
                for k in range(K)
            ]
            steps, _ = chain.changed(own, state.carry, self.at(chain, state, update.round, keys))
            if self.order == "rounds":
                rounds.append(chain.kernel.lines(steps, 0))
            for drawn_of_step, step in zip(places, steps, strict=True):
                for drawn, (row, weight) in zip(drawn_of_step, step.rows(), strict=True):
                    self.accumulate(state, drawn, row, weight)
        self._advance(state, chain, rounds)
        if updates and state.carry.base is not None:
            state.carry.rebuild_params(state.params, keys)
        return advance_round(state, updates)

    def accumulate(self, state: State, places: Places, g: F32, weight: float) -> None:
        """A[s] ← A[s] + g (1/P), in place, one after the other; g with the weight that rules give it."""
        added = g.astype(np.float64) * (weight / g.size)
        np.add.at(state.carry.A.numpy(), places, added.astype(np.float32))


@lru_cache(maxsize=4)
def _pool(keys: Keys, size: int) -> tuple[int, ...]:
    """The S keys of a run."""
    return tuple(keys.direction(0, 0, s) for s in range(size))
