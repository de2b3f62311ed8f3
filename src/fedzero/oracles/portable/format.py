"""What the inputs and the output of a graph are, for G points and B rows:

    x    (B, inputs), float32 or int64    rows, normalised by whoever evaluates
    c    (G,), float32                    of rank-one tensors: the coefficient of each point, 0 for the base itself
    p_t  (G, …), float32                  tensor t at every point
    w_t  (…), a_t (G, rows), b_t (G, columns), float32    or tensor t itself and the factors: w + c a bᵀ

    logits (G, B, classes), float32

Inputs come in this order, tensors by ordinal; c is there if a tensor has factors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

FLOAT32, INT64 = 1, 7
"""Types of ONNX."""
PAYS = 64
"""Factors are worth it where rows · columns is so many times rows + columns; see `side_by_side`."""


@dataclass(frozen=True, eq=False)
class Oracle:
    """What a task exports: `module` maps rows (B, inputs) of one type to logits (B, classes). mean, deviation: rows are
    normalised by them before. follows_signs: whether a first model of ±1/√(3·fan_in) is as good as the module's own."""

    module: nn.Module
    inputs: int
    classes: int
    type: int = FLOAT32
    mean: float = 0.0
    deviation: float = 1.0
    follows_signs: bool = True


@dataclass(frozen=True)
class Slot:
    """A trained tensor among the inputs."""

    shape: tuple[int, ...]
    factored: bool

    @property
    def columns(self) -> int:
        return math.prod(self.shape[1:])

    def inputs(self, ordinal: int, points: int) -> list[tuple[str, tuple[int, ...]]]:
        if not self.factored:
            return [(f"p{ordinal}", (points, *self.shape))]
        factors = [(f"a{ordinal}", (points, self.shape[0])), (f"b{ordinal}", (points, self.columns))]
        return [(f"w{ordinal}", self.shape), *factors]


@dataclass(frozen=True)
class Form:
    """The sizes of a graph."""

    points: int
    rows: int
    inputs: int
    classes: int
    type: int
    slots: tuple[Slot, ...]

    def table(self) -> list[tuple[str, tuple[int, ...]]]:
        """Names and shapes of all inputs, in order."""
        found: list[tuple[str, tuple[int, ...]]] = [("x", (self.rows, self.inputs))]
        if any(slot.factored for slot in self.slots):
            found.append(("c", (self.points,)))
        return found + [each for t, slot in enumerate(self.slots) for each in slot.inputs(t, self.points)]

    @staticmethod
    def read(names: Sequence[tuple[str, Sequence[int]]], type: int, output: Sequence[int]) -> Form | None:
        """The form whose table these inputs are; None if there is none."""
        table = [(name, tuple(shape)) for name, shape in names]
        shapes = dict(table)
        if len(output) != 3 or "x" not in shapes or len(shapes["x"]) != 2:
            return None
        slots = list[Slot]()
        while name := next((f"{kind}{len(slots)}" for kind in "pw" if f"{kind}{len(slots)}" in shapes), ""):
            slots.append(Slot(shapes[name][1:] if name[0] == "p" else shapes[name], name[0] == "w"))
        form = Form(output[0], shapes["x"][0], shapes["x"][1], output[2], type, tuple(slots))
        whole = slots and output[1] == form.rows and all(slot.shape or not slot.factored for slot in slots)
        return form if whole and form.table() == table else None


def pays(shape: Sequence[int]) -> bool:
    """Whether a tensor of a graph of several points is given as factors."""
    rows, columns = (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (1, 1)
    return rows * columns > PAYS * (rows + columns)
