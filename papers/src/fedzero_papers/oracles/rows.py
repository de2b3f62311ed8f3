"""Samples as rows of a matrix A (n, d), dense or sparse, and the few products that models on them need.

    along(V)    A Vᵀ     (n, k)      V (k, d): a margin for every sample and vector; summed in float64
    through(W)  A W_k    (k, n, h)   W (k, d, h): the input of a hidden layer, for every set of weights; in float32
    back(R)     Aᵀ R     (d, h)      R (n, h): how residuals come back to the weights; in float32

Everything is on the CPU. Sparse rows stay sparse: what a product costs depends on the nonzeros of its rows only.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from fedzero.oracles.contract import F32, F64

Index = NDArray[np.int64]
GROUP = 128
"""Coordinates of a gaussian direction that are made together."""
BLOCK = 4096
"""Dense rows that are widened to float64 at a time; a batch of up to so many keeps its wide form."""


class DenseRows:
    """A as a float32 matrix.

    NumPy rather than torch: the products are small, and waiting for a second thread takes longer than they do.
    """

    def __init__(self, x: F32):
        self.x = x

    def __len__(self) -> int:
        return len(self.x)

    @property
    def width(self) -> int:
        return int(self.x.shape[1])

    def pick(self, index: Index) -> DenseRows:
        return DenseRows(self.x.take(index, axis=0))

    def groups(self, width: int) -> Index | None:
        """Which groups of 128 numbers `through` reads of weights (d, width); None: all."""
        return None

    @cached_property
    def _wide(self) -> F64:
        return self.x.astype(np.float64)

    def along(self, vectors: F32) -> F64:
        columns = vectors.astype(np.float64).T
        if len(self) <= BLOCK:
            return self._wide @ columns
        return np.concatenate([self.x[i : i + BLOCK].astype(np.float64) @ columns for i in range(0, len(self), BLOCK)])

    def through(self, weights: F32) -> F32:
        product: F32 = np.matmul(self.x, weights)
        return product

    def back(self, residuals: F64) -> F32:
        return self.x.T @ residuals.astype(np.float32)


class SparseRows:
    """A in compressed rows: row i has `values[offsets[i]:offsets[i + 1]]` in the columns `indices[…]`."""

    def __init__(self, offsets: Index, indices: Index, values: F64, width: int):
        self.offsets, self.indices, self.values, self._width = offsets, indices, values, width

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def width(self) -> int:
        return self._width

    def pick(self, index: Index) -> SparseRows:
        first = self.offsets[index]
        offsets = np.zeros(len(index) + 1, np.int64)
        np.cumsum(self.offsets[index + 1] - first, out=offsets[1:])
        where = np.repeat(first - offsets[:-1], np.diff(offsets)) + np.arange(offsets[-1])
        return SparseRows(offsets, self.indices.take(where), self.values.take(where), self._width)

    def groups(self, width: int) -> Index | None:
        read = np.zeros(-(-self._width * width // GROUP), bool)
        for first in range(0, width + GROUP, GROUP):  # a feature's weights may reach into several groups
            read[(self.indices * width + min(first, width - 1)) // GROUP] = True
        return np.flatnonzero(read)

    def along(self, vectors: F32) -> F64:
        out = np.empty((len(self), len(vectors)))
        for column, vector in enumerate(vectors):
            out[:, column] = self._sums(vector.take(self.indices) * self.values)
        return out

    def _sums(self, products: F64) -> F64:
        """Sums over the nonzeros of each row."""
        starts, counts = self.offsets[:-1], np.diff(self.offsets)
        if counts.all():
            return np.add.reduceat(products, starts)
        out = np.zeros(len(self))  # reduceat would give an empty row its neighbour's first product
        if counts.any():
            out[counts > 0] = np.add.reduceat(products, starts[counts > 0])
        return out

    def through(self, weights: F32) -> F32:
        indices, offsets = torch.from_numpy(self.indices), torch.from_numpy(self.offsets)
        values = torch.from_numpy(self.values).float()
        out = np.empty((len(weights), len(self), weights.shape[2]), np.float32)
        for sums, matrix in zip(out, torch.from_numpy(weights), strict=True):
            # Bags of embeddings are the rows' sums, read where the weights lie.
            sums[:] = F.embedding_bag(
                indices, matrix, offsets, mode="sum", per_sample_weights=values, include_last_offset=True
            ).numpy()
        return out

    def back(self, residuals: F64) -> F32:
        owner = np.repeat(np.arange(len(self)), np.diff(self.offsets))
        spread = torch.from_numpy(self.values[:, None] * residuals[owner]).float()
        out = torch.zeros(self._width, residuals.shape[1])
        result: F32 = out.index_add_(0, torch.from_numpy(self.indices), spread).numpy()
        return result


Rows = DenseRows | SparseRows
"""n samples of d features."""
