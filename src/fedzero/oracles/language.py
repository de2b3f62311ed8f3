"""A causal language model that answers: the loss, or a metric, over a few answer words at the end of each prompt.

Prompts of a batch are padded on the right. Attention is causal, so what stands after a prompt's end changes nothing
before it: no mask is needed, and positions are those of the prompt alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedzero.directions import Domain, Terms
from fedzero.oracles.contract import F64, Basis, Metrics
from fedzero.oracles.piecewise import Chosen, Piecewise
from fedzero.params import Params

Measure = Literal["loss", "accuracy", "f1"]
"""What is minimised: the cross-entropy over the answer words; 1 − accuracy; 1 − macro-averaged F1."""

TOKENS = {"cpu": 1 << 14, "cuda": 1 << 17}
"""Of one forward pass at most, unless a single prompt has more."""
NOWHERE = Terms.of([], [], Domain.GAUSSIAN)


@dataclass(frozen=True, eq=False)
class Texts:
    """Prompts as tokens: `ids` (B, T), where each ends, `last` (B,), and which answer is right, `labels` (B,)."""

    ids: Tensor
    last: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    @staticmethod
    def joined(many: Sequence[Texts]) -> Texts:
        if len(many) == 1:
            return many[0]
        width = max(texts.ids.shape[1] for texts in many)
        ids = torch.cat([F.pad(texts.ids, (0, width - texts.ids.shape[1])) for texts in many])
        return Texts(ids, torch.cat([t.last for t in many]), torch.cat([t.labels for t in many]))

    def parts(self, tokens: int) -> list[Texts]:
        """Some prompts at a time, as many as `tokens` allows, in their order; padding that nobody needs is cut."""
        rows = max(1, tokens // self.ids.shape[1])
        parts = []
        for first in range(0, len(self), rows):
            here = slice(first, first + rows)
            width = int(self.last[here].max()) + 1 if rows < len(self) else self.ids.shape[1]
            parts.append(Texts(self.ids[here, :width], self.last[here], self.labels[here]))
        return parts


class LanguageObjective:
    """`module` maps token ids to an object with `logits`; `head` is its last layer, the one over the vocabulary."""

    def __init__(self, module: nn.Module, head: nn.Module, answers: Tensor, test: Texts, measure: Measure = "loss"):
        self.module, self.words, self.test, self.measure = module.eval(), answers, test, measure
        self.pieces = Piecewise(module, head)
        self.tokens = TOKENS[answers.device.type]

    def losses(
        self, base: Params, points: Sequence[Terms], batches: Sequence[Texts], basis: Basis | None = None
    ) -> F64:
        sizes, parts = [len(batch) for batch in batches], Texts.joined(batches).parts(self.tokens)
        labels = torch.cat([part.labels for part in parts])
        rows = []
        for point, terms in enumerate(points):
            logits = self._logits(base, terms, parts, None if basis is None else basis.offset(point))
            both = zip(torch.split(logits, sizes), torch.split(labels, sizes), strict=True)
            rows.append(torch.stack([measured(self.measure, some, right) for some, right in both]))
        return torch.stack(rows, dim=1).cpu().numpy()

    def _logits(self, base: Params, terms: Terms, parts: Sequence[Texts], offset: Tensor | None = None) -> Tensor:
        """Of the answer words, (samples, answers), float32."""
        with torch.no_grad(), self.pieces.at(base.view(terms), offset):
            return torch.cat([self._forward(part) for part in parts])

    def _forward(self, texts: Texts) -> Tensor:
        self.pieces.chosen = Chosen(self.words, texts.last)
        try:
            logits: Tensor = self.module(input_ids=texts.ids, use_cache=False).logits
        finally:
            self.pieces.chosen = None
        if self.pieces.chooses:
            return logits[:, 0].float()
        rows = torch.arange(len(texts), device=texts.last.device)
        return logits[rows, texts.last][:, self.words].float()

    def gradient(self, base: Params, batch: Texts) -> tuple[float, Tensor]:
        owned = [p for p in self.module.parameters() if p.requires_grad]
        with torch.enable_grad(), self.pieces.at(base.view(NOWHERE)):
            loss = F.cross_entropy(self._forward(batch), batch.labels)
            gradients = torch.autograd.grad(loss, owned, allow_unused=True)
        whole = [
            torch.zeros_like(p, dtype=torch.float32) if g is None else g.float()
            for p, g in zip(owned, gradients, strict=True)
        ]
        return float(loss.detach()), torch.cat([g.reshape(-1) for g in whole])

    def evaluate(self, params: Params) -> Metrics:
        order = torch.argsort(self.test.last, stable=True)  # neighbours of equal length need little padding
        test = Texts(self.test.ids[order], self.test.last[order], self.test.labels[order])
        parts = test.parts(self.tokens)
        logits, labels = self._logits(params, NOWHERE, parts), test.labels
        loss, wrong, unlike = (float(measured(name, logits, labels)) for name in ("loss", "accuracy", "f1"))
        return Metrics(loss=loss, accuracy=1 - wrong, others={"f1": 1 - unlike})


def measured(measure: Measure, logits: Tensor, labels: Tensor) -> Tensor:
    """What is minimised, a float64 number, of logits (samples, answers) and labels (samples,)."""
    if measure == "loss":
        return F.cross_entropy(logits, labels, reduction="none").double().mean()
    said, classes = logits.argmax(1), torch.arange(logits.shape[1], device=labels.device)
    if measure == "accuracy":
        return 1 - (said == labels).double().mean()
    right = ((said == labels) & (labels == classes[:, None])).sum(1).double()
    either = (said == classes[:, None]).sum(1) + (labels == classes[:, None]).sum(1)
    return 1 - (2 * right / either.clamp(min=1))[either > 0].mean()


def padded(tokens: Sequence[Sequence[int]], labels: Sequence[int], device: torch.device) -> Texts:
    """Prompts of several lengths side by side."""
    ids = np.zeros((len(tokens), max(map(len, tokens))), np.int64)
    for row, some in zip(ids, tokens, strict=True):
        row[: len(some)] = some
    last = np.array([len(some) - 1 for some in tokens])
    return Texts(*(torch.from_numpy(array).to(device) for array in (ids, last, np.array(labels, np.int64))))
