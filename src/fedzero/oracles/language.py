"""Loss or metric of a causal language model over a few answer words at the end of each prompt."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedzero.directions import Terms
from fedzero.model.params import Params
from fedzero.oracles.contract import F64, Basis, DependentRows, Metrics
from fedzero.oracles.packing import pack_prompts
from fedzero.oracles.passes import NO_TERMS, Passes

Measure = Literal["loss", "accuracy", "f1"]
"""What is minimised: the cross-entropy over the answer words; 1 − accuracy; 1 − macro-averaged F1."""
NO_ROWS_F1 = "F1 is a mean over answers, so no row has a share of its own: set task.measure to 'loss' or 'accuracy'"


@dataclass(frozen=True, eq=False)
class Texts:
    """Prompts as tokens, the right answer of each, and their weights (summing to one; None: equal)."""

    prompts: tuple[Sequence[int], ...]
    labels: tuple[int, ...]
    weights: F64 | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, rows: slice) -> Texts:
        return Texts(self.prompts[rows], self.labels[rows], None if self.weights is None else self.weights[rows])

    @staticmethod
    def joined(many: Sequence[Texts]) -> Texts:
        """All prompts, without weights."""
        return Texts(tuple(p for t in many for p in t.prompts), tuple(label for t in many for label in t.labels))


class LanguageObjective:
    """`module`, `head`, `tf32` and `exact`: of the `Passes`; `answers` (A,): tokens to choose from.

    Rows of up to `pack` tokens may hold several prompts.
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
        self.passes, self.count = Passes(module, head, answers, tf32, exact), len(answers)
        self.test, self.measure, self.pack, self.device = test, measure, pack, answers.device

    def losses(
        self, base: Params, points: Sequence[Terms], batches: Sequence[Texts], basis: Basis | None = None
    ) -> F64:
        texts = Texts.joined(batches)
        logits, labels = self._logits(base, points, texts, basis), torch.tensor(texts.labels, device=self.device)
        sizes = [len(batch) for batch in batches]
        each = zip(torch.split(logits, sizes, dim=1), torch.split(labels, sizes), batches, strict=True)
        found = [measured(self.measure, some, right, batch.weights) for some, right, batch in each]
        return torch.stack(found).cpu().numpy()

    @property
    def no_rows(self) -> str:
        return NO_ROWS_F1 if self.measure == "f1" else ""

    def row_losses(self, base: Params, points: Sequence[Terms], batch: Texts) -> F64:
        """See `ByRow`."""
        found = torch.empty(len(points), len(batch), self.count, device=self.device)
        for packed in pack_prompts(batch.prompts, self.pack, self.passes.tokens) if len(batch) else ():
            some = self.passes.of_any_size(base, points, packed.to(self.device))
            found[:, torch.from_numpy(packed.which).to(self.device)] = some
        return measured_rows(self.measure, found, torch.tensor(batch.labels, device=self.device)).cpu().numpy()

    def _logits(
        self, base: Params, points: Sequence[Terms], texts: Texts, basis: Basis | None = None, again: bool = False
    ) -> Tensor:
        """Of the answer words, (points, samples, answers), float32; `again`: the same texts will be evaluated again."""
        found = torch.empty(len(points), len(texts), self.count, device=self.device)
        for packed in pack_prompts(texts.prompts, self.pack, self.passes.tokens):
            batch = packed.to(self.device)
            some = self.passes.at_points(base, points, batch, basis, again)
            found[:, torch.from_numpy(batch.which).to(self.device)] = some
        return found

    def gradient(self, base: Params, batch: Texts) -> tuple[float, Tensor]:
        (packed,) = (each.to(self.device) for each in pack_prompts(batch.prompts, self.pack, sys.maxsize))
        labels = torch.tensor(batch.labels, device=self.device)[torch.from_numpy(packed.which).to(self.device)]
        weights = None if batch.weights is None else batch.weights[packed.which]
        return self.passes.gradient(base, packed, lambda logits: measured("loss", logits, labels, weights))

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
        return mean(_cross_entropy(logits, labels))
    predicted = logits.argmax(-1)
    if measure == "accuracy":
        return 1 - mean(predicted == labels)
    classes = torch.arange(logits.shape[-1], device=labels.device)[:, None]
    guess, truth = predicted[..., None, :] == classes, labels == classes  # (…, answers, samples), (answers, samples)
    both, either = (guess & truth).sum(-1).double(), guess.sum(-1) + truth.sum(-1)
    return 1 - (2 * both / either.clamp(min=1)).sum(-1) / (either > 0).sum(-1)


def measured_rows(measure: Measure, logits: Tensor, labels: Tensor) -> Tensor:
    """The same before the mean, of the measures that are one: (…, samples), float64."""
    if measure == "f1":
        raise DependentRows(NO_ROWS_F1)
    if measure == "loss":
        return _cross_entropy(logits, labels).double()
    return (logits.argmax(-1) != labels).double()


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """(…, samples), float32."""
    right = labels.expand(logits.shape[:-1])[..., None]
    return -F.log_softmax(logits, dim=-1).gather(-1, right)[..., 0]
