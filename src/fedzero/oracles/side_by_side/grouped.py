"""Losses of a module at many points of rank-one directions, side by side; None where only views will do.

On a CPU a group of points is one thread's work: what it needs stays in the cache, and since groups are the same
whatever the number of threads, so are the values. The first call tries the ways in turn and compares each with views:
all points share the input up to the first trained layer; or every point has a copy of it from the beginning, as a
module with a path around that layer needs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedzero.directions import Terms
from fedzero.model.device import threads, workers
from fedzero.model.params import Params
from fedzero.oracles.contract import Points
from fedzero.oracles.criteria import Batch, Criterion, Supervised, samples_of
from fedzero.oracles.low_rank import Neighbours, neighbours
from fedzero.oracles.products import products
from fedzero.oracles.side_by_side.module import SideBySide
from fedzero.oracles.side_by_side.scope import NotSideBySide, Once, Scope
from fedzero.oracles.side_by_side.trial import agree, trials

GROUP, NUMBERS = 8, 1 << 21
"""Points of a pass on a CPU, and numbers of their inputs at most: what they need should stay in the cache."""
LARGE, WORK = 64, 1 << 25
"""More points, up to so many, where a pass has few products: its calls take a millisecond whatever they compute."""
ROWS = 1 << 16
"""Samples of a pass on a GPU, all points together; at least those of one point."""
KEPT = 4
"""Sets of points whose factors are kept between asks: a cohort that is asked one by one asks for the same."""
WORTH_ALL_THREADS = 1 << 22
"""Parameters from which one pass keeps several threads busy, where there are fewer groups than threads."""

Way = Literal["same", "apart"]


class GroupedLosses:
    """`views(tensors, passes)` are the losses (samples,) of one point, `copies(n)` at most n modules for threads."""

    def __init__(
        self,
        module: nn.Module,
        criterion: Criterion,
        views: Callable[[dict[str, Tensor], Sequence[Batch]], Tensor],
        copies: Callable[[int], list[nn.Module]],
    ):
        self.criterion, self.views, self.copies = criterion, views, copies
        self.sides: dict[nn.Module, SideBySide] = {}
        self.untried = list[Way](["same", "apart"] if isinstance(criterion, Supervised) else ["apart"])
        self.untried = self.untried if SideBySide(module).possible else []
        self.way: Way | None = None
        self.work = 0
        """Products of a sample at a point, about, once a pass has counted them."""
        self._kept: OrderedDict[Points, Neighbours] = OrderedDict()

    def losses(self, base: Params, points: Sequence[Terms], passes: Sequence[Batch]) -> Tensor | None:
        """(points, samples), of all passes together."""
        while self.untried:
            self.way = self.untried.pop(0)
            if any(self._agrees(base, some, passes) for some in trials(base, points)):
                self.untried = []
            else:
                self.way = None
        if self.way is None:
            return None
        try:
            table = self._losses(base, points, passes)
        except Exception:  # of any kind, from the module's own code; views will show whose it is
            self.way = None
            return None
        return table if bool(table.isfinite().all()) else None

    def _agrees(self, base: Params, points: Sequence[Terms], passes: Sequence[Batch]) -> bool:
        try:
            found = self._losses(base, points, passes)
            wanted = torch.stack([self.views(base.view(terms).tensors(), passes) for terms in points])
        except Exception:  # of any kind, from the module's own code
            return False
        exact = all(tensor.dtype == torch.float32 for tensor in base.tensors.values())
        return found.shape == wanted.shape and agree(found.float(), wanted.float(), exact)

    def _losses(self, base: Params, points: Sequence[Terms], passes: Sequence[Batch]) -> Tensor:
        cpu, weight = base.device.type == "cpu", next(iter(base.tensors.values()))
        size = self._size(len(points), passes) if cpu else max(1, ROWS // max(map(samples_of, passes)))
        starts, near = range(0, len(points), size), self._neighbours(base, points)
        at_once = torch.get_num_threads() if cpu else 1
        few = not cpu or (len(starts) < at_once and base.size >= WORTH_ALL_THREADS)
        with threads(None if few else 1):
            once = [Once() for _ in passes]
            modules = self.copies(1 if few else min(at_once, len(starts)))
            left, found = iter(range(len(starts))), [torch.empty(0)] * len(starts)

            def work(module: nn.Module) -> None:
                if module not in self.sides:
                    self.sides[module] = SideBySide(module)
                # no_grad and how products are made hold for the thread they are entered in
                with torch.no_grad(), products(weight), self.sides[module].entered() as place:
                    for i in left:
                        put = partial(place, base, near.some(starts[i], starts[i] + size))
                        each = zip(passes, once, strict=True)
                        found[i] = torch.cat([self._pass(module, put, batch, kept) for batch, kept in each], dim=1)

            if len(modules) == 1:
                work(modules[0])
            else:
                list(workers(len(modules)).map(work, modules))
        return torch.cat(found)

    def _size(self, count: int, passes: Sequence[Batch]) -> int:
        """Of a group, on a CPU: the same for all of an even number of groups, whatever the number of threads."""
        most = max(1, min(GROUP, NUMBERS // _numbers(passes)))
        if self.work:
            most = max(most, min(LARGE, WORK // (self.work * sum(map(samples_of, passes)))))
        groups = -(-count // most)
        return -(-count // (groups + groups % 2 if groups > 1 else 1))

    def _neighbours(self, base: Params, points: Sequence[Terms]) -> Neighbours:
        """All points, from the cache where the same were asked for before."""
        if not isinstance(points, Points):
            return neighbours(base, points)
        kept = self._kept.get(points)
        if kept is None:
            kept = self._kept[points] = neighbours(base, points)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return kept

    def _pass(self, module: nn.Module, put: Callable[..., Scope], batch: Batch, once: Once) -> Tensor:
        """Losses (points, samples) of a batch, at the points where `put` puts the module.

        The loss is taken there too: one that reads the module's parameters should not find those of the base.
        """
        criterion, samples = self.criterion, samples_of(batch)
        if isinstance(criterion, Supervised):
            x, y = batch
            scope = put(self.way == "same", once if self.way == "same" else None)
            count = scope.count
            outputs = module(x if self.way == "same" else repeated(x, count))
            losses = criterion.loss(outputs, repeated(y, count))
            if losses.dim() == 0:  # of a batch as a whole
                each = outputs.unflatten(0, (count, -1))
                return torch.stack([criterion.loss(output, y) for output in each])[:, None]
        else:
            scope = put()
            count = scope.count
            losses = criterion.losses(module, repeated(batch, count))
        self.work = self.work or max(1, scope.work // (count * samples))
        if losses.dim() == 0 or len(losses) != count * samples:
            raise NotSideBySide("the loss is not one for each sample")
        return losses.reshape(count, samples, -1).mean(2)


def _numbers(batch: Batch) -> int:
    """Of all tensors in a batch."""
    if isinstance(batch, Tensor):
        return batch.numel()
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple | list) else ()
    return max(1, sum(map(_numbers, parts)))


def repeated(batch: Batch, count: int) -> Any:
    """A batch for so many points, one after the other."""
    if isinstance(batch, Tensor):
        return batch.expand(count, *batch.shape).flatten(0, 1)
    if isinstance(batch, Mapping):
        return {name: repeated(part, count) for name, part in batch.items()}
    if isinstance(batch, tuple | list):
        return tuple(repeated(part, count) for part in batch)
    raise NotSideBySide(f"a batch with a {type(batch).__name__}")
