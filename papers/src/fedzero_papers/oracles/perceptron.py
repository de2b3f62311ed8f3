"""A perceptron of two classes with one hidden layer of sigmoid units and a sigmoid output.

    s(a) = σ(aᵀ W + b)   (h,)          o(a) = ⟨s(a), v⟩ + c
    f(x; ξ) = mean over ξ of −log P(y | a),   P(+1 | a) = σ(o(a)),   so −log P(y | a) = log(1 + e^(−y o(a)))

The hidden layer's input is linear in (W, b): at x + Σ c z it is that of x and of each z, added up in float64, so the
expensive products with the d features are made once a direction, and rounding in them is common to the points whose
difference is taken. W is stored as (d, h): the weights of a feature lie together, which is what sparse rows read.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedzero.directions import Terms
from fedzero.model.params import Params
from fedzero.oracles.combination import Combination
from fedzero.oracles.contract import F64, Basis
from fedzero_papers.oracles.linear import BinaryObjective, Samples
from fedzero_papers.oracles.rows import Rows

TENSORS = ("hidden.weight", "hidden.bias", "output.weight", "output.bias")
"""W (d, h), b (h,), v (1, h), c (1,)"""


def tensors(features: int, hidden: int) -> dict[str, Tensor]:
    """Zeros in the shapes of the parameters."""
    shapes = ((features, hidden), (hidden,), (1, hidden), (1,))
    return {name: torch.zeros(shape) for name, shape in zip(TENSORS, shapes, strict=True)}


class PerceptronObjective(BinaryObjective):
    """x is W, b, v and c; the loss is −log P, which is the logistic one of o(a)."""

    def losses(
        self, base: Params, points: Sequence[Terms], batches: Sequence[Samples], basis: Basis | None = None
    ) -> F64:
        combination = Combination.of(points, basis)
        inputs, small = self._linear_parts(base, combination, [rows for rows, _ in batches], basis)
        return np.stack(
            [
                self.loss.value(labels * _outputs(combination.weights, table, small)).mean(axis=1)
                for (_, labels), table in zip(batches, inputs, strict=True)
            ]
        )

    def _linear_parts(
        self, base: Params, combination: Combination, batches: Sequence[Rows], basis: Basis | None
    ) -> tuple[list[F64], list[F64]]:
        """For every u_j: aᵀ W_j of every batch, (u, n, h) each; and b_j (u, h), v_j (u, h), c_j (u, 1)."""
        count, shape = combination.weights.shape[1], base.tensors[TENSORS[0]].shape
        inputs = [np.empty((count, len(rows), shape[1])) for rows in batches]
        some = [rows.groups(shape[1]) for rows in batches]
        groups = None if any(s is None for s in some) else np.unique(np.concatenate([s for s in some if s is not None]))
        for columns, vectors in self._vectors(base, 0, combination, basis, groups):
            for rows, table in zip(batches, inputs, strict=True):
                table[columns] = rows.through(vectors.reshape(-1, *shape))
        small = [np.empty((count, base.tensors[name].numel())) for name in TENSORS[1:]]
        for ordinal, numbers in enumerate(small, start=1):
            for columns, vectors in self._vectors(base, ordinal, combination, basis):
                numbers[columns] = vectors
        return inputs, small

    def scores(self, params: Params, rows: Rows) -> F64:
        """o(a) of every row."""
        alone = Combination((), np.ones((1, 1)))
        (inputs,), small = self._linear_parts(params, alone, [rows], None)
        scores: F64 = _outputs(alone.weights, inputs, small)[0]
        return scores

    def gradient(self, base: Params, batch: Samples) -> tuple[float, Tensor]:
        rows, labels = batch
        W, b, v, c = (base.tensors[name].float().cpu().numpy() for name in TENSORS)
        units = _sigmoid(rows.through(W[None])[0].astype(np.float64) + b)
        margins = labels * (units @ v[0] + c)
        outer = self.loss.slope(margins) * labels / len(rows)  # ∂f/∂o
        inner = outer[:, None] * v * units * (1 - units)  # ∂f/∂(aᵀ W + b)
        pieces = (rows.back(inner), inner.sum(axis=0), outer @ units, outer.sum(keepdims=True))
        gradient = torch.cat([torch.from_numpy(piece).reshape(-1).float() for piece in pieces])
        return float(self.loss.value(margins).mean()), gradient.to(base.device)


def _outputs(weights: F64, inputs: F64, small: Sequence[F64]) -> F64:
    """o of every sample at every point, (points, n)."""
    b, v, c = (weights @ table for table in small)
    parts, n, h = inputs.shape
    units = _sigmoid((weights @ inputs.reshape(parts, n * h)).reshape(-1, n, h) + b[:, None])
    outputs: F64 = (units @ v[:, :, None])[:, :, 0] + c
    return outputs


def _sigmoid(t: F64) -> F64:
    """σ(t) = ½ + ½ tanh(t/2), which never overflows."""
    half = np.tanh(0.5 * t)
    half *= 0.5
    half += 0.5
    return half
