"""The losses of a round of E3, with layers as they are and compiled.

    python -m bench.language.e3_round --data DIR [TASK…]

SmolLM2-135M, or `--model`; all weights, or `--layers FIRST LAST`; batches of two clients at the base model and at ten
points around it. Six rounds, so that batches of several shapes occur; they are played once, which records and compiles,
and then timed. Both ways should give the same slopes: in float32 but for the order of sums, in bfloat16 each with an
error of its own.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from bench.language.looking import add_layers, trained
from bench.table import show

from fedzero.estimators.spsa import direction_keys, points_of, slopes
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.setup import Setup, prepare

DIRECTIONS, RADIUS, ROUNDS, REPEATS = 10, 1e-3, 6, 3


@dataclass(frozen=True)
class Found:
    """Slopes (rounds × directions), seconds of the first time, milliseconds a round afterwards."""

    slopes: np.ndarray
    first: float
    ms: float


def prepared(given: argparse.Namespace, task: str, dtype: str, compiled: bool) -> Setup:
    # Exact products in float32, so that it can be the reference.
    sets = [f'task.dtype="{dtype}"', f"task.compile={str(compiled).lower()}", "task.tf32=false", "task.testing=1"]
    sets += [f"task.train={trained(given.layers)}"]
    sets += [] if given.model is None else [f'task.model="{given.model}"']
    return prepare(recipes.load(f"e3-{task}", sets), Environment(given.data))


def played(setup: Setup) -> Found:
    first, slopes = _timed(setup)
    times = [_timed(setup)[0] for _ in range(REPEATS)]
    return Found(slopes, first, 1e3 * min(times) / ROUNDS)


def _timed(setup: Setup) -> tuple[float, np.ndarray]:
    problem, keys, found = setup.problem, setup.keys, []
    began = time.perf_counter()
    for round in range(ROUNDS):
        batches = [problem.shards.batch(keys, round, 0, client) for client in (0, 1)]
        directions = direction_keys(keys, round, 0, DIRECTIONS)
        points, scales = points_of(problem.params, directions, RADIUS, "forward", "gaussian")
        losses = problem.objective.losses(problem.params, points, batches)  # on the host: nothing is left running
        found.append(slopes(losses.mean(0), scales, RADIUS, "forward")[0])
    return time.perf_counter() - began, np.concatenate(found).astype(float)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("tasks", nargs="*", default=["sst2", "rte"])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", help="another language model")
    add_layers(parser)
    given = parser.parse_args()
    rows = []
    for task in given.tasks:
        exact = None
        for dtype in ("float32", "bfloat16"):
            plain = None
            for compiled in (False, True):
                found = played(prepared(given, task, dtype, compiled))
                plain, exact = plain or found, exact or found
                error = np.mean((found.slopes - exact.slopes) ** 2) / np.mean(exact.slopes**2)
                way = f"{task}, {dtype}, {'compiled' if compiled else 'as they are'}"
                rows.append(
                    (way, f"{found.first:.1f} s", f"{found.ms:.1f} ms", f"{plain.ms / found.ms:.2f}×", f"{error:.1e}")
                )
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()
    header = ("", "first six", "a round", "faster", "error of slopes, relative mean square")
    show(f"Losses of a round of E3, P = {DIRECTIONS}, radius {RADIUS:g}", rows, header)


if __name__ == "__main__":
    main()
