"""What the layers of a module know while points are side by side."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fedzero.oracles.low_rank import Factors
from fedzero.oracles.piecewise import Chosen

BESIDE = "_beside"
"""The attribute of a module that holds its weights at all points, while they are side by side."""


class NotSideBySide(Exception):
    """The module cannot be evaluated so: views can."""


class Once:
    """What is the same for all points of a pass, made by whoever comes first: groups of points may have threads."""

    def __init__(self) -> None:
        self._made: dict[str, Tensor] = {}
        self._lock = threading.Lock()

    def get(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        with self._lock:
            if name not in self._made:
                self._made[name] = make()
            return self._made[name]


class Scope:
    """What all layers know during a pass: how many points, how many rows, which logits are wanted."""

    def __init__(self, count: int, same: bool = False, once: Once | None = None):
        self.count, self.same, self.once = count, same, once
        self.rows = 0
        """Of all points together; set when the module is called."""
        self.chosen: Chosen | None = None
        self.work = 0
        """Products of two numbers in a pass, about; what is made once for all points does not count."""

    def computes(self, products: int) -> None:
        """Count them; not in compiled code, which would be compiled again for every count."""
        if not torch.compiler.is_compiling():
            self.work += products

    def called(self, _: nn.Module, positional: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        """Before the module runs: the number of rows is that of its first tensor."""
        first = next((len(x) for x in (*positional, *named.values()) if isinstance(x, Tensor) and x.dim()), 0)
        self.rows = first * self.count if self.same else first
        if not first or self.rows % self.count:
            raise NotSideBySide(f"{first} rows are not those of {self.count} points")

    def is_shared(self, x: Tensor) -> bool:
        """Whether x is the same for all points; else its first axis is points-major."""
        if self.same:  # until the first trained layer has run
            self.same = False
            if x.shape[0] % (self.rows // self.count):
                raise NotSideBySide(f"an input of {x.shape[0]} rows is not the module's")
            return True
        if x.shape[0] == 1 < self.rows:
            return True
        # Compiled code would be compiled again for every number of rows.
        many = self.count if torch.compiler.is_compiling() else self.rows
        if x.shape[0] % many:
            raise NotSideBySide(f"an input of {x.shape[0]} rows, where {many} are those of all points")
        return False

    def every_row(self, x: Tensor) -> Tensor:
        """A shared input; one that has a single row is shared by the rows of a point, too."""
        return x.expand(self.rows // self.count, *x.shape[1:]) if x.shape[0] == 1 < self.rows else x

    def spread(self, x: Tensor) -> Tensor:
        """An input, shared or not, as points-major."""
        if not self.is_shared(x):
            return x
        x = self.every_row(x)
        return x.expand(self.count, *x.shape).flatten(0, 1)

    def made_once(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        return make() if self.once is None else self.once.get(name, make)


@dataclass(frozen=True, eq=False)
class Layer:
    """A module's own parameters during a pass: at the base, and what the points add to those that are trained."""

    name: str
    scope: Scope
    tensors: dict[str, Tensor]
    factors: dict[str, Factors] = field(default_factory=dict)
    offsets: dict[str, Tensor] = field(default_factory=dict)

    def vector(self, name: str) -> Tensor:
        """A vector at every point, (points, 1, n), float32."""
        return (self.tensors[name].float() + self.offsets[name].view(-1, *self.tensors[name].shape))[:, None]

    def parts(self, name: str) -> tuple[Tensor, Tensor | None] | None:
        """A vector at the base and its offsets (points, n), where there are any; None where there is no such vector."""
        return (self.tensors[name], self.offsets.get(name)) if name in self.tensors else None

    def all(self) -> dict[str, Tensor]:
        """All parameters at every point, (points, …)."""
        made = {}
        for name, tensor in self.tensors.items():
            if name in self.factors:
                matrix = tensor.view(len(tensor), -1)
                made[name] = self.factors[name].at(matrix).view(-1, *tensor.shape)
            elif name in self.offsets:
                made[name] = self.vector(name)[:, 0].to(tensor.dtype)
        return made
