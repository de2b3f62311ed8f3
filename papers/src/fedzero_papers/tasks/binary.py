"""Two classes, with logistic regression, a linear SVM or a small perceptron (experiment E8)."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedzero.errors import FedzeroError
from fedzero.model.numbers import PositiveInt
from fedzero.model.params import Params
from fedzero.oracles.contract import F64
from fedzero.tasks import images
from fedzero.tasks.contract import BuildContext, Problem, Task
from fedzero.tasks.models import initialise
from fedzero.tasks.partition import DrawnShards, Iid, Partition, split
from fedzero_papers.oracles import perceptron
from fedzero_papers.oracles.linear import HINGE, LOGISTIC, LinearObjective, Samples
from fedzero_papers.oracles.perceptron import PerceptronObjective
from fedzero_papers.oracles.rows import DenseRows
from fedzero_papers.tasks import rcv1

MODELS = {"logistic": "logistic regression", "svm": "linear SVM", "mlp": "MLP"}
DATASETS = {"mnist": "MNIST 0–4 against 5–9", "fashion": "Fashion-MNIST 0–4 against 5–9", "rcv1": "RCV1-v2 sample"}


class Binary(Task, tag="binary"):
    """Two classes with logistic regression, a linear SVM or an MLP, on images or RCV1 (experiment E8).

    The loss reported is that over all training data, as the paper plots it; the accuracy is on the test data.

    Pixels are scaled to [0, 1], or as torchvision does it (`scaling`); RCV1 rows have unit length. Linear models have
    no bias and start at zero: d is the number of features. The MLP has biases and starts from the direction stream.

    Where the partition looks at labels, it looks at the two that are classified: the paper says that samples are
    re-classified into two categories, and then that they are sorted by their labels; RCV1 has no others. So its
    non-IID split, one part of the sorted data each, is `partition = {kind = "shards", per_client = 1}`. With
    `sorted_by = "labels"` it looks at the ten labels of images instead.

    Data and arithmetic stay on the CPU, where such small problems are fastest: choose engine.device = "cpu".
    """

    dataset: Literal["mnist", "fashion", "rcv1"] = "mnist"
    """images of digits or clothing, labels 0–4 against 5–9, or news by topic"""
    model: Literal["logistic", "svm", "mlp"] = "logistic"
    """logistic regression, a linear support-vector machine, or an MLP"""
    batch: PositiveInt = 64
    partition: Partition = Iid()
    full: bool = False
    """Images: False for the 5,000 inside the package, True for the IDX files. RCV1 always needs the data folder."""
    hidden: PositiveInt = 50
    """Units of the MLP's hidden layer."""
    scaling: Literal["unit", "standard"] = "unit"
    """pixels of images in [0, 1], or less their mean and divided by their standard deviation: ‖x‖² is then about 784"""
    sorted_by: Literal["classes", "labels"] = "classes"
    """what the partition looks at: the two classes, or the ten labels of images"""

    @property
    def label(self) -> str:
        rows = "19,000" if self.dataset == "rcv1" else "60,000" if self.full else "4,000"
        return f"{DATASETS[self.dataset]} ({rows} training rows), {MODELS[self.model]}"

    def build(self, clients: int, context: BuildContext) -> Problem:
        train, test = self._samples(context)
        parts = split(self.partition, self._labels(train, context), clients, context.keys)
        rows, labels = train
        shards = DrawnShards(parts, self.batch, lambda index: (rows.pick(index), labels[index]))
        if self.model == "mlp":
            tensors = perceptron.tensors(train[0].width, self.hidden)
            params = Params({name: tensor.to(context.device) for name, tensor in tensors.items()})
            initialise(params, context.keys.root, {"hidden.weight": train[0].width})
            return Problem(params, PerceptronObjective(LOGISTIC, train, test), shards)
        params = Params.of_vector(torch.zeros(train[0].width, device=context.device))
        loss = LOGISTIC if self.model == "logistic" else HINGE
        return Problem(params, LinearObjective(loss, train, test), shards)

    def _labels(self, train: Samples, context: BuildContext) -> NDArray[np.int64]:
        if self.sorted_by == "labels" and self.dataset != "rcv1":
            return images.load(self.dataset, self.full, context.data).train_y.astype(np.int64)
        return (train[1] > 0).astype(np.int64)

    def _samples(self, context: BuildContext) -> tuple[Samples, Samples]:
        """Training and test data."""
        if self.dataset != "rcv1":
            data = images.load(self.dataset, self.full, context.data)
            mean, deviation = images.STATISTICS[self.dataset] if self.scaling == "standard" else (0.0, 1.0)
            train = _halves(data.train_x, data.train_y, mean, deviation)
            return train, _halves(data.test_x, data.test_y, mean, deviation)
        if context.data is None:
            raise FedzeroError(
                "task.dataset = 'rcv1' is for research use and not in the package: give --data DIR or set FEDZERO_DATA"
            )
        rows, labels = rcv1.load(context.data)
        if len(rows) <= rcv1.TRAIN:
            raise FedzeroError(f"{context.data / rcv1.FILE} has {len(rows)} rows: {rcv1.TRAIN} are for training alone")
        first, rest = np.split(np.arange(len(rows)), [rcv1.TRAIN])
        return (rows.pick(first), labels[first]), (rows.pick(rest), labels[rest])


def _halves(x: NDArray[np.uint8], y: NDArray[np.uint8], mean: float, deviation: float) -> Samples:
    """Images as rows of (pixel/255 − mean) / deviation; −1 for the classes 0–4 and +1 for 5–9."""
    pixels = (x.reshape(len(x), -1).astype(np.float32) / np.float32(255) - np.float32(mean)) / np.float32(deviation)
    labels: F64 = np.where(y >= 5, 1.0, -1.0)
    return DenseRows(pixels), labels
