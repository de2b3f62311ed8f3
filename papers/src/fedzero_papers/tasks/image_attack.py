"""A black-box attack on one image, by clients whose classifiers know different classes (experiment E6).

Reading of the paper (002, G.2). Each client's model is trained on the images of P·10 classes, and attacked are "15 data
points … correctly classified by all of the 10 local models". A model never says a class it has not seen, so with freely
drawn classes such images hardly exist: all ten models know a class with probability P¹⁰. Here two classes (one, if a
model has two only) are drawn first and known to all; each client draws its others for itself. Of the test images of
classes that every model knows, in a random order, the first 15 are taken that every model classifies rightly. With
P = 1 all classes are known to all, all models are the same one, and this is the paper's rule to the letter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from msgspec import Meta
from numpy.typing import NDArray
from torch import Tensor, nn

from fedzero.directions import Keys
from fedzero.errors import FedzeroError
from fedzero.model.params import Params
from fedzero.tasks import images
from fedzero.tasks.contract import BuildContext, Problem, Task
from fedzero_papers.oracles.boxed import MIDDLE, WholeShards
from fedzero_papers.oracles.image_attack import ImageAttackObjective
from fedzero_papers.tasks import cifar
from fedzero_papers.tasks.trained import Fit, Trained, accuracy, fit, trained
from fedzero_papers.tasks.victims import AttackedCnn, NarrowResNet

IMAGES = 15
CLASSES = 10
COMMON = 2
"""Classes that every model knows."""

TOGETHER = 64
"""Images that are looked at in one pass."""

Classes = tuple[int, ...]
Samples = tuple[Tensor, Tensor]


class ImageAttack(Task, tag="image-attack"):
    """A change of one image that misleads the classifiers of all clients, each of which knows other classes (E6)."""

    dataset: Literal["mnist", "cifar10"] = "mnist"
    """digits, or small photographs"""
    image: Annotated[int, Meta(ge=0, lt=IMAGES)] = 0
    """which of the 15 chosen test images"""
    share: Annotated[float, Meta(gt=0, le=1)] = 0.5
    """P: each client's model was trained on round(10 P) classes, at least two"""
    bound: Annotated[float, Meta(gt=0, le=1)] = 0.3
    """the largest change of a pixel; pixels are in [0, 1]"""
    full: bool = False
    """MNIST: False for the 5,000 images inside the package, True for the IDX files. CIFAR-10 needs the data folder."""
    repetition: Annotated[int, Meta(ge=0)] = 0
    """another draw of the classes and images; what a run's seed changes is the method's luck"""

    @property
    def label(self) -> str:
        name = "CIFAR-10" if self.dataset == "cifar10" else "MNIST" if self.full else "MNIST (subset)"
        which = f"image {self.image}" + (f" of draw {self.repetition}" if self.repetition else "")
        return f"attack on {name} {which}, P = {self.share:g}, changes up to {self.bound:g}"

    def build(self, clients: int, context: BuildContext) -> Problem:
        classes = drawn_classes(self.share, clients, self.repetition)
        data = _data(self.dataset, self.full, context.data)
        victims = _victims(self, data, classes)
        for victim in victims:
            victim.module.to(context.device)
        common = sorted(set.intersection(*(set(known) for known in classes)))
        modules = {victim.digest: victim.module for victim in victims}
        chosen = _chosen(self, data.test, list(modules.values()), common, context.device)
        image, label = data.test[0][chosen].to(context.device).float() / 255, int(data.test[1][chosen])
        params = Params.of_vector(torch.full((image.numel(),), MIDDLE, device=context.device))
        shared = [modules[victim.digest] for victim in victims]
        objective = ImageAttackObjective(shared, image, label, self.bound, data.names)
        facts = {
            "victims": _accuracies([victim.accuracy for victim in victims]),
            "digest of the victims": hashlib.sha256("".join(v.digest for v in victims).encode()).hexdigest()[:16],
            "image": f"test image {chosen}, {data.names[label]}: of the classes that all {clients} models know "
            f"({', '.join(data.names[c] for c in common)}), number {self.image} in a random order of those that all "
            "classify rightly",
        }
        return Problem(params, objective, WholeShards(range(clients)), facts, pictures=objective.pictures)


