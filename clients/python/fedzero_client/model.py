"""A replica: parameters, momentum, the round that they are ready for; steps, digest and loss."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedzero_client import core as cores
from fedzero_client.core import STREAMS
from fedzero_client.errors import Broken
from fedzero_client.plan import MOMENTUM, Plan
from fedzero_client.stream import F32, SHARED, checksum, derived, direction, rademacher

Tensors = list[F32]
"""Flat, by ordinal."""


def keys_of(plan: Plan, round: int, step: int) -> list[int]:
    """Of the P directions of a step, which all places share."""
    return [derived(plan.root, "direction", round, step, p, SHARED) for p in range(plan.method.directions)]


def added(plan: Plan, x: Sequence[F32], terms: Sequence[tuple[int, np.float32]]) -> Tensors:
    """x + Σ c z, term by term."""
    if cores.core is not None and plan.method.distribution in STREAMS:
        moved = [each.copy() for each in x]
        shapes = [tensor.shape for tensor in plan.tensors]
        if cores.core.advance(shapes, moved, (), plan.method.distribution, terms):
            return moved
    found = []
    for ordinal, (tensor, values) in enumerate(zip(plan.tensors, x, strict=True)):
        total = values
        for key, c in terms:
            total = total + c * direction(plan.method.distribution, key, ordinal, tensor.shape)
        found.append(total)
    return found


def stepped(plan: Plan, x: Tensors, M: Tensors, round: int, step: int, rate: float, g: F32) -> tuple[Tensors, Tensors]:
    """(x, M) after a local step with scalars g (P,)."""
    method, keys = plan.method, keys_of(plan, round, step)
    factor = (1.0 if method.rule == MOMENTUM else -rate) / len(keys)
    terms = list(zip(keys, (factor * g.astype(np.float64)).astype(np.float32), strict=True))
    if method.rule != MOMENTUM:
        return added(plan, x, terms), M
    if cores.core is not None and method.distribution in STREAMS:
        moved, kept = ([each.copy() for each in tensors] for tensors in (x, M))
        shapes, hypers = [tensor.shape for tensor in plan.tensors], (rate, method.hypers[0], method.hypers[1])
        if cores.core.advance(shapes, moved, kept, method.distribution, terms, hypers):
            return moved, kept
    G = added(plan, [np.zeros_like(each) for each in x], terms)
    eta, beta, rest = np.float32(rate), np.float32(method.hypers[0]), np.float32(method.hypers[1])
    M = [beta * m + rest * each for m, each in zip(M, G, strict=True)]
    return [each - eta * m for each, m in zip(x, M, strict=True)], M


class Model:
    """Changed by `apply`, `begin` and `load`."""

    def __init__(self, plan: Plan):
        self.plan, self.round = plan, 0
        self.begin()

    def begin(self) -> None:
        """The first model: ±scale."""
        key = derived(self.plan.root, "init")
        tensors = enumerate(self.plan.tensors)
        self.x = [rademacher(key, ordinal, t.count) * np.float32(t.scale) for ordinal, t in tensors]
        momentum = self.plan.method.rule == MOMENTUM
        self.M = [np.zeros(t.count, np.float32) for t in self.plan.tensors] if momentum else []
        self.round = 0

    @property
    def can_begin(self) -> bool:
        """Whether the first model follows from the plan."""
        return all(tensor.scale > 0 for tensor in self.plan.tensors)

    def apply(self, round: int, scalars: bytes, rate: float) -> None:
        """Fold the update of a round, unless it is folded already."""
        if round < self.round:
            return
        method = self.plan.method
        if len(scalars) != 4 * method.steps * method.directions:
            raise Broken(f"the update of round {round} has {len(scalars)} bytes of scalars")
        rows = np.frombuffer(scalars, "<f4").astype(np.float32).reshape(method.steps, -1)
        for k, g in enumerate(rows):
            self.x, self.M = stepped(self.plan, self.x, self.M, round, k, rate, g)
        self.round = round + 1

    def digest(self) -> bytes:
        hasher = hashlib.blake2b(digest_size=8, person=b"fedzero-model")
        for tensor, x in zip(self.plan.tensors, self.x, strict=True):
            hasher.update(tensor.label + checksum(x).to_bytes(8, "little"))
        return hasher.digest()

    def to_bytes(self) -> bytes:
        """The state: parameters, then the momentum."""
        return b"".join(each.astype("<f4").tobytes() for each in (*self.x, *self.M))

    @property
    def length(self) -> int:
        """Bytes of the state."""
        return 4 * self.plan.size * (2 if self.M else 1)

    def load(self, data: bytes, round: int) -> None:
        if len(data) != self.length:
            raise Broken(f"a checkpoint of {len(data)} bytes where the model has {self.length}")
        numbers = np.frombuffer(data, "<f4").astype(np.float32)
        cuts = np.cumsum([t.count for t in self.plan.tensors] * (2 if self.M else 1))[:-1]
        pieces, count = [piece.copy() for piece in np.split(numbers, cuts)], len(self.plan.tensors)
        self.x, self.M, self.round = pieces[:count], pieces[count:], round


def loss(plan: Plan, x: Tensors, rows: F32, labels: NDArray[np.int64]) -> float:
    """Mean cross-entropy of rows that are normalised already."""
    h, last = rows, len(x) // 2 - 1
    for layer in range(last + 1):
        h = h @ x[2 * layer].reshape(plan.tensors[2 * layer].shape).T + x[2 * layer + 1]
        h = np.maximum(h, np.float32(0)) if layer < last else h
    logits = h.astype(np.float64)
    top = logits.max(axis=1)
    losses = top + np.log(np.exp(logits - top[:, None]).sum(axis=1)) - logits[np.arange(len(labels)), labels]
    return float(losses.mean())
