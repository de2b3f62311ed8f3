"""Loss of a causal language model over the responses to prompts, and choices among answers of several tokens.

    loss of a row = −(1/m) Σ_k log p(r_k | prompt, r_1 … r_{k−1})        r_1 … r_m: its response, end token included

A batch is the mean of its rows, each counting the same however long it is (not each token, as in `transformers`). An
answer's score is the mean log-probability of its tokens, and takes the place of the logit of an answer of one token.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedzero.directions import Terms
from fedzero.model.params import Params
from fedzero.oracles.contract import F64, Basis, Metrics
from fedzero.oracles.language import NO_ROWS_F1, Measure, measured, measured_rows
from fedzero.oracles.packing import PackedBatch, pack_prompts, targeted
from fedzero.oracles.passes import NO_TERMS, Passes


@dataclass(frozen=True, eq=False)
class Responses:
    """Prompts with their responses as tokens; of each row the last `scored` tokens are the response. `weights` of rows
    sum to one (None: equal)."""

    tokens: tuple[Sequence[int], ...]
    scored: tuple[int, ...]
    weights: F64 | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def read(self) -> list[Sequence[int]]:
        """What the model reads of each row: all but the last token."""
        return [row[:-1] for row in self.tokens]

    @property
    def targets(self) -> list[Sequence[int]]:
        return [row[len(row) - size :] for row, size in zip(self.tokens, self.scored, strict=True)]

    def part(self, rows: slice) -> Responses:
        return Responses(self.tokens[rows], self.scored[rows], None if self.weights is None else self.weights[rows])

    @staticmethod
    def joined(many: Sequence[Responses]) -> Responses:
        """All rows, without weights."""
        return Responses(tuple(row for r in many for row in r.tokens), tuple(size for r in many for size in r.scored))


@dataclass(frozen=True, eq=False)
class Choices:
    """Rows of every prompt with every answer, prompt by prompt, the right answers, and the weights of prompts."""

    rows: Responses
    labels: tuple[int, ...]
    weights: F64 | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, rows: slice) -> Choices:
        count, (first, last, _) = len(self.rows) // len(self), rows.indices(len(self))
        some = self.rows.part(slice(first * count, last * count))
        return Choices(some, self.labels[rows], None if self.weights is None else self.weights[rows])


class Scorer:
    """Mean log-probabilities of responses. Rows of up to `pack` tokens may hold several of them."""

    def __init__(self, passes: Passes, pack: int = 0):
        self.passes, self.pack = passes, pack

    def sums(
        self, base: Params, points: Sequence[Terms], rows: Responses, basis: Basis | None = None, again: bool = False
    ) -> F64:
        """Σ log p of every response, (points, rows)."""
        return self._sums(rows, len(points), lambda batch: self.passes.at_points(base, points, batch, basis, again))

    def means_by_row(self, base: Params, points: Sequence[Terms], rows: Responses) -> F64:
        """`means` of a random number of rows, if any."""
        if not len(rows):
            return np.empty((len(points), 0))
        sums = self._sums(rows, len(points), lambda batch: self.passes.of_any_size(base, points, batch))
        found: F64 = sums / np.array(rows.scored)
        return found

    def _sums(self, rows: Responses, points: int, run: Callable[[PackedBatch], Tensor]) -> F64:
        found, targets = np.empty((points, len(rows))), rows.targets
        for packed in pack_prompts(rows.read, self.pack, self.passes.tokens):
            batch = targeted(packed, targets)
            each = run(batch.to(self.passes.device))
            first = np.flatnonzero(np.diff(batch.which, prepend=-1))
            logs = each[..., 0].cpu().numpy().astype(np.float64)
            found[:, batch.which[first]] = np.add.reduceat(logs, first, axis=1)
        return found

    def means(
        self, base: Params, points: Sequence[Terms], rows: Responses, basis: Basis | None = None, again: bool = False
    ) -> F64:
        """The same divided by the number of tokens."""
        found: F64 = self.sums(base, points, rows, basis, again) / np.array(rows.scored)
        return found

    def gradient(self, base: Params, rows: Responses, loss_of: Callable[[Tensor], Tensor]) -> tuple[float, Tensor]:
        """A loss of the means (rows,) at the base, and its gradient."""
        (packed,) = pack_prompts(rows.read, self.pack, sys.maxsize)
        batch = targeted(packed, rows.targets)
        shares = torch.zeros(len(rows), len(batch.which))
        shares[batch.which, np.arange(len(batch.which))] = 1 / torch.tensor(rows.scored)[batch.which]
        shares = shares.to(self.passes.device)
        on_device: PackedBatch = batch.to(self.passes.device)
        return self.passes.gradient(base, on_device, lambda logs: loss_of((shares @ logs)[:, 0]))


Generated = Callable[[Params], dict[str, float]]
"""Metrics of what a model generates."""


class ResponseObjective:
    """The loss of responses. An evaluation has the perplexity, exp(−Σ log p / tokens) over all test rows, and what
    `generated` measures."""

    def __init__(self, scorer: Scorer, test: Responses, generated: Generated = lambda params: {}):
        self.scorer, self.test, self.generated = scorer, test, generated

    def losses(
        self, base: Params, points: Sequence[Terms], batches: Sequence[Responses], basis: Basis | None = None
    ) -> F64:
        means = self.scorer.means(base, points, Responses.joined(batches), basis)
        cuts = np.cumsum([len(batch) for batch in batches])[:-1]
        each = zip(np.split(means, cuts, 1), batches, strict=True)
        return np.stack([-_mean(some, batch.weights) for some, batch in each])

    @property
    def no_rows(self) -> str:
        return ""

    def row_losses(self, base: Params, points: Sequence[Terms], batch: Responses) -> F64:
        """See `ByRow`: the mean over the tokens of each row."""
        return -self.scorer.means_by_row(base, points, batch)

    def gradient(self, base: Params, batch: Responses) -> tuple[float, Tensor]:
        weights = np.full(len(batch), 1 / len(batch)) if batch.weights is None else batch.weights
        shares = torch.from_numpy(weights).to(self.scorer.passes.device)
        return self.scorer.gradient(base, batch, lambda means: -(means.double() * shares).sum())

    def evaluate(self, params: Params) -> Metrics:
        sums, sizes = self.scorer.sums(params, (NO_TERMS,), self.test, again=True)[0], np.array(self.test.scored)
        others = {"perplexity": math.exp(min(-sums.sum() / sizes.sum(), 700.0))} | self.generated(params)
        return Metrics(loss=float(-(sums / sizes).mean()), others=others)


class ChoiceObjective:
    """The choice of one of `count` answers by their mean log-probabilities; the rest as of a `LanguageObjective`."""

    def __init__(self, scorer: Scorer, test: Choices, count: int, measure: Measure = "loss"):
        self.scorer, self.test, self.count, self.measure = scorer, test, count, measure

    def losses(
        self, base: Params, points: Sequence[Terms], batches: Sequence[Choices], basis: Basis | None = None
    ) -> F64:
        scores = self._scores(base, points, Responses.joined([batch.rows for batch in batches]), basis)
        each = zip(torch.split(scores, [len(batch.labels) for batch in batches], 1), batches, strict=True)
        found = [measured(self.measure, some, torch.tensor(batch.labels), batch.weights) for some, batch in each]
        return torch.stack(found).numpy()

    @property
    def no_rows(self) -> str:
        return NO_ROWS_F1 if self.measure == "f1" else ""

    def row_losses(self, base: Params, points: Sequence[Terms], batch: Choices) -> F64:
        """See `ByRow`; a row is a prompt with all of its answers."""
        scores = torch.from_numpy(self.scorer.means_by_row(base, points, batch.rows))
        found: F64 = measured_rows(
            self.measure, scores.view(len(points), len(batch.labels), self.count), torch.tensor(batch.labels).long()
        ).numpy()
        return found

    def _scores(self, base: Params, points: Sequence[Terms], rows: Responses, basis: Basis | None = None,
                again: bool = False) -> Tensor:  # fmt: skip
        """(points, prompts, answers)."""
        means = self.scorer.means(base, points, rows, basis, again)
        return torch.from_numpy(means).view(len(points), -1, self.count)

    def gradient(self, base: Params, batch: Choices) -> tuple[float, Tensor]:
        labels = torch.tensor(batch.labels, device=self.scorer.passes.device)

        def loss(means: Tensor) -> Tensor:
            return measured("loss", means.view(-1, self.count), labels, batch.weights)

        return self.scorer.gradient(base, batch.rows, loss)

    def evaluate(self, params: Params) -> Metrics:
        scores, labels = (
            self._scores(params, (NO_TERMS,), self.test.rows, again=True)[0],
            torch.tensor(self.test.labels),
        )
        loss, errors, f1_errors = (float(measured(name, scores, labels)) for name in ("loss", "accuracy", "f1"))
        return Metrics(loss=loss, accuracy=1 - errors, others={"f1": 1 - f1_errors})


def _mean(rows: F64, weights: F64 | None) -> F64:
    """Of every row (points, rows)."""
    found: F64 = rows.mean(1) if weights is None else (rows * weights).sum(1)
    return found
