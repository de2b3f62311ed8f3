"""Points of rank-one directions as factors: what a pass over many points needs in the place of weights for each.

At point p a matrix is W + Σ_k c[k, p] a[k, p] b[k, p]ᵀ, with a and b of ±1: rows + columns numbers instead of rows ·
columns. A tensor of more axes is a matrix, first axis × rest. A vector has no factors: its offsets Σ c z are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedzero.directions import Domain, Terms, kernels
from fedzero.model.params import Params

MOST_TERMS = 64
"""Of a point: with more, the factors cost about as much as a view."""


@dataclass(frozen=True, eq=False)
class Factors:
    """Of one matrix: `left` (terms, points, 1, rows) and `right` (terms, points, 1, columns), ±1 in the matrix's type.

    `coefficients` (terms, points, 1, 1) are float32 in any case: rounded to 16 bits they would change the radius.
    """

    coefficients: Tensor
    left: Tensor
    right: Tensor

    @property
    def turned(self) -> Factors:
        """Of the transposed matrix."""
        return Factors(self.coefficients, self.right, self.left)

    def rows(self, ids: Tensor) -> Factors:
        """Of some rows of the matrix."""
        return Factors(self.coefficients, self.left[..., ids], self.right)

    def at(self, matrix: Tensor) -> Tensor:
        """The matrix (rows, columns) at every point, (points, rows, columns), in its own type."""
        total = matrix.float()[None]
        for c, a, b in zip(self.coefficients, self.left, self.right, strict=True):
            total = torch.addcmul(total, c * a.mT.float(), b.float())
        return total.to(matrix.dtype)


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Points around a base: factors of its matrices, and offsets (points, n), float32, of its vectors, by name."""

    count: int
    matrices: dict[str, Factors]
    vectors: dict[str, Tensor]

    def some(self, first: int, last: int) -> Neighbours:
        """Points first … last − 1, in the same memory."""
        part = slice(first, last)
        matrices = {
            name: Factors(f.coefficients[:, part], f.left[:, part], f.right[:, part])
            for name, f in self.matrices.items()
        }
        vectors = {name: offsets[part] for name, offsets in self.vectors.items()}
        return Neighbours(min(last, self.count) - first, matrices, vectors)

    def load(self, other: Neighbours) -> None:
        """Overwrite them by others of the same numbers of points and terms, where they are."""
        for name, mine in self.matrices.items():
            mine.left.copy_(other.matrices[name].left)
            mine.right.copy_(other.matrices[name].right)
        for first in list(self.matrices)[:1]:  # all have the same
            self.matrices[first].coefficients.copy_(other.matrices[first].coefficients)
        for name, offsets in self.vectors.items():
            offsets.copy_(other.vectors[name])


def has_factors(points: Sequence[Terms]) -> bool:
    """Whether points are several of rank-one directions, with few terms each."""
    return len(points) > 1 and all(terms.stream is Domain.RANK1 and len(terms) <= MOST_TERMS for terms in points)


def most_terms(points: Sequence[Terms]) -> int:
    return max(1, *map(len, points))


def neighbours(base: Params, points: Sequence[Terms], terms: int | None = None) -> Neighbours:
    """The factors of points; those with fewer terms than `terms` (default: the most of any) get terms of nought."""
    count, width, device = len(points), terms or most_terms(points), base.device
    keys, table = np.zeros((width, count), np.uint64), np.zeros((width, count), np.float32)
    for p, point in enumerate(points):
        keys[: len(point), p], table[: len(point), p] = point.keys, point.coefficients
    coefficients = torch.from_numpy(table).to(device)[:, :, None, None]
    flat = Terms(keys.reshape(-1), table.reshape(-1), Domain.RANK1)
    matrices, vectors = {}, {}
    for name, tensor in base.tensors.items():
        ordinal = base.ordinal(name)
        if tensor.dim() > 1 and tensor.numel():
            left, right = kernels(device).factors(flat.keys, ordinal, len(tensor), tensor[0].numel(), device)
            shaped = (each.to(tensor.dtype).view(width, count, 1, -1) for each in (left, right))
            matrices[name] = Factors(coefficients, *shaped)
        else:
            spread = torch.empty(width * count, tensor.numel(), dtype=torch.float32, device=device)
            kernels(device).spread(spread, flat, ordinal)
            vectors[name] = spread.view(width, count, -1).sum(0)
    return Neighbours(count, matrices, vectors)
