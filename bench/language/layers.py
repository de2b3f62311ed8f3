"""Which layers of a language model to train, and how fast.

    python -m bench.language.layers --data DIR [--model FILE] [TASK]

Along P random directions a round of rate η changes the loss by about

    −η ‖E g‖² + ½ η² E‖g‖² tr H / P          g: the gradient of a round's batches, H: the Hessian

for the weights that are trained, whichever they are: noise spreads over all of them alike, and H says what it costs. So
a group of layers is worth ‖E g‖⁴ / (E‖g‖² tr H), at the rate η* = P ‖E g‖² / (E‖g‖² tr H), however many weights it has.
‖E g‖² is the mean of g·g' over pairs of clients, E‖g‖² that of batches as large as two clients' together; tr H is the
mean of zᵀHz along random z, each from three losses. It takes a machine with room for gradients, and is for choosing.

Look at a model that has learned the answer words already (`fedzero replay … --out FILE`): before, that is all there is.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from bench.language.looking import take, trained
from bench.table import show

from fedzero.model.params import Params
from fedzero.oracles.language import Texts
from fedzero.oracles.passes import NO_TERMS
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.setup import Setup, prepare

DIRECTIONS, RADIUS, CLIENTS, BATCH = 10, 1e-3, 4, 64


@dataclass(frozen=True)
class Found:
    """‖E g‖², E‖g‖² and tr H of some weights, with the standard error of the last, and how many they are."""

    common: float
    square: float
    trace: float
    error: float
    size: int

    @property
    def rate(self) -> float:
        return DIRECTIONS * max(0.0, self.common) / (self.square * max(self.trace, self.error))

    @property
    def worth(self) -> float:
        return max(0.0, self.common) ** 2 / (self.square * max(self.trace, self.error))


def prepared(task: str, data: Path, model: Path | None) -> Setup:
    sets = [f"task.batch={BATCH}", "task.testing=1", "task.balanced=true", 'task.dtype="float32"', "task.tf32=false"]
    setup = prepare(recipes.load(f"e3-{task}", [*sets, f"task.train={trained(None)}"]), Environment(data))
    take(setup.problem.params, model)
    return setup


def group_of(name: str, size: int) -> str:
    layer = re.search(r"\.(\d+)\.", name)
    if layer is None:
        return "embeddings and the rest"
    first = int(layer[1]) // size * size
    return f"layers {first} to {first + size - 1}"


@contextmanager
def moved(params: Params, names: list[str], seed: int, by: float) -> Iterator[None]:
    """Some of the weights along a normal direction, for a while."""
    before = {name: params.tensors[name].clone() for name in names}
    generator = torch.Generator(params.device).manual_seed(seed)
    for name in names:
        tensor = params.tensors[name]
        tensor.add_(torch.randn(tensor.shape, generator=generator, device=params.device), alpha=by)
    try:
        yield
    finally:
        for name, tensor in before.items():
            params.tensors[name].copy_(tensor)


def curvatures(setup: Setup, names: list[str], batch: Texts, directions: int) -> np.ndarray:
    """zᵀHz along some z, (directions,)."""
    params, objective = setup.problem.params, setup.problem.objective

    def loss() -> float:
        return float(objective.losses(params, [NO_TERMS], [batch])[0, 0])

    here, found = loss(), []
    for seed in range(directions):
        with moved(params, names, seed, RADIUS):
            up = loss()
        with moved(params, names, seed, -RADIUS):
            down = loss()
        found.append((up + down - 2 * here) / RADIUS**2)
    return np.array(found)


def looked_at(setup: Setup, size: int, directions: int) -> Iterator[tuple[str, Found]]:
    params, objective = setup.problem.params, setup.problem.objective
    batches = [setup.problem.shards.batch(setup.keys, 0, 0, client) for client in range(CLIENTS)]
    gradients = [list(params.split(objective.gradient(params, batch)[1])) for batch in batches]
    groups: dict[str, list[int]] = {}
    for i, name in enumerate(params.names):
        groups.setdefault(group_of(name, size), []).append(i)
    for group, members in {**groups, "all": list(range(len(params.names)))}.items():
        pairs = [sum(float(a[i] @ b[i]) for i in members) for a, b in combinations(gradients, 2)]
        squares = [sum(float(g[i] @ g[i]) for i in members) for g in gradients]
        bent = curvatures(setup, [params.names[i] for i in members], batches[0], directions)
        sizes = sum(len(gradients[0][i]) for i in members)
        yield group, Found(np.mean(pairs), np.mean(squares), bent.mean(), bent.std() / np.sqrt(directions), sizes)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("task", nargs="?", default="sst2")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, help="weights to look at instead of the base model's")
    parser.add_argument("--layers", type=int, default=5, help="of a group")
    parser.add_argument("--directions", type=int, default=12, help="for tr H")
    given = parser.parse_args()
    found = dict(looked_at(prepared(given.task, given.data, given.model), given.layers, given.directions))
    rows = [
        (group, f"{f.size / 1e6:.1f}", f"{f.common:.2f}", f"{f.square:.2f}", f"{f.trace:.0f} ± {f.error:.0f}",
         f"{f.rate:.0e}", f"{f.worth / found['all'].worth:.1f}×")
        for group, f in found.items()
    ]  # fmt: skip
    header = ("", "million weights", "‖E g‖²", "E‖g‖²", "tr H", f"η*, P = {DIRECTIONS}", "worth, all = 1")
    show(f"Layers of SmolLM2-135M on {given.task}, {CLIENTS} batches of {BATCH}", rows, header)


if __name__ == "__main__":
    main()
