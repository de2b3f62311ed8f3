"""The loss of a torch module on mini-batches, at many points.

Small models: the offsets c·z of all points are computed once, kept while the same points are asked for (a cohort that
shares directions asks for the same points), and added to the base in one operation; where they are too many to keep,
some points at a time. Large models: one point at a time through a scratch copy. On a GPU the points of a small model
are evaluated together (vmap); on a CPU one after the other, which is faster because each pass stays in the cache. If
the module has a method `prepare`, inputs are transformed by it once for all points.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from fedzero.directions import Terms
from fedzero.model.params import Params
from fedzero.oracles.contract import F64, Basis, Metrics, Points

Batch = tuple[Tensor, Tensor]
KEPT_NUMBERS = 1 << 27
"""Offsets kept between asks: at most this many float32 numbers."""
EVALUATION_BATCH = 1000


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """One loss a sample."""
    return torch.nn.functional.cross_entropy(logits, labels, reduction="none")


class ModuleObjective:
    """A module with a per-sample loss; `evaluate` uses `test`, `together` turns vmap on."""

    def __init__(
        self,
        module: torch.nn.Module,
        test: Batch,
        loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
        together: bool | None = None,
    ):
        self.module, self.test, self.loss = module.eval(), test, loss
        self.prepare: Callable[[Tensor], Tensor] | None = getattr(module, "prepare", None)
        self.together = test[0].device.type != "cpu" if together is None else together
        self._offsets: OrderedDict[Points, Tensor] = OrderedDict()

    def losses(
        self, base: Params, points: Sequence[Terms], batches: Sequence[Batch], basis: Basis | None = None
    ) -> F64:
        inputs, labels = (torch.cat(parts) if len(parts) > 1 else parts[0] for parts in zip(*batches, strict=True))
        if self.prepare is not None and not self.together:
            inputs = self.prepare(inputs)
        sizes = [len(y) for _, y in batches]
        with torch.no_grad():
            rows = list(self._sample_losses(base, points, inputs, labels, basis))
            table = torch.cat(rows).double()  # (points, samples)
            means = torch.stack([part.mean(dim=1) for part in torch.split(table, sizes, dim=1)])
        return means.cpu().numpy()

    def _sample_losses(
        self, base: Params, points: Sequence[Terms], x: Tensor, y: Tensor, basis: Basis | None
    ) -> Iterator[Tensor]:
        """Losses of all samples, some points at a time, (points, samples) in all."""
        short = any(tensor.dtype != torch.float32 for tensor in base.tensors.values())
        if base.size > KEPT_NUMBERS or short or any(len(terms) > 1 for terms in points):
            scratch = {name: torch.empty_like(tensor) for name, tensor in base.tensors.items()}
            for point, terms in enumerate(points):
                base.view(terms).write(scratch)
                if basis is not None:
                    Params(scratch).add(basis.offset(point))
                yield self._forward(scratch, x, y)[None]
            return
        many = KEPT_NUMBERS // base.size
        for first in range(0, len(points), many):
            chosen = points if len(points) <= many else points[first : first + many]
            yield from self._losses_at(base, base.vector() + self._offsets_of(base, chosen), first, x, y, basis)

    def _losses_at(
        self, base: Params, weights: Tensor, first: int, x: Tensor, y: Tensor, basis: Basis | None
    ) -> Iterator[Tensor]:
        """Losses of all samples with each row of `weights` (points, d); `first` is the number of the first point."""
        count = len(weights)
        if basis is not None:
            weights += basis.offsets(range(first, first + count))
        sizes = [tensor.numel() for tensor in base.tensors.values()]
        stacked = {
            name: piece.view(count, *base.tensors[name].shape)
            for name, piece in zip(base.names, torch.split(weights, sizes, 1), strict=True)
        }
        if self.together:
            yield torch.vmap(self._forward, in_dims=(0, None, None))(stacked, x, y)
            return
        for p in range(count):
            yield self._forward({name: tensor[p] for name, tensor in stacked.items()}, x, y)[None]

    def _forward(self, tensors: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return self.loss(functional_call(self.module, tensors, (x,)), y)

    def _offsets_of(self, base: Params, points: Sequence[Terms]) -> Tensor:
        """Σ c z of each point, (points, d), from the cache where the same points were asked for before."""
        if not isinstance(points, Points):
            return base.offsets(points)
        kept = self._offsets.get(points)
        if kept is None:
            kept = self._offsets[points] = base.offsets(points)
            while sum(each.numel() for each in self._offsets.values()) > KEPT_NUMBERS:
                self._offsets.popitem(last=False)
        return kept

    def gradient(self, base: Params, batch: Batch) -> tuple[float, Tensor]:
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in base.tensors.items()}
        with torch.enable_grad():
            loss = self._forward(leaves, *batch).mean()
            gradients = torch.autograd.grad(loss, list(leaves.values()))
        return float(loss.detach()), torch.cat([g.reshape(-1).float() for g in gradients])

    def evaluate(self, params: Params) -> Metrics:
        total, right = np.float64(0), 0
        with torch.no_grad():
            for x, y in zip(*(torch.split(t, EVALUATION_BATCH) for t in self.test), strict=True):
                logits: Any = functional_call(self.module, params.tensors, (x,))
                total += float(self.loss(logits, y).double().sum())
                right += int((logits.argmax(-1) == y).sum())
        count = len(self.test[1])
        return Metrics(loss=float(total / count), accuracy=right / count)
