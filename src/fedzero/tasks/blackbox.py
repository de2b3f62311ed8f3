"""Functions without gradients, one per client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from msgspec import Meta, structs

from fedzero.errors import FedzeroError, Sendable
from fedzero.model.numbers import Dimension, Natural, NonNegative, PositiveInt
from fedzero.model.params import Params
from fedzero.oracles.blackbox import (
    AnyBox,
    BlackBoxes,
    BlackBoxShards,
    Bounds,
    Conditions,
    Evaluate,
    Limits,
    PythonBox,
    ToldBox,
)
from fedzero.tasks.contract import BuildContext, Problem, Task


class BlackBox(Task, tag="black-box"):
    """Functions without gradients, one per client: Python, a program, or a service; logged and budgeted."""

    boxes: tuple[AnyBox, ...]
    """one per client, in order: kind = "python", "batched", "command", "http" or "told" """
    dimension: Dimension
    low: float | tuple[float, ...] = 0.0
    """lower bounds: one for all coordinates, or one for each"""
    high: float | tuple[float, ...] = 1.0
    """upper bounds, likewise"""
    steps: tuple[Natural, ...] = ()
    """how many values each coordinate has, evenly spaced from low to high; 0, and default: any"""
    constraints: tuple[str, ...] = ()
    """functions g, by name as those of python boxes, wanted to be ≤ 0"""
    penalty: NonNegative = 1000.0
    """times max(0, g(x))², summed over constraints, is added to every value"""
    start: tuple[float, ...] | None = None
    """where to begin, within the bounds; default: the middle"""
    noise: NonNegative = 0.0
    """standard deviation of gaussian noise added to every value that a method is given"""
    budget: PositiveInt | None = None
    """attempts per client in the whole run, retries included; default: no limit"""
    timeout: Annotated[float, Meta(gt=0, le=1e7)] | None = None
    """seconds that an attempt may take; default: no limit"""
    retries: Natural = 2
    """further attempts after one that failed"""
    backoff: NonNegative = 0.1
    """seconds before the first retry, doubled for every further one"""
    workers: PositiveInt = 1
    """how many points of a client are evaluated at the same time"""
    evaluate: Evaluate = "ends"
    """ends: the first and the last evaluation query every box once, those between use logged values; log: all of them
    use logged values; query: all of them query every box once; shared: logged values at the model, where all boxes were
    asked there"""

    @property
    def label(self) -> str:
        return f"{len(self.boxes)} black boxes in {self.dimension} dimensions"

    @property
    def bounds(self) -> Bounds:
        return Bounds.of(self.low, self.high, self.dimension, self.steps)

    def at_site(self, model: str | None) -> BlackBox:
        """Sites estimate from their logs: nobody asks all of them for a value at one point."""
        return structs.replace(self, evaluate="log") if self.evaluate in ("ends", "shared") else self

    def runs(self, functions: Mapping[str, Any]) -> list[str]:
        def harmless(box: AnyBox) -> bool:  # a function without a module has to be given
            return isinstance(box, ToldBox) or (
                isinstance(box, PythonBox) and (box.name in functions or ":" not in box.name)
            )

        limits = [PythonBox(name=name) for name in self.constraints]
        return list(dict.fromkeys(box.label for box in (*self.boxes, *limits) if not harmless(box)))

    def build(self, clients: int, context: BuildContext) -> Problem:
        if len(self.boxes) != clients:
            raise FedzeroError(
                f"task.boxes has {len(self.boxes)} boxes but federation.clients = {clients}: give one for each client"
            )
        if not context.trusted:
            self._expect_given(context)
        named = self.runs(context.functions) if context.foreign else []
        bounds, keys = self.bounds, context.keys
        kept = int(self.evaluate == "ends")
        conditions = Conditions(self.timeout, self.retries, self.backoff, self.workers, self.budget, kept)
        start = torch.from_numpy(bounds.starting_at(self.start)).float().to(context.device)
        limits = Limits(self.constraints, self.penalty)
        objective = BlackBoxes(
            self.boxes, bounds, keys, conditions, context.functions, self.noise, self.evaluate, limits, named
        )
        return Problem(Params.of_vector(start), objective, BlackBoxShards(clients), metered=objective)

    def _expect_given(self, context: BuildContext) -> None:
        for box in (*self.boxes, *(PythonBox(name=name) for name in self.constraints)):
            if not isinstance(box, PythonBox) or box.name not in context.functions:
                raise Sendable(
                    f"box {box.label} is not one of this site's: a site queries functions of its own, "
                    "`fedzero join KIT --task NAME=module:function`, by the names that the recipe has for them"
                )
