"""FedZO (Fang et al., "Communication-efficient stochastic zeroth-order optimization for federated learning").

    client i: K steps  x ← x − η (1/P) Σ_p g_i[k,p] z_i[k,p], each client along directions of its own
    server:   x_{r+1} = x_r + mean over the cohort of (x_i − x_r)

*Dense*: the difference travels, d numbers each way. *Seeded*: the K·P scalars travel, and everybody makes the others'
directions from (round, step, direction, client): the same update, up to float rounding, without a word about d.

The family, by its fields: `distribution = "unit-sphere"` is the estimator (d/μ)(f(x + μu) − f(x)) u of the paper;
`directions` and the task's `batch` are its mini-batch version (b2 directions, b1 samples); `difference = "central"`
with one gaussian direction is ZOFedAvg-SGD of the ZOFedHT paper, and with `samples = "all"` its ZOFedAvg-GD.

*Local steps*: with a `local_optimizer` other than sgd the estimate is the gradient it is given; with a `box` every
coordinate is clipped to it after every step. Neither leaves a sum of directions, so both travel dense.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from fedzero.methods import Keys, LocalSteps, State, Turn, Update, Work, advanced, rate_at, run_local_steps


class FedZO(LocalSteps, tag="fedzo"):
    """Own directions on every client; the dense-communication twin of DeComFL, or seeded."""

    reads_state: ClassVar[str] = ""

    def client(self, state: State, turn: Turn) -> Work:
        return run_local_steps(self, state, turn, rate_at(self.rate, turn.round), self.seeded(state.scale))

    def apply(self, state: State, updates: Sequence[Update], keys: Keys) -> State:
        return advanced(self, state, updates, keys, lambda r: [-rate_at(self.rate, r)] * self.local_steps)
