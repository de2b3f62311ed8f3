"""A quadratic through noisy or rippled values, by Gaussian-process regression.

    F(c + s√d t) ≈ b + gᵀt + ½ tᵀHt,      prior covariance of two values   10 + 10 tᵀt' + 10 ‖t‖²‖t'‖² + q d (tᵀt')²

with values scaled to variance 1: a constant, a slope, one curvature for all directions, and (by q) curvatures that
differ. q and the variance of what no quadratic explains are those of the greatest likelihood. Points far from the
centre count less: the variance of theirs grows as 1 + (‖t‖²/4)³.
"""

from __future__ import annotations

import math

import numpy as np

from fedzero.estimators.surface.trust_region import F64

WEIGHT = 10.0
CURVATURES = (3e-3, 3e-2, 0.3, 3.0)
"""q"""
NOISES = (1e-13, 1e-10, 1e-8, 1e-6, 1e-4, 1e-3, 1e-2, 0.03, 0.1, 0.3, 1.0)
"""variance of what no quadratic explains, of that of the values"""


class QuadraticFit:
    """x (n, d) and F there (n,); centre c (d,), scale s. `sigma`: deviation of a value from the quadratic."""

    def __init__(self, x: F64, values: F64, centre: F64, scale: float):
        d = x.shape[1]
        self.centre, self.unit = centre, scale * math.sqrt(d)
        t = (x - centre) / self.unit
        squares = np.square(t).sum(axis=1)
        weights = 1 / (1 + (squares / 4) ** 3)
        self.mean = float(weights @ values / weights.sum())
        spread = float(np.sqrt(weights @ np.square(values - self.mean) / weights.sum()))
        self.spread = spread or 1.0
        roots, products = np.sqrt(weights), t @ t.T
        y = roots * (values - self.mean) / self.spread
        found = None
        for q in CURVATURES:
            prior = WEIGHT * (1 + products + np.outer(squares, squares)) + q * d * products**2
            variances, axes = np.linalg.eigh(roots[:, None] * prior * roots)
            along, variances = axes.T @ y, np.maximum(variances, 0.0)
            for noise in NOISES:
                fit = -0.5 * float((along**2 / (variances + noise) + np.log(variances + noise)).sum())
                if found is None or fit > found[0]:
                    found = fit, q, noise, axes, along, variances
        assert found is not None
        _, q, noise, axes, along, variances = found
        a = roots * (axes @ (along / (variances + noise)))
        self.sigma = math.sqrt(noise) * self.spread
        self.constant = WEIGHT * float(a.sum())
        self.slope = WEIGHT * (a @ t)
        self.curvature = 2 * WEIGHT * float(a @ squares) * np.eye(d) + 2 * q * d * (t * a[:, None]).T @ t
        self._posterior = t, squares, roots, axes, variances + noise, q * d

    def error(self, x: F64) -> float:
        """Standard error of the value at a point."""
        points, squares, roots, axes, variances, bent = self._posterior
        t = (x - self.centre) / self.unit
        square, products = float(t @ t), points @ t
        own = WEIGHT * (1 + square + square**2) + bent * square**2
        known = axes.T @ (roots * (WEIGHT * (1 + products + square * squares) + bent * products**2))
        return self.spread * math.sqrt(max(own - float((known**2 / variances).sum()), 0.0))

    def value(self, x: F64) -> float:
        t = (x - self.centre) / self.unit
        return self.mean + self.spread * float(self.constant + self.slope @ t + 0.5 * t @ self.curvature @ t)

    def gradient(self, x: F64) -> F64:
        t = (x - self.centre) / self.unit
        return np.asarray(self.spread * (self.slope + self.curvature @ t) / self.unit)

    def hessian(self, x: F64) -> F64:
        return np.asarray(self.spread * self.curvature / self.unit**2)
