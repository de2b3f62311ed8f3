"""Tasks: what is optimised, on whose data. A recipe's `[task]` table is decoded straight into one of these."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from msgspec import Meta, Struct

from fedzero.directions import Keys
from fedzero.errors import FedzeroError
from fedzero.oracles import Objective, Shards
from fedzero.oracles.module import ModuleObjective
from fedzero.oracles.quadratic import QuadraticObjective, QuadraticShards
from fedzero.params import Params
from fedzero.tasks import images
from fedzero.tasks.models import SmallCnn, initialise
from fedzero.tasks.partition import Iid, Partition, split

Positive = Annotated[int, Meta(ge=1)]


@dataclass(frozen=True)
class Problem:
    """A task made concrete: where to start, what to minimise, who holds what."""

    params: Params
    objective: Objective
    shards: Shards


@dataclass(frozen=True)
class Place:
    """Where a problem is built: keys of the run, device, and the folder with the data (if any)."""

    keys: Keys
    device: torch.device
    data: Path | None


class Mnist(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="mnist"):
    """Handwritten digits with a CNN of 28,938 parameters (experiment E1)."""

    full: bool = False
    """False: the 5,000 images inside the package; True: the IDX files from the data folder."""
    batch: Positive = 32
    partition: Partition = Iid()

    @property
    def label(self) -> str:
        return f"MNIST ({'60,000' if self.full else '4,000'} training digits), CNN"

    def build(self, clients: int, place: Place) -> Problem:
        if self.full and place.data is None:
            raise FedzeroError("task.full = true needs the MNIST files: give --data DIR or set FEDZERO_DATA")
        data = images.load_idx(place.data / "mnist") if self.full and place.data else images.load_subset()
        parts = split(self.partition, data.train_y.astype(np.int64), clients, place.keys)
        x, y = images.tensors(data.train_x, data.train_y, place.device)
        module = SmallCnn(channels_last=place.device.type == "cpu").to(place.device)
        params = Params.of_module(module)
        initialise(params, place.keys.root)
        objective = ModuleObjective(module, images.tensors(data.test_x, data.test_y, place.device))
        return Problem(params, objective, images.LabelledShards(x, y, parts, self.batch))


class Quadratic(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="quadratic"):
    """A quadratic spread over clients, with a known minimum: seconds to run, easy to reason about."""

    dimension: Positive = 100
    condition: Annotated[float, Meta(ge=1)] = 10.0
    spread: Annotated[float, Meta(ge=0)] = 1.0
    """How far the clients' minima lie apart."""
    noise: Annotated[float, Meta(ge=0)] = 0.0

    @property
    def label(self) -> str:
        return f"quadratic in {self.dimension} dimensions"

    def build(self, clients: int, place: Place) -> Problem:
        generator = place.keys.generator("quadratic")
        centres = 1.0 + self.spread * generator.standard_normal((clients, self.dimension))
        curvature = np.linspace(1.0, self.condition, self.dimension)
        params = Params.of_vector(torch.zeros(self.dimension, device=place.device))
        return Problem(params, QuadraticObjective(curvature, centres), QuadraticShards(centres, self.noise))


AnyTask = Mnist | Quadratic
