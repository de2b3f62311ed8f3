"""Numbers that a causal language model gives for a batch of prompts, at many points.

Layers before the first trained one run once for all points. On a GPU passes are recorded and replayed. Points of
rank-one directions go through the model side by side, unless it should be at views, to the last bit (`exact`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn

from fedzero.directions import Domain, Terms
from fedzero.model.params import Params
from fedzero.oracles.contract import Basis
from fedzero.oracles.frozen_prefix import PROBES, FrozenPrefix
from fedzero.oracles.graphs import MAX_TERMS, Recorder
from fedzero.oracles.low_rank import Neighbours, has_factors, neighbours
from fedzero.oracles.packing import PackedBatch, evened, mask_of
from fedzero.oracles.piecewise import Chosen, Piecewise, logits_of
from fedzero.oracles.products import products
from fedzero.oracles.side_by_side import SideBySide, agree, trials, warn_one_by_one

TOKENS = {"cpu": 1 << 14, "cuda": 1 << 17}
"""Of one forward pass at most, unless a single row has more."""
BESIDE = {"cpu": 1 << 12, "cuda": 1 << 15}
"""The same of a pass over points side by side, unless a single point has more."""
NO_TERMS = Terms.of([], [], Domain.GAUSSIAN)


class Passes:
    """`module` maps token ids to an object with `logits`; `head` is its last layer, the one over the vocabulary.

    A pass gives, in float32, the logits (B, A) of `answers` (A,) at the ends of the prompts, (2, B), row and column; or
    without answers log p (B, 1) of targets, `ends` (3, B), row, column and target. `tf32` lets a GPU multiply float32
    numbers with fewer bits.
    """

    def __init__(
        self, module: nn.Module, head: nn.Module, answers: Tensor | None, tf32: bool = False, exact: bool = False
    ):
        self.module, self.answers, self.tf32 = module.eval(), answers, tf32
        self.pieces = Piecewise(module, head)
        self.weight = next(module.parameters())
        self.device, self.dtype = self.weight.device if answers is None else answers.device, self.weight.dtype
        self.tokens = TOKENS[self.device.type]
        self.by_head = answers is None and self.pieces.chooses
        """Whether the head gives log p of targets; False where the model changes logits after it, as some cap them."""
        self.vocabulary = torch.arange(getattr(head, "out_features", 0), device=self.device)
        if self.by_head:
            self.by_head = self._head_is_last()
        self.prefix = FrozenPrefix.of(module)
        sides = SideBySide(module, head)
        self.sides = sides if sides.possible and not exact else None
        self.recorder = (
            Recorder(self.pieces, self._forward, self.prefix, self._beside) if self.device.type == "cuda" else None
        )

    def at_points(
        self, base: Params, points: Sequence[Terms], batch: PackedBatch, basis: Basis | None = None, again: bool = False
    ) -> Tensor:
        """(points, B, A), float32, of a batch that is on the device; `again`: it will be evaluated again."""
        found = self._side_by_side(base, points, batch) if basis is None and has_factors(points) else None
        return self._at_views(base, points, batch, basis, again) if found is None else found

    def of_any_size(self, base: Params, points: Sequence[Terms], batch: PackedBatch) -> Tensor:
        """The same of a batch of a random number of prompts, in one of few shapes where passes are recorded."""
        if self.recorder is None:
            return self.at_points(base, points, batch)
        return self.at_points(base, points, evened(batch))[:, : batch.ends.shape[1]]

    def gradient(self, base: Params, batch: PackedBatch, loss_of: Callable[[Tensor], Tensor]) -> tuple[float, Tensor]:
        """A loss of the numbers (B, A) at the base, and its gradient (d,), float32."""
        trained = [p for p in self.module.parameters() if p.requires_grad]
        with torch.enable_grad(), self.pieces.at(base.view(NO_TERMS)):
            loss = loss_of(self._forward(batch.tokens, batch.ends, batch.shared))
            gradients = torch.autograd.grad(loss, trained, allow_unused=True, materialize_grads=True)
        return float(loss.detach()), torch.cat([g.reshape(-1).float() for g in gradients])

    def _at_views(
        self, base: Params, points: Sequence[Terms], batch: PackedBatch, basis: Basis | None, again: bool
    ) -> Tensor:
        if self.recorder is not None and basis is None and all(len(terms) <= MAX_TERMS for terms in points):
            return self.recorder.logits(base, points, batch)
        with self._prefix_of(batch, again):
            return torch.stack([self._at(base, point, batch, basis, i) for i, point in enumerate(points)])

    def _side_by_side(self, base: Params, points: Sequence[Terms], batch: PackedBatch) -> Tensor | None:
        """Logits (points, B, answers); None where only views will do."""
        tried = (self._agrees(base, some, batch) for some in trials(base, points))
        if self.sides is None or not self.sides.agreed(tried):
            self.sides = None
            return None
        most = max(1, BESIDE[self.device.type] // batch.tokens[0].numel())
        size = -(-len(points) // -(-len(points) // most))
        try:
            if self.recorder is not None:
                found = self.recorder.side_by_side(base, points, size, batch)
            else:
                found = self._eagerly(base, points, size, batch)
        except Exception as error:  # of any kind, from the model's own code; views will show whose it is
            warn_one_by_one(f"fails ({type(error).__name__}: {error})")
            self.sides = None
            return None
        return found if bool(found.isfinite().all()) else None  # NaN: a weight was read where nobody expects it

    def _eagerly(self, base: Params, points: Sequence[Terms], size: int, batch: PackedBatch) -> Tensor:
        run = partial(self._forward, batch.tokens, batch.ends, batch.shared)
        hidden = None if self.prefix is None else self.prefix.compute(run)
        some = (neighbours(base, points[first : first + size]) for first in range(0, len(points), size))
        return torch.cat([self._beside(base, each, batch.tokens, batch.ends, batch.shared, hidden) for each in some])

    def _beside(
        self, base: Params, points: Neighbours, tokens: Tensor, ends: Tensor, shared: bool, hidden: Tensor | None
    ) -> Tensor:
        """Logits (points, B, answers) of the tokens and ends of a batch; `hidden` (R, T, H) of its frozen layers."""
        assert self.sides is not None
        count, rows = points.count, tokens.shape[1]
        first = rows * torch.arange(count, device=ends.device)[:, None]
        all_ends = torch.stack([(ends[0] + first).view(-1), *(each.repeat(count) for each in ends[1:])])
        prefix: AbstractContextManager[None] = nullcontext()
        if self.prefix is not None and hidden is not None:
            prefix = self.prefix.returning(hidden.repeat(count, 1, 1))
        with torch.no_grad(), prefix, self.sides.at(base, points) as scope:
            scope.chosen = self._chosen(all_ends)
            logits = self._forward(tokens.repeat(1, count, 1), all_ends, shared)
        return logits.view(count, ends.shape[1], -1)

    def _agrees(self, base: Params, points: Sequence[Terms], batch: PackedBatch) -> bool:
        """Whether points side by side have the logits of views; tried as written, since compiling takes its time."""
        if len(points) < 2:
            return False
        try:
            with torch.compiler.set_stance("force_eager"):
                found = self._eagerly(base, points, len(points), batch)
                with self._prefix_of(batch, False):
                    wanted = torch.stack([self._at(base, point, batch, None, i) for i, point in enumerate(points)])
        except Exception:  # of any kind, from the model's own code
            return False
        exact = self.dtype == torch.float32 and not (self.tf32 and self.device.type == "cuda")
        return agree(found, wanted, exact)

    def _prefix_of(self, batch: PackedBatch, again: bool) -> AbstractContextManager[None]:
        """While a batch is evaluated, the frozen layers return their output for it instead of running."""
        if self.prefix is None:
            return nullcontext()
        run = partial(self._forward, batch.tokens, batch.ends, batch.shared)
        return self.prefix.returning(self.prefix.cached(batch.tokens, run) if again else self.prefix.compute(run))

    def _at(self, base: Params, terms: Terms, batch: PackedBatch, basis: Basis | None, point: int) -> Tensor:
        offset = None if basis is None else basis.offset(point)
        with torch.no_grad(), self.pieces.at(base.view(terms), offset):
            return self._forward(batch.tokens, batch.ends, batch.shared)

    def _forward(self, tokens: Tensor, ends: Tensor, shared: bool) -> Tensor:
        """Tokens and ends of a batch to logits (B, answers), or log p (B, 1) of targets, float32."""
        where: dict[str, Tensor] = {}
        if shared:
            where = {"attention_mask": mask_of(tokens, self.dtype), "position_ids": tokens[2]}
        self.pieces.chosen = self._chosen(ends)
        try:
            with products(self.weight, self.tf32):
                logits: Tensor = self.module(input_ids=tokens[0], use_cache=False, **where).logits
        finally:
            self.pieces.chosen = None
        if self.answers is not None:
            return logits[:, 0].float() if self.pieces.chooses else logits[*ends][:, self.answers].float()
        if self.by_head:
            return logits[:, 0].float()
        whole = logits[:, 0] if self.pieces.chooses else logits[*ends[:2]]
        return whole.float().log_softmax(-1).gather(1, ends[2][:, None])

    def _chosen(self, ends: Tensor) -> Chosen:
        if self.answers is not None:
            return Chosen(self.answers, ends)
        return Chosen(None, ends[:2], ends[2]) if self.by_head else Chosen(self.vocabulary, ends[:2])

    def _head_is_last(self) -> bool:
        """Whether log p by the head is that of the model's own logits; tried as written."""
        tokens = torch.tensor(PROBES[0], device=self.device)
        places = torch.stack([torch.zeros_like(tokens), torch.arange(len(tokens), device=self.device), tokens.flip(0)])
        try:
            with torch.no_grad(), torch.compiler.set_stance("force_eager"):
                wanted = logits_of(self.module, tokens[None])[0].log_softmax(-1).gather(1, places[2][:, None])
                found = self._forward(tokens.expand(3, 1, -1), places, False)
        except Exception:  # of any kind, from the model's own code
            return False
        share = 1e-3 if self.dtype == torch.float32 else 1e-2
        return float((found - wanted).abs().max()) <= share * float(wanted.abs().max())
