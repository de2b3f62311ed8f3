"""Mislead the classifiers of all clients with one small change of one image (experiment E6; FZooS paper, G.2).

    x = bound · (2u − 1)          the change, of parameters u in [0, 1]^d; d pixels (times channels)
    a(u) = clip(z + x, 0, 1)      the attacked image; z the image itself, pixels in [0, 1]
    f_i(u) = logit_y(a) − max over j ≠ y of logit_j(a)        by the model of client i; y is the true class

f_i < 0 says that client i is misled. The attack succeeds if the mean of the clients' logits misses y.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedzero.directions import Terms
from fedzero.model.params import Params
from fedzero.oracles.contract import F64, Basis, Metrics, Pictures
from fedzero_papers.oracles.boxed import change, changes, each_once

TOGETHER = 256
"""Images in one forward pass; more would leave the processor's cache."""


def margins(logits: Tensor, label: int) -> Tensor:
    """logit_y − the largest of the others, (n,), of logits (n, classes)."""
    others = logits.clone()
    others[:, label] = -torch.inf
    return logits[:, label] - others.amax(dim=1)


class ImageAttackObjective:
    """`victims` are the clients' models, in eval mode; clients that have the same model share the object.

    image: (channels, height, width), pixels in [0, 1]; label: its class; names: of all classes, for pictures.
    """

    def __init__(self, victims: Sequence[nn.Module], image: Tensor, label: int, bound: float, names: Sequence[str]):
        self.victims, self.image, self.label, self.bound, self.names = victims, image, label, bound, names

    def losses(self, base: Params, points: Sequence[Terms], batches: Sequence[int], basis: Basis | None = None) -> F64:
        with torch.no_grad():
            images = self._attacked(changes(base, points, basis, self.bound))
            asked = [self.victims[client] for client in batches]
            values = each_once(lambda victim: margins(_logits(victim, images), self.label), asked)
            table: F64 = torch.stack(values).double().cpu().numpy()
        return table

    def gradient(self, base: Params, batch: int) -> tuple[float, Tensor]:
        u = base.vector().requires_grad_()
        with torch.enable_grad():
            images = self._attacked(change(u, self.bound)[None])
            margin = margins(self.victims[batch](images), self.label)[0]
            (gradient,) = torch.autograd.grad(margin, u)
        return float(margin.detach()), gradient

    def evaluate(self, params: Params) -> Metrics:
        """The mean margin; whether the attack succeeds (1 or 0), ‖x‖² and the largest |x_j|."""
        x = change(params.vector(), self.bound)
        logits = self._everybody(x)
        return Metrics(
            loss=float(margins(logits, self.label).double().mean()),
            others={
                "success": float(int(logits.mean(dim=0).argmax()) != self.label),
                "distortion": float(x.double().square().sum()),
                "largest": float(x.abs().max()),
            },
        )

    def pictures(self, params: Params) -> Pictures:
        """The image, the change (grey: none; white and black: +bound and −bound) and the attacked image."""
        x = change(params.vector(), self.bound)
        attacked, predicted = self._attacked(x[None])[0], int(self._everybody(x).mean(dim=0).argmax())
        shown = (self.image, (x.view_as(self.image) / self.bound + 1) / 2, attacked)
        channels, height, width = self.image.shape
        return Pictures(
            title="An image that was changed to mislead",
            rows=("original", f"change (grey: none, white: +{self.bound:g})", "attacked"),
            columns=(f"{self.names[self.label]}, taken for {self.names[predicted]}",),
            height=height,
            width=width,
            channels=channels,
            pixels=b"".join(_bytes(each).tobytes() for each in shown),
        )

    def _attacked(self, x: Tensor) -> Tensor:
        """clip(z + x, 0, 1), (n, channels, height, width), for changes (n, d)."""
        return (self.image + x.view(-1, *self.image.shape)).clamp(0, 1)

    def _everybody(self, x: Tensor) -> Tensor:
        """Logits of every client for one change x (d,): (clients, classes)."""
        with torch.no_grad():
            image = self._attacked(x[None])
            return torch.stack(each_once(lambda victim: _logits(victim, image)[0], self.victims))


def _logits(victim: nn.Module, images: Tensor) -> Tensor:
    return torch.cat([victim(some) for some in torch.split(images, TOGETHER)])


def _bytes(image: Tensor) -> NDArray[np.uint8]:
    """(height, width, channels) of 0 to 255."""
    pixels: NDArray[np.uint8] = (image * 255).round().to(torch.uint8).permute(1, 2, 0).cpu().numpy()
    return pixels
