"""A turn: the scalars of a round, on the rows of this device."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedzero_client import core as cores
from fedzero_client.errors import ClientError
from fedzero_client.graph import Term
from fedzero_client.model import Model, added, keys_of, loss, stepped
from fedzero_client.packing import pack
from fedzero_client.plan import ALL, CENTRAL, Plan
from fedzero_client.privacy import Entropy
from fedzero_client.stream import F32, batch


@dataclass(frozen=True)
class Rows:
    """x (n, inputs) as it was given, y (n,)."""

    x: NDArray[np.generic]
    y: NDArray[np.int64]

    @staticmethod
    def of(path: Path) -> Rows:
        try:
            with np.load(path, allow_pickle=False) as file:
                return Rows(file["x"], file["y"].astype(np.int64))
        except (OSError, KeyError, ValueError) as error:
            raise ClientError(f"{path} has no arrays x and y that can be read: {error}") from error


class Oracle(Protocol):
    """A function in the place of the client's own perceptron: `Graph`, or anybody's."""

    @property
    def whole(self) -> bool:
        """Whether rows are whole numbers, which are not normalised."""

    def values(
        self, x: Sequence[F32], points: Sequence[Sequence[Term]], rows: NDArray[np.generic], y: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """The mean loss of rows (n, inputs) at every point x + c z(key), a list of at most one term (key, c); the empty
        one is x. x: flat tensors by ordinal."""


class Worker:
    """Rows that fit a plan, and what a place does with them."""

    def __init__(self, plan: Plan, rows: Rows, place: int, entropy: Entropy = os.urandom, oracle: Oracle | None = None):
        task, self._entropy = plan.task, entropy
        if rows.x.ndim != 2 or rows.x.shape[1] != task.widths[0] or rows.y.shape != (len(rows.x),):
            shape = f"x has shape {rows.x.shape} and y {rows.y.shape}"
            raise ClientError(f"{shape}: the run asks for rows of {task.widths[0]} numbers, and a label for each")
        if len(rows.x) < task.least_rows:
            raise ClientError(f"{len(rows.x)} rows, and the run asks for {task.least_rows} at least")
        if rows.y.min() < 0 or rows.y.max() >= task.widths[-1]:
            raise ClientError(
                f"labels go from {rows.y.min()} to {rows.y.max()}: the run has 0 to {task.widths[-1] - 1}"
            )
        self.plan, self.place, self.oracle = plan, place, oracle
        self.x, self.y = self._normalised(rows.x), rows.y
        if not np.isfinite(self.x).all():
            raise ClientError("x has NaN or infinite numbers")

    def _normalised(self, x: NDArray[np.generic]) -> NDArray[np.generic]:
        """Two operations of float32; of an oracle with whole numbers, the rows as they are."""
        if self.oracle is not None and self.oracle.whole:
            return x.astype(np.int64)
        mean, deviation = np.array(self.plan.task.mean, np.float32), np.array(self.plan.task.deviation, np.float32)
        return (x.astype(np.float32) - mean) / deviation

    def reply(self, model: Model, round: int, exchange: int, rate: float) -> bytes:
        """The inner reply of a turn at a model that is ready for the round."""
        if self.plan.privacy is not None:
            return self._private(model, round, exchange, rate)
        scalars, first, queries = self.scalars(model, round, rate)
        said = struct.pack("<f", first if abs(first) < 3.4e38 else math.inf)
        return pack([round, exchange, model.digest(), scalars.astype("<f4").tobytes(), said, queries])

    def _private(self, model: Model, round: int, exchange: int, rate: float) -> bytes:
        """The same without a loss. What fails counts as zeros, and nobody is told: a failure depends on the data."""
        method, privacy = self.plan.method, self.plan.privacy
        assert privacy is not None
        points = (2 if method.difference == CENTRAL else 1) * method.directions + (method.difference != CENTRAL)
        try:
            with np.errstate(all="ignore"):
                scalars = self.scalars(model, round, rate)[0]
        except (ArithmeticError, ValueError, MemoryError, ClientError):
            scalars = np.zeros(method.steps * method.directions, np.float32)
        sent = privacy.sent(scalars, self._entropy)
        return pack([round, exchange, model.digest(), sent, b"", method.steps * points])

    def scalars(self, model: Model, round: int, rate: float) -> tuple[F32, float, int]:
        """(K·P scalars, the loss before local steps, evaluations)."""
        plan, method = self.plan, self.plan.method
        found, first, queries, x, M = [], 0.0, 0, model.x, model.M
        for k in range(method.steps):
            values = self._values(x, round, k)
            g, here = _slopes(values, method.radius, method.difference == CENTRAL)
            found.append(g)
            first = first if k else here
            queries += len(values)
            if k + 1 < method.steps:
                x, M = stepped(plan, x, M, round, k, rate, g)
        return _clipped(np.concatenate(found), method.clip), first, queries

    def _values(self, x: list[F32], round: int, step: int) -> NDArray[np.float64]:
        """f at the points of a step, on its batch."""
        plan, method = self.plan, self.plan.method
        size = len(self.y) if method.samples == ALL else method.batch
        chosen = batch(plan.root, round, step, self.place, len(self.y), size)
        rows, labels = self.x[chosen], self.y[chosen]
        central = method.difference == CENTRAL
        signs = (1, -1) if central else (1,)
        terms = [[(key, np.float32(s * method.radius))] for key in keys_of(plan, round, step) for s in signs]
        points = terms if central else [[], *terms]
        if self.oracle is not None:
            return self.oracle.values(x, points, rows, labels)
        if cores.core is not None and method.distribution in cores.STREAMS:
            shapes = [tensor.shape for tensor in plan.tensors]
            found = cores.core.losses(shapes, x, method.distribution, points, rows, labels)
            if found is not None:
                return found
        return np.array([loss(plan, added(plan, x, each), rows, labels) for each in points])


def _slopes(f: NDArray[np.float64], radius: float, central: bool) -> tuple[F32, float]:
    if central:
        return ((f[0::2] - f[1::2]) / (2 * radius)).astype(np.float32), float(f.mean())
    return ((f[1:] - f[0]) / radius).astype(np.float32), float(f[0])


def _clipped(v: F32, norm: float) -> F32:
    """v · min(1, norm/‖v‖)."""
    length = math.sqrt(float(np.square(v, dtype=np.float64).sum()))
    if not norm or length <= norm or not math.isfinite(length):
        return v
    return (v.astype(np.float64) * (norm / length)).astype(np.float32)
