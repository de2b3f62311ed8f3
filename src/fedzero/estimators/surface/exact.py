"""The quadratic that all values so far are of, where there is one: its minimiser is that of F.

    F(c + t) = F(c) + gᵀt + ½ tᵀHt          d + d(d + 1)/2 unknowns: g, and H on and above its diagonal

    a value          F(c + t) − F(c)                  = gᵀt + ½ tᵀHt                  deviation  σ = ε (|F| + ‖∇F‖)
    a difference     (F(c + t + h e) − F(c + t))/h    = gᵀe + eᵀH(t + ½ h e)          deviation  σ/h
    a guess          H'^(−½) H H'^(−½)                = identity                      deviation  `FREE` of each entry
                     H'^(−½) g                        = 0                             `FREE`² √(range of F)

c is the best point, H' a symmetric matrix whose eigenvalues are taken without their signs. σ is what rounding does to a
value and to the coordinates of its point; where ∇F is not known it is taken for the range of F. Every row is divided by
its deviation, and the unknowns are those of least squares. What they give for H is the guess of a second fit.

F is taken for that quadratic where there are d more values than unknowns and all are met to about `ROUNDING` deviations
(functions round on the way to their values, too). A function that is no quadratic misses them by many orders more. The
guess says what values do not: curvatures of directions in which all points are close together. It is relative to H',
so that curvatures a million times smaller than others are not lost in what is guessed of these.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedzero.estimators.surface.trust_region import F64

EPSILON, TINY = float(np.finfo(np.float64).eps), float(np.finfo(np.float64).tiny)
ROUNDING, FREE = 1e3, 10.0
LEAST = 1e-12
"""Eigenvalues of H', of the largest."""
MOST = 1000
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
    origins, steps = bases[near], x[near] - x[bases[near]]
    h, units = steps.sum(axis=1), np.eye(d)[np.abs(steps).argmax(axis=1)]
    rises = (values[near] - values[origins]) / h
    steep = np.full(n, span)
    for origin in np.unique(origins):
        steep[origin] = np.linalg.norm(rises[origins == origin])
    sigma = np.maximum(EPSILON * (np.abs(values) + steep), noise)
    # All rows are eᵀg + eᵀHt = y; of a value t is half of e.
    e = np.concatenate([x[far] - x[best], units])
    t = np.concatenate([0.5 * (x[far] - x[best]), x[origins] - x[best] + 0.5 * h[:, None] * units])
    y = np.concatenate([values[far] - values[best], rises])
    deviations = np.concatenate([sigma[far], sigma[origins] / np.abs(h)])
    found = guess
    for _ in range(2):
        fit = _least_squares(e, t, y, deviations, found, FREE**2 * math.sqrt(span))
        if fit is None:
            return None
        slope, found = fit
    return ExactQuadratic(x[best], float(values[best]), slope, found)


def _least_squares(e: F64, t: F64, y: F64, deviations: F64, guess: F64, steep: float) -> tuple[F64, F64] | None:
    """g and H with eᵀg + eᵀHt = y, row by row; None if a row is missed by too much. steep: deviation of H'^(−½) g."""
    n, d = e.shape
    sizes, axes = np.linalg.eigh(guess)
    sizes = np.abs(sizes)
    root = axes * np.sqrt(np.maximum(sizes, max(LEAST * sizes.max(), TINY)))  # H' = root rootᵀ
    e, t = e @ root, t @ root
    left, right = np.triu_indices(d)
    products = (e[:, left] * t[:, right] + e[:, right] * t[:, left]) * np.where(left == right, 0.5, 1.0)
    rows = np.concatenate([e, products, y[:, None]], axis=1) / deviations[:, None]
    rows = rows[np.argsort(-np.abs(rows[:, :-1]).max(axis=1), kind="stable")]  # of which rounding does less harm
    guesses = np.eye(d + len(left), d + len(left) + 1)
    guesses[d:, -1] = left == right
    guesses[:d] /= steep
    guesses[d:] /= FREE
    triangle: F64 = np.linalg.qr(np.concatenate([rows, guesses]), mode="r")  # type: ignore[assignment]
    if not abs(float(triangle[-1, -1])) <= ROUNDING * math.sqrt(n):
        return None
    found, inner = np.linalg.solve(triangle[:-1, :-1], triangle[:-1, -1]), np.zeros((d, d))
    inner[left, right] = inner[right, left] = found[d:]
    return np.asarray(root @ found[:d]), np.asarray(root @ inner @ root.T)
