"""ZOFedHT, seeded, on the quadratic (docs/ledger.md, "Methods"): central differences along v = √(1−α) v1 + √α Q v2."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from recompute.quadratic import Quadratic
from recompute.rounds import rate_at
from recompute.stream import GAUSSIAN, derived, direction, folded

NO_TENSOR = 2**32 - 1


def combined(columns: Sequence[np.ndarray], factors: np.ndarray) -> np.ndarray:
    """Σ_j factors[j] columns[j] in float32, from zero, one product and one sum at a time."""
    total = np.zeros_like(columns[0])
    for column, factor in zip(columns, factors.astype(np.float32), strict=True):
        total = total + column * factor
    return total


class ZOFedHT:
    def __init__(self, recipe: Mapping[str, Any], root: bytes):
        self.a, self.root, self.task = recipe["algorithm"], root, Quadratic(recipe, root)
        self.x = np.zeros(self.task.d, np.float32)
        self.changes = [np.zeros_like(self.x)] * self.a["tau"]
        self.Q: list[np.ndarray] | None = None

    @property
    def isotropic(self) -> float:
        return 1.0 if self.Q is None else math.sqrt(1 - self.a["alpha"])

    def keys(self, round: int, step: int, client: int) -> list[int]:
        return [derived(self.root, "direction", round, step, p, client) for p in range(self.a["directions"])]

    def v2(self, key: int) -> np.ndarray:
        return direction(GAUSSIAN, key, NO_TENSOR, self.a["tau"]).astype(np.float64)

    def terms(self, keys: Sequence[int], g: np.ndarray, factor: float) -> list[tuple[int, np.float32]]:
        return list(zip(keys, (factor / len(keys) * g.astype(np.float64)).astype(np.float32), strict=True))

    def along(self, keys: Sequence[int], g: np.ndarray, factor: float) -> np.ndarray:
        total = np.zeros(self.a["tau"])
        for key, slope in zip(keys, g.astype(np.float64), strict=True):
            total += slope * self.v2(key)
        return factor * math.sqrt(self.a["alpha"]) / len(keys) * total

    def client(self, round: int, client: int) -> np.ndarray:
        """K·P scalars."""
        a, x, walked, g = self.a, self.x, np.zeros(self.a["tau"]), []
        rate = rate_at(a["rate"], round)
        for k in range(a["local_steps"]):
            keys, slopes = self.keys(round, k, client), []
            for key in keys:
                f = [self._value(x, walked, key, sign, (round, k, client)) for sign in (1, -1)]
                slopes.append((f[0] - f[1]) / (2 * a["radius"]))
            g.append(np.array(slopes, np.float32))
            x = folded({"x": x}, GAUSSIAN, self.terms(keys, g[k], -rate * self.isotropic))["x"]
            walked = walked + self.along(keys, g[k], -rate)
        return np.concatenate(g)

    def _value(self, x: np.ndarray, walked: np.ndarray, key: int, sign: int, batch: tuple[int, int, int]) -> float:
        radius = self.a["radius"]
        point = folded({"x": x}, GAUSSIAN, [(key, np.float32(sign * (radius * self.isotropic)))])["x"].astype(
            np.float64
        )
        if self.Q is not None:
            point += combined(self.Q, walked + sign * (radius * math.sqrt(self.a["alpha"]) * self.v2(key)))
        return self.task.value(point, *batch)

    def change(self, round: int, scalars: np.ndarray, clients: Sequence[int]) -> np.ndarray:
        """Δ_r; `clients` has each as often as it was drawn, `scalars` a row for each."""
        drawn, K = Counter(clients), self.a["local_steps"]
        rows, rate = scalars.reshape(len(drawn), K, -1), rate_at(self.a["rate"], round)
        terms: list[tuple[int, np.float32]] = []
        along = np.zeros(self.a["tau"])
        for client, row in zip(sorted(drawn), rows, strict=True):
            share = drawn[client] / len(clients)
            for k, g in enumerate(row):
                keys = self.keys(round, k, client)
                terms += self.terms(keys, g, share * (-rate * self.isotropic))
                along += self.along(keys, g, -rate * share)
        delta = folded({"x": np.zeros_like(self.x)}, GAUSSIAN, terms)["x"]
        return delta if self.Q is None else delta + combined(self.Q, along)

    def triangle(self, round: int, delta: np.ndarray) -> np.ndarray:
        """T of the last round of a block, float32: [Δ_r Δ_{r−1} …] T has orthonormal columns."""
        tau = self.a["tau"]
        history = np.stack([delta, *(self.changes[(round - j) % tau] for j in range(1, tau))]).astype(np.float64)
        gram, T = history @ history.T, np.zeros((tau, tau))
        for j in range(tau):
            t = np.eye(tau)[j]
            for _ in range(2):
                t = t - T @ (T.T @ (gram @ t))
            square = t @ gram @ t
            if square > 1e-10 * gram[j, j]:
                T[:, j] = t / np.sqrt(square)
        return T.astype(np.float32)

    def apply(self, round: int, delta: np.ndarray, T: np.ndarray | None) -> None:
        tau = self.a["tau"]
        self.x = self.x + delta
        self.changes = [delta if place == round % tau else old for place, old in enumerate(self.changes)]
        if T is not None:
            history = [self.changes[(round - j) % tau] for j in range(tau)]
            self.Q = [combined(history, T[:, j]) for j in range(tau)]
