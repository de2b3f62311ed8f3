"""The Cholesky factor of a matrix that grows by rows.

    A' = [A  Cᵀ]      L' = [L         ]      M = C L⁻ᵀ
         [C  D ]           [M  chol(S)]      S = D − M Mᵀ

A row costs n² operations instead of the n³ of a fresh factor. The inverse, where it is wanted, grows beside it:

    A'⁻¹ = [A⁻¹ + Z S⁻¹ Zᵀ   −Z S⁻¹]         Z = L⁻ᵀ Mᵀ
           [−S⁻¹ Zᵀ           S⁻¹  ]
"""

from __future__ import annotations

import torch
from torch import Tensor


class NotPositive(ArithmeticError):
    """The matrix with the new rows is not positive definite, numerically."""


class Factor:
    """Grows in place; room is doubled when it runs out, so that a row moves no more than itself."""

    def __init__(self, inverse: bool = False):
        self.size = 0
        self._room = torch.empty(0, 0, dtype=torch.float64)
        self._inverse: Tensor | None = torch.empty(0, 0, dtype=torch.float64) if inverse else None

    @property
    def lower(self) -> Tensor:
        """L, (n, n)"""
        return self._room[: self.size, : self.size]

    @property
    def inverse(self) -> Tensor:
        """A⁻¹, (n, n)"""
        assert self._inverse is not None
        return self._inverse[: self.size, : self.size]

    @property
    def bytes(self) -> int:
        return self._room.nbytes + (0 if self._inverse is None else self._inverse.nbytes)

    def append(self, cross: Tensor, corner: Tensor) -> None:
        """New rows: `cross` (b, n) is C, `corner` (b, b) is D. Raises `NotPositive`, and is then as it was before."""
        n, b = self.size, len(corner)
        m = torch.linalg.solve_triangular(self.lower, cross.T, upper=False).T
        schur = corner - m @ m.T
        new, failed = torch.linalg.cholesky_ex(schur)
        if failed or not bool(torch.isfinite(new).all()):
            raise NotPositive(f"{b} new rows beside {n}")
        self._reserve(n + b)
        self._room[n : n + b, :n] = m
        self._room[n : n + b, n : n + b] = new
        if self._inverse is not None:
            self._append_inverse(self._inverse, m, new)
        self.size = n + b

    def _append_inverse(self, inverse: Tensor, m: Tensor, new: Tensor) -> None:
        n, b = self.size, len(new)
        z = torch.linalg.solve_triangular(self.lower.T, m.T, upper=True)
        corner = torch.cholesky_inverse(new)
        beside = z @ corner
        inverse[:n, :n].addmm_(beside, z.T)
        inverse[:n, n : n + b] = -beside
        inverse[n : n + b, :n] = -beside.T
        inverse[n : n + b, n : n + b] = corner

    def _reserve(self, size: int) -> None:
        if size <= len(self._room):
            return
        room = max(size, 2 * len(self._room), 64)
        kept = self.size
        for name in ("_room", "_inverse"):
            before = getattr(self, name)
            if before is not None:
                after = torch.zeros(room, room, dtype=torch.float64)
                after[:kept, :kept] = before[:kept, :kept]
                setattr(self, name, after)

    def solve(self, right: Tensor) -> Tensor:
        """A⁻¹ right, for right (n,) or (n, m)."""
        columns = right[:, None] if right.dim() == 1 else right
        solved = torch.cholesky_solve(columns, self.lower)
        return solved[:, 0] if right.dim() == 1 else solved
