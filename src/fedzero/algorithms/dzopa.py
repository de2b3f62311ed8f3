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
from typing import Annotated

import numpy as np
import torch
from msgspec import Meta, Struct
from torch import Tensor

from fedzero.algorithms.contract import Contribution, Form, Gathered, Part, Scale, State, Turn, Work, rounds_of
from fedzero.algorithms.graphs import Complete, Graph
from fedzero.algorithms.walk import OwnDirections, Samples, estimate, scalars_of_all, walk_terms
from fedzero.directions import Distribution, Keys
from fedzero.directions.terms import F32
from fedzero.errors import FedzeroError
from fedzero.estimators.spsa import Difference
from fedzero.params import Params
from fedzero.schedules import Schedule, rate_at
from fedzero.updates import Dense, Update, pack, unpack


class Dzopa(
    OwnDirections, Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="dzopa"
):
    """No server: every node of a graph has a model of its own and mixes it with its neighbours'."""

    rate: Schedule
    """η"""
    gamma: Annotated[float, Meta(gt=0)] = 0.01
    """γ, how much of the difference to the neighbours is taken over in a round"""
    graph: Graph = Complete()
    """who is whose neighbour"""
    directions: Annotated[int, Meta(ge=1)] = 20
    """estimates averaged in G"""
    radius: Annotated[float, Meta(gt=0)] = 1e-3
    difference: Difference = "forward"
    distribution: Distribution = "gaussian"
    samples: Samples = "batch"
    form: Form = "auto"

    name = "dzopa"
    local_steps = 1

    def check(self, clients: int, cohort: int, private: bool, replacement: bool = False) -> None:
        OwnDirections.check(self, clients, cohort, private, replacement)
        if cohort != clients or replacement:
            raise FedzeroError(
                "DZOPA has no server and samples nobody: set federation.cohort to the number of clients "
                f"({clients}, not {cohort}) and replacement = false"
            )
        self.graph.check(clients)

    def dense_numbers(self, scale: Scale) -> int:
        """A node's change up, its own model and its neighbours' down; the most neighbours any node has."""
        neighbours = max(len(self.graph.neighbours(node, scale.clients)) for node in range(scale.clients))
        return (2 + neighbours) * scale.size

    def addable(self, scale: Scale) -> bool:
        return False  # every node speaks of its own model

    def part(self, client: int, scale: Scale) -> Part:
        """Its own model and its neighbours'; nobody needs the mean."""
        return Part(params=False, slots=(client, *self.graph.neighbours(client, scale.clients)))

    def init(self, params: Params, clients: int) -> State:
        """Slot i is the model of node i; the parameters are their mean."""
        state = State(params, params.slots(clients), clients=clients)
        for node in range(clients):
            state.set_slot(node, params.vector())
        return state

    def _node(self, state: State, node: int) -> Params:
        """The model of a node."""
        assert state.slots is not None
        tensors = state.params.tensors.items()
        rows = zip(tensors, state.slots, strict=True)
        return Params({name: slots[node].view(tensor.shape).to(tensor.dtype) for (name, tensor), slots in rows})

    def digest(self, state: State, client: int) -> bytes:
        return self._node(state, client).digest()

    def client(self, state: State, turn: Turn) -> Work:
        _, g, loss = yield from estimate(self, self._node(state, turn.client), turn, 0)
        if self.seeded(state.scale):
            return Contribution(g, loss)
        change: Tensor = self._change(state, turn.client, turn.round, g, turn.keys)
        return Contribution(change.cpu().numpy(), loss)

    def _change(self, state: State, node: int, round: int, g: F32, keys: Keys) -> Tensor:
        """−γ Σ_j L_ij x_j − η G_i, with Σ_j L_ij x_j = Σ over neighbours of (x_i − x_j)."""
        own, apart = state.slot(node), state.params.zeros()
        for other in self.graph.neighbours(node, state.clients):
            apart += own - state.slot(other)
        terms = walk_terms(self, keys, round, node, g[None], [-rate_at(self.rate, round)])
        return state.params.total(terms) + apart * -self.gamma

    def aggregate(self, gathered: Gathered) -> Update:
        if self.seeded(gathered.scale):
            return scalars_of_all(gathered)
        nodes = sorted(gathered.contributions)
        changes = np.concatenate([gathered.contributions[node] for node in nodes])
        return Dense(gathered.round, pack(changes), tuple(nodes))

    def apply(self, state: State, updates: Sequence[Update], keys: Keys) -> State:
        for update in updates:
            nodes = sorted(set(update.clients))
            data = update.values if isinstance(update, Dense) else update.scalars
            rows = unpack(data).reshape(len(nodes), -1)
            if isinstance(update, Dense):
                changes = [torch.from_numpy(row.copy()).to(state.params.device) for row in rows]
            else:
                changes = [self._change(state, n, update.round, row, keys) for n, row in zip(nodes, rows, strict=True)]
            for node, change in zip(nodes, changes, strict=True):
                state.set_slot(node, state.slot(node) + change)
            self._take_the_mean(state)
            state = rounds_of(state, [update])
        return state

    def _take_the_mean(self, state: State) -> None:
        """The parameters ← the mean of all nodes' models."""
        total = state.params.zeros()
        for node in range(state.clients):
            total += state.slot(node)
        mean = total * (1 / state.clients)
        pieces = zip(state.params.tensors.items(), state.params.split(mean), strict=True)
        state.params.load({name: piece.view(tensor.shape) for (name, tensor), piece in pieces})
