"""The queries of a client, and the surrogates over them.

The arrays of a history hold the observations by blocks, so that it can be rebuilt to the same bits.
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
"""Memory for surrogates of clients between turns; the least recently used are dropped, and rebuilt when needed."""


class History:
    """Grows with every query; `arrays` hold what earlier turns observed."""

    def __init__(self, surrogate: Surrogate, transfer: Transfer, features: Features, dimension: int):
        self.transfer, self.features = transfer, features
        self.surrogate = surrogate.empty(dimension)
        self.rows = FeatureHistory(features, transfer.noise) if isinstance(transfer.window, Everything) else None
        self.arrays: Arrays = ()
        self._points: list[NDArray[np.float32]] = []
        self._values: list[NDArray[np.float64]] = []
        self._recorded = 0

    def observe(self, points: NDArray[np.float32], values: NDArray[np.float64]) -> None:
        """f at points (b, d): float32, as they were asked."""
        self._points.append(points)
        self._values.append(values)
        self._add(points, values)

    def _add(self, points: NDArray[np.float32], values: NDArray[np.float64]) -> None:
        x = torch.from_numpy(points).double()
        self.surrogate.observe(x, torch.from_numpy(values))
        if self.rows is not None:
            self.rows.append(x)

    def weights(self, x: Tensor) -> Tensor:
        """w, (M,): the process around x in random features."""
        if self.rows is not None:
            y = self.surrogate.outputs
            return self.rows.weights(y - y.mean())
        count = self.transfer.window.count if isinstance(self.transfer.window, Nearest) else None
        chosen = self.surrogate.chosen(x, count)
        y = self.surrogate.outputs[chosen]
        return weights_of(self.features, self.surrogate.points[chosen], y - y.mean(), self.transfer.noise)

    def to_arrays(self) -> Arrays:
        """Four arrays for every turn: points, values, sizes of the blocks, and rebuilds as rows (points, jitter)."""
        if self._points:
            sizes = np.array([len(block) for block in self._points], np.int64)
            rebuilds = [(rebuild.points, rebuild.jitter) for rebuild in self.surrogate.rebuilds[self._recorded :]]
            self._recorded = len(self.surrogate.rebuilds)
            record = np.array(rebuilds, np.float64).reshape(-1, 2)
            self.arrays += (np.concatenate(self._points), np.concatenate(self._values), sizes, record)
            self._points, self._values = [], []
        return self.arrays

    def from_arrays(self, arrays: Arrays) -> None:
        """Observe again what `to_arrays` gave."""
        for points, values, sizes, _ in zip(*(arrays[i::4] for i in range(4)), strict=True):
            ends = np.cumsum(sizes)[:-1]
            for block in zip(np.split(points, ends), np.split(values, ends), strict=True):
                self._add(*block)
        self.arrays, self._recorded = arrays, len(self.surrogate.rebuilds)

    @property
    def bytes(self) -> int:
        return self.surrogate.bytes + (self.rows.bytes if self.rows is not None else 0)


class SurrogateCache:
    """Histories of clients between their turns."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, tuple[History, int]] = OrderedDict()
        self._bytes = 0

    def put(self, client: int, history: History) -> None:
        self._drop(client)
        size = history.bytes  # constant while it is in the cache
        self._kept[client] = history, size
        self._bytes += size
        while len(self._kept) > 1 and self._bytes > KEPT_BYTES:
            self._drop(next(iter(self._kept)))

    def _drop(self, client: int) -> History | None:
        history, size = self._kept.pop(client, (None, 0))
        self._bytes -= size
        return history

    def take(self, client: int, arrays: Arrays) -> History | None:
        """Remove and return the client's history if it holds these arrays; None otherwise."""
        history = self._drop(client)
        same = history is not None and len(history.arrays) == len(arrays) and all(map(_equal, history.arrays, arrays))
        return history if same else None


def _equal(left: NDArray[Any], right: NDArray[Any]) -> bool:
    return left is right or np.array_equal(left, right)
