"""A quadratic spread over clients, with a known minimum.

f_i(x; ξ) = ½ Σ_j a_j (x_j − b_ij)² + σ ⟨ξ, x⟩      F = mean f_i, minimum at x* = mean b_i
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch
from msgspec import Meta
from torch import Tensor

from fedzero.directions import Keys, Terms
from fedzero.model.numbers import Dimension, NonNegative
from fedzero.model.params import Params
from fedzero.oracles.combination import wide_coordinates
from fedzero.oracles.contract import ALL_DATA, F64, Basis, Metrics
from fedzero.tasks.contract import BuildContext, Problem, Task

Batch = tuple[F64, F64 | None]


class Quadratic(Task, tag="quadratic"):
    """A quadratic spread over clients, with a known minimum: seconds to run, easy to reason about."""

    dimension: Dimension = 100
    condition: Annotated[float, Meta(ge=1)] = 10.0
    """The largest curvature over the smallest."""
    spread: NonNegative = 1.0
    """Standard deviation of the clients' minima."""
    noise: NonNegative = 0.0
    """σ: a mini-batch adds σ ⟨ξ, x⟩, ξ normal."""

    @property
    def label(self) -> str:
        return f"quadratic in {self.dimension} dimensions"

    @property
    def least_loss(self) -> float:
        return -math.inf if self.noise else 0.0

    def build(self, clients: int, context: BuildContext) -> Problem:
        generator = context.keys.generator("quadratic")
        centres = 1.0 + self.spread * generator.standard_normal((clients, self.dimension))
        curvature = np.linspace(1.0, self.condition, self.dimension)
        params = Params.of_vector(torch.zeros(self.dimension, device=context.device))
        return Problem(params, QuadraticObjective(curvature, centres), QuadraticShards(centres, self.noise))


class QuadraticShards:
    """Client i holds b_i; a batch is (b_i, ξ), None without noise."""

    def __init__(self, centres: F64, noise: float):
        self.centres, self.noise, self.clients = centres, noise, len(centres)

    def batch(self, keys: Keys, round: int, step: int, client: int) -> Batch:
        centre = self.centres[client]
        if self.noise == 0 or step == ALL_DATA:
            return centre, None
        return centre, self.noise * keys.generator("batch", round, step, client).standard_normal(len(centre))


class QuadraticObjective:
    """Values in float64; `evaluate` gives the optimality gap F(x) − F(x*)."""

    def __init__(self, curvature: F64, centres: F64):
        self.curvature, self.optimum = curvature, centres.mean(axis=0)

    def losses(
        self, base: Params, points: Sequence[Terms], batches: Sequence[Batch], basis: Basis | None = None
    ) -> F64:
        xs = wide_coordinates(base, points, basis)
        out = np.empty((len(batches), len(xs)))
        for values, (centre, noise) in zip(out, batches, strict=True):
            offset = xs - centre
            offset *= offset
            offset *= 0.5
            np.dot(offset, self.curvature, out=values)
            if noise is not None:
                values += xs @ noise
        return out

    def gradient(self, base: Params, batch: Batch) -> tuple[float, Tensor]:
        x, (centre, noise) = base.vector().double().numpy(), batch
        noise = np.zeros_like(centre) if noise is None else noise
        value = float(0.5 * ((x - centre) ** 2) @ self.curvature + x @ noise)
        return value, torch.from_numpy(self.curvature * (x - centre) + noise).float()

    def evaluate(self, params: Params) -> Metrics:
        x = params.vector().double().cpu().numpy()
        return Metrics(loss=float(0.5 * ((x - self.optimum) ** 2) @ self.curvature))
