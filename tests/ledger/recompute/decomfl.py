"""DeComFL (docs/ledger.md, "Methods"): the model from the scalars on record, and the scalars from the draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from recompute.file import File, floats
from recompute.rounds import rate_at
from recompute.stream import GAUSSIAN, RADEMACHER, RANK1, SHARED, Model, derived, folded

Loss = Callable[[Model, int, int, int], float]
"""(model, round, step, client) → loss on the mini-batch of that step"""
Part = tuple[int, np.ndarray]
"""(round that was asked, scalars of its directions)"""


def parts_of(update: Sequence[Any]) -> list[Part]:
    """What a decoded update is the sum of."""
    kind, round, *rest = update
    assert kind in (1, 3)
    if kind == 1:
        return [(round, floats(rest[0]))]
    asked = [group[0] for group in rest[0]]
    assert asked == sorted(set(asked)) and asked[-1] <= round
    return [(group[0], floats(group[1])) for group in rest[0]]


class DeComFL:
    """SGD or momentum, forward or central differences; float32."""

    def __init__(self, recipe: Mapping[str, Any], root: bytes, model: Model):
        self.a, self.root, self.model = recipe["algorithm"], root, model
        self.domain = {"gaussian": GAUSSIAN, "rademacher": RADEMACHER, "rank1": RANK1}[self.a["distribution"]]
        self.momentum = self.a["optimizer"]["kind"] == "momentum"
        self.M = {name: np.zeros_like(x) for name, x in model.items()}

    def keys(self, round: int, step: int) -> list[int]:
        return [derived(self.root, "direction", round, step, p, SHARED) for p in range(self.a["directions"])]

    def stepped(self, round: int, first: int, parts: Sequence[Part], x: Model, M: Model) -> tuple[Model, Model]:
        """(x, M) after local steps `first`, `first` + 1, … with scalars (steps, P) of each part."""
        rate, P = rate_at(self.a["rate"], round), self.a["directions"]
        factor = (1.0 if self.momentum else -rate) / P
        for k, rows in enumerate(zip(*(g.astype(np.float64) for _, g in parts), strict=True), first):
            terms: list[tuple[int, np.float32]] = []
            for (asked, _), row in zip(parts, rows, strict=True):
                terms += zip(self.keys(asked, k), (factor * row).astype(np.float32), strict=True)
            if not self.momentum:
                x = folded(x, self.domain, terms)
                continue
            G = folded({name: np.zeros_like(each) for name, each in x.items()}, self.domain, terms)
            eta, beta, rest = np.array([rate, self.a["optimizer"]["beta"], 1 - self.a["optimizer"]["beta"]], np.float32)
            M = {name: beta * M[name] + rest * G[name] for name in x}
            x = {name: x[name] - eta * M[name] for name in x}
        return x, M

    def apply(self, round: int, parts: Sequence[Part]) -> None:
        shape = self.a["local_steps"], self.a["directions"]
        shaped = [(asked, scalars.reshape(shape)) for asked, scalars in parts]
        self.model, self.M = self.stepped(round, 0, shaped, self.model, self.M)

    def client(self, round: int, client: int, loss: Loss) -> tuple[np.ndarray, float, int]:
        """(scalars, loss at the start, queries) of a turn."""
        K, P, radius = self.a["local_steps"], self.a["directions"], self.a["radius"]
        g, x, M, first, queries = np.empty((K, P), np.float32), self.model, self.M, 0.0, 0
        for k in range(K):
            signs = (1, -1) if self.a["difference"] == "central" else (1,)
            offsets = [[(key, np.float32(sign * radius))] for key in self.keys(round, k) for sign in signs]
            points = [*([] if len(signs) == 2 else [[]]), *offsets]
            f = np.array([loss(folded(x, self.domain, terms), round, k, client) for terms in points])
            g[k] = (f[0::2] - f[1::2]) / (2 * radius) if len(signs) == 2 else (f[1:] - f[0]) / radius
            first = first if k else float(f.mean() if len(signs) == 2 else f[0])
            queries += len(points)
            if k + 1 < K:
                x, M = self.stepped(round, k, [(round, g[k : k + 1])], x, M)
        return g.reshape(-1), first, queries


def replayed(file: File, method: DeComFL) -> Iterator[tuple[dict[str, Any], list[Part]]]:
    """Every round with its scalars, while `method` stands before it; it is applied when the next one is asked for."""
    for record in file.rounds:
        update = msgspec.msgpack.decode(record["update"])
        assert update[1] == record["round"]
        yield record, parts_of(update)
        method.apply(record["round"], parts_of(update))
