"""A turn's losses by onnxruntime, the core in C, NumPy and PyTorch, one thread each: python -m bench.devices.graphs

demo-cnn: the CNN with 20 Rademacher directions, forward differences, 16 rows. demo: the perceptron 784-200-10 with 20
directions of rank one, 200 rows. PyTorch evaluates points as it does in a run of the recipe; the others as a device
does: with a graph of `fedzero export-oracle`, with the core where `fedzero_client._core` is there, with NumPy. Points
and batches are new in every turn, and making them counts. Times are of the processor, of the one thread that works, so
that other work of the machine does not count as waiting; it still takes caches and clock. Ways alternate; the last
column is the median of the ratios of turns that follow each other.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from bench.table import show
from fedzero_client import core as cores
from fedzero_client import plan as device_plan
from fedzero_client.graph import Graph
from fedzero_client.model import Model
from fedzero_client.turn import Rows, Worker

from fedzero.directions import Domain, Terms
from fedzero.engines.devices import plan as plans
from fedzero.oracles.contract import Points
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.setup import Setup, prepare
from fedzero.runs.oracles import export_recipe

REPEATS, WARM = 20, 2
DIRECTIONS, RADIUS = 20, 1e-3
HEADER = ("recipe, by", "least, CPU ms", "median, CPU ms", "speed beside PyTorch")
Turn = Callable[[], object]


def ways(name: str, place: Environment) -> dict[str, Turn]:
    """By name: a turn's losses."""
    assert place.folder is not None
    recipe, path = recipes.load(name, None), place.folder / f"{name}.onnx"
    setup, core = prepare(recipe, place), cores.core
    export_recipe(recipe, place, path)
    steps = {"kind": "decomfl", "rate": 1e-3, "directions": DIRECTIONS, "radius": RADIUS}
    steps |= {"distribution": recipe.algorithm.distribution}
    table = {"kind": "devices", "widths": [784, 200, 10], "test": "mnist", "mean": 33.3, "deviation": 78.6}
    table |= {"batch": recipe.task.batch}
    rest = {
        "name": name,
        "rounds": 1,
        "federation": {"clients": 2, "cohort": 2},
        "engine": {"kind": "devices"},
        "algorithm": steps,
    }

    def device(changes: dict[str, Any], core: Any) -> Turn:
        made = prepare(recipes.decode(rest | {"task": table | changes}), place)
        plan = device_plan.read(plans.encode(plans.plan_of(made)))
        draw, graph = np.random.default_rng(0), Graph(path.read_bytes(), plan, threads=1) if changes else None
        rows = Rows(draw.integers(0, 256, (4000, 784)), draw.integers(0, 10, 4000))
        model, worker, rounds = Model(plan), Worker(plan, rows, 0, oracle=graph), count()

        def turn() -> object:
            cores.core = core
            return worker._values(model.x, next(rounds), 0)

        return turn

    found = {"PyTorch": pytorch(setup), "onnxruntime": device({"widths": [784, 10], "graph": str(path)}, core)}
    if name == "demo":
        found |= {"NumPy": device({}, None)} | ({} if core is None else {"core in C": device({}, core)})
    return found


def pytorch(setup: Setup) -> Turn:
    """The losses of one client in a run of the recipe."""
    problem, stream = setup.problem, Domain.RANK1 if setup.recipe.name == "demo" else Domain.RADEMACHER
    rounds: Iterator[int] = count()

    def turn() -> object:
        round = next(rounds)
        terms = [Terms.of([], [], stream)]
        terms += [Terms.of([(round << 8) + p + 1], [RADIUS], stream) for p in range(DIRECTIONS)]
        batch = problem.shards.batch(setup.keys, round, 0, 0)
        return problem.objective.losses(problem.params, Points((round,), tuple(terms)), [batch])

    return turn


def main() -> None:
    torch.set_num_threads(1)
    lines = list[tuple[str, ...]]()
    with tempfile.TemporaryDirectory() as folder:
        for name in ("demo-cnn", "demo"):
            found = ways(name, Environment(folder=Path(folder)))
            times: dict[str, list[float]] = {each: [] for each in found}
            for repeat in range(WARM + REPEATS):
                for each, turn in found.items():
                    began = time.process_time()
                    turn()
                    if repeat >= WARM:
                        times[each].append(time.process_time() - began)
            for each, own in times.items():
                ratio = median(a / b for a, b in zip(times["PyTorch"], own, strict=True))
                lines.append((f"{name}, {each}", f"{1e3 * min(own):.1f}", f"{1e3 * median(own):.1f}", f"{ratio:.2f}"))
    show("losses of a turn, one thread", lines, HEADER)


if __name__ == "__main__":
    main()
