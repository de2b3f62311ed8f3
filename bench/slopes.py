"""What a finite difference of a language model is made of: `python bench/slopes.py --data DIR [MODEL.safetensors]`.

SmolLM2-135M on SST-2, 256 prompts of two clients of E3; or another model on it, such as one that `fedzero replay` made
of a run. The reference is a central difference in float32; everything else is compared with it on the same directions.
Noise is what a method adds to the slope z·∇f of the reference: it multiplies directions at random.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path
from typing import get_args

import numpy as np
from safetensors.torch import load_file
from table import show

from fedzero import recipe as recipes
from fedzero import session
from fedzero.estimators.spsa import Difference, direction_keys, points_of, queries_of, slopes
from fedzero.session import Setup, Surroundings

DIRECTIONS, RADIUS = 10, 1e-3
STEPS = 2
"""Steps of DIRECTIONS each, so that a mean is over as many as in E3."""


def prepared(dtype: str, data: Path, model: Path | None) -> Setup:
    """The problem of E3 with weights of a type, at the base or at another model."""
    setup = session.prepare(recipes.load("e3-sst2", [f'task.dtype="{dtype}"', "task.testing=1"]), Surroundings(data))
    if model is not None:
        tensors = setup.problem.params.tensors
        setup.problem.params.load({name: x.to(tensors[name].dtype) for name, x in load_file(model).items()})
    return setup


def measured(setup: Setup, difference: Difference) -> np.ndarray:
    """Slopes along the same directions, (STEPS, DIRECTIONS)."""
    params, objective, keys = setup.problem.params, setup.problem.objective, setup.keys
    batches = [setup.problem.shards.batch(keys, 0, 0, client) for client in (0, 1)]
    found = []
    for step in range(STEPS):
        directions = direction_keys(keys, 0, step, DIRECTIONS)
        points, scales = points_of(params, directions, RADIUS, difference, "gaussian")
        values = np.concatenate([objective.losses(params, [point], batches).mean(0) for point in points])
        found.append(slopes(values, scales, RADIUS, difference)[0])
    return np.stack(found).astype(float)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    given = parser.parse_args()
    setups = {dtype: prepared(dtype, given.data, given.model) for dtype in ("float32", "bfloat16")}
    reference = measured(setups["float32"], "central")
    rows = []
    for dtype, difference in product(setups, get_args(Difference)):
        found = measured(setups[dtype], difference)
        noise = f"{np.mean((found - reference) ** 2):.2f}"
        squares = f"{found.mean():.2f}", f"{np.mean(found**2):.2f}"
        rows.append((f"{dtype}, {difference}", str(queries_of(DIRECTIONS, difference)), *squares, noise))
    header = ("", "queries a step", "mean slope", "mean square", "mean square of the noise")
    show(f"Slopes of SmolLM2-135M on SST-2, P = {DIRECTIONS}, radius {RADIUS:g}", rows, header)


if __name__ == "__main__":
    main()
