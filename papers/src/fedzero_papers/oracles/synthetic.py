"""The synthetic functions of the FZooS paper (appendix G.1): one function, bent differently for every client.

Parameters are u in [0, 1]^d, and x = low + u (high − low). For every coordinate j two draws of a Dirichlet
distribution, (a_ij)_i and (b_ij)_i ~ Dir(1/N · 1), are shared out among the clients; C makes them into scales of mean 1
and shifts of mean 0:

    s_ij = 1 + C (a_ij − 1/N),    t_ij = C (b_ij − 1/N)

    quadratic   f_i(x) = (1/10d) (Σ_j [s_ij x_j² + (1 + t_ij) x_j] + 1)                              eq. (98)
    ackley      f_i(x) = 20 + e − 20 exp(−0.2 √(Σ_j y_j² / d)) − exp(Σ_j cos(2π y_j) / d)
    levy        f_i(x) = sin²(π w_1) + Σ_{j<d} (w_j − 1)² (1 + 10 sin²(π w_j + 1)) + (w_d − 1)² (1 + sin²(2π w_d))

    y_j = s_ij (x_j − t_ij) for Ackley; w_j = 1 + s_ij (x_j − 1 − t_ij) / 4 for Levy: stretched by s_i, and moved by t_i
    from where the function has its minimum (0 and 1)

F = mean f_i. Of the quadratics it is (1/10d) (Σ_j [x_j² + x_j] + 1), eq. (99), whatever C; of the others it is not the
function they were made of. The paper gives no equations for those two. Functions are evaluated where they are asked,
outside of [0, 1]^d as well.

A query brings y = f_i(x) + ζ, ζ ~ N(0, σ²). The noise is of the query and not of a sample, so it is there with
`ALL_DATA` too. It is a function of (round, step, client) and of the point's place in the ask: who asks twice with one
step number meets the same noise twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedzero.directions import Keys, Terms
from fedzero.model.params import Params
from fedzero.oracles.contract import F64, Basis, Metrics


@dataclass(frozen=True)
class Function:
    """A function of x (n, d), of m clients at once by their scales and shifts (m, d)."""

    low: float
    high: float
    values: Callable[[F64, F64, F64], F64]
    """(m, n)"""
    slopes: Callable[[F64, F64, F64], F64]
    """∇_x, (m, n, d)"""
    minimum: Callable[[int], float]
    """F* in d dimensions; 0 where it is not known"""

    def place(self, u: F64) -> F64:
        return self.low + u * (self.high - self.low)


def quadratic(x: F64, scale: F64, shift: F64) -> F64:
    values: F64 = (scale @ (x * x).T + (1 + shift) @ x.T + 1) / (10 * x.shape[1])
    return values


def quadratic_slopes(x: F64, scale: F64, shift: F64) -> F64:
    slopes: F64 = (2 * scale[:, None] * x + (1 + shift)[:, None]) / (10 * x.shape[1])
    return slopes


def quadratic_minimum(d: int) -> float:
    """At x = −½."""
    return (1 - d / 4) / (10 * d)


def ackley(x: F64, scale: F64, shift: F64) -> F64:
    y = scale[:, None] * (x - shift[:, None])
    length, waves = np.sqrt(np.mean(y * y, axis=-1)), np.mean(np.cos(2 * np.pi * y), axis=-1)
    values: F64 = 20 + math.e - 20 * np.exp(-0.2 * length) - np.exp(waves)
    return values


def ackley_slopes(x: F64, scale: F64, shift: F64) -> F64:
    y, d = scale[:, None] * (x - shift[:, None]), x.shape[1]
    length = np.sqrt(np.mean(y * y, axis=-1, keepdims=True))
    waves = np.mean(np.cos(2 * np.pi * y), axis=-1, keepdims=True)
    unit = np.divide(y, length, out=np.zeros_like(y), where=length > 0)  # the tip of the cone has no slope
    by_y = (4 * np.exp(-0.2 * length) * unit + 2 * np.pi * np.exp(waves) * np.sin(2 * np.pi * y)) / d
    slopes: F64 = scale[:, None] * by_y
    return slopes


def levy(x: F64, scale: F64, shift: F64) -> F64:
    v = scale[:, None] * (x - 1 - shift[:, None]) / 4  # w − 1
    w = 1 + v
    middle = v**2 * (1 + 10 * np.sin(np.pi * w + 1) ** 2)
    last = v[..., -1] ** 2 * (1 + np.sin(2 * np.pi * w[..., -1]) ** 2)
    values: F64 = np.sin(np.pi * w[..., 0]) ** 2 + middle[..., :-1].sum(axis=-1) + last
    return values


def levy_slopes(x: F64, scale: F64, shift: F64) -> F64:
    v = scale[:, None] * (x - 1 - shift[:, None]) / 4
    w = 1 + v
    by_w = 2 * v * (1 + 10 * np.sin(np.pi * w + 1) ** 2) + v**2 * 10 * np.pi * np.sin(2 * (np.pi * w + 1))
    end, at = v[..., -1], w[..., -1]
    by_w[..., -1] = 2 * end * (1 + np.sin(2 * np.pi * at) ** 2) + end**2 * 2 * np.pi * np.sin(4 * np.pi * at)
    by_w[..., 0] += np.pi * np.sin(2 * np.pi * w[..., 0])
    slopes: F64 = scale[:, None] * by_w / 4
    return slopes


FUNCTIONS = {
    "quadratic": Function(-10.0, 10.0, quadratic, quadratic_slopes, quadratic_minimum),
    "ackley": Function(-32.768, 32.768, ackley, ackley_slopes, lambda d: 0.0),
    "levy": Function(-10.0, 10.0, levy, levy_slopes, lambda d: 0.0),
}


@dataclass(frozen=True, eq=False)
class Batch:
    """One client's function, and where the noise of a query comes from (None: there is none)."""

    scale: F64  # s_i, (d,)
    shift: F64  # t_i, (d,)
    noise: Callable[[int], F64] | None = None


