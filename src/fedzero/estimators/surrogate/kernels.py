"""Covariance functions of a Gaussian process and of its gradient, as functions of s = ‖x − x'‖²:

k(x, x') = value(s)      ∇_x k(x, x') = −slope(s) (x − x')      ∂_x ∂_x' k(x, x)= roughness · I
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedzero.model.numbers import Positive
from fedzero.model.value import Checked


class Rbf(Checked, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="rbf"):
    """Squared exponential, exp(−s / 2ℓ²)."""

    scale: Positive = 1.0
    """ℓ"""

    def value(self, squares: Tensor) -> Tensor:
        return torch.exp(squares * (-0.5 / self.scale**2))

    def slope(self, squares: Tensor) -> Tensor:
        return self.value(squares) / self.scale**2

    @property
    def roughness(self) -> float:
        return 1 / self.scale**2


class Matern(Checked, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="matern-5/2"):
    """Matérn-5/2, (1 + r + r²/3) exp(−r) with r = √(5s)/ℓ: functions with two derivatives and no more."""

    scale: Positive = 1.0
    """ℓ"""

    def _ratio(self, squares: Tensor) -> Tensor:
        return squares.sqrt() * (math.sqrt(5) / self.scale)

    def value(self, squares: Tensor) -> Tensor:
        r = self._ratio(squares)
        return (1 + r + r * r / 3) * torch.exp(-r)

    def slope(self, squares: Tensor) -> Tensor:
        r = self._ratio(squares)
        return (1 + r) * torch.exp(-r) * self.roughness

    @property
    def roughness(self) -> float:
        return 5 / (3 * self.scale**2)


Kernel = Rbf | Matern


def squares_between(left: Tensor, right: Tensor) -> Tensor:
    """‖x − x'‖² of all pairs, (n, m), by one matrix product; never below zero."""
    products = left @ right.T
    return ((left * left).sum(1)[:, None] + (right * right).sum(1) - 2 * products).clamp_(min=0)
