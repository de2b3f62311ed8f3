"""FedAvg (McMahan et al., AISTATS 2017): the first-order baseline, gradients on the clients and models on the wire.

client i: K steps  M ← β M + ∇f_i(x; ξ);  x ← x − η M
server:   x_{r+1} = x_r + mean over the cohort of (x_i − x_r)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from msgspec import Meta, Struct

from fedzero.algorithms.contract import Contribution, Delivery, State, Turn, Work, mean, rounds_of
from fedzero.algorithms.optimizers import Fraction
from fedzero.directions import Keys
from fedzero.directions.terms import F32
from fedzero.errors import FedzeroError
from fedzero.oracles import Gradient
from fedzero.params import Params
from fedzero.schedules import Schedule, rate_at
from fedzero.updates import Dense, Update, pack, unpack


class FedAvg(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="fedavg"):
    """Gradients on the clients, whole models on the wire."""

    rate: Schedule
    local_steps: Annotated[int, Meta(ge=1)] = 1
    momentum: Fraction = 0.0

    name = "fedavg"
    first_order = True
    server_model = True
    sync = False
    pull_after = None

    def check(self, clients: int, cohort: int, private: bool) -> None:
        if private:
            raise FedzeroError("federation.private = true needs a method whose server holds no model (decomfl)")

    def delivery(self, size: int) -> Delivery:
        return "snapshot"

    def expects(self, round: int, size: int) -> int:
        return size

    def init(self, params: Params) -> State:
        return State(params)

    def client(self, state: State, turn: Turn) -> Work:
        rate, local = rate_at(self.rate, turn.round), state.params.clone()
        velocity, first_loss = torch.zeros(local.size, device=local.device), 0.0
        for k in range(self.local_steps):
            loss, gradient = yield Gradient(local, k)
            first_loss = loss if k == 0 else first_loss
            velocity = self.momentum * velocity + gradient
            local.add(-rate * velocity, turn.keys.rounding(turn.round, k))
        return Contribution((local.vector() - state.params.vector()).cpu().numpy(), first_loss)

    def aggregate(self, round: int, size: int, contributions: Mapping[int, F32]) -> Dense:
        return Dense(round, pack(mean(contributions)))

    def apply(self, state: State, updates: Sequence[Update], keys: Keys) -> State:
        for update in updates:
            assert isinstance(update, Dense)
            state.params.add(torch.from_numpy(unpack(update.values).copy()), keys.rounding(update.round))
        return rounds_of(state, updates)
