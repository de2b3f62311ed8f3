"""Points of an ask as coordinates, and as combinations of the vectors they have in common.

All points of an ask lie in the space spanned by x, the directions z(key) and the columns of a basis:

    point p = Σ_j weights[p, j] u_j,     u = (x, z_1 … z_U, q_1 … q_τ),     weights[p, 0] = 1

so whatever is linear in the parameters is needed once for each u_j, not once for each point. Weights are float64 and
nothing is rounded to float32 on the way: x + μz and x − μz differ by 2μz, to sixteen digits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedzero.directions import Domain, Terms, kernels
from fedzero.model.params import Params, columns_of
from fedzero.oracles.contract import F32, F64, Basis

TOGETHER = 1 << 24
"""Numbers of directions held at a time."""


def coordinates(base: Params, points: Sequence[Terms], basis: Basis | None) -> Tensor:
    """x + Σ c z of every point, (points, d), float32: for objectives of a small vector."""
    xs = base.at(points)
    return xs if basis is None else xs + basis.offsets(range(len(points)))


def wide_coordinates(base: Params, points: Sequence[Terms], basis: Basis | None) -> F64:
    """The same in float64: what the basis adds is not rounded to the size of x."""
    xs: F64 = base.at(points).double().cpu().numpy()
    if basis is not None:
        xs += basis.offsets(range(len(points))).cpu().numpy()
    return xs


@dataclass(frozen=True)
class Combination:
    """The distinct directions of some points, and every point's weights (points, 1 + U + τ)."""

    directions: tuple[tuple[Domain, int], ...]
    weights: F64

    @staticmethod
    def of(points: Sequence[Terms], basis: Basis | None) -> Combination:
        columns: dict[tuple[Domain, int], int] = {}
        entries = [
            (p, columns.setdefault((terms.stream, key), 1 + len(columns)), coefficient)
            for p, terms in enumerate(points)
            for key, coefficient in zip(terms.keys.tolist(), terms.coefficients.tolist(), strict=True)
        ]
        weights = np.zeros((len(points), 1 + len(columns)))
        weights[:, 0] = 1
        for p, column, coefficient in entries:
            weights[p, column] += coefficient
        if basis is not None:
            weights = np.hstack([weights, np.eye(len(points)) if basis.weights is None else basis.weights])
        return Combination(tuple(columns), weights)


class Vectors:
    """Makes u_1, u_2, … of one tensor; keeps its buffer, because fresh pages cost more than the numbers in them."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0)

    def __call__(
        self,
        base: Params,
        ordinal: int,
        combination: Combination,
        basis: Basis | None,
        groups: NDArray[np.int64] | None = None,
    ) -> Iterator[tuple[slice, F32]]:
        """(columns of `weights`, vectors (columns, n) on the CPU), the latter valid until the next iteration.

        groups: the groups of 128 coordinates of directions that will be read; default: all.
        """
        wanted, device = combination.directions, base.device
        sizes = [tensor.numel() for tensor in base.tensors.values()]
        n, width = sizes[ordinal], columns_of(base.tensors[base.names[ordinal]])
        yield slice(0, 1), base.tensors[base.names[ordinal]].float().cpu().numpy().reshape(1, n)
        at_a_time = max(1, TOGETHER // n)
        for first in range(0, len(wanted), at_a_time):
            some = wanted[first : first + at_a_time]
            block = self._block(len(some), n, device)
            for row, (stream, key) in zip(block, some, strict=True):
                kernels(device).generate(row, stream, key, ordinal, groups, width)
            yield slice(1 + first, 1 + first + len(some)), block.cpu().numpy()
        if basis is not None:
            begin = sum(sizes[:ordinal])
            columns = basis.columns[:, begin : begin + n].cpu().numpy()
            yield slice(1 + len(wanted), combination.weights.shape[1]), columns

    def _block(self, rows: int, n: int, device: torch.device) -> Tensor:
        if self._buffer.numel() < rows * n or self._buffer.device != device:
            self._buffer = torch.empty(rows * n, device=device)
        return self._buffer[: rows * n].view(rows, n)
