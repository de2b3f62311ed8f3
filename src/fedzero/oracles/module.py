"""The loss of a torch module on mini-batches, at many points.

Small models: the offsets c·z of all points are computed once, kept while the same points are asked for (a cohort that
shares directions asks for the same points), and added to the base in one operation; where they are too many to keep,
some points at a time. Large models: one point at a time through a scratch copy. On a GPU the points of a small model
are evaluated together (vmap); on a CPU one after the other, which is faster because each pass stays in the cache. If
the module has a method `prepare`, inputs are transformed by it once for all points.

Batches of several clients share a pass where the criterion gives a loss for every sample and their shapes fit.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedzero.directions import Terms
from fedzero.model.params import Params
from fedzero.oracles.contract import F64, Basis, Metrics, Points
from fedzero.oracles.criteria import ACCURACY, Batch, Criterion, Supervised, accuracy, joined, samples_of

KEPT_NUMBERS = 1 << 27
"""Offsets kept between asks: at most this many float32 numbers."""
CLASSIFICATION = Supervised(metrics={ACCURACY: accuracy})


class _Called(nn.Module):
    """f(module, …) as the forward pass of a module, so that f may call whatever the module has."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, f: Callable[..., Any], *arguments: Any) -> Any:
        return f(self.module, *arguments)


class ModuleObjective:
    """A module and a criterion; `evaluate` uses the batches of `test`, `together` turns vmap on."""

    def __init__(
        self,
        module: nn.Module,
        test: Sequence[Batch],
        criterion: Criterion = CLASSIFICATION,
        together: bool | None = None,
        share: bool = True,
    ):
        self.module, self.test, self.criterion, self.share = _Called(module.eval()), test, criterion, share
        self.prepare: Callable[[Tensor], Tensor] | None = getattr(module, "prepare", None)
        self.together = next(module.parameters()).device.type != "cpu" if together is None else together
        self._offsets: OrderedDict[Points, Tensor] = OrderedDict()

    def losses(
        self, base: Params, points: Sequence[Terms], batches: Sequence[Batch], basis: Basis | None = None
    ) -> F64:
        together = joined(batches) if self.share else None
        passes = [together] if together is not None else list(batches)
        if self.prepare is not None and not self.together:
            passes = [(self.prepare(x), y) for x, y in passes]
        with torch.no_grad():
            table = torch.cat(list(self._sample_losses(base, points, passes, basis))).double()  # (points, samples)
            sizes = [samples_of(batch) for batch in batches] if table.shape[1] > len(passes) else [1] * len(batches)
            means = torch.stack([part.mean(dim=1) for part in torch.split(table, sizes, dim=1)])
        return means.cpu().numpy()

    def _sample_losses(
        self, base: Params, points: Sequence[Terms], passes: Sequence[Batch], basis: Basis | None
    ) -> Iterator[Tensor]:
        """Losses of all samples, some points at a time, (points, samples) in all."""
        short = any(tensor.dtype != torch.float32 for tensor in base.tensors.values())
        if base.size > KEPT_NUMBERS or short or any(len(terms) > 1 for terms in points):
            scratch = {name: torch.empty_like(tensor) for name, tensor in base.tensors.items()}
            for point, terms in enumerate(points):
                base.view(terms).write(scratch)
                if basis is not None:
                    Params(scratch).add(basis.offset(point))
                yield self.losses_of(scratch, passes)[None]
            return
        many = KEPT_NUMBERS // base.size
        for first in range(0, len(points), many):
            chosen = points if len(points) <= many else points[first : first + many]
            yield from self._losses_at(base, base.vector() + self._offsets_of(base, chosen), first, passes, basis)

    def _losses_at(
        self, base: Params, weights: Tensor, first: int, passes: Sequence[Batch], basis: Basis | None
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
            yield torch.vmap(lambda tensors: self.losses_of(tensors, passes))(stacked)
            return
        for p in range(count):
            yield self.losses_of({name: tensor[p] for name, tensor in stacked.items()}, passes)[None]

    def losses_of(self, tensors: dict[str, Tensor], passes: Sequence[Batch]) -> Tensor:
        """Losses of all samples of all passes, (samples,); of a criterion that gives one for a batch, (passes,)."""
        found = [self._call(tensors, self.criterion.losses, batch) for batch in passes]
        rows = [
            loss.reshape(1) if loss.dim() == 0 else loss.flatten(1).mean(1) if loss.dim() > 1 else loss
            for loss in found
        ]
        return torch.cat(rows) if len(rows) > 1 else rows[0]

    def _call(self, tensors: dict[str, Tensor], f: Callable[..., Any], *arguments: Any) -> Any:
        """f(module, …) with the module's parameters replaced."""
        named = {f"module.{name}": tensor for name, tensor in tensors.items()}
        return functional_call(self.module, named, (f, *arguments))

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
            loss = self.losses_of(leaves, [batch]).mean()
            gradients = torch.autograd.grad(loss, list(leaves.values()))
        return float(loss.detach()), torch.cat([g.reshape(-1).float() for g in gradients])

    def evaluate(self, params: Params) -> Metrics:
        with torch.no_grad():
            metrics: Metrics = self._call(params.tensors, self.criterion.measure, self.test)
        return metrics
