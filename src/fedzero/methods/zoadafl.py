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
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from msgspec import Meta
from torch import Tensor

from fedzero.methods import (
    Dense,
    Distribution,
    Keys,
    OwnDirections,
    Params,
    Part,
    ProperFraction,
    RuleState,
    Schedule,
    State,
    Turn,
    Update,
    Vectors,
    Work,
    advance_round,
    mean_walk,
    rate_at,
    root,
    run_local_steps,
    vector_of,
)


@dataclass(frozen=True)
class AdaptiveMoments(RuleState):
    """m, v and, for AMSGrad, v̂. They are the server's: a client needs the model."""

    vectors: Vectors

    def part(self, client: int) -> Part:
        return Part(vectors=())


class ZOAdaFL(OwnDirections, tag="zo-adafl"):
    """FedZO's clients with an adaptive server: AMSGrad, Adam, Yogi or Adagrad on the mean difference."""

    reads_state: ClassVar[str] = ""

    rate: Schedule = 1e-3
    """η, on the clients"""
    server_rate: Schedule = 0.02
    """α"""
    rule: Literal["amsgrad", "adam", "yogi", "adagrad"] = "amsgrad"
    """update rule of v from Δ²"""
    beta1: ProperFraction = 0.9
    """β1, how much of m stays"""
    beta2: ProperFraction = 0.99
    """β2, how much of v stays"""
    epsilon: Annotated[float, Meta(ge=0)] = 1e-8
    """ε, added to the denominator"""
    epsilon_at: Literal["inside", "outside"] = "inside"
    """√(v̂ + ε), or √v̂ + ε"""
    v0: Annotated[float, Meta(ge=0)] = 1e-5
    """initial value of v"""
    directions: Annotated[int, Meta(ge=1)] = 1
    local_steps: Annotated[int, Meta(ge=1)] = 10
    distribution: Distribution = "unit-sphere"

    def init(self, params: Params, clients: int) -> State:
        moments = Vectors.zeros(params, 3 if self.rule == "amsgrad" else 2)
        for _, *second in moments.slots:
            for v in second:
                v.fill_(self.v0)
        return State(params, AdaptiveMoments(moments), clients=clients)

    def max_update_scale(self, state: State, round: int) -> float:
        """A step is α times a ratio of moments, which stays near 1 whatever Δ is."""
        return max(OwnDirections.max_update_scale(self, state, round), 10 * rate_at(self.server_rate, round))

    def client(self, state: State, turn: Turn) -> Work:
        return run_local_steps(self, state, turn, rate_at(self.rate, turn.round), self.seeded(state.scale))

    def apply(self, state: State, updates: Sequence[Update], keys: Keys) -> State:
        for update in updates:
            if isinstance(update, Dense):
                delta = vector_of(update, state.params)
            else:
                factors = [-rate_at(self.rate, update.round)] * self.local_steps
                delta = state.params.total(mean_walk(self, keys, update, factors))
            alpha, pieces = rate_at(self.server_rate, update.round), state.params.split(delta)
            moments: AdaptiveMoments = state.carry
            steps = [
                self._step(group, delta, alpha) for group, delta in zip(moments.vectors.slots, pieces, strict=True)
            ]
            state.params.add(torch.cat(steps), keys.rounding(update.round))
        return advance_round(state, updates)

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
