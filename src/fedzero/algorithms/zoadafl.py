"""ZO-AdaFL: zeroth-order clients, an adaptive server ("adaptive federated learning with zeroth-order optimization").

    client i: K steps of FedZO, unit sphere with the factor d/μ (eq. 5); gives Δ_i = x_i − x_r
    server:   Δ = mean Δ_i;   m ← β1 m + (1−β1) Δ
              v ← β2 v + (1−β2) Δ²                        amsgrad, adam
              v ← v − (1−β2) Δ² sign(v − Δ²)              yogi
              v ← v + Δ²                                  adagrad
              v̂ ← max(v̂, v)                               amsgrad; v̂ = v for the others
              x ← x + α m / √(v̂ + ε)

The paper's eq. (4) prints √v + ε, its algorithm √(v̂ + ε): the latter is the default, `epsilon_at = "outside"` the
former. v starts from v0 = 1e-5 in the paper; `v0 = 0` leaves that out.

*Seeded*, the scalars of the walks travel and everybody rebuilds Δ, and from it the moments: a dimension-free ZO-AdaFL.
All arithmetic on moments is one rounded operation at a time, the same bits on CPU and GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from msgspec import Meta, Struct
from torch import Tensor

from fedzero.algorithms.contract import Form, Part, Scale, State, Turn, Work, rounds_of
from fedzero.algorithms.optimizers import Fraction, root
from fedzero.algorithms.walk import (
    OwnDirections,
    Samples,
    mean_walk,
    vector_of,
    walked,
)
from fedzero.directions import Distribution, Keys
from fedzero.estimators.spsa import Difference
from fedzero.params import Params
from fedzero.schedules import Schedule, rate_at
from fedzero.updates import Dense, Update


class ZOAdaFL(
    OwnDirections, Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="zo-adafl"
):
    """FedZO's clients with an adaptive server: AMSGrad, Adam, Yogi or Adagrad on the mean difference."""

    rate: Schedule = 1e-3
    """η, on the clients"""
    server_rate: Schedule = 0.02
    """α"""
    rule: Literal["amsgrad", "adam", "yogi", "adagrad"] = "amsgrad"
    """how v follows Δ²"""
    beta1: Fraction = 0.9
    """β1, how much of m stays"""
    beta2: Fraction = 0.99
    """β2, how much of v stays"""
    epsilon: Annotated[float, Meta(ge=0)] = 1e-8
    """ε, so that nothing is divided by nought"""
    epsilon_at: Literal["inside", "outside"] = "inside"
    """√(v̂ + ε), or √v̂ + ε"""
    v0: Annotated[float, Meta(ge=0)] = 1e-5
    """what v starts from"""
    directions: Annotated[int, Meta(ge=1)] = 1
    local_steps: Annotated[int, Meta(ge=1)] = 10
    radius: Annotated[float, Meta(gt=0)] = 1e-3
    difference: Difference = "forward"
    distribution: Distribution = "unit-sphere"
    samples: Samples = "batch"
    form: Form = "auto"

    name = "zo-adafl"

    def part(self, client: int, scale: Scale) -> Part:
        return Part(slots=())  # the moments are the server's; a client needs the model

    def init(self, params: Params, clients: int) -> State:
        slots = params.slots(3 if self.rule == "amsgrad" else 2)
        for group in slots:
            for v in group[1:]:
                v.fill_(self.v0)
        return State(params, slots, clients=clients)

    def client(self, state: State, turn: Turn) -> Work:
        return walked(self, state, turn, rate_at(self.rate, turn.round), self.seeded(state.scale))

    def apply(self, state: State, updates: Sequence[Update], keys: Keys) -> State:
        for update in updates:
            if isinstance(update, Dense):
                delta = vector_of(update, state.params)
            else:
                factors = [-rate_at(self.rate, update.round)] * self.local_steps
                delta = state.params.total(mean_walk(self, keys, update, factors))
            alpha, pieces = rate_at(self.server_rate, update.round), state.params.split(delta)
            assert state.slots is not None
            steps = [self._step(group, piece, alpha) for group, piece in zip(state.slots, pieces, strict=True)]
            state.params.add(torch.cat(steps), keys.rounding(update.round))
        return rounds_of(state, updates)

    def _step(self, slots: tuple[Tensor, ...], delta: Tensor, alpha: float) -> Tensor:
        """Moments of one tensor brought up to date in place; α m / √(v̂ + ε)."""
        m, v, vhat = slots[0], slots[1], slots[-1]
        square = delta * delta
        m.mul_(self.beta1).add_(delta * (1 - self.beta1))
        if self.rule == "yogi":
            v.sub_((square * (1 - self.beta2)) * torch.sign(v - square))
        elif self.rule == "adagrad":
            v.add_(square)
        else:
            v.mul_(self.beta2).add_(square * (1 - self.beta2))
        if self.rule == "amsgrad":
            torch.maximum(vhat, v, out=vhat)
        denominator = root(vhat + self.epsilon) if self.epsilon_at == "inside" else root(vhat) + self.epsilon
        # Where a coordinate has never moved and ε = 0, both are zero: it stays where it is.
        return torch.where(m == 0, m, (m * alpha) / denominator)
