"""A quadratic spread over clients."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from msgspec import Meta

from fedzero.model.numbers import NonNegative, PositiveInt
from fedzero.model.params import Params
from fedzero.oracles.quadratic import QuadraticObjective, QuadraticShards
from fedzero.tasks.contract import BuildContext, Problem, Task


class Quadratic(Task, tag="quadratic"):
    """A quadratic spread over clients, with a known minimum: seconds to run, easy to reason about."""

    dimension: PositiveInt = 100
    condition: Annotated[float, Meta(ge=1)] = 10.0
    """The largest curvature over the smallest."""
    spread: NonNegative = 1.0
    """How far the clients' minima lie apart."""
    noise: NonNegative = 0.0
    """σ: a mini-batch adds σ ⟨ξ, x⟩, ξ normal."""

    @property
    def label(self) -> str:
        return f"quadratic in {self.dimension} dimensions"

    def build(self, clients: int, place: BuildContext) -> Problem:
        generator = place.keys.generator("quadratic")
        centres = 1.0 + self.spread * generator.standard_normal((clients, self.dimension))
        curvature = np.linspace(1.0, self.condition, self.dimension)
        params = Params.of_vector(torch.zeros(self.dimension, device=place.device))
        return Problem(params, QuadraticObjective(curvature, centres), QuadraticShards(centres, self.noise))
