"""Ten classes of small images, and a CNN (experiments E1 and E2)."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from fedzero.model.numbers import PositiveInt
from fedzero.model.params import Params
from fedzero.oracles.module import ModuleObjective
from fedzero.oracles.portable import Oracle
from fedzero.tasks import images
from fedzero.tasks.contract import BuildContext, Problem, Task
from fedzero.tasks.models import LargeCnn, Perceptron, SmallCnn, initialise
from fedzero.tasks.partition import Iid, Partition, split

TESTED = 1000
"""Test images in a pass."""


class ImageTask(Task):
    """What the tasks below have in common."""

    full: bool = False
    """False: the 5,000 images inside the package; True: the IDX files from the data folder."""
    batch: PositiveInt = 32
    partition: Partition = Iid()
    exact: bool = False
    """Points of rank-one directions at weights of their own, as those of others are: slower, and the bits of a view."""

    @property
    def least_loss(self) -> float:
        return 0.0  # cross-entropy

    @property
    def _training(self) -> str:
        return "60,000" if self.full else "4,000"

    def made(self, channels_last: bool) -> nn.Module:
        """The model, for one layout of pictures in memory."""
        raise NotImplementedError

    def module(self, context: BuildContext, given: nn.Module | None = None) -> nn.Module:
        return self.made(context.device.type == "cpu").to(context.device) if given is None else given

    def oracle(self, context: BuildContext) -> Oracle:
        """Rows are the 784 pixels of a picture, from 0 to 255."""
        mean, deviation = images.STATISTICS["mnist" if isinstance(self, Mnist) else "fashion"]
        module = Pictures(self.made(channels_last=False))
        return Oracle(module, 28 * 28, outputs_of(module.module), mean=255 * mean, deviation=255 * deviation)

    def _problem(self, dataset: images.Dataset, clients: int, context: BuildContext) -> Problem:
        data, device = images.load(dataset, self.full, context.data), context.device
        parts = split(self.partition, data.train_y.astype(np.int64), clients, context.keys)
        x, y = images.tensors(data.train_x, data.train_y, device, dataset)
        module = self.module(context)
        params = Params.of_module(module)
        initialise(params, context.keys.root)
        test = zip(
            *(torch.split(t, TESTED) for t in images.tensors(data.test_x, data.test_y, device, dataset)), strict=True
        )
        objective = ModuleObjective(module, list(test), exact=self.exact)
        return Problem(params, objective, images.LabelledShards(x, y, parts, self.batch, dataset))


class Pictures(nn.Module):
    """A model of pictures (n, 1, 28, 28) as one of rows of 784 numbers."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.module(x.view(-1, 1, 28, 28))
        return logits


def outputs_of(module: nn.Module) -> int:
    """The outputs of the last layer."""
    *_, last = (part for part in module.modules() if isinstance(part, nn.Linear))
    return last.out_features


class Mnist(ImageTask, tag="mnist"):
    """Handwritten digits with a CNN of 28,938 parameters (experiment E1), or a perceptron of 159,010."""

    model: Literal["cnn", "mlp"] = "cnn"
    """"cnn" is that of E1, "mlp" the perceptron 784-200-10."""

    @property
    def label(self) -> str:
        return f"MNIST ({self._training} training digits), {'CNN' if self.model == 'cnn' else 'perceptron'}"

    def made(self, channels_last: bool) -> nn.Module:
        return SmallCnn(channels_last) if self.model == "cnn" else Perceptron()

    def build(self, clients: int, context: BuildContext) -> Problem:
        return self._problem("mnist", clients, context)


class Fashion(ImageTask, tag="fashion"):
    """Pictures of clothing (Fashion-MNIST) with a CNN of 1,206,590 parameters (experiment E2)."""

    model: Literal["large", "small"] = "large"
    """"large" is the CNN of E2, "small" that of E1 with 28,938 parameters."""

    @property
    def label(self) -> str:
        return f"Fashion-MNIST ({self._training} training images), {self.model} CNN"

    def made(self, channels_last: bool) -> nn.Module:
        return LargeCnn(channels_last) if self.model == "large" else SmallCnn(channels_last)

    def build(self, clients: int, context: BuildContext) -> Problem:
        return self._problem("fashion", clients, context)