def _noise(keys: Keys, round: int, step: int, client: int, deviation: float, points: int) -> F64:
    return deviation * keys.generator("synthetic-noise", round, step, client).standard_normal(points)


class SyntheticShards:
    """Client i holds s_i and t_i, rows of `scales` and `shifts`."""

    def __init__(self, scales: F64, shifts: F64, noise: float):
        self.scales, self.shifts, self.noise = scales, shifts, noise

    @property
    def clients(self) -> int:
        return len(self.scales)

    def batch(self, keys: Keys, round: int, step: int, client: int) -> Batch:
        noise = partial(_noise, keys, round, step, client, self.noise) if self.noise else None
        return Batch(self.scales[client], self.shifts[client], noise)


class SyntheticObjective:
    """Values in float64; `evaluate` gives F(x) − F* for the quadratic, F(x) for the others, without noise."""

    def __init__(self, function: Function, scales: F64, shifts: F64):
        self.function, self.scales, self.shifts = function, scales, shifts

    def losses(
        self, base: Params, points: Sequence[Terms], batches: Sequence[Batch], basis: Basis | None = None
    ) -> F64:
        scales, shifts = np.stack([b.scale for b in batches]), np.stack([b.shift for b in batches])
        values = self.function.values(self.function.place(_vectors(base, points, basis)), scales, shifts)
        for row, batch in zip(values, batches, strict=True):
            if batch.noise is not None:
                row += batch.noise(len(points))
        return values

    def gradient(self, base: Params, batch: Batch) -> tuple[float, Tensor]:
        """The value has its noise; the gradient has none."""
        x = self.function.place(base.vector().double().cpu().numpy()[None])
        scale, shift = batch.scale[None], batch.shift[None]
        value = self.function.values(x, scale, shift)[0, 0] + (0.0 if batch.noise is None else batch.noise(1)[0])
        slopes = self.function.slopes(x, scale, shift)[0, 0] * (self.function.high - self.function.low)
        return float(value), torch.from_numpy(slopes).float().to(base.device)

    def global_gradient(self, x: F64) -> F64:
        """∇F with respect to the parameters, at x (n, d), parameters too: (n, d), float64."""
        slopes = self.function.slopes(self.function.place(x), self.scales, self.shifts)
        gradient: F64 = slopes.mean(axis=0) * (self.function.high - self.function.low)
        return gradient

    def evaluate(self, params: Params) -> Metrics:
        x = self.function.place(params.vector().double().cpu().numpy()[None])
        value = float(self.function.values(x, self.scales, self.shifts).mean())
        return Metrics(loss=value - self.function.minimum(params.size))


def _vectors(base: Params, points: Sequence[Terms], basis: Basis | None) -> F64:
    """The points as rows. Sums are float64: a probe x + μz loses nothing of μz to the size of x."""
    if all(len(terms) <= 1 for terms in points):
        offsets = base.offsets(points).double()
    else:
        offsets = torch.stack([base.total(terms) if len(terms) else base.zeros() for terms in points]).double()
    if basis is not None:
        offsets += basis.offsets(range(len(points)))
    vectors: F64 = (offsets + base.vector()).cpu().numpy()
    return vectors
