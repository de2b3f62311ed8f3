"""The packaged digits: partition, batches, first model and loss of both models (docs/ledger.md, "Tasks")."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from recompute.fractions import Fractions, Tables
from recompute.generator import Generator
from recompute.stream import GAUSSIAN, Model, derived, direction

SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "cnn": {
        "conv1.weight": (16, 1, 5, 5),
        "conv1.bias": (16,),
        "conv2.weight": (32, 16, 5, 5),
        "conv2.bias": (32,),
        "linear.weight": (10, 1568),
        "linear.bias": (10,),
    },
    "mlp": {"linear1.weight": (200, 784), "linear1.bias": (200,), "linear2.weight": (10, 200), "linear2.bias": (10,)},
}
"""By the recipe's `task.model`; the order is that of ordinals."""


def first_model(root: bytes, kind: str = "cnn") -> Model:
    key, fan_in, model = derived(root, "init"), 1, {}
    for ordinal, (name, shape) in enumerate(SHAPES[kind].items()):
        if len(shape) > 1:
            fan_in = math.prod(shape[1:])
        scale = np.float32(1) / np.float32(math.sqrt(3 * fan_in))
        model[name] = (direction(GAUSSIAN, key, ordinal, math.prod(shape)) * scale).reshape(shape)
    return model


class Digits:
    def __init__(self, path: Path, recipe: Mapping[str, Any], root: bytes):
        with np.load(path) as data:
            self.x, self.y = normalised(data["train_x"]), data["train_y"].astype(np.int64)
            self.test_x, self.test_y = normalised(data["test_x"]), data["test_y"].astype(np.int64)
        self.root, self.size = root, recipe["task"]["batch"]
        self.parts = parts(recipe["task"]["partition"], self.y, recipe["federation"]["clients"], root)

    def loss(self, model: Model, round: int, step: int, client: int) -> float:
        """Mean cross-entropy of a client's mini-batch, in float64."""
        part = self.parts[client]
        if len(part) > self.size:
            part = part[Generator(self.root, "batch", round, step, client).chosen(len(part), self.size)]
        return _cross_entropy(_logits(model, self.x[part]), self.y[part])

    def tested(self, model: Model) -> tuple[float, float]:
        """Loss and accuracy of an evaluation."""
        logits = _logits(model, self.test_x)
        return _cross_entropy(logits, self.test_y), float((logits.argmax(axis=1) == self.test_y).mean())


def normalised(pixels: np.ndarray, mean: float = 0.1307, deviation: float = 0.3081) -> np.ndarray:
    """Three operations of float32, in this order."""
    return (pixels.astype(np.float32) / np.float32(255) - np.float32(mean)) / np.float32(deviation)


def _cross_entropy(logits: np.ndarray, labels: np.ndarray) -> float:
    top = logits.max(axis=1, keepdims=True)
    normal = top[:, 0] + np.log(np.exp(logits - top).sum(axis=1))
    return float((normal - logits[np.arange(len(labels)), labels]).mean())


def parts(
    partition: Mapping[str, Any], y: np.ndarray, clients: int, root: bytes, tables: Tables | None = None
) -> list[np.ndarray]:
    """Samples of every client, by their indices. tables: NumPy's, to do without its generator."""
    if partition["kind"] == "iid":
        order = np.array(Generator(root, "partition").permuted(len(y)))
        return [np.sort(part) for part in np.array_split(order, clients)]
    if partition["kind"] == "shards":
        each = partition["per_client"]
        shards = np.array_split(np.argsort(y, kind="stable"), clients * each)
        order = np.array(Generator(root, "partition").permuted(len(shards)))
        return [np.sort(np.concatenate([shards[s] for s in mine])) for mine in order.reshape(clients, each)]
    draw = np.random.Generator(np.random.Philox(key=derived(root, "partition")))
    ours = None if tables is None else Fractions(tables, root, "partition")
    found: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for label in np.unique(y):
        members = np.flatnonzero(y == label)
        if ours is None:
            members, shares = draw.permutation(members), draw.dirichlet(np.full(clients, partition["alpha"]))
        else:
            members, shares = members[ours.permuted(len(members))], ours.dirichlet(partition["alpha"], clients)
        cuts = np.round(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
        for client, piece in enumerate(np.split(members, cuts)):
            found[client].append(piece)
    given = [np.sort(np.concatenate(pieces)) for pieces in found]
    for client in [c for c in range(clients) if not len(given[c])]:
        largest = int(np.argmax([len(part) for part in given]))
        given[client], given[largest] = given[largest][:1], given[largest][1:]
    return given


def _logits(model: Model, images: np.ndarray) -> np.ndarray:
    """In float64, of float32 parameters and images (n, 28, 28)."""
    model, x = {name: tensor.astype(np.float64) for name, tensor in model.items()}, images.astype(np.float64)
    if "linear1.weight" in model:
        h = x.reshape(len(x), -1) @ model["linear1.weight"].T + model["linear1.bias"]
        return np.maximum(h, 0) @ model["linear2.weight"].T + model["linear2.bias"]
    h = x[:, None]
    for name in ("conv1", "conv2"):
        h = np.pad(h, ((0, 0), (0, 0), (2, 2), (2, 2)))
        windows = np.lib.stride_tricks.sliding_window_view(h, (5, 5), (2, 3))
        h = np.tensordot(windows, model[f"{name}.weight"], ((1, 4, 5), (1, 2, 3))).transpose(0, 3, 1, 2)
        h = h + model[f"{name}.bias"][:, None, None]
        n, channels, side, _ = h.shape
        h = np.maximum(h.reshape(n, channels, side // 2, 2, side // 2, 2).max(axis=(3, 5)), 0)
    return h.reshape(len(x), -1) @ model["linear.weight"].T + model["linear.bias"]
