"""The model stays finite: an update that would make one of its numbers infinite or NaN is not made durable.

    |x| after the update ≤ |x| + scale · Σ_j |c_j| max|z|        (seeded; for dense updates max|v| replaces the sum)

The right-hand side is kept from round to round and costs a sum over the update's own numbers. Only if it comes near the
largest number of the model's type is the model itself read (one pass over memory), and only if the bound is still too
large is the update tried on a copy. So a copy is made only in rounds that are about to destroy the model.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from fedzero.directions import Keys
from fedzero.methods.contract import MAX_ABS_COORDINATE, Method, State
from fedzero.model.updates import Dense, Stepped, Update

SPARE = 100.0
"""A factor on the bound, for the additional size of moments and adaptive steps."""
SQUARED = 1e17
"""Numbers below this have squares that float32 can hold, for rules that keep squares."""


def size_of(update: Update, method: Method) -> float:
    """The largest possible change of one coordinate by the update's numbers, before a rate: max|v|, or Σ|c| max|z|."""
    magnitudes = np.abs(method.decode_update(update))
    if isinstance(update, Dense):
        return float(magnitudes.max(initial=0.0))
    return MAX_ABS_COORDINATE * float(magnitudes.sum(dtype=np.float64))


def finite(state: State) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in _numbers(state))


def _numbers(state: State) -> list[torch.Tensor]:
    return [*state.params.tensors.values(), *state.carry.tensors()]


class Guard:
    """Tells which updates leave a model finite. On a server without a model the state is None, and only the size of the
    update is bounded."""

    def __init__(self, method: Method, keys: Keys):
        self.method, self.keys = method, keys
        self._largest = math.inf
        """a bound on the numbers of the state; infinite: not computed yet"""
        self._limit = 0.0
        """the largest number of the shortest type of the parameters; 0: not computed yet"""

    def admits(self, state: State | None, update: Update) -> bool:
        size = size_of(update, self.method)
        if state is None:
            return size <= SQUARED
        if size <= SQUARED:
            scale = self.method.max_update_scale(state, update.round)
            scale *= len(update.groups) if isinstance(update, Stepped) else 1  # the bound of a step holds per group
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
