"""The quadratic that all values so far are of, where there is one: its minimiser is that of F.

    F(c + t) = F(c) + gᵀt + ½ tᵀHt          d + d(d + 1)/2 unknowns: g, and H on and above its diagonal

    a value          F(c + t) − F(c)                  = gᵀt + ½ tᵀHt              deviation  σ = ε (|F| + ‖∇F‖)
    a difference     (F(c + t + h eᵢ) − F(c + t))/h   = gᵢ + (Ht)ᵢ + ½ h Hᵢᵢ      deviation  σ/h
    a guess          Hᵢⱼ                              = H'ᵢⱼ                      deviation  ‖H'‖ + range of F

c is the best point. σ is what rounding does to a value and to the coordinates of its point; where ∇F is not known it is
taken for the range of F. Every row is divided by its deviation, and the unknowns are those of least squares. F is taken
for that quadratic where d values more than unknowns are met to `ROUNDING` deviations (functions round on the way to
their values, too), and where little of H is the guess: the deviation that is left of it, over all of H.

A function that is no quadratic misses its values by many orders more, so for it nothing is changed by this.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedzero.estimators.surface.trust_region import F64

EPSILON = float(np.finfo(np.float64).eps)
ROUNDING, GUESSED = 1e4, 0.3
MOST = 1500
"""unknowns: a fit of more would take seconds"""


class ExactQuadratic:
    """c (d,), F(c), g (d,) and H (d, d)."""

    def __init__(self, centre: F64, constant: float, slope: F64, curvature: F64):
        self.centre, self.constant, self.slope, self.curvature = centre, constant, slope, curvature

    def value(self, x: F64) -> float:
        t = x - self.centre
        return self.constant + float(self.slope @ t + 0.5 * t @ self.curvature @ t)

    def gradient(self, x: F64) -> F64:
        return np.asarray(self.slope + self.curvature @ (x - self.centre))

    def hessian(self, x: F64) -> F64:
        return self.curvature


def quadratic_of(x: F64, values: F64, bases: NDArray[np.int64], noise: float, guess: F64) -> ExactQuadratic | None:
    """x (n, d); F there (n,); of which point each is a neighbour along one coordinate, or −1; least σ; H' (d, d)."""
    n, d = x.shape
    unknowns, span = d + d * (d + 1) // 2, float(np.ptp(values))
    if n - 1 < unknowns + d or unknowns > MOST or not span:
        return None
    best = int(np.argmin(values))
    best = best if bases[best] < 0 else int(bases[best])
    far, near = np.flatnonzero((bases < 0) & (np.arange(n) != best)), np.flatnonzero(bases >= 0)
    t, origins = x - x[best], bases[near]
    steps = x[near] - x[origins]
    along, h = np.eye(d)[np.abs(steps).argmax(axis=1)], steps.sum(axis=1)
    rises = (values[near] - values[origins]) / h
    steep = np.full(n, span)
    for origin in np.unique(origins):
        steep[origin] = np.linalg.norm(rises[origins == origin])
    sigma = np.maximum(EPSILON * (np.abs(values) + steep), noise)

    left, right = np.triu_indices(d)
    diagonal = left == right
    squares = t[far][:, left] * t[far][:, right] * np.where(diagonal, 0.5, 1.0)
    slopes = along[:, left] * t[origins][:, right] + along[:, right] * t[origins][:, left]
    slopes[:, diagonal] = along * (t[origins] + 0.5 * h[:, None])
    rows = np.block([[t[far], squares, (values[far] - values[best])[:, None]], [along, slopes, rises[:, None]]])
    rows /= np.concatenate([sigma[far], sigma[origins] / np.abs(h)])[:, None]
    rows = rows[np.argsort(-np.abs(rows[:, :-1]).max(axis=1), kind="stable")]  # of which rounding does less harm
    deviation = float(np.linalg.norm(guess)) + span
    guesses = np.eye(unknowns + 1)[d:-1] / deviation
    guesses[:, -1] = guess[left, right] / deviation

    triangle: F64 = np.linalg.qr(np.concatenate([rows, guesses]), mode="r")  # type: ignore[assignment]
    if not abs(float(triangle[-1, -1])) <= ROUNDING * math.sqrt(n - 1):
        return None
    triangle, y = triangle[:-1, :-1], triangle[:-1, -1]
    if float(np.linalg.norm(np.linalg.inv(triangle)[d:])) > GUESSED * deviation:
        return None
    found, curvature = np.asarray(np.linalg.solve(triangle, y)), np.zeros_like(guess)
    curvature[left, right] = curvature[right, left] = found[d:]
    return ExactQuadratic(x[best], float(values[best]), found[:d], curvature)
