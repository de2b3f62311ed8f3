"""A universal perturbation against a classifier that can only be asked: one x for all images of a class.

    a'(x) = ½ tanh(atanh(2a) + x)                                      a in [−½, ½]^d, and so is a'
    f(x; a) = max(logit_y(a') − max over j ≠ y of logit_j(a'), 0) + c ‖a' − a‖²

A pixel of exactly ±½ has atanh(±1) = ±∞ and no x would ever move it; 2a is clamped to ±(1 − 10⁻⁶), which is ±7.25 in
the space of x. So the black around a garment hardly moves, but can.

The images stay here, with atanh(2a) worked out once; a batch is the positions of its images. Points × images go through
the victim together, some hundred at a time. On a CPU that is nearly all the cost, so victims should be small.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedzero.directions import Terms
from fedzero.model.params import Params
from fedzero.oracles.combination import coordinates
from fedzero.oracles.contract import F64, Basis, Metrics, Pictures
from fedzero_papers.oracles.image_attack import TOGETHER, margins

CLAMP = 1 - 1e-6
SHOWN = 8


@dataclass(frozen=True, eq=False)
class Targets:
    """Images of one class, (n, height, width) in [−½, ½], that the victim classifies rightly."""

    images: Tensor
    label: int
    classes: tuple[str, ...]
    """names, by label"""


@dataclass(frozen=True, eq=False)
class Attacked:
    """What became of some images: a' (n, d), margins logit_y − max_{j≠y} logit_j (n,), ‖a' − a‖² (n,)."""

    images: Tensor
    margins: Tensor
    distortions: Tensor
    predicted: Tensor


class UniversalAttackObjective:
    """The loss above on `pool`, to which batches refer by position; `evaluate` looks at all of it.

    victim: images (n, 1, height, width) → logits (n, classes), in eval mode. `held_out` are other images of the class:
    does what was found on the pool fool the victim there, too?
    """

    def __init__(self, victim: nn.Module, pool: Targets, held_out: Tensor, weight: float = 1.0):
        self.victim, self.pool, self.weight = victim.eval(), pool, weight
        self.images, self.roots = _rooted(pool.images)
        self.held_out = _rooted(held_out)

    def losses(
        self, base: Params, points: Sequence[Terms], batches: Sequence[Tensor], basis: Basis | None = None
    ) -> F64:
        index = torch.cat(list(batches)) if len(batches) > 1 else batches[0]
        sizes = [len(batch) for batch in batches]
        xs, images, roots = coordinates(base, points, basis), self.images[index], self.roots[index]
        with torch.no_grad():
            found = [self._loss(self._attack(images, roots, some)) for some in _some(xs, len(index))]
            table = torch.cat(found).view(len(points), len(index)).double()
            means = torch.stack([part.mean(dim=1) for part in torch.split(table, sizes, dim=1)])
        return means.cpu().numpy()

    def _attack(self, images: Tensor, roots: Tensor, xs: Tensor) -> Attacked:
        """Every image at every point, in the order of the points: (points · n, …)."""
        attacked = 0.5 * torch.tanh(roots + xs[:, None])  # (points, n, d)
        distortions = (attacked - images).square().sum(dim=2).view(-1)
        attacked = attacked.view(-1, images.shape[1])
        shape = (1, *self.pool.images.shape[1:])
        logits = torch.cat([self.victim(part.view(-1, *shape)) for part in torch.split(attacked, TOGETHER)])
        return Attacked(attacked, margins(logits, self.pool.label), distortions, logits.argmax(dim=1))

    def _loss(self, attacked: Attacked) -> Tensor:
        return attacked.margins.clamp_min(0) + self.weight * attacked.distortions

    def gradient(self, base: Params, batch: Tensor) -> tuple[float, Tensor]:
        x = base.vector().requires_grad_()
        with torch.enable_grad():
            loss = self._loss(self._attack(self.images[batch], self.roots[batch], x[None])).mean()
            (gradient,) = torch.autograd.grad(loss, x)
        return float(loss.detach()), gradient

    def evaluate(self, params: Params) -> Metrics:
        """Means over the pool. success: the share not classified y; held-out success: the same of the other images."""
        with torch.no_grad():
            xs = params.vector()[None]
            pool, others = self._attack(self.images, self.roots, xs), self._attack(*self.held_out, xs)
        return Metrics(
            loss=_mean(self._loss(pool)),
            others={
                "success": _mean(pool.predicted != self.pool.label),
                "distortion": _mean(pool.distortions),
                "attack loss": _mean(pool.margins.clamp_min(0)),
                "held-out success": _mean(others.predicted != self.pool.label),
            },
        )

    def pictures(self, params: Params) -> Pictures:
        """The first images of the pool; of a' − a, grey is 0 and the contrast that of the images."""
        images, roots = self.images[:SHOWN], self.roots[:SHOWN]
        with torch.no_grad():
            attacked = self._attack(images, roots, params.vector()[None])
        rows = torch.stack([images, (attacked.images - images).clamp(-0.5, 0.5), attacked.images])
        names, (height, width) = self.pool.classes, self.pool.images.shape[1:]
        return Pictures(
            title="One perturbation for all images of the class",
            rows=("original", "perturbation", "adversarial"),
            columns=tuple(f"{names[self.pool.label]} → {names[int(j)]}" for j in attacked.predicted),
            height=height,
            width=width,
            channels=1,
            pixels=((rows + 0.5) * 255).round().to(torch.uint8).cpu().numpy().tobytes(),
        )


def _rooted(images: Tensor) -> tuple[Tensor, Tensor]:
    """a and atanh(2a), (n, d) each; in float64, because float32 has few numbers between 1 − 10⁻⁶ and 1."""
    flat = images.flatten(1)
    return flat, torch.atanh((2 * flat.double()).clamp(-CLAMP, CLAMP)).float()


def _some(xs: Tensor, images: int) -> Iterator[Tensor]:
    """As many points at a time as make about `TOGETHER` images, and at least one."""
    yield from torch.split(xs, max(1, TOGETHER // images))


def _mean(values: Tensor) -> float:
    return float(values.double().mean())
