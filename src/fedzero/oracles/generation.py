"""Text that a causal language model goes on with: many prompts side by side, one token of each at a time.

    said = generate(module, left_padded(prompts), Decoding(most=8, ends=ends))      (R, 8) tokens, −1 after the end

Prompts are padded on the left, so that the last column is the last token of every row. A mask hides the padding,
positions count from the beginning of the prompt, and keys and values of past tokens are kept in buffers that are made
once. So a row gets the tokens it would get alone, but for rounding. Nothing here depends on what weights a row meets:
all rows may be at one point, or blocks of rows each at a point of their own.

A model that heeds no mask, positions or kept keys reads its rows again for every token, padded on the right.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedzero.oracles.packing import mask_of

ENDED = -1
"""In the place of a token after the end of a row."""
PARTS = 1 << 40
"""Of a probability where one is sampled: sums of whole numbers do not depend on their order."""

First = Callable[[], AbstractContextManager[None]]
"""What surrounds the pass over the prompts."""


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


def left_padded(prompts: Sequence[Sequence[int]]) -> Tensor:
    """(3, R, T): token, owner (the row; −1: padding), position, as of a `PackedBatch`."""
    width = max(map(len, prompts))
    tokens = np.zeros((3, len(prompts), width), np.int64)
    tokens[1] = -1
    for row, prompt in enumerate(prompts):
        here = slice(width - len(prompt), width)
        tokens[0, row, here], tokens[1, row, here], tokens[2, row, here] = prompt, row, range(len(prompt))
    return torch.from_numpy(tokens)


def chunks(prompts: Sequence[Sequence[int]], most: int, tokens: int) -> Iterator[NDArray[np.int64]]:
    """Which prompts to decode side by side: those of similar length, at most so many tokens with what is generated."""
    order = np.argsort([len(prompt) for prompt in prompts], kind="stable")
    height = max(1, tokens // (len(prompts[order[-1]]) + most))
    for first in range(0, len(order), height):
        yield order[first : first + height]


class KeyValues:
    """Keys and values of past tokens, by layer: what `transformers` asks of a cache, in buffers that stay in place.

    It may be used again for the same prompts: columns are written before they are read.
    """

    def __init__(self, capacity: int):
        self.capacity, self.length = capacity, 0
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.length

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """(R, heads, tokens, dimension) of a layer's new tokens to those of all tokens so far."""
        if layer_idx not in self._layers:
            self._layers[layer_idx] = self._made(keys), self._made(values)
        upto = self.length + keys.shape[2]
        kept = self._layers[layer_idx]
        for buffer, new in zip(kept, (keys, values), strict=True):
            buffer[:, :, self.length : upto] = new
        return (kept[0][:, :, :upto], kept[1][:, :, :upto]) if self.length else (keys, values)

    def _made(self, like: Tensor) -> Tensor:
        rows, heads, _, dimension = like.shape
        return like.new_zeros(rows, heads, self.capacity, dimension)


class _Way(Protocol):
    """How the logits after the prompts, and after every further token of each row, are found."""

    def first(self) -> Tensor:
        """(R, V), after the prompts."""
        ...

    def next(self, chosen: Tensor) -> Tensor:
        """(R, V), after another token of each row, (R,)."""
        ...


class Stepwise:
    """One pass over the prompts, then one over each further column."""

    def __init__(self, module: nn.Module, tokens: Tensor, most: int, kept: KeyValues | None = None):
        self.module, self.tokens, self.keeps = module, tokens, _keeps_last(module)
        _, rows, width = tokens.shape
        self.kept = KeyValues(width + most) if kept is None else kept
        self.kept.length = 0
        self.dtype = next(module.parameters()).dtype
        self.lengths = (tokens[1] >= 0).sum(1, keepdim=True)
        hidden = torch.zeros(rows, 1, 1, width + most, dtype=self.dtype, device=tokens.device)
        hidden[:, 0, 0, :width].masked_fill_(tokens[1] < 0, torch.finfo(self.dtype).min)
        self.hidden = hidden

    def first(self) -> Tensor:
        return self._pass(self.tokens[0], mask_of(self.tokens, self.dtype), self.tokens[2])

    def next(self, chosen: Tensor) -> Tensor:
        generated = self.kept.length - self.tokens.shape[2]
        return self._pass(chosen[:, None], self.hidden[..., : self.kept.length + 1], self.lengths + generated)

    def _pass(self, ids: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
        output = self.module(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=self.kept,
            use_cache=True,
            **({"logits_to_keep": 1} if self.keeps else {}),
        )
        self.kept.length += ids.shape[1]
        logits: Tensor = output.logits[:, -1]
        return logits


class Whole:
    """Everything again for every token: rows are padded on the right, and what follows changes nothing before it."""

    def __init__(self, module: nn.Module, tokens: Tensor, most: int):
        self.module = module
        _, rows, width = tokens.shape
        self.ids = torch.zeros(rows, width + most, dtype=torch.int64, device=tokens.device)
        self.ends = (tokens[1] >= 0).sum(1)
        for row, end in enumerate(self.ends.tolist()):
            self.ids[row, :end] = tokens[0, row, width - end :]
        self.rows = torch.arange(rows, device=tokens.device)

    def first(self) -> Tensor:
        output = self.module(input_ids=self.ids[:, : int(self.ends.max())], use_cache=False)
        logits: Tensor = output.logits[self.rows, self.ends - 1]
        return logits

    def next(self, chosen: Tensor) -> Tensor:
        self.ids[self.rows, self.ends] = chosen
        self.ends = self.ends + 1
        return self.first()


def generate(
    module: nn.Module,
    tokens: Tensor,
    decoding: Decoding,
    noise: Tensor | None = None,
    kept: KeyValues | None = None,
    first: First = nullcontext,
) -> Tensor:
    """What follows each of the prompts (3, R, T): (R, most) tokens, `ENDED` after the one that ends a row.

    noise: (R, most), uniform in [0, 1): which token is sampled; None: the likeliest is taken. kept: buffers of these
    prompts, to be used again. It stops when all rows have ended.
    """
    _, rows, _ = tokens.shape
    said = torch.full((rows, decoding.most), ENDED, dtype=torch.int64, device=tokens.device)
    alive = torch.ones(rows, dtype=torch.bool, device=tokens.device)
    with torch.no_grad():
        way: _Way = (
            Stepwise(module, tokens, decoding.most, kept) if decoding.stepwise else Whole(module, tokens, decoding.most)
        )
        with first():
            logits = way.first()
        for step in range(decoding.most):
            chosen = choose(logits, decoding.temperature, None if noise is None else noise[:, step])
            said[:, step] = torch.where(alive, chosen, ENDED)
            alive &= ~decoding.ends[chosen]
            if step + 1 == decoding.most or not bool(alive.any()):
                break
            logits = way.next(chosen)
    return said


def choose(logits: Tensor, temperature: float, uniform: Tensor | None) -> Tensor:
    """A token of each row, (R,), by logits (R, V): the likeliest, or the one that a number in [0, 1) falls on.

    Two points that are given the same number choose the same token where their probabilities are the same.
    """
    if uniform is None:
        return logits.float().argmax(1)
    parts = (torch.softmax(logits.float() / temperature, 1).double() * PARTS).round().long()
    reached = parts.cumsum(1)
    target = (uniform * reached[:, -1]).long()
    return (reached <= target[:, None]).sum(1)


def _keeps_last(module: Any) -> bool:
    """Whether the module makes logits of the last column only, if asked to."""
    inner = module.get_base_model() if hasattr(module, "get_base_model") else module
    return "logits_to_keep" in inspect.signature(inner.forward).parameters
