"""A task whose slopes are chosen by a test: f_i(x) is the mean of ⟨a_ij, x⟩ over the rows j of client i.

a_ij is a small multiple of 2⁻⁸ that follows from the seed of the run, times `scales[i, j]`. The scales and `shift`,
which is added to every loss, are the private data. Losses are multiples of 2⁻²⁰, so that a scale that is a power of
two changes slopes by exactly this factor, and an integer shift changes none.
"""

from __future__ import annotations

import os
from typing import Any, ClassVar

import msgspec
import numpy as np
import torch

from fedzero.model.params import Params
from fedzero.oracles.combination import wide_coordinates
from fedzero.oracles.contract import F64, Metrics
from fedzero.tasks.contract import BuildContext, Problem, Task

GRID = 2.0**20


class Private(msgspec.Struct, frozen=True):
    """scales: by client and row; what is missing has the scale 1."""

    scales: dict[int, list[float]] = {}
    shift: float = 0.0

    def of(self, clients: int, rows: int) -> F64:
        found = np.ones((clients, rows))
        for client, scales in self.scales.items():
            found[client, : len(scales)] = scales
        return found


class Slopes(Task, tag="test-slopes"):
    """Linear losses of rows."""

    dimension: int = 12
    rows: int = 1

    private: ClassVar[Private] = Private()
    """the data of the runs of this process; a program has them in a variable of its environment"""

    def build(self, clients: int, context: BuildContext) -> Problem:
        own = msgspec.json.decode(os.environ["SLOPES"], type=Private) if "SLOPES" in os.environ else self.private
        generator = context.keys.generator("quadratic")
        whole = generator.integers(-256, 257, (clients, self.rows, self.dimension)) / 256.0
        lines = whole, own.of(clients, self.rows)
        facts = {"data": str(lines[1].tolist())}  # with [privacy] it is told to nobody
        return Problem(Params.of_vector(torch.zeros(self.dimension)), Linear(own.shift), Rows(*lines), facts)


class Rows:
    """A batch is the rows and their scales. drawn: of every turn by rows, the client and its rows."""

    no_rows = ""

    def __init__(self, lines: F64, scales: F64):
        self.lines, self.scales, self.clients = lines, scales, len(lines)
        self.drawn: list[tuple[int, tuple[int, ...]]] = []

    def batch(self, keys: Any, round: int, step: int, client: int) -> Any:
        return self.lines[client], self.scales[client]

    def held(self, client: int) -> int:
        """Asked once of every client when a run is prepared, and at the beginning of every turn."""
        self.drawn.append((client, ()))
        return self.lines.shape[1]

    def taken(self, client: int, places: Any) -> Any:
        self.drawn[-1] = client, tuple(places.tolist())
        return self.lines[client][places], self.scales[client][places]


class Linear:
    """Values in float64."""

    no_rows = ""

    def __init__(self, shift: float):
        self.shift = shift

    def row_losses(self, base: Params, points: Any, batch: Any) -> F64:
        lines, scales = batch
        values = np.round(wide_coordinates(base, points, None) @ lines.T * GRID) / GRID
        return values * scales + self.shift

    def losses(self, base: Params, points: Any, batches: Any, basis: Any = None) -> F64:
        return np.stack([self.row_losses(base, points, batch).mean(1) for batch in batches])

    def evaluate(self, params: Params) -> Metrics:
        """Of public data: the squared length of the model."""
        x = params.vector().double().numpy()
        return Metrics(loss=float(x @ x))
