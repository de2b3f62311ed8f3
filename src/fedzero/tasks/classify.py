"""Ten classes of small images, and a CNN (experiments E1 and E2)."""

from __future__ import annotations

from typing import Literal

import numpy as np
from torch import nn

from fedzero.model.numbers import PositiveInt
from fedzero.model.params import Params
from fedzero.oracles.module import ModuleObjective
from fedzero.tasks import images
from fedzero.tasks.contract import BuildContext, Problem, Task
from fedzero.tasks.models import LargeCnn, SmallCnn, initialise
from fedzero.tasks.partition import Iid, Partition, split


class Mnist(Task, tag="mnist"):
    """Handwritten digits with a CNN of 28,938 parameters (experiment E1)."""

    full: bool = False
    """False: the 5,000 images inside the package; True: the IDX files from the data folder."""
    batch: PositiveInt = 32
    partition: Partition = Iid()

    @property
    def label(self) -> str:
        return f"MNIST ({'60,000' if self.full else '4,000'} training digits), CNN"

    def build(self, clients: int, place: BuildContext) -> Problem:
        data = images.load("mnist", self.full, place.data)
        return _problem(data, "mnist", SmallCnn, self.batch, self.partition, clients, place)


class Fashion(Task, tag="fashion"):
    """Pictures of clothing (Fashion-MNIST) with a CNN of 1,206,590 parameters (experiment E2)."""

    full: bool = False
    """False: the 5,000 images inside the package; True: the IDX files from the data folder."""
    batch: PositiveInt = 32
    partition: Partition = Iid()
    model: Literal["large", "small"] = "large"
    """"large" is the CNN of E2, "small" that of E1 with 28,938 parameters."""

    @property
    def label(self) -> str:
        return f"Fashion-MNIST ({'60,000' if self.full else '4,000'} training images), {self.model} CNN"

    def build(self, clients: int, place: BuildContext) -> Problem:
        data = images.load("fashion", self.full, place.data)
        model = LargeCnn if self.model == "large" else SmallCnn
        return _problem(data, "fashion", model, self.batch, self.partition, clients, place)


def _problem(
    data: images.Images,
    dataset: images.Dataset,
    model: type[SmallCnn] | type[LargeCnn],
    batch: int,
    partition: Partition,
    clients: int,
    place: BuildContext,
) -> Problem:
    parts = split(partition, data.train_y.astype(np.int64), clients, place.keys)
    x, y = images.tensors(data.train_x, data.train_y, place.device, dataset)
    module: nn.Module = model(channels_last=place.device.type == "cpu").to(place.device)
    params = Params.of_module(module)
    initialise(params, place.keys.root)
    objective = ModuleObjective(module, images.tensors(data.test_x, data.test_y, place.device, dataset))
    return Problem(params, objective, images.LabelledShards(x, y, parts, batch))
