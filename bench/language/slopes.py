"""What a finite difference of a language model is made of.

    python -m bench.language.slopes --data DIR [MODEL.safetensors]

SmolLM2-135M on the batches of two clients of E3; or another model, such as one that `fedzero replay` made of a run. The
reference is a central difference in float32 with the smallest radius; everything else is compared with it on the same
directions. Noise is what a method adds to the slope z·∇f of the reference: it multiplies directions at random.

    --task rte --layers 10 24 --radius 1e-3 3e-3 1e-2       another task, some layers alone, several radii
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path
from typing import get_args

import numpy as np
from bench.language.looking import add_layers, take, trained
from bench.table import show

from fedzero.estimators.spsa import Difference, direction_keys, points_of, queries_of, slopes
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.setup import Setup, prepare

DIRECTIONS = 10
STEPS = 2
"""Steps of DIRECTIONS each, so that a mean is over as many as in E3."""


def prepared(given: argparse.Namespace, dtype: str) -> Setup:
    """The problem of E3 with weights of a type, at the base or at another model; float32 with exact products."""
    sets = [f'task.dtype="{dtype}"', "task.testing=1", "task.tf32=false", f"task.train={trained(given.layers)}"]
    setup = prepare(recipes.load(f"e3-{given.task}", sets), Environment(given.data))
    take(setup.problem.params, given.model)
    return setup


def measured(setup: Setup, difference: Difference, radius: float) -> np.ndarray:
    """Slopes along the same directions, (STEPS, DIRECTIONS)."""
    params, objective, keys = setup.problem.params, setup.problem.objective, setup.keys
    batches = [setup.problem.shards.batch(keys, 0, 0, client) for client in (0, 1)]
    found = []
    for step in range(STEPS):
        directions = direction_keys(keys, 0, step, DIRECTIONS)
        points, scales = points_of(params, directions, radius, difference, "gaussian")
        values = np.concatenate([objective.losses(params, [point], batches).mean(0) for point in points])
        found.append(slopes(values, scales, radius, difference)[0])
    return np.stack(found).astype(float)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--task", default="sst2")
    add_layers(parser)
    parser.add_argument("--radius", type=float, nargs="+", default=[1e-3])
    given = parser.parse_args()
    setups = {dtype: prepared(given, dtype) for dtype in ("float32", "bfloat16")}
    reference = measured(setups["float32"], "central", min(given.radius))
    rows = []
    for dtype, difference, radius in product(setups, get_args(Difference), given.radius):
        found = measured(setups[dtype], difference, radius)
        noise = f"{np.mean((found - reference) ** 2):.2f}"
        squares = f"{found.mean():.2f}", f"{np.mean(found**2):.2f}"
        queries = str(queries_of(DIRECTIONS, difference))
        rows.append((f"{dtype}, {difference}", f"{radius:g}", queries, *squares, noise))
    header = ("", "radius", "queries a step", "mean slope", "mean square", "mean square of the noise")
    layers = "" if given.layers is None else ", layers {} to {}".format(*given.layers)
    show(f"Slopes of SmolLM2-135M on {given.task}{layers}, P = {DIRECTIONS}", rows, header)


if __name__ == "__main__":
    main()
