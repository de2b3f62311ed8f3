"""The binary plan of a run, as values."""

from __future__ import annotations

import struct
from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from fedzero_client.errors import Broken, ClientError
from fedzero_client.packing import unpack
from fedzero_client.privacy import Privacy
from fedzero_client.stream import GAUSSIAN, RADEMACHER, RANK1

PERCEPTRON, GRAPH = 1, 2
PLAIN, PRIVATE = 1, 2
"""Versions of the plan."""
SGD, MOMENTUM = 0, 1
FORWARD, CENTRAL = 1, 2
BATCHES, ALL = 1, 2
LARGEST = 1 << 28
"""Numbers of a model that this client takes."""
LARGEST_GRAPH = 1 << 30
"""Bytes of a graph."""


@dataclass(frozen=True)
class Tensor:
    shape: tuple[int, ...]
    scale: float
    label: bytes

    @property
    def count(self) -> int:
        found = 1
        for axis in self.shape:
            found *= axis
        return found


@dataclass(frozen=True)
class Method:
    distribution: int
    rule: int
    rate: float
    hypers: tuple[float, ...]
    radius: float
    directions: int
    steps: int
    difference: int
    clip: float
    batch: int
    samples: int


@dataclass(frozen=True)
class Task:
    widths: tuple[int, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    labels: tuple[str, ...]
    columns: tuple[str, ...]
    least_rows: int
    graph: tuple[bytes, int] | None = None
    """SHA-256 and size of a graph that stands in the place of the perceptron"""


@dataclass(frozen=True)
class Plan:
    name: str
    root: bytes
    places: int
    rounds: int
    tensors: tuple[Tensor, ...]
    method: Method
    task: Task
    privacy: Privacy | None = None

    @property
    def size(self) -> int:
        return sum(tensor.count for tensor in self.tensors)


def read(data: bytes) -> Plan:
    """A plan; raises `ClientError` for one that this client cannot follow."""
    try:
        version, stream, name, root, places, rounds, tensors, method, task, *more = unpack(data)[:10]
        if version not in (PLAIN, PRIVATE) or stream != 1:
            raise ClientError(
                f"the run has version {version} of the plan and {stream} of the stream: get a newer client"
            )
        found = tuple(_tensor(*each[:4]) for each in tensors)
        privacy = Privacy(*more[0][:7]) if version == PRIVATE else None
        plan = Plan(name, root, places, rounds, found, _method(*method[:11]), _task(*task[:8]), privacy)
        _check(plan)  # numbers of another type are found here
        if privacy is not None:
            privacy.check(places, plan.method.steps * plan.method.directions)
    except (TypeError, ValueError, IndexError, Broken) as error:
        raise ClientError(f"the plan of the run cannot be read: {error}") from error
    return plan


def _tensor(kind: int, shape: list[int], scale: float, label: bytes) -> Tensor:
    if kind != 1:
        raise ClientError(f"a tensor is of type {kind}, and this client has float32 (1) alone")
    return Tensor(tuple(shape), scale, label)


def _method(distribution: int, rule: int, rate: float, hypers: list[float], *rest: Any) -> Method:
    return Method(distribution, rule, rate, tuple(hypers), *rest)


def _task(model: int, widths: list[int], *rest: Any) -> Task:
    if model not in (PERCEPTRON, GRAPH):
        raise ClientError(f"the model is of kind {model}, and this client has perceptrons (1) and graphs (2) alone")
    *columns, least = rest[:5]
    task = Task(tuple(widths), *map(tuple, columns), least)
    return task if model == PERCEPTRON else replace(task, graph=_graph(*rest[5][:2]))


def _graph(sha256: bytes, size: int) -> tuple[bytes, int]:
    if len(sha256) != 32 or not 0 < size <= LARGEST_GRAPH:
        raise ClientError(f"the run has a graph of {size:,} bytes, and this client takes {LARGEST_GRAPH:,} at most")
    return sha256, size


def _check(plan: Plan) -> None:
    method, task, sizes = plan.method, plan.task, {"root": len(plan.root), "numbers": plan.size}
    shapes = [shape for i, o in pairwise(task.widths) for shape in ((o, i), (o,))]
    odd = (
        (sizes["root"] != 32, "a root of another length"),
        (sizes["numbers"] > LARGEST, f"a model of {plan.size:,} numbers"),
        (
            task.graph is None and [t.shape for t in plan.tensors] != shapes,
            "tensors that are not those of a perceptron",
        ),
        (method.distribution not in (GAUSSIAN, RADEMACHER, RANK1), f"directions of kind {method.distribution}"),
        (method.rule not in (SGD, MOMENTUM), f"the rule {method.rule}"),
        (method.rule == MOMENTUM and len(method.hypers) != 2, "a momentum without its two numbers"),
        (method.difference not in (FORWARD, CENTRAL), f"differences of kind {method.difference}"),
        (method.samples not in (BATCHES, ALL), f"samples of kind {method.samples}"),
        (min(method.directions, method.steps, method.batch) < 1, "a count of 0"),
        (any(len(c) not in (1, task.widths[0]) for c in (task.mean, task.deviation)), "columns of another number"),
    )
    for holds, what in odd:
        if holds:
            raise ClientError(f"the run has {what}, which is not in this client's profile")


class Rates:
    """η by round, from the pairs of a message."""

    def __init__(self, plan: Plan, pairs: bytes):
        if len(pairs) % 16:
            raise Broken("rates are no pairs")
        found = list(struct.iter_unpack("<Qd", pairs))
        self._rounds, self._rates = [r for r, _ in found], [plan.method.rate, *(rate for _, rate in found)]

    def at(self, round: int) -> float:
        return self._rates[bisect_right(self._rounds, round)]
