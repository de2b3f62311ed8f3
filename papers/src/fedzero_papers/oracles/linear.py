"""Linear models of two classes: logistic regression and the linear support vector machine.

    f(x; ξ) = mean over the rows a of ξ, labelled y = ±1, of φ(y ⟨a, x⟩)
    logistic  φ(m) = log(1 + e^(−m))          hinge  φ(m) = max(0, 1 − m)

The margin is linear in x, so the margins at x + Σ c z are those of x and of each z, added up: one product with the
batch serves all points of a step, and what it costs does not depend on how many points share its directions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedzero.directions import Terms
from fedzero.model.params import Params
from fedzero.oracles.combination import Combination, Vectors
from fedzero.oracles.contract import F64, Basis, Metrics
from fedzero_papers.oracles.rows import Rows

Samples = tuple[Rows, F64]
"""Rows (n, d) and their labels ±1 (n,)."""


@dataclass(frozen=True)
class MarginLoss:
    """φ and φ′, elementwise."""

    value: Callable[[F64], F64]
    slope: Callable[[F64], F64]


def _softplus(m: F64) -> F64:
    return np.logaddexp(0, -m)


def _softplus_slope(m: F64) -> F64:
    slope: F64 = 0.5 * np.tanh(0.5 * m) - 0.5  # −1/(1 + e^m) without overflow
    return slope


def _hinge(m: F64) -> F64:
    return np.maximum(0, 1 - m)


def _hinge_slope(m: F64) -> F64:
    return np.where(m < 1, -1.0, 0.0)


LOGISTIC = MarginLoss(_softplus, _softplus_slope)
HINGE = MarginLoss(_hinge, _hinge_slope)


class BinaryObjective:
    """What models of two classes share: the loss of all of `train` is reported, and the accuracy on `test`."""

    def __init__(self, loss: MarginLoss, train: Samples, test: Samples):
        self.loss, self.train, self.test = loss, train, test
        self._vectors = Vectors()

    def scores(self, params: Params, rows: Rows) -> F64:
        """What is positive for +1, of every row."""
        raise NotImplementedError

    def evaluate(self, params: Params) -> Metrics:
        loss = self.loss.value(self.train[1] * self.scores(params, self.train[0])).mean()
        right = (self.scores(params, self.test[0]) > 0) == (self.test[1] > 0)
        return Metrics(loss=float(loss), accuracy=float(right.mean()))


class LinearObjective(BinaryObjective):
    """x is one tensor of d numbers, no bias."""

    def losses(
        self, base: Params, points: Sequence[Terms], batches: Sequence[Samples], basis: Basis | None = None
    ) -> F64:
        combination = Combination.of(points, basis)
        margins = [np.empty((len(rows), combination.weights.shape[1])) for rows, _ in batches]
        for columns, vectors in self._vectors(base, 0, combination, basis):
            for (rows, _), table in zip(batches, margins, strict=True):
                table[:, columns] = rows.along(vectors)
        out = np.empty((len(batches), len(points)))
        for values, (_, labels), table in zip(out, batches, margins, strict=True):
            values[:] = self.loss.value((combination.weights @ table.T) * labels).sum(axis=1) / len(labels)
        return out

    def gradient(self, base: Params, batch: Samples) -> tuple[float, Tensor]:
        rows, labels = batch
        margins = labels * self.scores(base, rows)
        residuals = self.loss.slope(margins) * labels / len(rows)
        gradient = torch.from_numpy(rows.back(residuals[:, None])[:, 0])
        return float(self.loss.value(margins).mean()), gradient.to(base.device)

    def scores(self, params: Params, rows: Rows) -> F64:
        """⟨a, x⟩ of every row."""
        scores: F64 = rows.along(params.vector().cpu().numpy()[None])[:, 0]
        return scores
