"""FedAvg (McMahan et al., AISTATS 2017): the first-order baseline, gradients on the clients and models on the wire.

With the filter `top-k` this is FedAvg + Top-K, with `quantise` it is FedCom (Haddadpour et al., AISTATS 2021).

client i: K steps  M ← β M + (1−β) ∇f_i(x; ξ);  x ← x − η M     from M = 0, as the optimizer `momentum` of other methods
server:   x_{r+1} = x_r + mean over the cohort of (x_i − x_r)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from msgspec import Meta

from fedzero.methods import (
    Contribution,
    Cost,
    Dense,
    Gradient,
    Keys,
    Method,
    ProperFraction,
    Scale,
    Schedule,
    State,
    StepInputs,
    Traits,
    Turn,
    Update,
    Work,
    advance_round,
    difference_of,
    pack,
    rate_at,
    vector_of,
)


class FedAvg(Method, tag="fedavg"):
    """Gradients on the clients, whole models on the wire."""

    rate: Schedule
    local_steps: Annotated[int, Meta(ge=1)] = 1
    momentum: ProperFraction = 0.0
    """β of the local steps: η is that of plain steps, whatever β"""

    def traits(self, scale: Scale) -> Traits:
        return Traits(seeded=False, first_order=True, delivery="snapshot")

    def cost(self, round: int, scale: Scale) -> Cost:
        return Cost((scale.size,), self.local_steps)

    def client(self, state: State, turn: Turn) -> Work:
        rate, local = rate_at(self.rate, turn.round), state.params.clone()
        velocity, first_loss = torch.zeros(local.size, device=local.device), 0.0
        for k in range(self.local_steps):
            loss, gradient = yield Gradient(local, k)
            first_loss = loss if k == 0 else first_loss
            velocity = self.momentum * velocity + (1 - self.momentum) * gradient
            local.add(-rate * velocity, turn.keys.rounding(turn.round, k))
        return Contribution(difference_of(local, state.params), first_loss)

    def aggregate(self, gathered: StepInputs) -> Dense:
        return Dense(gathered.round, pack(gathered.mean()))

    def apply(self, state: State, updates: Sequence[Update], keys: Keys) -> State:
        for update in updates:
            assert isinstance(update, Dense)
            state.params.add(vector_of(update, state.params), keys.rounding(update.round))
        return advance_round(state, updates)
