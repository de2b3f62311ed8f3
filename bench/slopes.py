"""What a finite difference of a language model is made of: `python bench/slopes.py --data DIR [MODEL.safetensors]`.

SmolLM2-135M on SST-2, 256 prompts of two clients of E3; or another model on it, such as one that `fedzero replay` made
of a run. The reference is a central difference in float32; everything else is compared with it on the same directions.
Noise is what a method adds to the slope z·∇f of the reference: it multiplies directions at random.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from safetensors.torch import load_file
from table import show

from fedzero import recipe as recipes
from fedzero import session
from fedzero.directions import Keys
from fedzero.estimators.spsa import Difference, direction_keys, points_of, queries_of, slopes
from fedzero.session import Surroundings

DIRECTIONS, RADIUS = 10, 1e-3
STEPS = 2
"""Steps of DIRECTIONS each, so that a mean is over as many as in E3."""


def measured(dtype: str, difference: Difference, data: Path, model: Path | None) -> np.ndarray:
    """Slopes along the same directions, (STEPS, DIRECTIONS)."""
    setup = session.prepare(recipes.load("e3-sst2", [f'task.dtype="{dtype}"', "task.testing=1"]), Surroundings(data))
    params, objective, keys = setup.problem.params, setup.problem.objective, Keys.of_seed(1)
    if model is not None:
        params.load({name: tensor.to(params.tensors[name].dtype) for name, tensor in load_file(model).items()})
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
    reference = measured("float32", "central", given.data, given.model)
    rows = []
    ways: list[tuple[str, Difference]] = [
        ("float32", "forward"),
        ("float32", "mean"),
        ("bfloat16", "central"),
        ("bfloat16", "forward"),
        ("bfloat16", "mean"),
    ]
    for dtype, difference in ways:
        found = measured(dtype, difference, given.data, given.model)
        noise = found - reference
        rows.append(
            (f"{dtype}, {difference}", str(queries_of(DIRECTIONS, difference)), f"{found.mean():.2f}",
             f"{np.mean(found**2):.2f}", f"{np.mean(noise**2):.2f}")
        )  # fmt: skip
    header = ("", "queries a step", "mean slope", "mean square", "mean square of the noise")
    first = ("float32, central (reference)", str(queries_of(DIRECTIONS, "central")), f"{reference.mean():.2f}",
             f"{np.mean(reference**2):.2f}", "")  # fmt: skip
    show(f"Slopes of SmolLM2-135M on SST-2, P = {DIRECTIONS}, radius {RADIUS:g}", [first, *rows], header)


if __name__ == "__main__":
    main()
