"""The loss of a torch module on mini-batches, at many points.

Small models: the offsets c·z of all points are computed once, kept while the same points are asked for (a cohort that
shares directions asks for the same points), and added to the base in one operation; where they are too many to keep,
some points at a time. Large models: one point at a time through a scratch copy. On a GPU the points of a small model
are evaluated together (vmap). On a CPU each point is one thread's work: a pass stays in the cache, values do not depend
on the number of threads, and a core that is busy with something else takes fewer points instead of keeping the others
waiting. If the module has a method `prepare`, inputs are transformed by it once for all points.

Points of rank-one directions need no weights of their own: they go through the module side by side (`beside`), unless
the values of views are wanted to the last bit (`exact`).

Batches of several clients share a pass where the criterion gives a loss for every sample and their shapes fit.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from fedzero.directions import Terms
from fedzero.model.device import threads, workers
from fedzero.model.params import Params
from fedzero.oracles.chunked import pieces
from fedzero.oracles.contract import F64, Basis, DependentRows, Metrics, Points
from fedzero.oracles.criteria import ACCURACY, Batch, Criterion, Supervised, accuracy, joined, samples_of
from fedzero.oracles.low_rank import has_factors
from fedzero.oracles.products import products
from fedzero.oracles.side_by_side import GroupedLosses

KEPT_NUMBERS = 1 << 27
"""Offsets kept between asks: at most this many float32 numbers."""
CLASSIFICATION = Supervised(metrics={ACCURACY: accuracy})
WORTH_A_THREAD = 1 << 20
"""Parameters × samples from which a pass takes longer than handing it to another thread."""
WORTH_ALL_THREADS = 1 << 22
"""Parameters from which one pass keeps several threads busy, where there are fewer points than threads."""

TRIED, APART = 8, 1e-2
"""Rows that are evaluated alone and together before rows count one by one; how far their losses may be apart, as a
share of the largest: coarse products differ by 1e-3, batches that matter by far more."""


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
        exact: bool = False,
    ):
        self.module, self.test, self.criterion, self.share = _Called(module.eval()), test, criterion, share
        self.prepare: Callable[[Tensor], Tensor] | None = getattr(module, "prepare", None)
        self.together = next(module.parameters()).device.type != "cpu" if together is None else together
        self._offsets: OrderedDict[Points, Tensor] = OrderedDict()
        self._modules: list[nn.Module] = [self.module]
        """One for each thread: a module holds the weights of one point at a time."""
        self._copyable = True
        self._apart = False
        """Whether rows were seen not to depend on each other."""
        self.beside = None if exact else GroupedLosses(module, criterion, self.losses_of, self._inner_copies)

    def losses(
        self, base: Params, points: Sequence[Terms], batches: Sequence[Batch], basis: Basis | None = None
    ) -> F64:
        joint = joined(batches) if self.share else None
        passes = [joint] if joint is not None else list(batches)
        return self._reduced(base, points, passes, basis, lambda table: _means(table, batches, len(passes)))

    @cached_property
    def no_rows(self) -> str:
        """See `ByRow`. A loss that depends on other rows in another way than by these is found at the first batch."""
        if not self.share:
            return "the loss is one number for a whole batch: let it return one for each row"
        norms = [(name, part) for name, part in self.module.module.named_modules() if isinstance(part, _BatchNorm)]
        mixing = next((name for name, part in norms if part.training or part.running_mean is None), None)
        if mixing is not None:
            return f"the layer {mixing!r} (BatchNorm) takes its statistics from the batch, so rows depend on each other"
        return ""

    def row_losses(self, base: Params, points: Sequence[Terms], batch: Batch) -> F64:
        """See `ByRow`: the passes of `losses`, without their mean."""
        if self.no_rows:
            raise DependentRows(self.no_rows)
        if not (rows := samples_of(batch)):
            return np.empty((len(points), 0))
        if not self._apart:
            self._apart = self._expect_apart(base, self.test[0] if self.test else batch)
        return self._reduced(base, points, [batch], None, lambda table: _by_row(table, rows))

    def _expect_apart(self, base: Params, batch: Batch) -> bool:
        """Refuse rows whose losses change with the rows beside them. False: one row alone shows nothing."""
        each = list(islice(pieces(batch, 1), TRIED))
        if len(each) < 2:
            return False
        with torch.no_grad():
            together = _by_row(self.losses_of(base.tensors, [next(pieces(batch, len(each)))])[None], len(each))
            alone = np.concatenate([_by_row(self.losses_of(base.tensors, [row])[None], 1) for row in each], axis=1)
        short = any(tensor.dtype != torch.float32 for tensor in base.tensors.values())
        most = (5 if short else 1) * APART * np.abs(alone).max()
        if not np.allclose(together, alone, rtol=0, atol=most, equal_nan=True):
            raise DependentRows(
                "the loss of a row is another one with other rows beside it, so nothing bounds what a row contributes: "
                "look for norms, weights or negatives that are taken from the batch"
            )
        return True

    def _reduced(
        self,
        base: Params,
        points: Sequence[Terms],
        passes: Sequence[Batch],
        basis: Basis | None,
        reduce: Callable[[Tensor], F64],
    ) -> F64:
        """What `reduce` makes of the losses (points, samples) of all passes."""
        with torch.no_grad():
            if basis is None and self.beside is not None and has_factors(points):
                table = self.beside.losses(base, points, self._prepared(passes))
                if table is not None:
                    with threads(1):
                        return reduce(table)
            return self._by_views(base, points, passes, basis, reduce)

    def _by_views(
        self,
        base: Params,
        points: Sequence[Terms],
        passes: Sequence[Batch],
        basis: Basis | None,
        reduce: Callable[[Tensor], F64],
    ) -> F64:
        at_once = torch.get_num_threads()
        few = len(points) < at_once and base.size >= WORTH_ALL_THREADS
        alone = not (self.together or few or self._through_scratch(base, points))
        with threads(1 if alone else None):  # a thread for a point, or all for every operation
            passes = self._prepared(passes)
            rows = list(self._sample_losses(base, points, passes, basis, at_once if alone else 1))
            return reduce(torch.cat(rows))

    def _prepared(self, passes: Sequence[Batch]) -> Sequence[Batch]:
        if self.prepare is None or self.together:
            return passes
        return [(self.prepare(x), y) for x, y in passes]

    @staticmethod
    def _through_scratch(base: Params, points: Sequence[Terms]) -> bool:
        """True if points are made one at a time: large models, 16-bit ones, points of several terms."""
        short = any(tensor.dtype != torch.float32 for tensor in base.tensors.values())
        return base.size > KEPT_NUMBERS or short or any(len(terms) > 1 for terms in points)

    def _sample_losses(
        self, base: Params, points: Sequence[Terms], passes: Sequence[Batch], basis: Basis | None, at_once: int
    ) -> Iterator[Tensor]:
        """Losses of all samples, some points at a time, (points, samples) in all."""
        if self._through_scratch(base, points):
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
            weights = base.vector() + self._offsets_of(base, chosen)
            yield from self._losses_at(base, weights, first, passes, basis, at_once)

    def _losses_at(
        self, base: Params, weights: Tensor, first: int, passes: Sequence[Batch], basis: Basis | None, at_once: int
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
        left, found = iter(range(count)), [torch.empty(0)] * count

        def work(module: nn.Module) -> None:
            with torch.no_grad():  # holds for the thread it is said in
                for p in left:
                    tensors = {name: tensor[p] for name, tensor in stacked.items()}
                    found[p] = self.losses_of(tensors, passes, module)[None]

        samples = sum(map(samples_of, passes))
        modules = self._copies(min(at_once, count) if base.size * samples >= WORTH_A_THREAD else 1)
        if len(modules) == 1:
            work(self.module)
        else:
            list(workers(len(modules)).map(work, modules))
        yield from found

    def _copies(self, wanted: int) -> list[nn.Module]:
        """Modules for so many threads; one alone, if it cannot be copied."""
        while len(self._modules) < wanted and self._copyable:
            try:
                self._modules.append(copy.deepcopy(self.module))
            except Exception:  # whatever the module of somebody else holds
                self._copyable = False
        return self._modules[:wanted]

    def _inner_copies(self, wanted: int) -> list[nn.Module]:
        copies: list[Any] = self._copies(wanted)
        return [copy.module for copy in copies]

    def losses_of(self, tensors: dict[str, Tensor], passes: Sequence[Batch], module: nn.Module | None = None) -> Tensor:
        """Losses of all samples of all passes, (samples,); of a criterion that gives one for a batch, (passes,)."""
        found = [self._call(module or self.module, tensors, self.criterion.losses, batch) for batch in passes]
        rows = [
            loss.reshape(1) if loss.dim() == 0 else loss.flatten(1).mean(1) if loss.dim() > 1 else loss
            for loss in found
        ]
        return torch.cat(rows) if len(rows) > 1 else rows[0]

    @staticmethod
    def _call(module: nn.Module, tensors: dict[str, Tensor], f: Callable[..., Any], *arguments: Any) -> Any:
        """f(module, …) with the module's parameters replaced."""
        named = {f"module.{name}": tensor for name, tensor in tensors.items()}
        with products(next(iter(tensors.values()))):
            return functional_call(module, named, (f, *arguments))

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
            metrics: Metrics = self._call(self.module, params.tensors, self.criterion.measure, self.test)
        return metrics


def _means(table: Tensor, batches: Sequence[Batch], passes: int) -> F64:
    """Losses (points, samples) of all batches to the mean of each, (batches, points)."""
    table = table.double()
    sizes = [samples_of(batch) for batch in batches] if table.shape[1] > passes else [1] * len(batches)
    means = torch.stack([part.mean(dim=1) for part in torch.split(table, sizes, dim=1)])
    return means.cpu().numpy()


def _by_row(table: Tensor, rows: int) -> F64:
    """Losses (points, samples) as they are; refused where a batch has one in all."""
    if table.shape[1] != rows:
        raise DependentRows("the loss is one number for a whole batch: let it return one for each row")
    return table.double().cpu().numpy()
