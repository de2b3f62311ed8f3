"""The minimiser of a smooth model within a ball and the unit box, by Newton steps within the ball."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]

STEPS, BISECTIONS = 15, 60
SINGULAR = 1e-12
"""Curvatures below so much of the largest are none."""


class Model(Protocol):
    """A twice differentiable function of x (d,)."""

    def value(self, x: F64) -> float: ...

    def gradient(self, x: F64) -> F64: ...

    def hessian(self, x: F64) -> F64: ...


def step_within(gradient: F64, hessian: F64, radius: float) -> F64:
    """The p with ‖p‖ ≤ radius that minimises gᵀp + ½ pᵀHp: p = −(H + μI)⁻¹ g, μ ≥ max(0, −λ_min) by bisection."""
    curvatures, axes = np.linalg.eigh(hessian)
    slopes, steepest = axes.T @ gradient, float(np.abs(curvatures).max())
    least = max(SINGULAR * steepest, np.finfo(np.float64).tiny)
    if curvatures[0] > least and float(np.linalg.norm(slopes / curvatures)) <= radius:
        return np.asarray(-axes @ (slopes / curvatures))
    low = max(0.0, -float(curvatures[0])) + least
    high = low + float(np.linalg.norm(gradient)) / radius + steepest
    for _ in range(BISECTIONS):
        middle = float(np.sqrt(low * high)) if high > 4 * low else (low + high) / 2
        longer = float(np.linalg.norm(slopes / (curvatures + middle))) > radius
        low, high = (middle, high) if longer else (low, middle)
    return np.asarray(-axes @ (slopes / (curvatures + high)))


def lowest_within(model: Model, start: F64, radius: float, fixed: NDArray[np.bool_] | None = None) -> tuple[F64, float]:
    """The point of the unit box within `radius` of `start` where Newton's method takes a model, and by how much the
    model falls on the way. `fixed` coordinates (d,) stay as they are."""
    x, first = start.copy(), model.value(start)
    value, reach = first, radius
    for _ in range(STEPS):
        slope = model.gradient(x)
        free = ~(((x <= 0) & (slope > 0)) | ((x >= 1) & (slope < 0)))
        free = free if fixed is None else free & ~fixed
        if not free.any():
            break
        step = np.zeros_like(x)
        step[free] = step_within(slope[free], model.hessian(x)[np.ix_(free, free)], reach)
        offset = x + step - start
        length = float(np.linalg.norm(offset))
        trial = np.clip(start + offset * min(1.0, radius / max(length, radius)), 0.0, 1.0)
        found = model.value(trial)
        if found < value:
            moved, x, value = float(np.linalg.norm(trial - x)), trial, found
            if moved < 1e-10 * radius:
                break
        else:
            reach *= 0.25
            if reach < 1e-7 * radius:
                break
    return x, first - value
