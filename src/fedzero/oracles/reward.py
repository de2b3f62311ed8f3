"""A reward of what a causal language model says: it generates, and a function of row and text gives a number.

What is minimised is 1 − the mean reward of a batch. It moves in steps where rewards do, and has no gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedzero.directions import Terms
from fedzero.errors import FedzeroError
from fedzero.model.params import Params
from fedzero.oracles.contract import F64, Basis, Metrics
from fedzero.oracles.frozen_prefix import FrozenPrefix
from fedzero.oracles.generation import (
    ENDED,
    STEP,
    Around,
    Decoder,
    Decoders,
    Decoding,
    KeyValues,
    PaddedPrompts,
    Stepwise,
    chunks,
    columns_of,
    most_columns,
)
from fedzero.oracles.low_rank import has_factors, neighbours
from fedzero.oracles.passes import NO_TERMS, TOKENS
from fedzero.oracles.piecewise import Piecewise
from fedzero.oracles.products import products
from fedzero.oracles.side_by_side import SideBySide, agree, trials

Row = Mapping[str, Any]
Scores = Callable[[Sequence[tuple[Row, str]]], Sequence[float]]
"""Rows with what was said of each, to rewards."""
Tokens = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Prompts:
    """Prompts as tokens, the row of each, their weights (summing to one; None: equal), and noise (prompts, most) that
    tokens are sampled with (None: the likeliest are taken)."""

    prompts: tuple[Sequence[int], ...]
    rows: tuple[Row, ...]
    weights: F64 | None = None
    noise: F64 | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, rows: slice) -> Prompts:
        weights, noise = (None if each is None else each[rows] for each in (self.weights, self.noise))
        return Prompts(self.prompts[rows], self.rows[rows], weights, noise)

    @staticmethod
    def joined(many: Sequence[Prompts]) -> Prompts:
        """All prompts, without weights; all of them with noise, or none."""
        noise = [each.noise for each in many if each.noise is not None]
        return Prompts(
            tuple(prompt for each in many for prompt in each.prompts),
            tuple(row for each in many for row in each.rows),
            None,
            np.concatenate(noise) if noise else None,
        )


@dataclass(frozen=True, eq=False)
class RewardFunction:
    """`text` of tokens, `scores` of rows and texts; `right`: a reward says whether an answer is right."""

    text: Callable[[Sequence[int]], str]
    scores: Scores
    right: bool = False
    ready: Callable[[], object] = lambda: None
    """finds what gives the scores; the first query does, too"""


@dataclass(frozen=True, eq=False)
class Frozen:
    """The layers before the first trained one, what they made of the prompts in each pass, (R, T, H), and what they
    keep of it. Nothing, where there are no such layers."""

    prefix: FrozenPrefix | None = None
    hidden: tuple[Tensor, ...] = ()
    kept: KeyValues | None = None

    def around(self, points: int) -> list[Around]:
        """In the passes over the prompts, those of so many points, they return this instead of running."""
        if self.prefix is None:
            return []
        return [partial(self.prefix.returning, each.repeat(points, 1, 1)) for each in self.hidden]


class RewardObjective:
    """`module` maps token ids to an object with `logits`; `head` is its last layer, the one over the vocabulary.

    An evaluation is of the likeliest tokens, also where a batch is sampled. Layers before the first trained one read
    the prompts once for all points. `around` surrounds all passes.
    """

    no_rows = "a reward may compare the rows of a batch, so no row has a loss of its own"

    def __init__(
        self,
        module: nn.Module,
        head: nn.Module,
        decoding: Decoding,
        judge: RewardFunction,
        test: Prompts,
        tf32: bool = False,
        exact: bool = False,
        around: Around = nullcontext,
    ):
        self.around = around
        self.module, self.decoding, self.judge, self.test = module.eval(), decoding, judge, test
        self.tf32, self.device = tf32, decoding.ends.device
        self.weight = next(module.parameters())
        self.pieces = Piecewise(module, head)
        self.prefix = FrozenPrefix.of(module) if decoding.stepwise else None
        self.tokens = TOKENS[self.device.type]
        self.step = 1 if self.device.type == "cpu" else STEP  # of the width of prompts: few shapes to be recorded
        sides = SideBySide(module, head)
        self.sides = sides if sides.possible and not exact else None
        self.decoders = Decoders(module, most_columns(module, self.weight) if decoding.stepwise else self.tokens)

    def ready(self) -> None:
        self.judge.ready()

    def losses(
        self, base: Params, points: Sequence[Terms], batches: Sequence[Prompts], basis: Basis | None = None
    ) -> F64:
        rewards = self.rewards(base, points, Prompts.joined(batches), basis)
        cuts = np.cumsum([len(batch) for batch in batches])[:-1]
        found = [1 - _mean(some, each.weights) for some, each in zip(np.split(rewards, cuts, 1), batches, strict=True)]
        return np.stack(found)

    def rewards(self, base: Params, points: Sequence[Terms], asked: Prompts, basis: Basis | None = None) -> F64:
        """(points, prompts)."""
        return self.scored(asked, self.generated(base, points, asked, basis))

    def generated(self, base: Params, points: Sequence[Terms], asked: Prompts, basis: Basis | None = None) -> Tokens:
        """(points, prompts, most): what the model says at every point."""
        found = np.full((len(points), len(asked), self.decoding.most), ENDED, np.int64)
        with products(self.weight, self.tf32), self.around():
            for which in chunks(asked.prompts, self.decoding.most, self.tokens, self.decoders.columns):
                noise = None if asked.noise is None else torch.from_numpy(asked.noise[which]).to(self.device)
                prompts = PaddedPrompts.of([asked.prompts[i] for i in which], self.step).to(self.device)
                found[:, which] = self._at_points(base, points, prompts, noise, basis).cpu().numpy()
        return found

    def _at_points(
        self, base: Params, points: Sequence[Terms], prompts: PaddedPrompts, noise: Tensor | None, basis: Basis | None
    ) -> Tensor:
        """(points, R, most)."""
        if self.sides is not None and basis is None and has_factors(points):
            found = self._side_by_side(base, points, prompts, noise)
            if found is not None:
                return found
        frozen = self._frozen(prompts)
        if basis is None and not any(map(len, points)):
            decoder, _ = self.decoders.of(base, prompts, self.decoding, noise is not None)
        else:  # weights of every point are made as it runs: nothing can be recorded
            decoder = Decoder(self.module, prompts, self.decoding, noise is not None, recorded=False)
        each = []
        for i, terms in enumerate(points):
            with self.pieces.at(base.view(terms), None if basis is None else basis.offset(i)):
                each.append(decoder(prompts, noise, frozen.around(1), frozen.kept))
        return torch.stack(each)

    def _side_by_side(
        self, base: Params, points: Sequence[Terms], prompts: PaddedPrompts, noise: Tensor | None
    ) -> Tensor | None:
        """(points, R, most), all points decoding at the same time; None where only views will do."""
        tried = (self._agrees(base, some, prompts) for some in trials(base, points))
        if self.sides is None or not self.sides.agreed(tried):
            self.sides = None
            return None
        rows, generated = prompts.rows, self.decoding.most
        own, all_columns = prompts.own.shape[2] + generated, columns_of(prompts, generated)
        most = max(1, min(self.tokens // (rows * own), self.decoders.columns // (rows * all_columns)))
        size = -(-len(points) // -(-len(points) // most))
        frozen = self._frozen(prompts)
        found = []
        for first in range(0, len(points), size):
            some = points[first : first + size]
            count, here = len(some), prompts.repeated(len(some))
            decoder, near = self.decoders.of(base, here, self.decoding, noise is not None, neighbours(base, some))
            assert near is not None
            with self.sides.at(base, near):
                repeated = None if noise is None else noise.repeat(count, 1)
                found.append(decoder(here, repeated, frozen.around(count), frozen.kept).view(count, rows, -1))
        return torch.cat(found)

    def _agrees(self, base: Params, points: Sequence[Terms], prompts: PaddedPrompts) -> bool:
        """Whether the logits after a prompt are those of views, at points that are far apart."""
        if len(points) < 2 or self.sides is None:
            return False
        own = prompts.own[:, 0]
        prompt = torch.cat([prompts.common, own[0, own[1] >= 0]])[None]

        def last(rows: Tensor) -> Tensor:
            logits: Tensor = self.module(input_ids=rows, use_cache=False).logits
            return logits[:, -1].float()

        try:
            with torch.no_grad():
                with self.sides.at(base, points):
                    found = last(prompt.repeat(len(points), 1))
                wanted = []
                for terms in points:
                    with self.pieces.at(base.view(terms)):
                        wanted.append(last(prompt))
        except Exception:  # of any kind, from the model's own code
            return False
        exact = all(t.dtype == torch.float32 for t in base.tensors.values()) and not self.tf32
        return bool(found.isfinite().all()) and agree(found, torch.cat(wanted), exact)

    def _frozen(self, prompts: PaddedPrompts) -> Frozen:
        """What the frozen layers make of the prompts, of each pass over them, and the keys and values they keep."""
        if self.prefix is None:
            return Frozen()
        kept = KeyValues(prompts.rows, columns_of(prompts, self.decoding.most))
        passes = Stepwise(self.module, prompts, self.decoding.most, kept).passes
        return Frozen(self.prefix, tuple(self.prefix.compute(run) for run in passes), kept)

    def scored(self, asked: Prompts, said: Tokens) -> F64:
        """The rewards (points, prompts) of what was said, (points, prompts, most). A text of a row is judged once."""
        points, prompts, _ = said.shape
        known: dict[tuple[int, bytes], int] = {}
        texts: list[tuple[Row, str]] = []
        index = np.empty((points, prompts), np.int64)
        for point in range(points):
            for prompt in range(prompts):
                tokens = said[point, prompt]
                key = prompt, tokens.tobytes()
                if key not in known:
                    known[key] = len(texts)
                    texts.append((asked.rows[prompt], self.judge.text(tokens[tokens != ENDED].tolist())))
                index[point, prompt] = known[key]
        scores = np.asarray(self.judge.scores(texts), np.float64)
        if scores.shape != (len(texts),) or not np.isfinite(scores).all():
            raise FedzeroError("a reward is not a finite number: return one number for every text")
        found: F64 = scores[index]
        return found

    def gradient(self, base: Params, batch: Prompts) -> tuple[float, Tensor]:
        raise FedzeroError("a reward has no gradient: choose a method that asks for values, such as decomfl")

    def evaluate(self, params: Params) -> Metrics:
        reward = float(self.rewards(params, (NO_TERMS,), self.test).mean())
        return Metrics(loss=1 - reward, accuracy=reward if self.judge.right else None, others={"reward": reward})


def _mean(rewards: F64, weights: F64 | None) -> F64:
    """Of every row (points, prompts)."""
    found: F64 = rewards.mean(1) if weights is None else (rewards * weights).sum(1)
    return found
