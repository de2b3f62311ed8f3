"""The packaged digits: partition, batches, first model and loss of its CNN (docs/ledger.md, "Tasks")."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from recompute.generator import Generator
from recompute.stream import GAUSSIAN, Model, derived, direction

SHAPES = {
    "conv1.weight": (16, 1, 5, 5),
    "conv1.bias": (16,),
    "conv2.weight": (32, 16, 5, 5),
    "conv2.bias": (32,),
    "linear.weight": (10, 1568),
    "linear.bias": (10,),
}


def first_model(root: bytes) -> Model:
    key, fan_in, model = derived(root, "init"), 1, {}
    for ordinal, (name, shape) in enumerate(SHAPES.items()):
        if len(shape) > 1:
            fan_in = math.prod(shape[1:])
        scale = np.float32(1) / np.float32(math.sqrt(3 * fan_in))
        model[name] = (direction(GAUSSIAN, key, ordinal, math.prod(shape)) * scale).reshape(shape)
    return model


class Digits:
    def __init__(self, path: Path, recipe: Mapping[str, Any], root: bytes):
        with np.load(path) as data:
            x, self.y = data["train_x"].astype(np.float32), data["train_y"].astype(np.int64)
        self.x = (x / np.float32(255) - np.float32(0.1307)) / np.float32(0.3081)
        self.root, self.size = root, recipe["task"]["batch"]
        self.parts = parts(recipe["task"]["partition"], self.y, recipe["federation"]["clients"], root)

    def loss(self, model: Model, round: int, step: int, client: int) -> float:
        """Mean cross-entropy of a client's mini-batch, in float64."""
        part = self.parts[client]
        if len(part) > self.size:
            part = part[Generator(self.root, "batch", round, step, client).chosen(len(part), self.size)]
        logits = _logits({name: x.astype(np.float64) for name, x in model.items()}, self.x[part].astype(np.float64))
        top = logits.max(axis=1, keepdims=True)
        normal = top[:, 0] + np.log(np.exp(logits - top).sum(axis=1))
        return float((normal - logits[np.arange(len(part)), self.y[part]]).mean())


def parts(partition: Mapping[str, Any], y: np.ndarray, clients: int, root: bytes) -> list[np.ndarray]:
    """Samples of every client, by their indices."""
    if partition["kind"] == "iid":
        order = np.array(Generator(root, "partition").permuted(len(y)))
        return [np.sort(part) for part in np.array_split(order, clients)]
    if partition["kind"] == "shards":
        each = partition["per_client"]
        shards = np.array_split(np.argsort(y, kind="stable"), clients * each)
        order = np.array(Generator(root, "partition").permuted(len(shards)))
        return [np.sort(np.concatenate([shards[s] for s in mine])) for mine in order.reshape(clients, each)]
    draw = np.random.Generator(np.random.Philox(key=derived(root, "partition")))
    found: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for label in np.unique(y):
        members = draw.permutation(np.flatnonzero(y == label))
        shares = draw.dirichlet(np.full(clients, partition["alpha"]))
        cuts = np.round(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
        for client, piece in enumerate(np.split(members, cuts)):
            found[client].append(piece)
    given = [np.sort(np.concatenate(pieces)) for pieces in found]
    for client in [c for c in range(clients) if not len(given[c])]:
        largest = int(np.argmax([len(part) for part in given]))
        given[client], given[largest] = given[largest][:1], given[largest][1:]
    return given


def _logits(model: Model, x: np.ndarray) -> np.ndarray:
    h = x[:, None]
    for name in ("conv1", "conv2"):
        h = np.pad(h, ((0, 0), (0, 0), (2, 2), (2, 2)))
        windows = np.lib.stride_tricks.sliding_window_view(h, (5, 5), (2, 3))
        h = np.tensordot(windows, model[f"{name}.weight"], ((1, 4, 5), (1, 2, 3))).transpose(0, 3, 1, 2)
        h = h + model[f"{name}.bias"][:, None, None]
        n, channels, side, _ = h.shape
        h = np.maximum(h.reshape(n, channels, side // 2, 2, side // 2, 2).max(axis=(3, 5)), 0)
    return h.reshape(len(x), -1) @ model["linear.weight"].T + model["linear.bias"]
