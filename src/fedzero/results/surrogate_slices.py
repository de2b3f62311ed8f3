"""A surrogate of black boxes as a report shows it: along some coordinates through the point found.

Every client's queries have a Gaussian process of their own, in the unit box. What is shown of F, the mean of N
functions, is the mean of their posterior means, with deviation √(Σ_i σ_i²) / N; σ_i² = s_i² (1 − kᵀ (K + σ²I)⁻¹ k),
where s_i is the spread by which a client's values were scaled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from fedzero.estimators.surrogate.kernels import Rbf, squares_between
from fedzero.estimators.surrogate.process import Fit, GradientSurrogate, Nearest
from fedzero.oracles.blackbox import Bounds
from fedzero.oracles.contract import F64
from fedzero.report.history import Slice

COORDINATES, PLACES = 2, 41
NARROWEST = 0.02
"""A slice covers this share of the box at least."""


def slices(
    located: Mapping[int, Sequence[tuple[F64, float]]], bounds: Bounds, x: F64, coordinates: Sequence[int] | None = None
) -> tuple[Slice, ...]:
    """Along `coordinates`, or those in which the surrogate varies most over the points asked; located: (point, value),
    by client. None where a client has fewer than two points."""
    located = {client: usable(pairs, len(x)) for client, pairs in located.items()}
    if not located or min(map(len, located.values())) < 2 or not np.isfinite(x).all():
        return ()
    u = torch.from_numpy(bounds.to_unit(x))
    fits, lows, highs = [], u.clone(), u.clone()
    for pairs in located.values():
        points = torch.from_numpy(np.stack([bounds.to_unit(point) for point, _ in pairs]))
        surrogate = GradientSurrogate(len(u), Rbf(), window=Nearest(), fit_scale=True)
        surrogate.observe(points, torch.tensor([value for _, value in pairs], dtype=torch.float64))
        fits.append(surrogate.at(u))
        lows, highs = torch.minimum(lows, points.amin(0)), torch.maximum(highs, points.amax(0))
    widths = (highs - lows).clamp(min=NARROWEST)
    slope = torch.stack([fit.gradient(u) for fit in fits]).mean(0)
    steepest = torch.topk((slope * widths).abs().nan_to_num(), min(COORDINATES, len(u))).indices.sort().values.tolist()
    chosen = steepest if coordinates is None else coordinates
    return tuple(along(int(k), u, float(lows[k]), float(widths[k]), fits, bounds) for k in chosen)


def usable(pairs: Sequence[tuple[F64, float]], dimension: int) -> list[tuple[F64, float]]:
    """Without what only a ledger of somebody else's could hold."""
    return [(p, v) for p, v in pairs if p.shape == (dimension,) and np.isfinite(p).all() and np.isfinite(v)]


def along(coordinate: int, u: torch.Tensor, low: float, width: float, fits: Sequence[Fit], bounds: Bounds) -> Slice:
    line = u.repeat(PLACES, 1)
    line[:, coordinate] = torch.linspace(max(0.0, low), min(1.0, low + width), PLACES, dtype=torch.float64)
    mean = torch.stack([fit.value(line) for fit in fits]).mean(0)
    deviation = torch.stack([variance(fit, line) for fit in fits]).sum(0).sqrt() / len(fits)
    places = bounds.from_unit(line.numpy())[:, coordinate]
    return Slice(coordinate, tuple(places.tolist()), tuple(mean.tolist()), tuple(deviation.tolist()))


def variance(fit: Fit, x: torch.Tensor) -> torch.Tensor:
    """Posterior variance of the value at points (m, d), (m,)."""
    near = fit.kernel.value(squares_between(x - fit.origin, fit.points))
    return fit.spread**2 * (1 - ((near @ fit.factor.inverse) * near).sum(1)).clamp(min=0)
