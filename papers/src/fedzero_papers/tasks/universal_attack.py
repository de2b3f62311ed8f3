"""A universal black-box perturbation against a CNN, found by many who hold a few images each (experiment E4).

The victim is trained here, once, and kept (see `trained`): two strided convolutions and two linear layers, which a CPU
evaluates at some 20 µs an image. On the full data it has 99.1 % on MNIST and 91.4 % on Fashion-MNIST after a minute; on
the 4,000 images of the package 96.4 % and 86.4 % after ten seconds.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from typing import Annotated, Literal

import numpy as np
import torch
from msgspec import Meta
from numpy.typing import NDArray
from torch import Tensor, nn

from fedzero.errors import FedzeroError
from fedzero.model.numbers import PositiveInt
from fedzero.model.params import Params
from fedzero.tasks import images
from fedzero.tasks.contract import BuildContext, Problem, Task
from fedzero.tasks.partition import DrawnShards, Indices
from fedzero_papers.oracles.universal_attack import Targets, UniversalAttackObjective
from fedzero_papers.tasks.trained import Fit, Trained, accuracy, fit, trained
from fedzero_papers.tasks.victims import Victim

DIGITS = tuple("0123456789")
CLOTHES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
CLASSES = {"mnist": DIGITS, "fashion": CLOTHES}
NAMES = {"mnist": "MNIST", "fashion": "Fashion-MNIST"}


class UniversalAttack(Task, tag="universal-attack"):
    """One perturbation that fools a CNN on all images of a class, from its logits alone (experiment E4)."""

    dataset: Literal["mnist", "fashion"] = "fashion"
    """digits or clothing"""
    label_attacked: Annotated[int, Meta(ge=0, le=9)] = 4
    """y; 4 is the digit four, or a coat"""
    full: bool = False
    """False: the 5,000 images inside the package; True: the IDX files from the data folder."""
    pool: PositiveInt = 200
    """training images of the class, drawn from those that the victim classifies rightly"""
    per_client: PositiveInt = 60
    """|D_i|, drawn from the pool for each client; clients share images"""
    batch: PositiveInt = 20
    weight: Annotated[float, Meta(ge=0)] = 1.0
    """c, what distortion costs"""

    @property
    def label(self) -> str:
        victim = f"CNN trained on {'60,000' if self.full else '4,000'} images"
        return f"Universal attack on {NAMES[self.dataset]} class {self.label_attacked}, {victim}"

    def build(self, clients: int, context: BuildContext) -> Problem:
        if self.per_client > self.pool:
            raise FedzeroError(f"task.per_client = {self.per_client} cannot be drawn from task.pool = {self.pool}")
        data, y = images.load(self.dataset, self.full, context.data), self.label_attacked
        found = victim(data)
        module = found.module.to(context.device)
        right, held_out = (
            _right(module, pixels(x[known == y]).to(context.device), y)
            for x, known in ((data.train_x, data.train_y), (data.test_x, data.test_y))
        )
        for what, count, least in (("training", len(right), self.pool), ("test", len(held_out), 1)):
            if count < least:
                raise FedzeroError(
                    f"the victim classifies only {count} {what} images of class {y} rightly, {least} are needed: "
                    f"lower task.pool = {self.pool}, attack another class or use task.full = true"
                )
        pool = right[_chosen(len(right), self.pool, context.keys.generator("pool"))]
        parts = [_chosen(self.pool, self.per_client, context.keys.generator("partition", c)) for c in range(clients)]
        classes = CLASSES[self.dataset]
        facts = {
            "victim": f"CNN, {100 * found.accuracy:.2f} % of the test images right, weights {found.digest}",
            "images": f"{self.pool} of {len(right)} training images of class {y} ({classes[y]}) that it has right",
            "held-out images": f"{len(held_out)} test images of class {y} that it has right",
        }
        objective = UniversalAttackObjective(module, Targets(pool, y, classes), held_out, self.weight)
        params = Params.of_vector(torch.zeros(pool[0].numel(), device=context.device))
        shards = DrawnShards(parts, self.batch, lambda index: torch.from_numpy(index).to(context.device))
        return Problem(params, objective, shards, facts, pictures=objective.pictures)


def pixels(x: NDArray[np.uint8]) -> Tensor:
    """Bytes as numbers in [−½, ½], float32."""
    return torch.from_numpy(x.astype(np.float32) / 255 - np.float32(0.5))


def labels(y: NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(y.astype(np.int64))


def victim(data: images.Images) -> Trained:
    """The victim for these images: eight epochs of 60,000 images; fewer are seen more often, but at most 20 times."""
    count = len(data.train_y)
    how = Fit(epochs=min(20, max(1, round(8 * 60_000 / count))), batch=64, rate=4e-3)
    hasher = hashlib.blake2b(data.train_x.tobytes(), digest_size=8)
    hasher.update(data.train_y.tobytes())
    what = {"model": "victim of E4", "images": hasher.hexdigest(), **asdict(how)}

    def train(module: nn.Module) -> float:
        fit(module, pixels(data.train_x)[:, None], labels(data.train_y), how)
        return accuracy(module, pixels(data.test_x)[:, None], labels(data.test_y))

    return trained(what, Victim, train)


def _right(module: nn.Module, x: Tensor, label: int) -> Tensor:
    """Those images that are classified as `label`."""
    with torch.no_grad():
        return x[module(x[:, None]).argmax(dim=1) == label]


def _chosen(count: int, size: int, generator: np.random.Generator) -> Indices:
    """`size` of the first `count` numbers, in order."""
    return np.sort(generator.choice(count, size, replace=False))
