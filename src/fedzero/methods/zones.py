"""ZONE-S (Hajinezhad, Hong, Garcia, "ZONE: zeroth-order nonconvex multiagent optimization over networks", 2019): the
star-network version, primal-dual, as the ZO-AdaFL paper compares with it.

Formulation implemented: one random client i a round; α = 1/N, ρ = 1/η, G an average of P estimates:

    z_i = x − (λ_i + G_i(x)) / (αρ),    λ_i ← λ_i + αρ (z_i − x),    all other z_j = x
    server:  x ← Σ_j (ρ z_j + λ_j of before) / Σ_j ρ  =  x + (z_i − x)/N + Λ/(Nρ),    Λ = Σ_j λ_j of before

The server keeps Λ, which changes by αρ (z_i − x); the client keeps its λ_i. *Dense*: z_i − x travels. *Seeded*: the
scalars of G_i; since λ_i + G_i = 0 after a client's turn, λ_i is −G_i of that turn, which everybody can make again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from msgspec import Meta
from torch import Tensor

from fedzero.methods import (
    F32,
    Contribution,
    Dense,
    Federation,
    FedzeroError,
    Keys,
    LastTurns,
    Memory,
    OwnDirections,
    Params,
    Part,
    RuleState,
    Scale,
    Schedule,
    Seeded,
    State,
    Terms,
    Traits,
    Turn,
    Update,
    Vectors,
    Work,
    advance_round,
    estimate,
    of_one_round,
    rate_at,
    reaches_zero,
    unpack,
    vector_of,
    walk_terms,
)


@dataclass(frozen=True)
class Multipliers(RuleState):
    """Λ, which is the server's; and, where scalars travel, those of every client's last turn."""

    total: Vectors
    last: LastTurns = field(default_factory=dict)

    def part(self, client: int) -> Part:
        return Part(vectors=())


class ZoneS(OwnDirections, tag="zone-s"):
    """Primal-dual on a star, one random client a round."""

    rate: Schedule
    """η = 1/ρ"""
    directions: Annotated[int, Meta(ge=1)] = 20
    """estimates averaged in G"""
    local_steps: Literal[1] = 1
    """a client estimates once"""

    def check(self, federation: Federation) -> None:
        OwnDirections.check(self, federation)
        federation.expect("ZONE-S asks one random client a round", cohort=1)
        if reaches_zero(self.rate):
            raise FedzeroError("algorithm.rate falls to 0, but ZONE-S divides by it (ρ = 1/η): keep it above 0")

    def traits(self, scale: Scale) -> Traits:
        traits = OwnDirections.traits(self, scale)
        # Dense: what was not sent of λ_i + G_i is still in λ_i.
        return traits if traits.seeded else replace(traits, remembers=True, self_correcting=True)

    def init(self, params: Params, clients: int) -> State:
        return State(params, Multipliers(Vectors.zeros(params, 1)), clients=clients)

    def client(self, state: State, turn: Turn) -> Work:
        x, N, rate = state.params, state.clients, rate_at(self.rate, turn.round)
        _, g, loss = yield from estimate(self, x, turn, 0)
        if self.seeded(state.scale):
            return Contribution(g, loss)
        G = x.total(self._estimate(turn.keys, turn.round, turn.client, g)).cpu().numpy()
        multiplier = turn.memory[0] if turn.memory is not None else 0 * G

        def remember(sent: F32) -> Memory:
            """λ_i + (ρ/N) (z_i − x)"""
            return ((multiplier + sent / (rate * N)).astype("f4"),)

        return Contribution((-(multiplier + G) * (rate * N)).astype("f4"), loss, remember)

    def _estimate(self, keys: Keys, round: int, client: int, g: F32) -> Terms:
        return walk_terms(self, keys, round, client, g[None], [1.0])

    def apply(self, state: State, updates: Sequence[Update], keys: Keys) -> State:
        for update in map(of_one_round, updates):
            carry: Multipliers = state.carry
            rate, N, multipliers = rate_at(self.rate, update.round), state.clients, carry.total[0]
            if isinstance(update, Dense):
                moved = vector_of(update, state.params)  # z_i − x
                change, turned, last = moved * (1 / N), moved * (1 / (rate * N)), carry.last
            else:
                (client,), g = set(update.clients), unpack(update.scalars)
                turned = self._minus_estimate(state, update, client, g, keys)  # −(λ_i + G_i)
                change, last = turned * rate, {**carry.last, client: (update.round, update.scalars)}
            state.params.add(change + multipliers * (rate / N), keys.rounding(update.round))
            carry.total.set(0, multipliers + turned)
            state = replace(advance_round(state, [update]), carry=replace(carry, last=last))
        return state

    def _minus_estimate(self, state: State, update: Seeded, client: int, g: F32, keys: Keys) -> Tensor:
        fresh = state.params.total(self._estimate(keys, update.round, client, g))
        if client not in state.carry.last:
            return -fresh
        round, before = state.carry.last[client]
        return state.params.total(self._estimate(keys, round, client, unpack(before))) - fresh