def drawn_classes(share: float, clients: int, repetition: int) -> list[Classes]:
    """The classes of each client's model, sorted."""
    count = round(share * CLASSES)
    if count < 2:
        raise FedzeroError(
            f"task.share = {share:g} is {count} of ten classes: a model that knows fewer than two cannot be misled"
        )
    keys = Keys.of_seed(repetition)
    order = keys.generator("attack-common").permutation(CLASSES)
    common, rest = order[: min(COMMON, count - 1)], order[min(COMMON, count - 1) :]
    own = keys.generator("attack-classes", count)
    drawn = [own.choice(rest, count - len(common), replace=False) for _ in range(clients)]
    return [tuple(sorted(np.concatenate([common, some]).tolist())) for some in drawn]


@dataclass(frozen=True)
class Data:
    """Images as bytes (n, channels, height, width), labels; what the classes are called; how victims are made."""

    train: Samples
    test: Samples
    source: str
    names: Sequence[str]
    model: type[nn.Module]
    fit: Fit


@lru_cache(maxsize=2)
def _data(dataset: str, full: bool, folder: Path | None) -> Data:
    """Kept: a process that attacks one image after the other need not unpack them all each time."""
    if dataset == "cifar10":
        how = Fit(epochs=15, batch=128, rate=1e-2, decay=5e-2, moved=True)
        return Data(*_samples(cifar.load(folder)), "cifar10-subset", cifar.NAMES, NarrowResNet, how)
    how = Fit(epochs=2 if full else 6, batch=64, rate=4e-3)
    source = "mnist" if full else "mnist-subset"
    return Data(*_samples(images.load("mnist", full, folder)), source, "0123456789", AttackedCnn, how)


def _samples(found: images.Images) -> tuple[Samples, Samples]:
    """For training and for testing; channels first."""

    def of(x: NDArray[np.uint8], y: NDArray[np.uint8]) -> Samples:
        channels_first = x.reshape(*x.shape[:3], -1).transpose(0, 3, 1, 2)
        return torch.from_numpy(channels_first.copy()), torch.from_numpy(y.astype(np.int64))

    return of(found.train_x, found.train_y), of(found.test_x, found.test_y)


def _victims(task: ImageAttack, data: Data, classes: Sequence[Classes]) -> list[Trained]:
    """The clients' models. Who knows the same classes has the same model.

    Every other image begins at the other end, so that two processes that attack two images and find nothing in the
    cache train half of the models each, instead of waiting for each other at every one.
    """
    wanted = sorted(set(classes), reverse=task.image % 2 == 1)
    found = {known: _victim(data, known) for known in wanted}
    return [found[known] for known in classes]


def _victim(data: Data, known: Classes) -> Trained:
    def of_known(samples: Samples) -> Samples:
        mine = torch.isin(samples[1], torch.tensor(known))
        return samples[0][mine], samples[1][mine]

    def train(module: nn.Module) -> float:
        fit(module, *of_known(data.train), data.fit)
        return accuracy(module, *of_known(data.test))

    what = {
        "victim of": "image-attack",
        "model": data.model.__name__,
        "data": data.source,
        "samples": len(data.train[1]),
        "classes": list(known),
        "fit": repr(data.fit),
    }
    return trained(what, data.model, train)


def _chosen(
    task: ImageAttack, test: Samples, victims: Sequence[nn.Module], common: Sequence[int], device: torch.device
) -> int:
    """The test image of the task: of `common` classes, rightly classified by all, in the order of the repetition."""
    order = torch.from_numpy(Keys.of_seed(task.repetition).generator("attack-images").permutation(len(test[1])))
    candidates, found = order[torch.isin(test[1][order], torch.tensor(common))], 0
    with torch.no_grad():
        for some in torch.split(candidates, TOGETHER):
            x, y = test[0][some].to(device).float() / 255, test[1][some].to(device)
            right = torch.stack([victim(x).argmax(dim=1) == y for victim in victims]).all(dim=0)
            mine = some[right.cpu()]
            if task.image < found + len(mine):
                return int(mine[task.image - found])
            found += len(mine)
    raise FedzeroError(f"only {found} test images are classified rightly by all models: task.image must be below that")


def _accuracies(found: Sequence[float]) -> str:
    return f"accuracy {np.mean(found):.4f} on average, {min(found):.4f} to {max(found):.4f}, on the classes they know"
