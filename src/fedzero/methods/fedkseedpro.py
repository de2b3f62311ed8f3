"""FedKSeed-Pro (Qin et al., ICML 2024): FedKSeed that draws the keys of its pool by how much they mattered so far.

    a[s] = mean over the history of s of |clip(g, −c, c)|,   the history of every key begins with one 0
    b[s] = (a[s] − min a) / (max a − min a),                 0 where all are equal
    s drawn with probability exp(b[s]) / Σ_t exp(b[t]),      so at most e times as often as another

The paper's server keeps every client's scalars as history. Here it is the mean scalars of the rounds, which everybody
has: all draw the same keys, and no probabilities travel. The sums and counts of a are part of the state, so that what
is sent to a client that was away for long is 12S bytes.

exp is a series of + × ÷ (b is in [0, 1]): a library's may differ in the last bit between machines, and replicas would
draw different keys.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedzero.methods import F32, F64, Keys, Params, Positive, Scale, State, Traits
from fedzero.methods.fedkseed import Accumulators, FedKSeed, Places

SERIES = 18
"""1/18! is below the last place of float64."""


@dataclass(frozen=True, kw_only=True)
class History(Accumulators):
    """Beside A: by key, the sum of |clip(g)|, float32, and how many there were."""

    total: Tensor
    count: Tensor


class FedKSeedPro(FedKSeed, tag="fedkseed-pro"):
    """FedKSeed with keys of larger slopes drawn more often."""

    clip: Positive = 1000.0
    """c, scalars beyond which count as c in the history"""

    def traits(self, scale: Scale) -> Traits:
        return replace(FedKSeed.traits(self, scale), reads_state="its directions are drawn by the state")

    def init(self, params: Params, clients: int) -> State:
        state = FedKSeed.init(self, params, clients)
        total, count = torch.zeros(self.pool), torch.zeros(self.pool, dtype=torch.int32)
        carry = History(
            A=state.carry.A, rate=self.rate, stream=self.stream, base=state.carry.base, total=total, count=count
        )
        return State(params, carry, clients=clients)

    def drawn(self, state: State, keys: Keys, round: int, step: int, count: int) -> Places:
        edges = np.add.accumulate(self.weights(state))
        at = keys.generator("pool", round, step).random(count) * edges[-1]
        chosen: Places = np.searchsorted(edges, at, side="right")
        return np.minimum(chosen, self.pool - 1)  # a product may be rounded up to the last edge

    def weights(self, state: State) -> F64:
        """exp(b), (S,): probabilities before they are divided by their sum."""
        history: History = state.carry
        a = history.total.numpy().astype(np.float64) / (1 + history.count.numpy().astype(np.float64))
        spread = a.max() - a.min()
        return exponential((a - a.min()) / spread if spread else np.zeros_like(a))

    def accumulate(self, state: State, places: Places, g: F32, weight: float) -> None:
        FedKSeed.accumulate(self, state, places, g, weight)
        np.add.at(state.carry.total.numpy(), places, np.abs(g).clip(max=np.float32(self.clip)))
        np.add.at(state.carry.count.numpy(), places, 1)


def exponential(b: F64) -> F64:
    """exp of numbers in [0, 1], by Horner's rule, the same bits on every machine."""
    result = np.ones_like(b)
    for n in range(SERIES, 0, -1):
        result = 1 + b * result / n
    return result
