"""SCAFFOLD-ZO: SCAFFOLD (Karimireddy et al., ICML 2020) with zeroth-order estimates, types I and II of the FZooS paper.

    client i: K steps  x ← x − η (Ĝ_k + γ (c − c_i))
    server:   x_{r+1} = x_r + mean over the cohort of (x_i − x_r)

    type I    c_i is a fresh estimate at x_r along directions of its own (extra queries), c the cohort's mean of them:
              the clients share their c_i in an exchange before they walk
    type II   c_i is the mean of the K estimates of the client's last walk, c the mean of all N clients' c_i; 0 at first

*Seeded*, the scalars are enough: c and every c_i are sums over directions that everybody can make. In the mean over the
cohort type I's corrections cancel, unless somebody drops out between the two exchanges; then the update carries the
scalars of the c_i as well. For type II everybody keeps c and the scalars of each client's last walk.

*Local steps*: with a `local_optimizer` other than sgd Ĝ_k + γ (c − c_i) is the gradient it is given, while the
variates stay means of the Ĝ_k; with a `box` every coordinate is clipped to it after every step. Neither leaves a sum of
directions, so both travel dense.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import numpy as np
import torch
from msgspec import Meta, structs
from torch import Tensor

from fedzero.methods import (
    F32,
    Contribution,
    Cost,
    Dense,
    Intermediate,
    IntermediateResult,
    Keys,
    LastTurns,
    LocalSteps,
    Memory,
    OneRound,
    OwnDirections,
    Params,
    RuleState,
    Scale,
    Seeded,
    State,
    StepInputs,
    Terms,
    Traits,
    Turn,
    Update,
    Vectors,
    Work,
    add_within,
    advance_round,
    control_variate,
    difference_of,
    estimate,
    joined,
    mean_walk,
    of_one_round,
    pack,
    queries_of,
    rate_at,
    shares_of,
    unpack,
    vector_of,
    walk,
    walk_terms,
)


@dataclass(frozen=True)
class Variates(RuleState):
    """c of type II; and, where scalars travel, those of every client's last walk, which make its c_i."""

    mean: Vectors
    last: LastTurns = field(default_factory=dict)


