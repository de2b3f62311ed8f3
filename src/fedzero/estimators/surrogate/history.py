"""The queries a client has made, and the surrogates over them.

A history is told by what was observed, block by block: `memory` is enough to make it again to the same bits, because it
says where one block ended and the next began, and rows are appended in the same portions.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedzero.estimators.surrogate.features import FeatureHistory, Features, weights_of
from fedzero.estimators.surrogate.process import Everything, Nearest
from fedzero.estimators.surrogate.settings import Surrogate, Transfer

Arrays = tuple[NDArray[Any], ...]

KEPT_BYTES = 4 << 30
"""How much memory surrogates of clients that wait for their next turn may take; the longest waiting are dropped first,
and made again from the client's memory when they are needed."""


class History:
    """Grows with every query; `told` are the arrays of earlier turns, what comes since is `fresh`."""

    def __init__(self, surrogate: Surrogate, transfer: Transfer, features: Features, dimension: int):
        self.transfer, self.features = transfer, features
        self.surrogate = surrogate.empty(dimension)
        self.rows = FeatureHistory(features, transfer.noise) if isinstance(transfer.window, Everything) else None
        self.told: Arrays = ()
        self._points: list[NDArray[np.float32]] = []
        self._values: list[NDArray[np.float64]] = []
        self._noted = 0

    def observe(self, points: NDArray[np.float32], values: NDArray[np.float64]) -> None:
        """f at points (b, d): float32, as they were asked."""
        self._points.append(points)
        self._values.append(values)
        self._take(points, values)

    def _take(self, points: NDArray[np.float32], values: NDArray[np.float64]) -> None:
        x = torch.from_numpy(points).double()
        self.surrogate.observe(x, torch.from_numpy(values))
        if self.rows is not None:
            self.rows.append(x)

    def weights(self, x: Tensor) -> Tensor:
        """w, M numbers that stand for the process around x."""
        if self.rows is not None:
            y = self.surrogate.outputs
            return self.rows.weights(y - y.mean())
        count = self.transfer.window.count if isinstance(self.transfer.window, Nearest) else None
        chosen = self.surrogate.chosen(x, count)
        y = self.surrogate.outputs[chosen]
        return weights_of(self.features, self.surrogate.points[chosen], y - y.mean(), self.transfer.noise)

    def tell(self) -> Arrays:
        """All of it as arrays, four for every turn: points, values, how many came at a time, and for the record every
        factor that had to be made anew, as (points, jitter)."""
        if self._points:
            cuts = np.array([len(block) for block in self._points], np.int64)
            anew = [(rebuild.points, rebuild.jitter) for rebuild in self.surrogate.rebuilds[self._noted :]]
            self._noted = len(self.surrogate.rebuilds)
            record = np.array(anew, np.float64).reshape(-1, 2)
            self.told += (np.concatenate(self._points), np.concatenate(self._values), cuts, record)
            self._points, self._values = [], []
        return self.told

    def hear(self, told: Arrays) -> None:
        """Observe again what `tell` gave."""
        for points, values, cuts, _ in zip(*(told[i::4] for i in range(4)), strict=True):
            ends = np.cumsum(cuts)[:-1]
            for some, their in zip(np.split(points, ends), np.split(values, ends), strict=True):
                self._take(some, their)
        self.told, self._noted = told, len(self.surrogate.rebuilds)

    @property
    def bytes(self) -> int:
        return self.surrogate.bytes + (self.rows.bytes if self.rows is not None else 0)


class Shelf:
    """Histories between turns. Found by the very arrays they tell: a memory from elsewhere finds nothing."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, tuple[History, int]] = OrderedDict()
        self._bytes = 0

    def put(self, history: History) -> None:
        size = history.bytes  # it does not grow while it lies here
        self._drop(id(history.told[-1]))
        self._kept[id(history.told[-1])] = history, size
        self._bytes += size
        while len(self._kept) > 1 and self._bytes > KEPT_BYTES:
            self._drop(next(iter(self._kept)))

    def _drop(self, place: int) -> History | None:
        history, size = self._kept.pop(place, (None, 0))
        self._bytes -= size
        return history

    def take(self, told: Arrays) -> History | None:
        """The history that tells this, which from now on is the taker's alone."""
        history = self._drop(id(told[-1])) if told else None
        same = history is not None and len(history.told) == len(told) and all(map(_is, history.told, told))
        return history if same else None


def _is(left: object, right: object) -> bool:
    return left is right
