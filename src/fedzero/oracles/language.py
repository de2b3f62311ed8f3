"""Loss or metric of a causal language model over a few answer words at the end of each prompt."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedzero.directions import Domain, Terms
from fedzero.model.params import Params
from fedzero.oracles.contract import F64, Basis, Metrics
from fedzero.oracles.frozen_prefix import FrozenPrefix
from fedzero.oracles.graphs import MAX_TERMS, Recorder
from fedzero.oracles.low_rank import Neighbours, has_factors, neighbours
from fedzero.oracles.packing import PackedBatch, mask_of, pack_prompts
from fedzero.oracles.piecewise import Chosen, Piecewise
from fedzero.oracles.products import products
from fedzero.oracles.side_by_side import SideBySide, agree, trial_points, warn_one_by_one

Measure = Literal["loss", "accuracy", "f1"]
"""What is minimised: the cross-entropy over the answer words; 1 − accuracy; 1 − macro-averaged F1."""

TOKENS = {"cpu": 1 << 14, "cuda": 1 << 17}
"""Of one forward pass at most, unless a single row has more."""
BESIDE = {"cpu": 1 << 12, "cuda": 1 << 15}
"""The same of a pass over points side by side, unless a single point has more."""
NO_TERMS = Terms.of([], [], Domain.GAUSSIAN)


@dataclass(frozen=True, eq=False)
class Texts:
    """Prompts as tokens, the right answer of each, and their weights (summing to one; None: equal)."""

    prompts: tuple[Sequence[int], ...]
    labels: tuple[int, ...]
    weights: F64 | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @staticmethod
    def joined(many: Sequence[Texts]) -> Texts:
        """All prompts, without weights."""
        return Texts(tuple(p for t in many for p in t.prompts), tuple(label for t in many for label in t.labels))


class LanguageObjective:
    """`module` maps token ids to an object with `logits`; `head` is its last layer, the one over the vocabulary.

    Rows of up to `pack` tokens may hold several prompts. Layers before the first trained one run once for all points.
    On a GPU passes are recorded and replayed, and `tf32` lets it multiply float32 numbers with fewer bits. Points of
    rank-one directions go through the model side by side, unless it should be at views, to the last bit (`exact`).
    """

    def __init__(
        self,
        module: nn.Module,
        head: nn.Module,
        answers: Tensor,
        test: Texts,
        measure: Measure = "loss",
        pack: int = 0,
        tf32: bool = False,
        exact: bool = False,
    ):
        self.module, self.answer_ids, self.test, self.measure = module.eval(), answers, test, measure
        self.pack, self.tf32 = pack, tf32
        self.pieces = Piecewise(module, head)
        self.weight = next(module.parameters())
        self.device, self.dtype = answers.device, self.weight.dtype
        self.tokens = TOKENS[self.device.type]
        self.prefix = FrozenPrefix.of(module)
        sides = SideBySide(module, head)
        self.sides = sides if sides.possible and not exact else None
        self.recorder = (
            Recorder(self.pieces, self._forward, self.prefix, self._beside) if self.device.type == "cuda" else None
        )

    def losses(
        self, base: Params, points: Sequence[Terms], batches: Sequence[Texts], basis: Basis | None = None
    ) -> F64:
        texts = Texts.joined(batches)
        logits, labels = self._logits(base, points, texts, basis), torch.tensor(texts.labels, device=self.device)
        sizes = [len(batch) for batch in batches]
        each = zip(torch.split(logits, sizes, dim=1), torch.split(labels, sizes), batches, strict=True)
        found = [measured(self.measure, some, right, batch.weights) for some, right, batch in each]
        return torch.stack(found).cpu().numpy()

    def _logits(
        self, base: Params, points: Sequence[Terms], texts: Texts, basis: Basis | None = None, again: bool = False
    ) -> Tensor:
        """Of the answer words, (points, samples, answers), float32; `again`: the same texts will be evaluated again."""
        found = torch.empty(len(points), len(texts), len(self.answer_ids), device=self.device)
        for packed in pack_prompts(texts.prompts, self.pack, self.tokens):
            batch = packed.to(self.device)
            some = self._side_by_side(base, points, batch) if basis is None and has_factors(points) else None
            if some is None:
                some = self._at_views(base, points, batch, basis, again)
            found[:, torch.from_numpy(batch.which).to(self.device)] = some
        return found

    def _at_views(
        self, base: Params, points: Sequence[Terms], batch: PackedBatch, basis: Basis | None, again: bool
    ) -> Tensor:
        if self.recorder is not None and basis is None and all(len(terms) <= MAX_TERMS for terms in points):
            return self.recorder.logits(base, points, batch)
        with self._prefix_of(batch, again):
            return torch.stack([self._at(base, point, batch, basis, i) for i, point in enumerate(points)])

    def _side_by_side(self, base: Params, points: Sequence[Terms], batch: PackedBatch) -> Tensor | None:
        """Logits (points, B, answers); None where only views will do."""
        if self.sides is None or not self.sides.agreed(lambda: self._agrees(base, trial_points(base, points), batch)):
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
        all_ends = torch.stack([(ends[0] + first).view(-1), ends[1].repeat(count)])
        prefix: AbstractContextManager[None] = nullcontext()
        if self.prefix is not None and hidden is not None:
            prefix = self.prefix.returning(hidden.repeat(count, 1, 1))
        with torch.no_grad(), prefix, self.sides.at(base, points) as scope:
            scope.chosen = Chosen(self.answer_ids, all_ends)
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
        """Tokens and ends of a batch to logits (B, answers), float32."""
        where: dict[str, Tensor] = {}
        if shared:
            where = {"attention_mask": mask_of(tokens, self.dtype), "position_ids": tokens[2]}
        self.pieces.chosen = Chosen(self.answer_ids, ends)
        try:
            with products(self.weight, self.tf32):
                logits: Tensor = self.module(input_ids=tokens[0], use_cache=False, **where).logits
        finally:
            self.pieces.chosen = None
        return logits[:, 0].float() if self.pieces.chooses else logits[*ends][:, self.answer_ids].float()

    def gradient(self, base: Params, batch: Texts) -> tuple[float, Tensor]:
        trained = [p for p in self.module.parameters() if p.requires_grad]
        (packed,) = (each.to(self.device) for each in pack_prompts(batch.prompts, self.pack, sys.maxsize))
        labels = torch.tensor(batch.labels, device=self.device)[torch.from_numpy(packed.which).to(self.device)]
        weights = None if batch.weights is None else batch.weights[packed.which]
        with torch.enable_grad(), self.pieces.at(base.view(NO_TERMS)):
            loss = measured("loss", self._forward(packed.tokens, packed.ends, packed.shared), labels, weights)
            gradients = torch.autograd.grad(loss, trained, allow_unused=True, materialize_grads=True)
        return float(loss.detach()), torch.cat([g.reshape(-1).float() for g in gradients])

    def evaluate(self, params: Params) -> Metrics:
        logits = self._logits(params, (NO_TERMS,), self.test, again=True)[0]
        labels = torch.tensor(self.test.labels, device=self.device)
        loss, errors, f1_errors = (float(measured(name, logits, labels)) for name in ("loss", "accuracy", "f1"))
        return Metrics(loss=loss, accuracy=1 - errors, others={"f1": 1 - f1_errors})


def measured(measure: Measure, logits: Tensor, labels: Tensor, weights: F64 | None = None) -> Tensor:
    """What is minimised, in float64: logits (…, samples, answers) and labels (samples,) to numbers (…,).

    Weights do not apply to F1, which is a mean over answers.
    """

    def mean(values: Tensor) -> Tensor:
        if weights is None:
            return values.double().mean(-1)
        return (values.double() * torch.from_numpy(weights).to(values.device)).sum(-1)

    if measure == "loss":
        right = labels.expand(logits.shape[:-1])[..., None]
        return mean(-F.log_softmax(logits, dim=-1).gather(-1, right)[..., 0])
    predicted = logits.argmax(-1)
    if measure == "accuracy":
        return 1 - mean(predicted == labels)
    classes = torch.arange(logits.shape[-1], device=labels.device)[:, None]
    guess, truth = predicted[..., None, :] == classes, labels == classes  # (…, answers, samples), (answers, samples)
    both, either = (guess & truth).sum(-1).double(), guess.sum(-1) + truth.sum(-1)
    return 1 - (2 * both / either.clamp(min=1)).sum(-1) / (either > 0).sum(-1)