class ScaffoldZO(LocalSteps, tag="scaffold-zo"):
    """FedZO with control variates against the drift of unlike clients, types I and II."""

    type: Literal["I", "II"] = "II"
    """control variates: I, fresh estimates at x_r, in an exchange of their own; II, means of the last turn's"""
    gamma: Annotated[float, Meta(ge=0)] = 1.0
    """γ"""
    directions: Annotated[int, Meta(ge=1)] = 20
    """Q, directions averaged in one estimate"""
    local_steps: Annotated[int, Meta(ge=1)] = 10

    def dense_numbers(self, scale: Scale) -> int:
        return 4 * scale.size  # model and variate, both ways

    def traits(self, scale: Scale) -> Traits:
        traits = OwnDirections.traits(self, scale)
        return traits if self.type == "I" or traits.seeded else replace(traits, comparable=False, remembers=True)

    def cost(self, round: int, scale: Scale) -> Cost:
        cost = OwnDirections.cost(self, round, scale)
        if self.type == "I":
            variate = self.directions if self.seeded(scale) else scale.size
            extra = queries_of(self.directions, self.difference)
            return replace(cost, replies=(variate, *cost.replies), queries=cost.queries + extra)
        # Changes of c_i travel as well: unless c takes their mean, it is no longer the mean of the c_i.
        return cost if self.seeded(scale) else replace(cost, replies=(2 * scale.size,))

    def init(self, params: Params, clients: int) -> State:
        if self.type == "I":
            return State(params, clients=clients)
        return State(params, Variates(Vectors.zeros(params, 1)), clients=clients)

    def client(self, state: State, turn: Turn) -> Work:
        return self._client_fresh(state, turn) if self.type == "I" else self._client_average(state, turn)

    # Type I: variates estimated anew.

    def _client_fresh(self, state: State, turn: Turn) -> Work:
        seeded, x, rate = self.seeded(state.scale), state.params, rate_at(self.rate, turn.round)
        _, h, loss = yield from estimate(self, x, turn, self.local_steps)
        fresh = h if seeded else x.total(self._variate(turn.keys, turn.round, turn.client, h, 1.0)).cpu().numpy()
        shared: IntermediateResult = yield Intermediate(fresh, loss)
        assert shared.own is not None
        if seeded:
            own = x.total(self._variate(turn.keys, turn.round, turn.client, shared.own, 1.0))
            terms = joined(
                [
                    self._variate(turn.keys, turn.round, client, row, share)
                    for client, share, row in shares_of(Seeded(0, pack(shared.values), shared.clients), self.directions)
                ]
            )
            everybody = x.total(terms)
        else:
            own, everybody = (torch.from_numpy(v.copy()).to(x.device) for v in (shared.own, shared.values))
        correction = control_variate(everybody, own, self.gamma)
        end, g, _ = yield from walk(self, x, turn, rate, not seeded, correction)
        return Contribution(g.reshape(-1) if seeded else difference_of(end, x), loss)

    def _variate(self, keys: Keys, round: int, client: int, h: F32, factor: float) -> Terms:
        """factor · c_i; its directions are those of the step after the last."""
        return walk_terms(self, keys, round, client, h[None], [factor], self.local_steps)

    def share(self, gathered: StepInputs) -> IntermediateResult:
        if not self.seeded(gathered.scale):
            return IntermediateResult(gathered.mean())
        clients = sorted(gathered.contributions)
        return IntermediateResult(np.concatenate([gathered.contributions[c] for c in clients]), gathered.turns)

    def _aggregate_fresh(self, gathered: StepInputs) -> Update:
        update, (variates,) = of_one_round(OwnDirections.aggregate(self, gathered)), gathered.shared
        if isinstance(update, Dense):
            return update
        if not (gone := sorted(variates.keys() - gathered.contributions.keys())):
            return update
        h = np.concatenate([variates[c] for c in (*sorted(gathered.contributions), *gone)])
        others = tuple(c for c in gone for _ in range(gathered.weights[c]))
        return structs.replace(update, scalars=update.scalars + pack(h), others=others)

    def _change_fresh(self, update: Seeded, keys: Keys, rate: float) -> Terms:
        """mean over those who finished of −η Σ_k Ĝ_k, and −ηKγ (mean over all of c_j − mean over those of c_i)."""
        stayed, gone = Counter(update.clients), Counter(update.others)
        bare = structs.replace(update, scalars=update.scalars[: 4 * self.scalars * len(stayed)])
        walks = mean_walk(self, keys, bare, [-rate] * self.local_steps)
        if not gone:
            return walks
        rows = unpack(update.scalars[len(bare.scalars) :]).reshape(-1, self.directions)
        all_turns, factor = len(update.clients) + len(update.others), -rate * self.local_steps * self.gamma
        parts = [walks]
        for client, h in zip((*sorted(stayed), *sorted(gone)), rows, strict=True):
            share = (stayed[client] + gone[client]) / all_turns - stayed[client] / len(update.clients)
            parts.append(self._variate(keys, update.round, client, h, factor * share))
        return joined(parts)

    # Type II: variates from the last walk.

    def _client_average(self, state: State, turn: Turn) -> Work:
        seeded, x, rate = self.seeded(state.scale), state.params, rate_at(self.rate, turn.round)
        own = self._remembered(state, turn) if not seeded else self._last(state, turn.client, turn.keys)
        correction = control_variate(state.carry.mean[0], own, self.gamma)
        end, g, loss = yield from walk(self, x, turn, rate, not seeded, correction)
        if seeded:
            return Contribution(g.reshape(-1), loss)
        fresh = x.total(self._walk_mean(turn.keys, turn.round, turn.client, g.reshape(-1)))
        before, unit = own.cpu().numpy(), self._unit(turn.round)
        values = np.concatenate([difference_of(end, x), ((fresh - own) * unit).cpu().numpy()])

        def remember(sent: F32) -> Memory:
            return (before + sent[x.size :] * (1 / unit),)

        return Contribution(values, loss, remember)

    def _unit(self, round: int) -> float:
        """ηK: changes of c_i travel as the way they make a walk go, so that a filter finds both halves of one size."""
        return rate_at(self.rate, round) * self.local_steps or 1.0

    def _remembered(self, state: State, turn: Turn) -> Tensor:
        if turn.memory is None:
            return state.params.zeros()
        return torch.from_numpy(turn.memory[0]).to(state.params.device)

    def _last(self, state: State, client: int, keys: Keys) -> Tensor:
        """c_i, from the scalars of the client's last walk."""
        if client not in state.carry.last:
            return state.params.zeros()
        round, g = state.carry.last[client]
        return state.params.total(self._walk_mean(keys, round, client, unpack(g)))

    def _walk_mean(self, keys: Keys, round: int, client: int, g: F32) -> Terms:
        """(1/K) Σ_k Ĝ_k"""
        K = self.local_steps
        return walk_terms(self, keys, round, client, g.reshape(K, -1), [1 / K] * K)

    def _aggregate_average(self, gathered: StepInputs) -> Update:
        if self.seeded(gathered.scale):
            return OwnDirections.aggregate(self, gathered)
        d, given = gathered.scale.size, gathered.contributions
        moved = gathered.combine({c: values[:d] for c, values in given.items()}, gathered.weights)
        # Every client has one c_i, however often it was drawn.
        varied = gathered.combine({c: values[d:] for c, values in given.items()}, dict.fromkeys(given, 1))
        return Dense(gathered.round, pack(np.concatenate([moved, varied])), tuple(sorted(given)))

    def _apply_average(self, state: State, update: OneRound, keys: Keys) -> State:
        carry: Variates = state.carry
        d, c, last = state.params.size, carry.mean[0], dict(carry.last)
        if isinstance(update, Dense):
            values = vector_of(update, state.params)
            add_within(state.params, values[:d], keys.rounding(update.round), self.box)
            share = len(update.clients) / state.clients
            carry.mean.set(0, c + values[d:] * (share / self._unit(update.round)))
            return state
        rate, K = rate_at(self.rate, update.round), self.local_steps
        own, varied = torch.zeros_like(c), torch.zeros_like(c)
        for client, share, g in shares_of(update, self.scalars):
            before = self._last(state, client, keys)
            fresh = state.params.total(self._walk_mean(keys, update.round, client, g))
            own += before * share
            varied += fresh - before
            last[client] = (update.round, pack(g))
        walks = state.params.total(mean_walk(self, keys, update, [-rate] * K))
        state.params.add(walks + (c - own) * (-rate * K * self.gamma), keys.rounding(update.round))
        carry.mean.set(0, c + varied * (1 / state.clients))
        return replace(state, carry=replace(carry, last=last))

    def aggregate(self, gathered: StepInputs) -> Update:
        return self._aggregate_fresh(gathered) if self.type == "I" else self._aggregate_average(gathered)

    def apply(self, state: State, updates: Sequence[Update], keys: Keys) -> State:
        for update in map(of_one_round, updates):
            if self.type == "II":
                state = self._apply_average(state, update, keys)
            elif isinstance(update, Dense):
                add_within(state.params, vector_of(update, state.params), keys.rounding(update.round), self.box)
            else:
                terms = self._change_fresh(update, keys, rate_at(self.rate, update.round))
                state.params.fold(terms, keys.rounding(update.round))
            state = advance_round(state, [update])
        return state
