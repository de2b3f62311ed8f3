"""Rows that stay on devices: a table of numbers with labels, and a perceptron or a linear model to sort them.

    x′ = (x − mean) / deviation                                 float32, by column
    h₀ = x′,   h_{l+1} = relu(W_l h_l + b_l),   no relu at the end;   f = mean cross-entropy

The server has the held-out rows of `test` and no others: clients are devices (`engine = { kind = "devices" }`), which
check their own rows against the schema here. The first model follows from the Rademacher stream alone, so that a
device needs no other: weights and biases are ±1/√(3·fan_in), the variance of torch's default.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, NoReturn

import numpy as np
import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor, nn

from fedzero.directions import Domain, Keys, derive
from fedzero.errors import FedzeroError
from fedzero.model.files import load_arrays
from fedzero.model.numbers import PositiveInt
from fedzero.model.params import Params
from fedzero.oracles.module import ModuleObjective
from fedzero.oracles.portable import INT64, Oracle
from fedzero.oracles.portable.running import Graph, GraphObjective
from fedzero.tasks import images
from fedzero.tasks.contract import BuildContext, Problem, Task

Width = Annotated[int, Meta(ge=1, le=1 << 20)]
Widths = Annotated[tuple[Width, ...], Meta(min_length=2, max_length=16)]
Column = tuple[float, ...] | float
TESTED = 1000
"""Rows of a pass."""
PACKAGED = ("mnist", "fashion")
"""Held-out rows that fedzero brings: its test pictures, 784 numbers from 0 to 255 each."""
LONGEST = 64
"""Characters of a label or the name of a column."""


class Devices(Task, tag="devices"):
    """Rows of numbers that stay on devices, sorted by a perceptron, or without hidden layers a linear model."""

    widths: Widths
    """Numbers of a row, of every hidden layer, and of labels: [784, 200, 10]."""
    test: str
    """Held-out rows of the server: an .npz file with x and y, or "mnist" or "fashion"."""
    mean: Column = 0.0
    """Is subtracted from every row; one number, or one for each column."""
    deviation: Column = 1.0
    """Every row is divided by it."""
    labels: tuple[Annotated[str, Meta(max_length=LONGEST)], ...] = ()
    """What the labels 0, 1, … mean; shown by devices."""
    columns: tuple[Annotated[str, Meta(max_length=LONGEST)], ...] = ()
    """What the numbers of a row are; shown by devices."""
    batch: PositiveInt = 32
    least_rows: PositiveInt = 1
    """A device with fewer rows does not take part."""
    graph: str = ""
    """A file from `fedzero export-oracle`, which devices evaluate in the place of a perceptron; widths has two numbers
    then, of a row and of labels."""

    @property
    def least_loss(self) -> float:
        return 0.0  # cross-entropy

    @property
    def label(self) -> str:
        return f"rows of devices, {Path(self.graph).name if self.graph else '-'.join(map(str, self.widths))}"

    def check(self) -> None:
        inputs, outputs = self.widths[0], self.widths[-1]
        if self.graph and len(self.widths) != 2:
            raise FedzeroError("task.widths has two numbers where there is a task.graph: of a row, and of labels")
        for name, value in (("mean", self.mean), ("deviation", self.deviation)):
            if isinstance(value, tuple) and len(value) != inputs:
                raise FedzeroError(f"task.{name} has {len(value)} numbers where a row has {inputs}")
        if not np.all(np.asarray(self.deviation, np.float32) > 0):
            raise FedzeroError("task.deviation must be more than 0, also in float32: rows are divided by it")
        for name, words, count in (("labels", self.labels, outputs), ("columns", self.columns, inputs)):
            if words and len(words) != count:
                raise FedzeroError(f"task.{name} has {len(words)} words where task.widths has {count}")

    def module(self, context: BuildContext, given: nn.Module | None = None) -> nn.Module:
        return Layers(self.widths).to(context.device) if given is None else given

    def oracle(self, context: BuildContext) -> Oracle:
        if self.graph or isinstance(self.mean, tuple) or isinstance(self.deviation, tuple):
            raise FedzeroError("a graph is made of a task without task.graph, with one number for mean and deviation")
        return Oracle(self.module(context), self.widths[0], self.widths[-1], mean=self.mean, deviation=self.deviation)

    def build(self, clients: int, context: BuildContext) -> Problem:
        if self.graph:
            return self._of_graph(clients, context)
        x, y = self._held_out(context)
        module = self.module(context)
        params = Params.of_module(module)
        params.load(first_model(params, context.keys))
        test = list(zip(torch.split(x, TESTED), torch.split(y, TESTED), strict=True))
        return Problem(params, ModuleObjective(module, test), Elsewhere(clients), _facts(x, y))

    def _of_graph(self, clients: int, context: BuildContext) -> Problem:
        graph = Graph(Path(context.path(self.graph, "task.graph")))
        form = graph.form
        if (form.inputs, form.classes) != self.widths:
            raise FedzeroError(
                f"task.graph has rows of {form.inputs} numbers and {form.classes} labels: say so in widths"
            )
        tokens = form.type == INT64
        if tokens and (self.mean, self.deviation) != (0.0, 1.0):
            raise FedzeroError("task.graph has rows of whole numbers: leave out task.mean and task.deviation")
        x, y = self._held_out(context, tokens)
        shapes = zip(graph.names, form.slots, strict=True)
        params = Params({name: torch.zeros(slot.shape, device=context.device) for name, slot in shapes})
        params.load(first_model(params, context.keys))
        facts = _facts(x, y) | {"graph": f"SHA-256 {graph.sha256.hex()}, {graph.size:,} bytes"}
        return Problem(params, GraphObjective(graph, x.cpu().numpy(), y.cpu()), Elsewhere(clients), facts)

    def _held_out(self, context: BuildContext, tokens: bool = False) -> tuple[Tensor, Tensor]:
        """tokens: rows are whole numbers, and are not normalised."""
        if self.test in PACKAGED:
            found = images.load_subset(self.test)  # type: ignore[arg-type]  # one of the two
            rows, labels = found.test_x.reshape(len(found.test_x), -1), found.test_y
        else:
            path = Path(context.path(self.test, "task.test"))
            try:
                rows, labels = load_arrays(path, "x", "y")
            except OSError as error:
                raise FedzeroError(f"task.test = {self.test!r} cannot be read: {error.strerror}") from error
        inputs, outputs = self.widths[0], self.widths[-1]
        if rows.ndim != 2 or rows.shape[1] != inputs or labels.shape != (len(rows),) or not len(rows):
            raise FedzeroError(
                f"task.test: x has shape {rows.shape} and y {labels.shape}; task.widths asks for rows of {inputs} "
                "numbers, and one label for each"
            )
        if labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= outputs:
            raise FedzeroError(f"task.test: labels in y must be whole numbers from 0 to {outputs - 1}")
        if tokens:
            return torch.from_numpy(rows.astype(np.int64)), torch.from_numpy(labels.astype(np.int64))
        x = torch.from_numpy(self.normalised(rows)).to(context.device)
        if not bool(torch.isfinite(x).all()):
            raise FedzeroError("task.test: x has NaN or infinite numbers")
        return x, torch.from_numpy(labels.astype(np.int64)).to(context.device)

    def normalised(self, rows: Any) -> Any:
        """Two operations of float32."""
        mean, deviation = np.asarray(self.mean, np.float32), np.asarray(self.deviation, np.float32)
        return (np.asarray(rows, np.float32) - mean) / deviation


def _facts(x: Tensor, y: Tensor) -> dict[str, str]:
    digest = hashlib.sha256(x.cpu().numpy().tobytes() + y.cpu().numpy().tobytes()).hexdigest()[:16]
    return {"data": f"{len(x):,} held-out rows, {digest}; the others are on devices"}


class Layers(nn.Module):
    """linear0, linear1, … with ReLU between them."""

    def __init__(self, widths: Sequence[int]):
        super().__init__()
        self.count = len(widths) - 1
        for i, (inputs, outputs) in enumerate(pairwise(widths)):
            self.add_module(f"linear{i}", nn.Linear(inputs, outputs))

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = x
        for i in range(self.count):
            h = self.get_submodule(f"linear{i}")(h)
            h = F.relu(h) if i + 1 < self.count else h
        return h


def first_scales(params: Params) -> list[float]:
    """By ordinal: the magnitude of the first values, float32 of 1/√(3·fan_in); a bias follows its weight."""
    fan_in, scales = 1, []
    for tensor in params.tensors.values():
        fan_in = tensor[0].numel() if tensor.dim() > 1 else fan_in
        scales.append(float(np.float32(1) / np.float32(math.sqrt(3 * fan_in))))
    return scales


def first_model(params: Params, keys: Keys) -> dict[str, Tensor]:
    """±scale with the signs of the Rademacher direction of the key `init`."""
    vector = params.direction(Domain.RADEMACHER, derive(keys.root, "init"))
    pieces = zip(params.tensors.items(), params.split(vector), first_scales(params), strict=True)
    return {name: (piece * scale).view(tensor.shape) for (name, tensor), piece, scale in pieces}


class Elsewhere:
    """The data of clients, which are not here. engine: the only one that reaches them."""

    engine = "devices"

    def __init__(self, clients: int):
        self.clients = clients

    def batch(self, keys: Keys, round: int, step: int, client: int) -> NoReturn:
        raise FedzeroError(
            "the rows of task.kind = 'devices' are on devices: run it with engine = { kind = 'devices' }"
        )
