"""Rows that are decoded together: what each says, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedzero.oracles.capture import Replayed
from fedzero.oracles.generation.key_values import KeyValues
from fedzero.oracles.generation.prompts import PaddedPrompts
from fedzero.oracles.generation.strategies import Around, GenerationStrategy, Stepwise, Whole, read

ENDED = -1
"""In the place of a token after the end of a row."""
PARTS = 1 << 40
"""Of a probability where one is sampled: sums of whole numbers do not depend on their order."""


@dataclass(frozen=True, eq=False)
class Decoding:
    """How rows go on: `most` tokens at most; `ends` (V,), boolean: after which of them a row has ended.

    temperature: of sampling, where noise is given; without noise the likeliest token is taken.
    stepwise: the model heeds a mask, positions, and keys and values that are kept for it.
    """

    most: int
    ends: Tensor
    temperature: float = 1.0
    stepwise: bool = True


class Decoder:
    """Prompts of one shape, in buffers that stay in place: on a GPU a token of all rows is one recording, replayed.

    That is right as long as the weights stay in place, too; with `recorded` false they need not. pool: of memory, for
    several decoders that take turns.
    """

    def __init__(
        self,
        module: nn.Module,
        prompts: PaddedPrompts,
        decoding: Decoding,
        sampled: bool = False,
        recorded: bool = True,
        pool: Any = None,
    ):
        rows, device = prompts.rows, prompts.own.device
        self.decoding = decoding
        self.way: GenerationStrategy = (Stepwise if decoding.stepwise else Whole)(module, prompts, decoding.most)
        self.said = torch.empty(rows, decoding.most, dtype=torch.int64, device=device)
        self.alive = torch.empty(rows, dtype=torch.bool, device=device)
        self.chosen = torch.empty(rows, dtype=torch.int64, device=device)
        self.step = torch.empty(1, dtype=torch.int64, device=device)
        self.noise = torch.empty(rows, decoding.most, dtype=torch.float64, device=device) if sampled else None
        self._token = Replayed(device, recorded and decoding.stepwise, pool)

    @property
    def columns(self) -> int:
        """Of keys and values, those of all rows together."""
        return self.way.kept.rows * self.way.kept.capacity if isinstance(self.way, Stepwise) else 0

    def __call__(
        self,
        prompts: PaddedPrompts,
        noise: Tensor | None = None,
        around: Sequence[Around] = (),
        kept: KeyValues | None = None,
    ) -> Tensor:
        """What follows each of the prompts: (R, most) tokens, `ENDED` after the one that ends a row.

        noise: (R, most), uniform in [0, 1): which token is sampled; None: the likeliest is taken. around: what
        surrounds the passes over the prompts. kept: keys and values of layers that do not run in them, of the rows of
        one point. It stops when all rows have ended.
        """
        assert (noise is None) == (self.noise is None)
        with torch.no_grad():
            self.way.load(prompts)
            if kept is not None and isinstance(self.way, Stepwise):
                self.way.kept.load(kept)
            if self.noise is not None and noise is not None:
                self.noise.copy_(noise)
            self.said.fill_(ENDED)
            self.alive.fill_(True)
            self.step.zero_()
            self._say(read(self.way, around))
            for _ in range(self.decoding.most - 1):
                if not bool(self.alive.any()):
                    break
                self._token(self._next)
        return self.said.clone()

    def _next(self) -> None:
        self._say(self.way.next(self.chosen))

    def _say(self, logits: Tensor) -> None:
        uniform = None if self.noise is None else self.noise.index_select(1, self.step)[:, 0]
        self.chosen.copy_(choose(logits, self.decoding.temperature, uniform))
        self.said.index_copy_(1, self.step, torch.where(self.alive, self.chosen, ENDED)[:, None])
        self.alive &= ~self.decoding.ends[self.chosen]
        self.step += 1


def generate(module: nn.Module, prompts: PaddedPrompts, decoding: Decoding, noise: Tensor | None = None) -> Tensor:
    """What follows each of the prompts, once: see `Decoder`."""
    return Decoder(module, prompts, decoding, noise is not None)(prompts, noise)


def choose(logits: Tensor, temperature: float, uniform: Tensor | None) -> Tensor:
    """A token of each row, (R,), by logits (R, V): the likeliest, or the one that a number in [0, 1) falls on.

    Two points that are given the same number choose the same token where their probabilities are the same.
    """
    if uniform is None:
        return logits.float().argmax(1)
    parts = (torch.softmax(logits.float() / temperature, 1).double() * PARTS).round().long()
    reached = parts.cumsum(1)
    target = (uniform * reached[:, -1]).long()
    found = (reached <= target[:, None]).sum(1)
    return found.clamp(max=logits.shape[1] - 1)  # where logits are not numbers, none is reached
