"""HiSo (Li et al., "Hessian-informed zeroth-order federated learning", ICLR 2026): DeComFL along directions that are
scaled by a diagonal h of past estimates.

    z_p = u_p / √h,   u_p shared by all;   h = 1 at the start
    client i:   g_i[p] = slope of f_i along z_p, at x
    server:     g[p] = mean_i g_i[p]
    everybody:  G = (1/P) Σ_p g[p] z_p;   x ← x − η G;   then, once a round,   h ← ν h + (1−ν) (G² + ε)

h is a function of the scalars, so it never travels; but past rounds cannot be folded in one sum any more, since every
G depends on the h before it. ε keeps h above 0 where slopes vanish. A step is η/h along the gradient: where h becomes
small, a rate that was right at the start is too large.

What h knows: for P = 1 and h = 1, E[G_j²] = ‖∇‖² + 2∇_j² (gaussian; ‖∇‖² with ±1): next to nothing about single
coordinates, unless P is of the order of d. Points are columns of numbers, not keyed terms: d float32 numbers for
every point are held while a client asks, and asks of a cohort are answered one by one.

All arithmetic on h is float32, one rounded operation at a time, the same bits on CPU and GPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from fedzero.methods import (
    Basis,
    Contribution,
    Fact,
    Keys,
    Losses,
    NonNegative,
    Params,
    ProperFraction,
    RuleState,
    Scale,
    Schedule,
    SeededMethod,
    State,
    Terms,
    Traits,
    Turn,
    Update,
    Vectors,
    Work,
    advance_round,
    count_at,
    joined,
    rate_at,
    root,
    slopes,
)

LARGEST = 1e30
"""What a square counts as at most, so that h stays finite."""


@dataclass(frozen=True)
class Diagonal(RuleState):
    """h."""

    h: Vectors


class HiSo(SeededMethod, tag="hiso"):
    """Directions scaled by a diagonal that everybody makes from past scalars."""

    rate: Schedule
    """η"""
    nu: ProperFraction = 0.95
    """ν, how much of h stays"""
    epsilon: NonNegative = 1e-8
    """ε, added to G² in h"""
    local_steps: Literal[1] = 1
    """h changes once a round"""
    distribution: Literal["gaussian", "rademacher"] = "gaussian"

    def lacks(self) -> dict[Fact, str]:
        why = "a step of hiso is scaled by a diagonal of its own: leave it out"
        return SeededMethod.lacks(self) | {"sum": why, "state": why, "step": why}

    def traits(self, scale: Scale) -> Traits:
        return replace(SeededMethod.traits(self, scale), reads_state="its directions are scaled by the state")

    def init(self, params: Params, clients: int) -> State:
        h = Vectors.zeros(params, 1)
        for (slot,) in h.slots:
            slot.fill_(1.0)
        return State(params, Diagonal(h), clients=clients)

    def client(self, state: State, turn: Turn) -> Work:
        P, stream = count_at(self.directions, turn.round), self.stream
        keys, scale = self.directions_of(state, turn.keys, turn.round, 0, P), root(state.carry.h[0])
        columns = self._columns([state.params.total(Terms.of([key], [1.0], stream)) / scale for key in keys])
        points = (Terms.of([], [], stream),) * len(columns)
        values = yield Losses(state.params, points, 0, Basis(columns))
        g, loss = slopes(values, (1.0,) * P, self.radius, self.difference)
        return Contribution(g, loss)

    def _columns(self, z: Sequence[Tensor]) -> Tensor:
        """What every point adds to x, (points, d), in the order that `slopes` reads."""
        signs = (1, -1) if self.difference == "central" else (1,)
        columns = [each * (sign * self.radius) for each in z for sign in signs]
        return torch.stack([torch.zeros_like(z[0]), *columns] if self.difference == "forward" else columns)

    def apply(self, state: State, updates: Sequence[Update], keys: Keys) -> State:
        h: Vectors = state.carry.h
        chain = self.chain
        for update in updates:
            rate, at = rate_at(self.rate, update.round), self.at(chain, state, update.round, keys)
            steps, _ = chain.changed(self.own_steps(state, update, keys), state.carry, at)
            total = state.params.total(joined([step.sum() for step in steps]))
            pieces = zip(h.slots, state.params.split(total), strict=True)
            G = torch.cat([self._renewed(slot, piece) for (slot,), piece in pieces])
            state.params.add(G * -rate, keys.rounding(update.round))
        return advance_round(state, updates)

    def _renewed(self, h: Tensor, total: Tensor) -> Tensor:
        """G of one tensor, from Σ g u / P; h is brought up to date in place."""
        G = total / root(h)
        h.mul_(self.nu).add_(((G * G).clamp_(max=LARGEST) + self.epsilon) * (1 - self.nu))
        return G

    def max_update_scale(self, state: State, round: int) -> float:
        """A step is divided by √h."""
        least = min((float(slot.min()) for (slot,) in state.carry.h.slots if slot.numel()), default=1.0)
        return SeededMethod.max_update_scale(self, state, round) / math.sqrt(least) if least else math.inf
