"""The queries a client has made, and the surrogates over them.

What was observed, block by block, is enough to make a history again to the same bits: the arrays say where one block
ended and the next began, and rows are appended in the same portions.
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
    """Grows with every query; `arrays` hold what earlier turns observed."""

    def __init__(self, surrogate: Surrogate, transfer: Transfer, features: Features, dimension: int):
        self.transfer, self.features = transfer, features
        self.surrogate = surrogate.empty(dimension)
        self.rows = FeatureHistory(features, transfer.noise) if isinstance(transfer.window, Everything) else None
        self.arrays: Arrays = ()
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

    def to_arrays(self) -> Arrays:
        """All of it as arrays, four for every turn: points, values, how many came at a time, and for the record every
        factor that had to be made anew, as (points, jitter)."""
        if self._points:
            cuts = np.array([len(block) for block in self._points], np.int64)
            anew = [(rebuild.points, rebuild.jitter) for rebuild in self.surrogate.rebuilds[self._noted :]]
            self._noted = len(self.surrogate.rebuilds)
            record = np.array(anew, np.float64).reshape(-1, 2)
            self.arrays += (np.concatenate(self._points), np.concatenate(self._values), cuts, record)
            self._points, self._values = [], []
        return self.arrays

    def from_arrays(self, arrays: Arrays) -> None:
        """Observe again what `to_arrays` gave."""
        for points, values, cuts, _ in zip(*(arrays[i::4] for i in range(4)), strict=True):
            ends = np.cumsum(cuts)[:-1]
            for some, their in zip(np.split(points, ends), np.split(values, ends), strict=True):
                self._take(some, their)
        self.arrays, self._noted = arrays, len(self.surrogate.rebuilds)

    @property
    def bytes(self) -> int:
        return self.surrogate.bytes + (self.rows.bytes if self.rows is not None else 0)


class SurrogateCache:
    """Histories of clients between their turns. One that does not hold what the client remembers is of no use to it."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, tuple[History, int]] = OrderedDict()
        self._bytes = 0

    def put(self, client: int, history: History) -> None:
        self._drop(client)
        size = history.bytes  # it does not grow while it lies here
        self._kept[client] = history, size
        self._bytes += size
        while len(self._kept) > 1 and self._bytes > KEPT_BYTES:
            self._drop(next(iter(self._kept)))

    def _drop(self, client: int) -> History | None:
        history, size = self._kept.pop(client, (None, 0))
        self._bytes -= size
        return history

    def take(self, client: int, arrays: Arrays) -> History | None:
        """The client's history, if it holds these arrays; from now on the taker's alone."""
        history = self._drop(client)
        same = history is not None and len(history.arrays) == len(arrays) and all(map(_equal, history.arrays, arrays))
        return history if same else None


def _equal(left: NDArray[Any], right: NDArray[Any]) -> bool:
    return left is right or np.array_equal(left, right)
