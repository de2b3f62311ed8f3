"""Synthetic functions spread over clients that disagree as much as is wanted."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import torch
from msgspec import Meta

from fedzero.model.numbers import PositiveInt
from fedzero.model.params import Params
from fedzero.tasks.contract import BuildContext, Problem, Task
from fedzero_papers.oracles.synthetic import FUNCTIONS, SyntheticObjective, SyntheticShards


class Synthetic(Task, tag="synthetic"):
    """Quadratic, Ackley or Levy function on [0, 1]^d, bent for every client by Dirichlet draws (FZooS, eq. 98)."""

    function: Literal["quadratic", "ackley", "levy"] = "quadratic"
    """quadratic: one minimum; ackley, levy: many"""
    dimension: PositiveInt = 300
    heterogeneity: Annotated[float, Meta(ge=0)] = 5.0
    """C, how far the clients' functions are from their mean"""
    noise: Annotated[float, Meta(ge=0)] = 0.0
    """σ, of the gaussian noise on every value"""

    @property
    def label(self) -> str:
        return f"{self.function} functions in {self.dimension} dimensions, C = {self.heterogeneity:g}"

    def build(self, clients: int, context: BuildContext) -> Problem:
        generator, alpha = context.keys.generator("synthetic"), np.full(clients, 1 / clients)
        a, b = (generator.dirichlet(alpha, self.dimension).T for _ in range(2))
        scales = 1 + self.heterogeneity * (a - 1 / clients)
        shifts = self.heterogeneity * (b - 1 / clients)
        start = context.keys.generator("synthetic-start").uniform(size=self.dimension).astype(np.float32)
        params = Params.of_vector(torch.from_numpy(start).to(context.device))
        objective = SyntheticObjective(FUNCTIONS[self.function], scales, shifts)
        return Problem(params, objective, SyntheticShards(scales, shifts, self.noise))
