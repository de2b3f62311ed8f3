"""Points of rank-one directions as factors: what a pass over many points needs in the place of weights for each.

At point p a matrix is W + Σ_k c[k, p] a[k, p] b[k, p]ᵀ, with a and b of ±1: rows + columns numbers instead of rows ·
columns. A tensor of more axes is a matrix, first axis × rest. A vector has no factors: its offsets Σ c z are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedzero.directions import Domain, Terms, kernels
from fedzero.model.params import Params, columns_of

MOST_TERMS = 64
"""Of a point: with more, the factors cost about as much as a view."""


@dataclass(frozen=True, eq=False)
class Factors:
    """Of one matrix: `left` (terms, points, 1, rows) and `right` (terms, points, 1, columns), ±1 of any type (int8 on a
    GPU, else float32), and `coefficients` (terms, points, 1, 1), float32: rounded, they would change the radius.
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

    def scaled(self, x: Tensor) -> Tensor:
        """c (x·b) of rows x (points, n, columns), (terms, points, n, 1), float32."""
        inner = [torch.bmm(x.float(), b.float().mT) for b in self.right]
        return self.coefficients * torch.stack(inner)

    def at(self, matrix: Tensor) -> Tensor:
        """The matrix (rows, columns) at every point, (points, rows, columns), in its own type."""
        total = matrix.float()[None]
        for c, a, b in zip(self.coefficients, self.left, self.right, strict=True):
            total = torch.addcmul(total, c * a.mT, b.float())
        return total.to(matrix.dtype)


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Points around a base: factors of its matrices, and offsets (points, n), float32, of its vectors, by name. The
    coefficients of all matrices are the same tensor."""

    count: int
    matrices: dict[str, Factors]
    vectors: dict[str, Tensor]

    @property
    def shape(self) -> tuple[int, int]:
        """Points, and terms of each."""
        terms = (len(factors.coefficients) for factors in self.matrices.values())
        return self.count, next(terms, 1)

    def load(self, others: Neighbours) -> None:
        """Other points of the same shape, in the place of these."""
        torch._foreach_copy_(self._tensors(), others._tensors())

    def _tensors(self) -> list[Tensor]:
        coefficients = [factors.coefficients for factors in self.matrices.values()][:1]
        signs = [each for factors in self.matrices.values() for each in (factors.left, factors.right)]
        return [*coefficients, *signs, *self.vectors.values()]

    def some(self, first: int, last: int) -> Neighbours:
        """Points first … last − 1, in the same memory."""
        part = slice(first, last)
        matrices = {
            name: Factors(f.coefficients[:, part], f.left[:, part], f.right[:, part])
            for name, f in self.matrices.items()
        }
        vectors = {name: offsets[part] for name, offsets in self.vectors.items()}
        return Neighbours(min(last, self.count) - first, matrices, vectors)


def has_factors(points: Sequence[Terms]) -> bool:
    """Whether points are several of rank-one directions, with few terms each."""
    return len(points) > 1 and all(terms.stream is Domain.RANK1 and len(terms) <= MOST_TERMS for terms in points)


def most_terms(points: Sequence[Terms]) -> int:
    return max(1, *map(len, points))


def neighbours(base: Params, points: Sequence[Terms]) -> Neighbours:
    """The factors of points; those with fewer terms than others get terms of nought."""
    width = most_terms(points)
    terms = _flat(points, width)
    coefficients = torch.from_numpy(terms.coefficients).to(base.device)
    return _made(base, terms, coefficients.view(width, len(points), 1, 1))


class NeighboursBuffer:
    """So many points with so many terms each, at a fixed address on a GPU: a recording makes their factors, and they
    are replaced between replays."""

    def __init__(self, count: int, terms: int, device: torch.device):
        gpu: Any = kernels(device)
        self.terms = terms
        self._buffer = gpu.TermsBuffer(Domain.RANK1, count * terms, device)
        self._coefficients = torch.zeros(terms, count, 1, 1, device=device)

    def load(self, points: Sequence[Terms]) -> None:
        terms = _flat(points, self.terms)
        self._buffer.load(self._buffer.upload([terms])[0])
        self._coefficients.copy_(torch.from_numpy(terms.coefficients).view(self._coefficients.shape))

    def neighbours(self, base: Params) -> Neighbours:
        return _made(base, self._buffer, self._coefficients)


def _flat(points: Sequence[Terms], width: int) -> Terms:
    """The terms of all points, first terms first."""
    keys, table = np.zeros((width, len(points)), np.uint64), np.zeros((width, len(points)), np.float32)
    for p, point in enumerate(points):
        keys[: len(point), p], table[: len(point), p] = point.keys, point.coefficients
    return Terms(keys.reshape(-1), table.reshape(-1), Domain.RANK1)


def _made(base: Params, terms: Any, coefficients: Tensor) -> Neighbours:
    width, count = coefficients.shape[:2]
    device, kernel = base.device, kernels(base.device)
    matrices = {name: tensor for name, tensor in base.tensors.items() if columns_of(tensor)}
    shapes = [(base.ordinal(name), len(tensor), columns_of(tensor)) for name, tensor in matrices.items()]
    found = kernel.factors(terms, shapes, device) if shapes else []
    factors = {
        name: Factors(coefficients, *(each.view(width, count, 1, -1) for each in pair))
        for name, pair in zip(matrices, found, strict=True)
    }
    others = {
        name: (base.ordinal(name), tensor.numel()) for name, tensor in base.tensors.items() if name not in matrices
    }
    spread = kernel.offsets(terms, list(others.values()), device)
    vectors = {
        name: each.view(width, count, -1).sum(0) if width > 1 else each
        for name, each in zip(others, spread, strict=True)
    }
    return Neighbours(count, factors, vectors)
