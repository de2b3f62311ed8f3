"""The loss of a torch module on mini-batches, at many points.

Small models: the offsets c·z of all points are computed once, kept while the same points are asked for (a cohort that
shares directions asks for the same points), and added to the base in one operation; where they are too many to keep,
some points at a time. Large models: one point at a time through a scratch copy. On a GPU the points of a small model
are evaluated together (vmap). On a CPU each point is one thread's work: a pass stays in the cache, values do not depend
on the number of threads, and a core that is busy with something else takes fewer points instead of keeping the others
waiting. If the module has a method `prepare`, inputs are transformed by it once for all points.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from fedzero.directions import Terms
from fedzero.model.device import threads, workers
from fedzero.model.params import Params
from fedzero.oracles.contract import F64, Basis, Metrics, Points

Batch = tuple[Tensor, Tensor]
KEPT_NUMBERS = 1 << 27
"""Offsets kept between asks: at most this many float32 numbers."""
EVALUATION_BATCH = 1000
WORTH_A_THREAD = 1 << 20
"""Parameters × samples from which a pass takes longer than handing it to another thread."""
WORTH_ALL_THREADS = 1 << 22
"""Parameters from which one pass keeps several threads busy, where there are fewer points than threads."""


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
        self._modules = [self.module]
        """One for each thread: a module holds the weights of one point at a time."""

    def losses(
        self, base: Params, points: Sequence[Terms], batches: Sequence[Batch], basis: Basis | None = None
    ) -> F64:
        inputs, labels = (torch.cat(parts) if len(parts) > 1 else parts[0] for parts in zip(*batches, strict=True))
        sizes, at_once = [len(y) for _, y in batches], torch.get_num_threads()
        few = len(points) < at_once and base.size >= WORTH_ALL_THREADS
        alone = not (self.together or few or self._through_scratch(base, points))
        with torch.no_grad(), threads(1 if alone else None):  # a thread for a point, or all for every operation
            if self.prepare is not None and not self.together:
                inputs = self.prepare(inputs)
            rows = list(self._sample_losses(base, points, inputs, labels, basis, at_once if alone else 1))
            table = torch.cat(rows).double()  # (points, samples)
            means = torch.stack([part.mean(dim=1) for part in torch.split(table, sizes, dim=1)])
        return means.cpu().numpy()

    @staticmethod
    def _through_scratch(base: Params, points: Sequence[Terms]) -> bool:
        """True if points are made one at a time: large models, 16-bit ones, points of several terms."""
        short = any(tensor.dtype != torch.float32 for tensor in base.tensors.values())
        return base.size > KEPT_NUMBERS or short or any(len(terms) > 1 for terms in points)

    def _sample_losses(
        self, base: Params, points: Sequence[Terms], x: Tensor, y: Tensor, basis: Basis | None, at_once: int
    ) -> Iterator[Tensor]:
        """Losses of all samples, some points at a time, (points, samples) in all."""
        if self._through_scratch(base, points):
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
            weights = base.vector() + self._offsets_of(base, chosen)
            yield from self._losses_at(base, weights, first, x, y, basis, at_once)

    def _losses_at(
        self, base: Params, weights: Tensor, first: int, x: Tensor, y: Tensor, basis: Basis | None, at_once: int
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
        left, found = iter(range(count)), [torch.empty(0)] * count

        def work(module: torch.nn.Module) -> None:
            with torch.no_grad():  # holds for the thread it is said in
                for p in left:
                    found[p] = self._forward({name: tensor[p] for name, tensor in stacked.items()}, x, y, module)[None]

        at_once = min(at_once, count) if base.size * len(y) >= WORTH_A_THREAD else 1
        if at_once == 1:
            work(self.module)
        else:
            while len(self._modules) < at_once:
                self._modules.append(copy.deepcopy(self.module))
            list(workers(at_once).map(work, self._modules[:at_once]))
        yield from found

    def _forward(
        self, tensors: dict[str, Tensor], x: Tensor, y: Tensor, module: torch.nn.Module | None = None
    ) -> Tensor:
        return self.loss(functional_call(module or self.module, tensors, (x,)), y)

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
