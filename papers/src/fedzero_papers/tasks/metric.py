"""Tune a trained classifier for a metric that has no gradient (experiment E7).

Reading of the paper (002, G.3). A 3-layer MLP is trained with cross-entropy, then a bounded change of its weights is
sought that is best for clients whose test data have P·7 of the seven classes. How many rows a client has, and in which
proportions, the paper does not say. Here it has `samples` rows, as many of each of its classes: by their natural
frequencies the rarest class would be one row in a thousand. The rows of a class are the same for every client that
holds it, so with P = 1 all clients have the same data, as in the paper.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from msgspec import Meta
from numpy.typing import NDArray
from torch import nn

from fedzero.directions import Keys
from fedzero.errors import FedzeroError
from fedzero.model.numbers import PositiveInt
from fedzero.model.params import Params
from fedzero.tasks.contract import BuildContext, Problem, Task
from fedzero_papers.oracles.boxed import MIDDLE, WholeShards
from fedzero_papers.oracles.metric import Metric, MetricObjective, Rows
from fedzero_papers.tasks import covertype
from fedzero_papers.tasks.covertype import CLASSES, Covertype, Part
from fedzero_papers.tasks.trained import Fit, Trained, accuracy, fit, trained
from fedzero_papers.tasks.victims import TunedMlp

FIT = Fit(epochs=100, batch=64, rate=5e-3)
NAMES = {"precision": "precision", "recall": "recall", "f1": "F1 score", "jaccard": "Jaccard score"}


class MetricTuning(Task, tag="metric"):
    """A change of a trained MLP's weights, best for precision, recall, F1 or Jaccard score on Covertype (E7)."""

    metric: Metric = "precision"
    """1 − this is minimised, macro-averaged"""
    share: Annotated[float, Meta(gt=0, le=1)] = 0.5
    """P: each client's data have round(7 P) classes, at least one"""
    bound: Annotated[float, Meta(gt=0)] = 1.0
    """the largest change of a weight"""
    samples: PositiveInt = 700
    """rows of a client, equally many of each of its classes (rounded down)"""
    full: bool = False
    """False: the 3,150 rows inside the package; True: the file from the data folder."""
    repetition: Annotated[int, Meta(ge=0)] = 0
    """another draw of classes and rows; what a run's seed changes is the method's luck"""

    @property
    def label(self) -> str:
        which = ("" if self.full else " (subset)") + (f", draw {self.repetition}" if self.repetition else "")
        bounds = f"changes up to {self.bound:g}, {self.samples} rows a client"
        return f"{NAMES[self.metric]} on Covertype{which}, P = {self.share:g}, {bounds}"

    def build(self, clients: int, context: BuildContext) -> Problem:
        data = covertype.load(self.full, context.data)
        model = _model(data, self.full)
        start = [tensor.detach().to(context.device) for tensor in model.module.parameters()]
        size = sum(tensor.numel() for tensor in start)
        params = Params.of_vector(torch.full((size,), MIDDLE, device=context.device))
        rows = _rows(self, data.test, clients, context.device)
        objective = MetricObjective(self.metric, start, rows, self.bound)
        facts = {
            "classifier": f"accuracy {model.accuracy:.4f} before the change",
            "digest of the classifier": model.digest,
        }
        # A metric of a mini-batch is not a part of the metric of the whole: every batch is all rows of a client.
        return Problem(params, objective, WholeShards(rows), facts)


def drawn_classes(share: float, clients: int, repetition: int) -> list[tuple[int, ...]]:
    """The classes of each client's data, sorted."""
    count = max(1, round(share * CLASSES))
    generator = Keys.of_seed(repetition).generator("metric-classes", count)
    return [tuple(sorted(generator.choice(CLASSES, count, replace=False).tolist())) for _ in range(clients)]


def _rows(task: MetricTuning, test: Part, clients: int, device: torch.device) -> list[Rows]:
    classes = drawn_classes(task.share, clients, task.repetition)
    each = task.samples // len(classes[0])
    if each == 0:
        raise FedzeroError(f"task.samples = {task.samples} is less than one row of each of {len(classes[0])} classes")
    generator = Keys.of_seed(task.repetition).generator("metric-rows")
    assign: dict[int, NDArray[np.int64]] = {}
    for label in range(CLASSES):
        assign[label] = generator.permutation(np.flatnonzero(test.y == label))[:each]
        if len(assign[label]) < each:
            raise FedzeroError(
                f"task.samples = {task.samples} wants {each} rows of each of {len(classes[0])} classes, but of class "
                f"{label + 1} there are only {len(assign[label])}: lower it"
            )
    made: dict[tuple[int, ...], Rows] = {}
    for known in classes:
        if known not in made:
            index = np.concatenate([assign[label] for label in known])
            made[known] = Rows(torch.from_numpy(test.x[index]).to(device), test.y[index])
    return [made[known] for known in classes]


def _model(data: Covertype, full: bool) -> Trained:
    def train(module: nn.Module) -> float:
        fit(module, torch.from_numpy(data.train.x), torch.from_numpy(data.train.y), FIT)
        return accuracy(module, torch.from_numpy(data.validation.x), torch.from_numpy(data.validation.y))

    source = "covertype" if full else "covertype-subset"
    what = {"model": TunedMlp.__name__, "data": source, "samples": len(data.train.y), "fit": repr(FIT)}
    return trained(what, TunedMlp, train)
