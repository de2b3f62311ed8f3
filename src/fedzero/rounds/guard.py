"""Whether a model stays finite: what would make a number of it infinite or NaN is not made durable.

    |x| after the update ≤ |x| + scale · Σ_j |c_j| max|z|        (seeded; of dense updates max|v| in place of the sum)

The right-hand side is kept from round to round and costs a sum over the update's own numbers. Only where it comes near
the largest number of the model's type is the model looked at (one pass over memory), and where that does not help, the
update is tried on a copy. So a copy is made in rounds that are about to destroy the model, and in no others.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from fedzero.directions import Keys
from fedzero.methods.contract import MAX_ABS_COORDINATE, Method, State
from fedzero.model.updates import Dense, Stepped, Update

SPARE = 100.0
"""Times the bound: what moments and adaptive steps may add to it."""
SQUARED = 1e17
"""Numbers below this have squares that float32 can hold, in any rule that keeps squares."""


def size_of(update: Update, method: Method) -> float:
    """The most that the update's numbers can come to in one coordinate, before a rate: max|v|, or Σ|c| max|z|."""
    magnitudes = np.abs(method.decode_update(update))
    if isinstance(update, Dense):
        return float(magnitudes.max(initial=0.0))
    return MAX_ABS_COORDINATE * float(magnitudes.sum(dtype=np.float64))


def finite(state: State) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in _numbers(state))


def _numbers(state: State) -> list[torch.Tensor]:
    return [*state.params.tensors.values(), *state.carry.tensors()]


class Guard:
    """Tells which updates leave a model finite; None as state: a server without a model, which bounds updates alone."""

    def __init__(self, method: Method, keys: Keys):
        self.method, self.keys = method, keys
        self._largest = math.inf
        """no number of the state is larger; infinite: it was not looked at"""
        self._limit = 0.0
        """the largest number of the shortest type of the parameters; 0: not asked for yet"""

    def admits(self, state: State | None, update: Update) -> bool:
        size = size_of(update, self.method)
        if state is None:
            return size <= SQUARED
        if size <= SQUARED:
            scale = self.method.max_update_scale(state, update.round)
            scale *= len(update.groups) if isinstance(update, Stepped) else 1  # what bounds a step bounds each of them
            self._limit = self._limit or min(torch.finfo(t.dtype).max for t in state.params.tensors.values())
            for look in (False, True):
                if look:
                    self._largest = max((float(t.abs().max()) for t in _numbers(state) if t.numel()), default=0.0)
                after = self._largest + scale * (size + self._largest + 1)
                if SPARE * after < self._limit:
                    self._largest = after
                    return True
        with np.errstate(all="ignore"):
            tried = self.method.apply(state.branch(), [update], self.keys)
        self._largest = math.inf
        return finite(tried)
