"""Random Fourier features (Rahimi and Recht, 2007): a surrogate that M numbers describe.

    φ_j(x) = √(2/M) cos(v_j·x + b_j),   v ~ N(0, I/ℓ²),   b ~ U[0, 2π]        φ(x)·φ(x') ≈ exp(−‖x − x'‖²/2ℓ²)
    w = Φ (ΦᵀΦ + σ²I)⁻¹ y                                                   M numbers for n observations
    ∇μ̂(x) = ∇φ(x)ᵀ w = −√(2/M) Σ_j w_j sin(v_j·x + b_j) v_j

(The FZooS paper's appendix D prints 2/√M; that is not a kernel with k(x, x) = 1.)
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from fedzero.directions import Keys
from fedzero.estimators.surrogate.factor import Factor, NotPositive
from fedzero.estimators.surrogate.growable import append_rows


class Features:
    """M features of points in d dimensions. Frequencies and phases are float64, 8 M (d + 1) bytes.

    ΦᵀΦ + σ²I is almost singular (queries lie close together, σ² = 1e-5): with float32 features the weights were off by
    per cents and depended on the order of summation.
    """

    def __init__(self, frequencies: Tensor, phases: Tensor):
        self.frequencies, self.phases = frequencies, phases
        self.amplitude = math.sqrt(2 / len(phases))

    @property
    def count(self) -> int:
        return len(self.phases)

    def values(self, points: Tensor) -> Tensor:
        """Φᵀ: φ of every point, (n, M), float64."""
        angles = torch.addmm(self.phases, points.double(), self.frequencies.T)
        return angles.cos_().mul_(self.amplitude)

    def gradient(self, weights: Tensor, point: Tensor) -> Tensor:
        """∇φ(x)ᵀ w, (d,), float64."""
        angles = torch.addmv(self.phases, self.frequencies, point.double())
        return angles.sin_().mul_(weights.double()).mul_(-self.amplitude) @ self.frequencies


@lru_cache(maxsize=2)
def features_of(keys: Keys, count: int, dimension: int, scale: float) -> Features:
    """The features that all clients of a run share: a function of its keys, drawn in float32."""
    generator = keys.generator("features")
    frequencies = generator.standard_normal((count, dimension), np.float32) / np.float32(scale)
    phases = (generator.random(count, np.float32) * np.float32(2 * math.pi)).astype(np.float32)
    return Features(torch.from_numpy(frequencies).double(), torch.from_numpy(phases).double())


class FeatureHistory:
    """Observations as features: Φ, 8 n M bytes, and the factor of ΦᵀΦ + σ²I, 8 n², grown row by row."""

    def __init__(self, features: Features, noise: float):
        self.features, self.noise = features, noise
        self.factor = Factor()
        self._rows = torch.empty(0, features.count, dtype=torch.float64)
        self.jitter = 0.0

    @property
    def rows(self) -> Tensor:
        """Φᵀ, (n, M)"""
        return self._rows[: self.factor.size]

    @property
    def bytes(self) -> int:
        return self._rows.nbytes + self.factor.bytes

    def append(self, points: Tensor) -> None:
        n, fresh = self.factor.size, self.features.values(points)
        self._rows = append_rows(self._rows, n, fresh)
        self._grow(n, n + len(fresh))

    def _grow(self, first: int, last: int) -> None:
        new = self._rows[first:last]
        cross, corner = new @ self._rows[:first].T, new @ new.T
        corner.diagonal().add_(self.noise + self.jitter)
        try:
            self.factor.append(cross, corner)
        except NotPositive:
            self.jitter = max(10 * self.jitter, 1e-10, self.noise)
            self.factor = Factor()
            self._grow(0, last)

    def weights(self, outputs: Tensor) -> Tensor:
        """w, (M,), float64"""
        return self.factor.solve(outputs) @ self.rows


def weights_of(features: Features, points: Tensor, outputs: Tensor, noise: float) -> Tensor:
    """w from a few observations at once."""
    history = FeatureHistory(features, noise)
    history.append(points)
    return history.weights(outputs)
