"""The control of E5: FZooS's rule with exact gradients in the place of surrogates, so that only γ differs.

    g_t = ∇f_i(x) + γ_t (∇F(x) − ∇f_i(x)),   t = 1 … T;   x by Adam, restarted in every round, clipped to [0, 1]^d

With γ = 1 every client steps along ∇F; with γ = 0 along its own ∇f_i (FedAvg with Adam); the paper's is γ = 1/t.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from fedzero.methods import FZooS
from fedzero.model.schedules import rate_at
from fedzero.oracles.contract import F64
from fedzero.recipe.environment import Environment
from fedzero.recipe.recipe import Recipe
from fedzero.recipe.setup import prepare
from fedzero_papers.oracles.synthetic import SyntheticObjective

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
RULES: Mapping[str, tuple[str, Callable[[int], float]]] = {
    "inverse": ("γ = 1/t", lambda t: 1 / t),
    "one": ("γ = 1, ∇F", lambda t: 1.0),
    "none": ("γ = 0, ∇f_i", lambda t: 0.0),
}


def gaps(recipe: Recipe, gamma: Callable[[int], float]) -> F64:
    """F(x) − F* after every round, relative to the start, (rounds + 1,); problem, rate and steps are the recipe's."""
    problem, method = prepare(recipe, Environment()).problem, recipe.algorithm
    objective = problem.objective
    assert isinstance(objective, SyntheticObjective) and isinstance(method, FZooS)
    x = problem.params.vector().double().numpy()[None]
    found = [gap(objective, x)]
    for round in range(recipe.rounds):
        y = np.repeat(x, len(objective.scales), axis=0)
        m, v = np.zeros_like(y), np.zeros_like(y)
        for t in range(1, method.local_steps + 1):
            own, shared = own_gradients(objective, y), objective.global_gradient(y)
            g = own + gamma(t) * (shared - own)
            m, v = BETA1 * m + (1 - BETA1) * g, BETA2 * v + (1 - BETA2) * g * g
            step = m / (1 - BETA1**t) / (np.sqrt(v / (1 - BETA2**t)) + EPSILON)
            y = np.clip(y - rate_at(method.rate, round) * step, 0, 1)
        x = y.mean(axis=0, keepdims=True)
        found.append(gap(objective, x))
    return np.array(found) / found[0]


def own_gradients(objective: SyntheticObjective, y: F64) -> F64:
    """∇f_i(y_i) of every client i at its own point, with respect to the parameters, (clients, d)."""
    function = objective.function
    slopes = function.slopes(function.place(y), objective.scales, objective.shifts)
    found: F64 = np.einsum("iid->id", slopes) * (function.high - function.low)
    return found


def gap(objective: SyntheticObjective, x: F64) -> float:
    function = objective.function
    values = function.values(function.place(x), objective.scales, objective.shifts)
    return float(values.mean()) - function.minimum(x.shape[1])
