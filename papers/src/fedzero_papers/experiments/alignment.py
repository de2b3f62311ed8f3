"""How well the gradients that clients step along agree with that of the function all of them minimise.

cos(ĝ, ∇F(x)) at every local step of a run, with x the client's own iterate: what figure 3 of the FZooS paper shows.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import Tensor

from fedzero.oracles.contract import F64
from fedzero.recipe.environment import Environment
from fedzero.recipe.recipe import Recipe
from fedzero.recipe.setup import prepare
from fedzero.runs import session
from fedzero.runs.progress import Silent
from fedzero_papers.experiments.pool import cores
from fedzero_papers.oracles.synthetic import SyntheticObjective


class AlignmentObserver:
    """Follows the iterates of clients that work one after the other: all of them every round, and in [0, 1]^d."""

    def __init__(self, start: Tensor, clients: int, gradient: Callable[[F64], F64]):
        self.start, self.clients, self.gradient = start, clients, gradient
        self.x = start
        self.ends: list[Tensor] = []
        self.found: list[list[float]] = []

    def __call__(self, step: int, gradient: Tensor, change: Tensor) -> None:
        if step == 0:
            if len(self.ends) == self.clients:
                self.start, self.ends = torch.stack(self.ends).mean(0), []
            self.x = self.start
            self.ends.append(self.x)
            self.found.append([])
        true = torch.from_numpy(self.gradient(self.x[None].numpy())[0])
        self.found[-1].append(float(torch.cosine_similarity(gradient.double(), true, dim=0)))
        self.x = (self.x + change.double()).clamp(0, 1)
        self.ends[-1] = self.x


def alignment(recipe: Recipe) -> F64:
    """cos(ĝ, ∇F), (rounds, clients, steps), of a recipe for the synthetic task."""
    engine = msgspec.structs.replace(recipe.engine, merge=False)
    recipe, environment = msgspec.structs.replace(recipe, engine=engine), Environment()
    problem = prepare(recipe, environment).problem
    clients, objective = recipe.federation.clients, problem.objective
    assert isinstance(objective, SyntheticObjective)
    observer = AlignmentObserver(problem.params.vector().double(), clients, objective.global_gradient)
    with tempfile.TemporaryDirectory() as folder:
        session.start(recipe, Path(folder), environment, Silent(), observe=observer)
    return np.array(observer.found).reshape(recipe.rounds, clients, -1)


def alignments(recipes: Sequence[Recipe]) -> list[F64]:
    """Of several recipes, as many at a time as there are cores."""
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    with ProcessPoolExecutor(cores(), context, torch.set_num_threads, (1,)) as pool:
        return list(pool.map(alignment, recipes))
