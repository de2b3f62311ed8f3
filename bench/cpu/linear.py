"""A local step of E8 (batch 64, one gaussian direction, central difference, μ 1e-4) beside the straightforward way.

A step: draw the batch, two values, move x. The straightforward way draws z with NumPy and makes two products, at
x + μz and at x − μz, as one would write it down; it knows nothing of keys, so nobody could take its step again. Ten of
100 clients take turns. RCV1 and MNIST are read from FEDZERO_DATA if they are there; otherwise random rows of RCV1's
shape stand in for it, and the table says so, and MNIST is the small one of the package.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch
from bench.table import best, show

from fedzero.directions import Domain, Keys, Terms
from fedzero.model.params import Params
from fedzero.tasks import BuildContext, Problem
from fedzero.tasks.models import initialise
from fedzero.tasks.partition import DrawnShards, Iid, split
from fedzero_papers.oracles.linear import LOGISTIC, LinearObjective, Samples
from fedzero_papers.oracles.perceptron import PerceptronObjective, tensors
from fedzero_papers.oracles.rows import DenseRows, SparseRows
from fedzero_papers.tasks import rcv1
from fedzero_papers.tasks.binary import Binary

CLIENTS, COHORT, MU, ETA, HIDDEN, SEED = 100, 10, 1e-4, 0.1, 50, 1
KEYS = Keys.of_seed(SEED)
Step = Callable[[int], None]


def problem(dataset: str, model: str, data: Path | None) -> Problem:
    if dataset != "rcv1" or data is not None:
        task = Binary(dataset=dataset, model=model, full=data is not None)  # type: ignore[arg-type]
        return task.build(CLIENTS, BuildContext(KEYS, torch.device("cpu"), data))
    rows, width, nonzeros = rcv1.TRAIN, 47_236, 75
    generator = np.random.default_rng(SEED)
    offsets = np.arange(rows + 1, dtype=np.int64) * nonzeros
    columns, values = generator.integers(0, width, rows * nonzeros), generator.random(rows * nonzeros)
    samples: Samples = SparseRows(offsets, columns, values, width), generator.choice([-1.0, 1.0], rows)
    parts = split(Iid(), np.zeros(rows, np.int64), CLIENTS, KEYS)
    shards = DrawnShards(parts, 64, lambda index: (samples[0].pick(index), samples[1][index]))
    if model == "mlp":
        params = Params(tensors(width, HIDDEN))
        initialise(params, KEYS.root, {"hidden.weight": width})
        return Problem(params, PerceptronObjective(LOGISTIC, samples, samples), shards)
    return Problem(Params.of_vector(torch.zeros(width)), LinearObjective(LOGISTIC, samples, samples), shards)


def ours(made: Problem, move: bool = True) -> Step:
    def step(number: int) -> None:
        key = KEYS.direction(0, number, 0, 0)
        points = tuple(Terms.of([key], [sign * MU], Domain.GAUSSIAN) for sign in (1, -1))
        batch = made.shards.batch(KEYS, 0, number, number % COHORT)
        up, down = made.objective.losses(made.params, points, [batch])[0]
        if move:
            made.params.fold(Terms.of([key], [-ETA * (up - down) / (2 * MU)], Domain.GAUSSIAN))

    return step


def straightforward(made: Problem, model: str) -> Step:
    shards: Any = made.shards
    rows, labels = made.objective.train  # type: ignore[attr-defined]
    if isinstance(rows, DenseRows):
        matrix: Any = rows.x.astype(np.float64)
    else:
        matrix = scipy.sparse.csr_matrix((rows.values, rows.indices, rows.offsets), shape=(len(rows), rows.width))
    x, generator = made.params.vector().double().numpy(), np.random.default_rng(SEED)
    d = rows.width

    def scores(a: Any, x: np.ndarray) -> np.ndarray:
        if model != "mlp":
            return a @ x
        W, (b, v, c) = x[: d * HIDDEN].reshape(d, HIDDEN), np.split(x[d * HIDDEN :], [HIDDEN, 2 * HIDDEN])
        return (1 / (1 + np.exp(-(a @ W + b)))) @ v + c

    def step(number: int) -> None:
        nonlocal x
        part = shards.parts[number % COHORT]
        index = generator.choice(part, min(64, len(part)), replace=False)
        a, y, z = matrix[index], labels[index], generator.standard_normal(len(x))
        up = np.log1p(np.exp(-y * scores(a, x + MU * z))).mean()
        down = np.log1p(np.exp(-y * scores(a, x - MU * z))).mean()
        x = x - ETA * (up - down) / (2 * MU) * z

    return step


def seconds(step: Step, steps: int) -> float:
    """Of one step, on average."""
    return best(lambda: [step(number) for number in range(steps)]) / steps


def main() -> None:
    named = os.environ.get("FEDZERO_DATA")
    data = Path(named) if named and (Path(named) / rcv1.FILE).exists() else None
    rows = []
    for dataset, model, steps in (("rcv1", "logistic", 300), ("mnist", "logistic", 300), ("rcv1", "mlp", 10)):
        made = problem(dataset, model, data)
        values, quick = seconds(ours(made, move=False), steps), seconds(ours(made), steps)
        plain = seconds(straightforward(made, model), steps)
        name = dataset if dataset == "mnist" or data else f"random rows like {dataset}"
        figures = [f"{t * 1e6:,.0f}" for t in (values, quick, plain)]
        rows.append((f"{model}, {name}", f"{made.params.size:,}", *figures, f"{plain / quick:.1f}"))
    header = ("", "parameters", "µs to the values", "µs/step", "straightforward", "× fedzero")
    show("One local step of E8: batch 64, one direction, central difference", rows, header)


if __name__ == "__main__":
    main()
