"""A function from its gradients at some points, by a Gaussian process: a quasi-Newton model that is not a quadratic.

    F(x) = g₀ᵀe + ½ λ‖e‖² + h(x),  e = x − x₀        h ~ GP(0, exp(−‖x − x'‖²/2ℓ²))        cov(∇h(x), ∇h(x')) =
                                                     k(r) (I − r rᵀ/ℓ²)/ℓ²,  r = x − x'

x₀ is the last point; there the gradient of the model is exact. ℓ has the greatest likelihood; λ is the curvature of the
last change of the gradient that the others do not explain, as small in long valleys as these are.

With m points all differences r lie in a space of r ≤ m − 1 dimensions: gradients within it need a matrix of order m r,
what is orthogonal to it one of order m, whatever d is.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedzero.estimators.surface.trust_region import F64

SCALES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""ℓ, of the distance of the farthest point"""
JITTER = 1e-14


class GradientProcess:
    """x (m, d), farthest from the last one first, and gradients (m, d) there."""

    def __init__(self, x: F64, gradients: F64, scales: tuple[float, ...] = SCALES):
        self.origin = x[-1]
        self.unit = float(np.linalg.norm(x - self.origin, axis=1).max())
        self.points, self.first = (x - self.origin) / self.unit, gradients[-1] * self.unit
        rest = gradients * self.unit - self.first
        m, d = x.shape
        _, sizes, axes = np.linalg.svd(self.points[:-1], full_matrices=False)
        axes = axes[sizes > 1e-13 * sizes[0]]
        within, places = rest @ axes.T, self.points @ axes.T
        across = rest - within @ axes
        found = None
        for scale in scales:
            near, factor = _correlations(places, scale)
            y = _solved(factor, np.stack([within.ravel(), places.ravel()], axis=1))
            outer = _cholesky(near)
            z = _solved(outer, across)
            general = float(y[:, 0] @ y[:, 1]) / float(y[:, 1] @ y[:, 1])
            left = float(np.square(y[:, 0] - general * y[:, 1]).sum() + np.square(z).sum())
            logs = _log_diagonal(factor) + (d - len(axes)) * _log_diagonal(outer)
            fit = -0.5 * m * d * float(np.log(max(left, np.finfo(np.float64).tiny))) - logs
            if found is None or fit > found[0]:
                found = fit, scale, factor, y, outer, z
        assert found is not None
        _, self.scale, factor, y, outer, z = found
        last = y[-2 * len(axes) : -len(axes)]  # the nearest but x₀ itself, where places are 0
        self.curvature = float(last[:, 0] @ last[:, 1]) / float(last[:, 1] @ last[:, 1])
        inner = _solved(factor, y[:, :1] - self.curvature * y[:, 1:], transposed=True)
        self.weights = inner.reshape(m, len(axes)) @ axes + _solved(outer, z, transposed=True)
        self.shift = np.zeros(d)
        self.shift = self.first - self._gradient(np.zeros(d))

    def value(self, x: F64) -> float:
        e = (x - self.origin) / self.unit
        _, near, along = self._parts(e)
        return float((self.first + self.shift) @ e + 0.5 * self.curvature * e @ e + near @ along)

    def gradient(self, x: F64) -> F64:
        return np.asarray(self._gradient((x - self.origin) / self.unit) / self.unit)

    def hessian(self, x: F64) -> F64:
        e = (x - self.origin) / self.unit
        r, near, along = self._parts(e)
        square, both = self.scale**2, (near[:, None] * self.weights).T @ r
        bent = ((near * along)[:, None] * r).T @ r / square - (both + both.T)
        return np.asarray((bent / square + (self.curvature - near @ along / square) * np.eye(len(e))) / self.unit**2)

    def _gradient(self, e: F64) -> F64:
        r, near, along = self._parts(e)
        pulled = near @ self.weights - (near * along) @ r / self.scale**2
        return np.asarray(self.first + self.shift + self.curvature * e + pulled)

    def _parts(self, e: F64) -> tuple[F64, F64, F64]:
        """r, k(r) and rᵀ·weights of all points."""
        r = e - self.points
        return r, np.exp(-np.square(r).sum(axis=1) / (2 * self.scale**2)), (r * self.weights).sum(axis=1)


def _correlations(places: F64, scale: float) -> tuple[F64, Tensor]:
    """k(r) of all pairs (m, m), and the Cholesky factor of the covariance of all slopes (m r, m r)."""
    m, dimensions = places.shape
    r = places[:, None] - places
    near = np.exp(-np.square(r).sum(axis=2) / (2 * scale**2))
    blocks = near[:, :, None, None] * (np.eye(dimensions) - r[:, :, :, None] * r[:, :, None, :] / scale**2)
    matrix = blocks.transpose(0, 2, 1, 3).reshape(m * dimensions, m * dimensions)
    return near, _cholesky(matrix)


def _cholesky(matrix: F64) -> Tensor:
    """With as much on the diagonal as rounding asks for: gradients of ill-conditioned functions differ in their tenth
    digit, so it must be little."""
    factor: Tensor
    more = JITTER
    while True:
        factor, failed = torch.linalg.cholesky_ex(torch.from_numpy(matrix + more * np.eye(len(matrix))))
        if not int(failed):
            return factor
        more *= 10


def _solved(factor: Tensor, right: F64, transposed: bool = False) -> F64:
    matrix = factor.T if transposed else factor
    found: F64 = torch.linalg.solve_triangular(matrix, torch.from_numpy(right.copy()), upper=transposed).numpy()
    return found


def _log_diagonal(factor: Tensor) -> float:
    return float(factor.diagonal().log().sum())
