"""The Cholesky factor of a matrix that grows by rows.

    A' = [A  Cᵀ]      L' = [L         ]      M = C L⁻ᵀ
         [C  D ]           [M  chol(S)]      S = D − M Mᵀ

A row costs n² operations instead of the n³ of a fresh factor. The inverse, where it is wanted, grows with it:

    A'⁻¹ = [A⁻¹ + Z S⁻¹ Zᵀ   −Z S⁻¹]         Z = L⁻ᵀ Mᵀ
           [−S⁻¹ Zᵀ           S⁻¹  ]

A few right-hand sides cost one pass over L, block by block in place: torch's own triangular solvers first copy all of
it into another order, which takes several times as long.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedzero.estimators.surrogate.growable import enlarge

BLOCK = 256
"""Rows of a triangular system solved at a time: they stay in the processor's cache."""


class NotPositive(ArithmeticError):
    """The matrix with the new rows is not positive definite, numerically."""


class Factor:
    """Grows in place."""

    def __init__(self) -> None:
        self.size = 0
        self._buffer = torch.empty(0, 0, dtype=torch.float64)
        self._inverse: Tensor | None = None

    @property
    def lower(self) -> Tensor:
        """L, (n, n)"""
        return self._buffer[: self.size, : self.size]

    @property
    def inverse(self) -> Tensor:
        """A⁻¹, (n, n); computed on first use, and grown from then on."""
        if self._inverse is None:
            self._inverse = torch.cholesky_inverse(self.lower)
        return self._inverse[: self.size, : self.size]

    @property
    def bytes(self) -> int:
        return self._buffer.nbytes + (0 if self._inverse is None else self._inverse.nbytes)

    def append(self, cross: Tensor, corner: Tensor) -> None:
        """New rows: `cross` (b, n) is C, `corner` (b, b) is D. Raises `NotPositive` and changes nothing."""
        n, b = self.size, len(corner)
        m = forward(self.lower, cross.T).T
        new, failed = torch.linalg.cholesky_ex(corner - m @ m.T)
        if failed or not bool(torch.isfinite(new).all()):
            raise NotPositive(f"{b} new rows beside {n}")
        if n == 0:
            self._buffer, self.size = new, b
            return
        self._buffer = enlarge(self._buffer, n, n + b)
        self._buffer[n : n + b, :n] = m
        self._buffer[n : n + b, n : n + b] = new
        if self._inverse is not None:
            self._inverse = enlarge(self._inverse, n, n + b)
            self._append_inverse(self._inverse, m, new)
        self.size = n + b

    def _append_inverse(self, inverse: Tensor, m: Tensor, new: Tensor) -> None:
        n, b = self.size, len(new)
        z = backward(self.lower, m.T)
        corner = torch.cholesky_inverse(new)
        cross = z @ corner
        inverse[:n, :n].addmm_(cross, z.T)
        inverse[:n, n : n + b] = -cross
        inverse[n : n + b, :n] = -cross.T
        inverse[n : n + b, n : n + b] = corner

    def solve(self, right: Tensor) -> Tensor:
        """A⁻¹ right, for right (n,) or (n, m)."""
        columns = right[:, None] if right.dim() == 1 else right
        solved = backward(self.lower, forward(self.lower, columns))
        return solved[:, 0] if right.dim() == 1 else solved


def forward(lower: Tensor, right: Tensor) -> Tensor:
    """L⁻¹ right, for right (n, m)."""
    if len(lower) <= BLOCK:  # most factors are small, and a copy would cost more than the solution
        return _solved(lower, right, upper=False)
    solved = right.clone(memory_format=torch.contiguous_format)
    for i in range(0, len(lower), BLOCK):
        here = slice(i, i + BLOCK)
        rest = solved[here].addmm_(lower[here, :i], solved[:i], alpha=-1)
        solved[here] = _solved(lower[here, here], rest, upper=False)
    return solved


def backward(lower: Tensor, right: Tensor) -> Tensor:
    """L⁻ᵀ right, for right (n, m)."""
    if len(lower) <= BLOCK:
        return _solved(lower.T, right, upper=True)
    solved = right.clone(memory_format=torch.contiguous_format)
    for i in reversed(range(0, len(lower), BLOCK)):
        here, after = slice(i, i + BLOCK), slice(i + BLOCK, None)
        rest = solved[here].addmm_(lower[after, here].T, solved[after], alpha=-1)
        solved[here] = _solved(lower[here, here].T, rest, upper=True)
    return solved


def _solved(triangle: Tensor, right: Tensor, upper: bool) -> Tensor:
    solved: Tensor = torch.linalg.solve_triangular(triangle, right, upper=upper)
    return solved
