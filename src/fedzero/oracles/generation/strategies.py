"""How the logits of rows are found: a token of each at a time, or everything again."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fedzero.oracles.generation.key_values import KeyValues
from fedzero.oracles.generation.prompts import PaddedPrompts
from fedzero.oracles.packing import mask_of

Around = Callable[[], AbstractContextManager[None]]
"""What surrounds a pass over the prompts."""


STEP = 8
"""Columns are a multiple of this: attention on a GPU copies any other mask."""


class GenerationStrategy(Protocol):
    """How the logits after the prompts, and after every further token of each row, are found."""

    def load(self, prompts: PaddedPrompts) -> None:
        """Begin with these prompts, of the same shape as those before."""
        ...

    @property
    def passes(self) -> Sequence[Callable[[], Tensor]]:
        """Over the prompts, in their order; the last gives the logits (R, V) after them."""
        ...

    def next(self, chosen: Tensor) -> Tensor:
        """(R, V), after another token of each row, (R,)."""
        ...


class Stepwise:
    """One pass over what prompts have in common, one over the rest of each, then one over each further column.

    What a pass over a column needs stays in place.
    """

    def __init__(self, module: nn.Module, prompts: PaddedPrompts, most: int, kept: KeyValues | None = None):
        self.module, self.keeps, self.dtype = module, _keeps_last(module), next(module.parameters()).dtype
        rows, capacity, device = prompts.rows, columns_of(prompts, most), prompts.own.device
        self.kept = KeyValues(rows, capacity) if kept is None else kept
        self.hidden = torch.empty(rows, 1, 1, capacity, dtype=self.dtype, device=device)
        self.lengths = torch.empty(rows, 1, dtype=torch.int64, device=device)
        self.column = torch.empty(1, dtype=torch.int64, device=device)
        self.load(prompts)

    def load(self, prompts: PaddedPrompts) -> None:
        begin, own, lowest = len(prompts.common), prompts.own, torch.finfo(self.dtype).min
        self.prompts = prompts
        self.kept.begin(prompts.width)
        self.lengths.copy_((own[1] >= 0).sum(1, keepdim=True)).add_(begin)
        self.hidden.fill_(lowest)[..., : prompts.width] = 0
        self.hidden[:, 0, 0, begin : prompts.width].masked_fill_(own[1] < 0, lowest)
        self.column.fill_(prompts.width)

    @property
    def passes(self) -> tuple[Callable[[], Tensor], ...]:
        return (self._read_common, self._read_own) if len(self.prompts.common) else (self._read_own,)

    def _read_common(self) -> Tensor:
        """A row for each point."""
        begin = len(self.prompts.common)
        positions = torch.arange(begin, device=self.hidden.device)
        tokens = torch.stack([self.prompts.common, torch.zeros_like(positions), positions])[:, None]
        tokens = tokens.expand(3, self.prompts.points, begin)
        return self._pass(tokens[0], mask_of(tokens, self.dtype), tokens[2])

    def _read_own(self) -> Tensor:
        own, begin = self.prompts.own, len(self.prompts.common)
        mask = mask_of(own, self.dtype)
        if begin:
            mask = torch.cat([mask.new_zeros(*mask.shape[:3], begin), mask], 3)
        return self._pass(own[0], mask, own[2])

    def next(self, chosen: Tensor) -> Tensor:
        self.kept.column = self.column
        self.hidden.index_fill_(3, self.column, 0)
        logits = self._pass(chosen[:, None], self.hidden, self.lengths + (self.column - self.prompts.width))
        self.column += 1
        return logits

    def _pass(self, ids: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
        try:
            output = self.module(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=self.kept,
                use_cache=True,
                **({"logits_to_keep": 1} if self.keeps else {}),
            )
        finally:  # also where a pass ends after the frozen layers
            self.kept.length += ids.shape[1]
        logits: Tensor = output.logits[:, -1]
        return logits


class Whole:
    """Everything again for every token: rows are padded on the right, and what follows changes nothing before it."""

    def __init__(self, module: nn.Module, prompts: PaddedPrompts, most: int):
        self.module = module
        self.ids = torch.zeros(prompts.rows, prompts.width + most, dtype=torch.int64, device=prompts.own.device)
        self.rows = torch.arange(prompts.rows, device=prompts.own.device)
        self.load(prompts)

    def load(self, prompts: PaddedPrompts) -> None:
        begin, own = len(prompts.common), prompts.own
        self.ids[:, :begin] = prompts.common
        self.ends = begin + (own[1] >= 0).sum(1)
        for row, end in enumerate(self.ends.tolist()):
            self.ids[row, begin:end] = own[0, row, own.shape[2] - end + begin :]

    @property
    def passes(self) -> tuple[Callable[[], Tensor], ...]:
        return (self._read,)

    def _read(self) -> Tensor:
        output = self.module(input_ids=self.ids[:, : int(self.ends.max())], use_cache=False)
        logits: Tensor = output.logits[self.rows, self.ends - 1]
        return logits

    def next(self, chosen: Tensor) -> Tensor:
        self.ids[self.rows, self.ends] = chosen
        self.ends = self.ends + 1
        return self._read()


def read(way: GenerationStrategy, around: Sequence[Around] = ()) -> Tensor:
    """All passes over the prompts, each with what surrounds it: the logits (R, V) after them."""
    found: Tensor | None = None
    for run, surrounded in zip(way.passes, around or [nullcontext] * len(way.passes), strict=True):
        with surrounded():
            found = run()
    assert found is not None
    return found


def columns_of(prompts: PaddedPrompts, most: int) -> int:
    """Of the keys and values of a row that goes on by so many tokens."""
    return -(-(prompts.width + most) // STEP) * STEP


def _keeps_last(module: Any) -> bool:
    """Whether the module makes logits of the last column only, if asked to."""
    inner = module.get_base_model() if hasattr(module, "get_base_model") else module
    return "logits_to_keep" in inspect.signature(inner.forward).parameters
