"""DZOPA (Yi et al., "Zeroth-order algorithms for stochastic distributed nonconvex optimization"): the distributed
primal algorithm without a server, as the ZO-AdaFL paper compares with it.

Formulation implemented: every node i of a connected graph with Laplacian L has a model of its own,

    x_i ← x_i − γ Σ_j L_ij x_j − η G_i(x_i),        G an average of P estimates

and the model reported is the mean of all. The graph is complete in the comparison; a ring or a list of edges will do.

There is no server, but a run needs somebody who keeps its record, and who passes on what neighbours tell each other.
*Dense*: a node is sent its neighbours' models and its own, and gives its change x_i⁺ − x_i. *Seeded*: a node gives the
scalars of G_i, and everybody rebuilds everybody's model. A node that fails keeps its model for the round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
import torch
from msgspec import Meta
from torch import Tensor

from fedzero.methods import (
    F32,
    Complete,
    Contribution,
    Dense,
    Federation,
    FedzeroError,
    Graph,
    Keys,
    Numbers,
    OwnDirections,
    Params,
    Part,
    RuleState,
    Scale,
    State,
    StepInputs,
    Traits,
    Turn,
    Update,
    Vectors,
    Work,
    advance_round,
    estimate,
    of_one_round,
    pack,
    rate_at,
    scalars_of_all,
    unpack,
    walk_terms,
)

MOST_NODES = 1024
"""Every node has a model, and the state has them all."""


@dataclass(frozen=True)
class Nodes(RuleState):
    """Vector i is the model of node i; the parameters are their mean."""

    models: Vectors
    neighbours: tuple[tuple[int, ...], ...]

    def part(self, client: int) -> Part:
        """Its own model and its neighbours'; nobody needs the mean."""
        return Part(params=False, vectors=(client, *self.neighbours[client]))

    def model(self, params: Params, client: int) -> Params:
        rows = zip(params.tensors.items(), self.models.slots, strict=True)
        return Params({name: slots[client].view(tensor.shape).to(tensor.dtype) for (name, tensor), slots in rows})

    def numbers(self) -> Numbers:
        return 0  # the graph is the recipe's


class Dzopa(OwnDirections, tag="dzopa"):
    """No server: every node of a graph has a model of its own and mixes it with its neighbours'."""

    gamma: Annotated[float, Meta(gt=0)] = 0.01
    """γ, weight of the differences to the neighbours"""
    graph: Graph = Complete()
    """which nodes are neighbours"""
    directions: Annotated[int, Meta(ge=1)] = 20
    """estimates averaged in G"""
    local_steps: Literal[1] = 1
    """a node takes one step a round"""

    def check(self, federation: Federation) -> None:
        OwnDirections.check(self, federation)
        federation.expect(
            "DZOPA has no server: all clients take part in every round", cohort=federation.clients, replacement=False
        )
        _expect_few(federation.clients)
        self.graph.check(federation.clients)

    def dense_numbers(self, scale: Scale) -> int:
        """A node's change up, its own model and its neighbours' down; the most neighbours any node has."""
        neighbours = max(len(self.graph.neighbours(node, scale.clients)) for node in range(scale.clients))
        return (2 + neighbours) * scale.size

    def traits(self, scale: Scale) -> Traits:
        return replace(OwnDirections.traits(self, scale), comparable=False)  # every node speaks of its own model

    def max_update_scale(self, state: State, round: int) -> float:
        return OwnDirections.max_update_scale(self, state, round) + 2 * self.gamma * state.clients

    def init(self, params: Params, clients: int) -> State:
        _expect_few(clients)
        nodes = range(clients)
        carry = Nodes(Vectors.zeros(params, clients), tuple(self.graph.neighbours(node, clients) for node in nodes))
        for node in nodes:
            carry.models.set(node, params.vector())
        return State(params, carry, clients=clients)

    def client(self, state: State, turn: Turn) -> Work:
        _, g, loss = yield from estimate(self, state.carry.model(state.params, turn.client), turn, 0)
        if self.seeded(state.scale):
            return Contribution(g, loss)
        change: Tensor = self._change(state, turn.client, turn.round, g, turn.keys)
        return Contribution(change.cpu().numpy(), loss)

    def _change(self, state: State, node: int, round: int, g: F32, keys: Keys) -> Tensor:
        """−γ Σ_j L_ij x_j − η G_i, with Σ_j L_ij x_j = Σ over neighbours of (x_i − x_j)."""
        nodes: Nodes = state.carry
        own, apart = nodes.models[node], state.params.zeros()
        for other in nodes.neighbours[node]:
            apart += own - nodes.models[other]
        terms = walk_terms(self, keys, round, node, g[None], [-rate_at(self.rate, round)])
        return state.params.total(terms) + apart * -self.gamma

    def aggregate(self, gathered: StepInputs) -> Update:
        if self.seeded(gathered.scale):
            return scalars_of_all(gathered)
        nodes = sorted(gathered.contributions)
        changes = np.concatenate([gathered.contributions[node] for node in nodes])
        return Dense(gathered.round, pack(changes), tuple(nodes))

    def apply(self, state: State, updates: Sequence[Update], keys: Keys) -> State:
        for update in map(of_one_round, updates):
            nodes = sorted(set(update.clients))
            data = update.values if isinstance(update, Dense) else update.scalars
            rows = unpack(data).reshape(len(nodes), -1)
            if isinstance(update, Dense):
                changes = [torch.from_numpy(row.copy()).to(state.params.device) for row in rows]
            else:
                changes = [self._change(state, n, update.round, row, keys) for n, row in zip(nodes, rows, strict=True)]
            for node, change in zip(nodes, changes, strict=True):
                state.carry.models.set(node, state.carry.models[node] + change)
            self._take_the_mean(state)
            state = advance_round(state, [update])
        return state

    def _take_the_mean(self, state: State) -> None:
        """The parameters ← the mean of all nodes' models."""
        total = state.params.zeros()
        for node in range(state.clients):
            total += state.carry.models[node]
        mean = total * (1 / state.clients)
        pieces = zip(state.params.tensors.items(), state.params.split(mean), strict=True)
        state.params.load({name: piece.view(tensor.shape) for (name, tensor), piece in pieces})


def _expect_few(nodes: int) -> None:
    if nodes > MOST_NODES:
        raise FedzeroError(f"dzopa keeps a model for every client: at most {MOST_NODES:,} clients, not {nodes:,}")
