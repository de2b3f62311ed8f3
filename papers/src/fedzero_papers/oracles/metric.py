"""One minus a classification metric, as a function of a change of a classifier's weights (experiment E7; 002, G.3).

    θ = θ* + bound · (2u − 1)         weights of an MLP with ReLU, trained before; parameters u in [0, 1]^d
    f_i(u) = 1 − metric(y, ŷ)         labels y of the client's rows, ŷ the classes with the largest output under θ

Precision, recall, F1 and Jaccard score are means over the classes that occur among the labels or the predictions, as
scikit-learn has them (average = "macro", zero_division = 0). They are functions of the confusion matrix: counts of
(label, prediction) pairs, of which there are few, so many points cost little more than their matrix products.
scikit-learn itself takes a millisecond a point; the tests find both equal to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedzero.directions import Terms
from fedzero.errors import FedzeroError
from fedzero.model.params import Params
from fedzero.oracles.contract import F64, Basis, Metrics
from fedzero_papers.oracles.boxed import change, changes, each_once

Metric = Literal["precision", "recall", "f1", "jaccard"]
TOGETHER = 1 << 22
"""Numbers of the widest layer held at a time; more points are evaluated in portions."""


@dataclass(frozen=True, eq=False)
class Rows:
    """What a client has: features (n, inputs), labels (n,)."""

    x: Tensor
    y: NDArray[np.int64]


def confusion(labels: NDArray[np.int64], predictions: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """How often a label met a prediction, (points, classes, classes), of labels (n,) and predictions (points, n)."""
    points = len(predictions)
    pairs = (np.arange(points)[:, None] * classes + labels) * classes + predictions
    counts = np.bincount(pairs.ravel(), minlength=points * classes**2)
    return counts.reshape(points, classes, classes)


def scores(metric: Metric, counts: NDArray[np.int64]) -> F64:
    """The metric of every confusion matrix (points, classes, classes)."""
    right = np.einsum("pcc->pc", counts)
    truly, said = counts.sum(axis=2), counts.sum(axis=1)
    above, below = {
        "precision": (right, said),
        "recall": (right, truly),
        "f1": (2 * right, truly + said),
        "jaccard": (right, truly + said - right),
    }[metric]
    each = np.divide(above, below, out=np.zeros(right.shape), where=below > 0)
    occurring = (truly + said > 0).sum(axis=1)
    values: F64 = each.sum(axis=1) / occurring  # classes that do not occur add zeros, which change no bit
    return values


class MetricObjective:
    """`start` are the weights θ* of an MLP: a weight (outputs, inputs) and a bias for every layer, in their order."""

    def __init__(self, metric: Metric, start: Sequence[Tensor], rows: Sequence[Rows], bound: float):
        self.metric, self.rows, self.bound = metric, rows, bound
        self.shapes = [tensor.shape for tensor in start]
        self.start = torch.cat([tensor.reshape(-1) for tensor in start])
        self.classes = len(start[-1])

    def losses(self, base: Params, points: Sequence[Terms], batches: Sequence[Rows], basis: Basis | None = None) -> F64:
        weights = self.start + changes(base, points, basis, self.bound)
        return np.stack(each_once(lambda rows: 1 - self._scores(weights, rows), batches))

    def gradient(self, base: Params, batch: Rows) -> tuple[float, Tensor]:
        raise FedzeroError("task.kind = 'metric' counts right answers and has no gradient: use a zeroth-order method")

    def evaluate(self, params: Params) -> Metrics:
        """Means over all clients."""
        weights = (self.start + change(params.vector(), self.bound))[None]
        measured = [float(self._scores(weights, rows)[0]) for rows in self.rows]
        return Metrics(loss=float(np.mean([1 - m for m in measured])), others={"metric": float(np.mean(measured))})

    def _scores(self, weights: Tensor, rows: Rows) -> F64:
        """The metric of every set of weights (points, d), (points,)."""
        return scores(self.metric, confusion(rows.y, self._predictions(weights, rows.x), self.classes))

    def _predictions(self, weights: Tensor, x: Tensor) -> NDArray[np.int64]:
        """The class with the largest output, (points, n), of weights (points, d) and rows x (n, inputs)."""
        widest = max(shape[0] for shape in self.shapes) * len(x)
        parts = [self._outputs(some, x).argmax(dim=2) for some in torch.split(weights, max(1, TOGETHER // widest))]
        predictions: NDArray[np.int64] = torch.cat(parts).cpu().numpy()
        return predictions

    def _outputs(self, weights: Tensor, x: Tensor) -> Tensor:
        """(points, n, classes): all points' layers as batched products."""
        h = x.expand(len(weights), *x.shape)
        pieces = torch.split(weights, [shape.numel() for shape in self.shapes], dim=1)
        layers = list(zip(pieces[0::2], pieces[1::2], self.shapes[0::2], strict=True))
        for number, (matrix, bias, (outputs, inputs)) in enumerate(layers):
            h = torch.relu(h) if number else h
            h = torch.baddbmm(bias[:, None], h, matrix.reshape(-1, outputs, inputs).transpose(1, 2))
        return h
