"""ZOFedHT: zeroth-order federated optimization assisted by historical trajectories.

    C_r = (1−α) I + α Q Qᵀ;   v = √(1−α) v1 + √α Q v2,   v1 ~ N(0, I_d), v2 ~ N(0, I_τ)
    client i: K steps  x ← x − η g v,   g = (F(x + μv; ξ) − F(x − μv; ξ)) / 2μ        (averaged over P directions)
    server:   x_{r+1} = mean x_i;   Δ_r = x_{r+1} − x_r;   every τ rounds  Q = QR([Δ_{r−1} … Δ_{r−τ}]);   C = I before

The paper calls τ once L. With α = 0 this is ZOFedAvg-SGD, exactly: the same code runs.

*Seeded*, O(τ²) numbers replace the O(dτ) of Q. Every replica keeps the last τ changes Δ, which it makes from the
scalars anyway; Q = [Δ …] T with a τ×τ matrix T that the server works out (T = R⁻¹ of the thin QR, from the Gram matrix
in float64) and sends with the last update of a block. Since all replicas multiply the same Δ by the same T, one rounded
operation at a time, their Q are equal to the last bit, which a QR of their own on different machines would not be.
If nobody answers in the last round of a block there is no update to carry T, and Q stays for another block.
The coordinates v2 come from the gaussian stream of the direction's own key, as those of a tensor that no model has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
import torch
from msgspec import Meta, structs
from torch import Tensor

from fedzero.methods import (
    F32,
    F64,
    Basis,
    Contribution,
    Dense,
    Difference,
    Domain,
    Keys,
    Losses,
    OneRound,
    OwnDirections,
    Params,
    Part,
    ProperFraction,
    RuleState,
    Scale,
    Seeded,
    State,
    StepInputs,
    Turn,
    Update,
    Vectors,
    Work,
    advance_round,
    average,
    coordinates,
    difference_of,
    direction_keys,
    mean_walk,
    of_one_round,
    orthonormal,
    pack,
    probes,
    rate_at,
    shares_of,
    slopes,
    unpack,
)
from fedzero.methods.fedzo import FedZO


@dataclass(frozen=True)
class Trajectory(RuleState):
    """Vectors 0 … τ−1: the last changes (that of round r in place r mod τ); τ … 2τ−1: the columns of Q.

    `renewals` counts how often Q was made.
    """

    vectors: Vectors
    renewals: int = 0

    def part(self, client: int) -> Part:
        tau = len(self.vectors) // 2
        return Part(vectors=tuple(range(tau, 2 * tau)))  # the model and Q


class ZOFedHT(OwnDirections, tag="zofedht"):
    """Directions drawn partly along the history of the solution, renewed every τ rounds by a thin QR."""

    alpha: ProperFraction = 0.5
    """α, the share of the history in the directions"""
    tau: Annotated[int, Meta(ge=1, le=1024)] = 5
    """τ, number of past model updates in the history"""
    directions: Annotated[int, Meta(ge=1)] = 1
    """P"""
    local_steps: Annotated[int, Meta(ge=1)] = 50
    """K"""
    radius: Annotated[float, Meta(gt=0)] = 1e-4
    """μ"""
    difference: Difference = "central"
    distribution: Literal["gaussian"] = "gaussian"

    @property
    def plain(self) -> FedZO | None:
        """ZOFedAvg-SGD, which is what α = 0 leaves of the method."""
        if self.alpha > 0:
            return None
        return FedZO(
            **{name: getattr(self, name) for name in FedZO.__struct_fields__ if name in self.__struct_fields__}
        )

    def dense_numbers(self, scale: Scale) -> int:
        return (2 + (self.tau if self.alpha else 0)) * scale.size  # Q goes down with the model

    def init(self, params: Params, clients: int) -> State:
        if self.plain is not None:
            return self.plain.init(params, clients)
        return State(params, Trajectory(Vectors.zeros(params, 2 * self.tau)), clients=clients)

    def _basis(self, state: State) -> Tensor | None:
        """The columns of Q, (τ, d), or None as long as C = I."""
        past: Trajectory = state.carry
        return torch.stack([past.vectors[self.tau + j] for j in range(self.tau)]) if past.renewals else None

    def client(self, state: State, turn: Turn) -> Work:
        if self.plain is not None:
            return (yield from self.plain.client(state, turn))
        seeded, Q, x = self.seeded(state.scale), self._basis(state), state.params
        rate, isotropic = rate_at(self.rate, turn.round), math.sqrt(1 - self.alpha) if Q is not None else 1.0
        g, first_loss = np.empty((self.local_steps, self.directions), np.float32), 0.0
        walked = np.zeros(self.tau)  # how far along the columns of Q; x itself moves by the isotropic part only
        for k in range(self.local_steps):
            keys = direction_keys(turn.keys, turn.round, k, self.directions, turn.client)
            points = probes(keys, (isotropic,) * len(keys), self.radius, self.difference, Domain.GAUSSIAN)
            step = self.sample(k)
            values = yield Losses(x, points, step, None if Q is None else Basis(Q, walked + self._weights(keys)))
            g[k], loss = slopes(values, (1.0,) * len(keys), self.radius, self.difference)
            first_loss = loss if k == 0 else first_loss
            if k + 1 == self.local_steps and seeded:
                break
            x = state.params.clone() if k == 0 else x
            x.fold(average(keys, g[k], -rate * isotropic, Domain.GAUSSIAN), turn.keys.rounding(turn.round, k))
            if Q is not None:
                walked += self._along(keys, g[k], -rate)
        if seeded:
            return Contribution(g.reshape(-1), first_loss)
        if Q is not None:
            x.add(Basis(Q, walked[None]).offset(0), turn.keys.rounding(turn.round, self.local_steps))
        return Contribution(difference_of(x, state.params), first_loss)

    def _weights(self, keys: tuple[int, ...]) -> F64:
        """μ √α v2 of every point, (points, τ)."""
        rows = self.radius * math.sqrt(self.alpha) * coordinates(keys, self.tau)
        if self.difference == "central":
            return np.stack([rows, -rows], axis=1).reshape(-1, self.tau)
        return np.concatenate([np.zeros((1, self.tau)), rows]) if self.difference == "forward" else rows

    def _along(self, keys: tuple[int, ...], g: F32, factor: float) -> F64:
        """factor · √α (1/P) Σ_p g_p v2_p, (τ,): what a step does inside the history's subspace."""
        # Written out: a library may add up a product in another order on another machine, and replicas would part.
        total = np.zeros(self.tau)
        for slope, v2 in zip(g.astype(np.float64), coordinates(keys, self.tau), strict=True):
            total += slope * v2
        return factor * math.sqrt(self.alpha) / len(keys) * total

    def aggregate(self, gathered: StepInputs) -> Update:
        if self.plain is not None:
            return self.plain.aggregate(gathered)
        update = of_one_round(OwnDirections.aggregate(self, gathered))
        if (gathered.round + 1) % self.tau:
            return update
        state = gathered.state
        assert state is not None  # `check` refuses servers without a model
        past: Trajectory = state.carry
        delta = self._change(state, update, gathered.keys)
        before = range(gathered.round - 1, gathered.round - self.tau, -1)
        history = [delta, *(past.vectors[r % self.tau] * (r < state.round) for r in before)]  # nobody answered: zero
        T = pack(orthonormal(history).astype(np.float32).reshape(-1))
        if isinstance(update, Seeded):
            return structs.replace(update, scalars=update.scalars + T)
        return structs.replace(update, values=update.values + T)

    def _change(self, state: State, update: OneRound, keys: Keys) -> Tensor:
        """Δ_r as a vector, with or without the T behind it."""
        if isinstance(update, Dense):
            return torch.from_numpy(unpack(update.values)[: state.params.size].copy()).to(state.params.device)
        Q, rate = self._basis(state), rate_at(self.rate, update.round)
        isotropic = math.sqrt(1 - self.alpha) if Q is not None else 1.0
        count = self.scalars * len(set(update.clients))
        bare = structs.replace(update, scalars=update.scalars[: 4 * count])
        delta = state.params.total(mean_walk(self, keys, bare, [-rate * isotropic] * self.local_steps))
        if Q is None:
            return delta
        along = np.zeros(self.tau)
        for client, share, row in shares_of(bare, self.scalars):
            for k, g in enumerate(row.reshape(self.local_steps, -1)):
                own = direction_keys(keys, update.round, k, self.directions, client)
                along += self._along(own, g, -rate * share)
        return delta + Basis(Q, along[None]).offset(0)

    def apply(self, state: State, updates: Sequence[Update], keys: Keys) -> State:
        if self.plain is not None:
            return self.plain.apply(state, updates, keys)
        for update in map(of_one_round, updates):
            # nobody answered: the model did not move; of more than τ such rounds the last ones take all places
            for silent in range(max(state.round, update.round - self.tau), update.round):
                state.carry.vectors.set(silent % self.tau, state.params.zeros())
            delta = self._change(state, update, keys)
            state.params.add(delta, keys.rounding(update.round))
            state.carry.vectors.set(update.round % self.tau, delta)
            if (update.round + 1) % self.tau == 0:
                state = self._renewed(state, update)
            state = advance_round(state, [update])
        return state

    def _renewed(self, state: State, update: OneRound) -> State:
        """Q = [Δ_r Δ_{r−1} …] T."""
        data = update.scalars if isinstance(update, Seeded) else update.values
        T = unpack(data[-4 * self.tau**2 :]).reshape(self.tau, self.tau)
        past: Trajectory = state.carry
        history = torch.stack([past.vectors[(update.round - j) % self.tau] for j in range(self.tau)])
        for j in range(self.tau):
            past.vectors.set(self.tau + j, Basis(history, T[:, j].astype(np.float64)[None]).offset(0))
        return replace(state, carry=replace(past, renewals=past.renewals + 1))
