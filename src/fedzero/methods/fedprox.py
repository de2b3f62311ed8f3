"""FedProx-ZO: FedProx (Li et al., MLSys 2020) with zeroth-order estimates, as the FZooS paper compares with it.

    client i: K steps  x ← x − η (Ĝ_k + γ (x − x_r))           the correction form of eq. (6) with the pull x − x_r
    server:   x_{r+1} = x_r + mean over the cohort of (x_i − x_r)

*Seeded*: with D_k = x_k − x_r the walk is D_{k+1} = (1−ηγ) D_k − η Ĝ_k, so D_K = −η Σ_k (1−ηγ)^{K−1−k} Ĝ_k: the scalars
suffice.

*Local steps*: with a `local_optimizer` other than sgd Ĝ_k + γ (x − x_r) is the gradient it is given; with a `box`
every coordinate is clipped to it after every step. Neither leaves a sum of directions, so both travel dense.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from msgspec import Meta

from fedzero.methods import (
    Keys,
    LocalSteps,
    State,
    Turn,
    Update,
    Work,
    advanced,
    power,
    proximal,
    rate_at,
    run_local_steps,
)


class FedProxZO(LocalSteps, tag="fedprox-zo"):
    """FedZO with a proximal term, centred on the model at the start of the round."""

    reads_state: ClassVar[str] = ""

    gamma: Annotated[float, Meta(ge=0)] = 0.1
    """γ, weight of the proximal term"""
    directions: Annotated[int, Meta(ge=1)] = 20
    """Q, directions averaged in one estimate"""
    local_steps: Annotated[int, Meta(ge=1)] = 10

    def client(self, state: State, turn: Turn) -> Work:
        pull = proximal(state.params.vector(), self.gamma)
        return run_local_steps(self, state, turn, rate_at(self.rate, turn.round), self.seeded(state.scale), pull)

    def apply(self, state: State, updates: Sequence[Update], keys: Keys) -> State:
        def factors(round: int) -> list[float]:
            rate, K = rate_at(self.rate, round), self.local_steps
            return [-rate * power(1 - rate * self.gamma, K - 1 - k) for k in range(K)]

        return advanced(self, state, updates, keys, factors)
