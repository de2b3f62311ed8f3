"""The quadratic: f_i(x; ξ) = ½ Σ_j a_j (x_j − b_ij)² + ⟨ξ, x⟩ (docs/ledger.md, "Tasks")."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from recompute.stream import derived


def normal(root: bytes, purpose: str, numbers: tuple[int, ...], shape: tuple[int, ...]) -> np.ndarray:
    key = derived(root, purpose, *numbers)
    return np.random.Generator(np.random.Philox(key=key)).standard_normal(shape)


class Quadratic:
    def __init__(self, recipe: Mapping[str, Any], root: bytes):
        task = recipe["task"]
        self.root, self.d, self.noise = root, task["dimension"], task["noise"]
        clients = recipe["federation"]["clients"]
        self.centres = 1.0 + task["spread"] * normal(root, "quadratic", (), (clients, self.d))
        self.curvature = np.linspace(1.0, task["condition"], self.d)

    def tilt(self, round: int, step: int, client: int) -> np.ndarray:
        """ξ of a mini-batch."""
        return self.noise * normal(self.root, "batch", (round, step, client), (self.d,))

    def value(self, x: np.ndarray, round: int, step: int, client: int) -> float:
        away = x - self.centres[client]
        return float(0.5 * (away**2) @ self.curvature + x @ self.tilt(round, step, client))

    def gradient(self, x: np.ndarray, round: int, step: int, client: int) -> np.ndarray:
        tilt = self.tilt(round, step, client)
        return (self.curvature * (x.astype(np.float64) - self.centres[client]) + tilt).astype(np.float32)
