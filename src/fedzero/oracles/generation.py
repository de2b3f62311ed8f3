"""Text that a causal language model goes on with: many prompts side by side, one token of each at a time.

    said = generate(module, PaddedPrompts.of(prompts), Decoding(most=8, ends=ends))     (R, 8) tokens, −1 after the end

Prompts are padded on the left, so that the last column is the last token of every row. A mask hides the padding,
positions count from the beginning of the prompt, and keys and values of past tokens are kept in buffers that are made
once. Tokens that all prompts begin with, such as worked examples, are read once and not once a row. So a row gets the
tokens it would get alone, but for rounding. Rows may be at one point, or blocks of rows each at a point of their own.

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
SHARED = 8
"""Tokens that all prompts begin with, at least, for a pass of their own."""
PARTS = 1 << 40
"""Of a probability where one is sampled: sums of whole numbers do not depend on their order."""

Around = Callable[[], AbstractContextManager[None]]
"""What surrounds a pass over the prompts."""


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


def left_padded(prompts: Sequence[Sequence[int]], begin: int = 0) -> Tensor:
    """(3, R, T): token, owner (the row; −1: padding), position, as of a `PackedBatch`; without `begin` first tokens."""
    width = max(map(len, prompts)) - begin
    tokens = np.zeros((3, len(prompts), width), np.int64)
    tokens[1] = -1
    for row, prompt in enumerate(prompts):
        here = slice(width - len(prompt) + begin, width)
        tokens[0, row, here], tokens[1, row, here] = prompt[begin:], row
        tokens[2, row, here] = np.arange(begin, len(prompt))
    return torch.from_numpy(tokens)


def common_length(prompts: Sequence[Sequence[int]]) -> int:
    """How many tokens several prompts begin with, each with at least one more; 0 for fewer than `SHARED`."""
    least, most = min(prompts, key=list), max(prompts, key=list)  # in alphabetical order: all others are between them
    limit = min(map(len, prompts)) - 1
    found = next((i for i in range(limit) if least[i] != most[i]), limit)
    return found if len(prompts) > 1 and found >= SHARED else 0


@dataclass(frozen=True, eq=False)
class PaddedPrompts:
    """R prompts at each of some points: tokens that all begin with, (S,), and their own, (3, points · R, T), padded on
    the left. Rows are points-major."""

    common: Tensor
    own: Tensor
    points: int = 1

    @staticmethod
    def of(prompts: Sequence[Sequence[int]]) -> PaddedPrompts:
        begin = common_length(prompts)
        return PaddedPrompts(torch.tensor(prompts[0][:begin], dtype=torch.int64), left_padded(prompts, begin))

    def to(self, device: torch.device) -> PaddedPrompts:
        return PaddedPrompts(self.common.to(device), self.own.to(device), self.points)

    def repeated(self, points: int) -> PaddedPrompts:
        """The same prompts at so many points."""
        return PaddedPrompts(self.common, self.own.repeat(1, points, 1), points)

    @property
    def rows(self) -> int:
        return self.own.shape[1]

    @property
    def width(self) -> int:
        """Of the longest prompt."""
        return len(self.common) + self.own.shape[2]


def chunks(prompts: Sequence[Sequence[int]], most: int, tokens: int, columns: int) -> Iterator[NDArray[np.int64]]:
    """Which prompts to decode side by side, those of similar length: at most so many tokens that are read or generated
    for every row, and so many `columns` with those that are the same in all rows."""
    order = np.argsort([len(prompt) for prompt in prompts], kind="stable")
    width = len(prompts[order[-1]]) + most
    height = max(1, min(tokens // (width - common_length(prompts)), columns // width))
    for first in range(0, len(order), height):
        yield order[first : first + height]


class KeyValues:
    """Keys and values of past tokens of so many rows, by layer: what `transformers` asks of a cache, in buffers that
    stay in place. It may be used again for the same prompts: columns are written before they are read.
    """

    def __init__(self, rows: int, capacity: int):
        self.rows, self.capacity, self.length = rows, capacity, 0
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def bytes(self) -> int:
        return sum(buffer.nbytes for kept in self._layers.values() for buffer in kept)

    def repeated(self, points: int) -> KeyValues:
        """What is kept here, at so many points."""
        each = KeyValues(points * self.rows, self.capacity)
        each._layers = {
            layer: (keys.repeat(points, 1, 1, 1), values.repeat(points, 1, 1, 1))
            for layer, (keys, values) in self._layers.items()
        }
        return each

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.length

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """(rows, heads, tokens, dimension) of a layer's new tokens to those of all tokens so far.

        New tokens may have fewer rows: each is then the same for as many rows, one after the other.
        """
        if layer_idx not in self._layers:
            self._layers[layer_idx] = self._made(keys), self._made(values)
        upto = self.length + keys.shape[2]
        kept = self._layers[layer_idx]
        for buffer, new in zip(kept, (keys, values), strict=True):
            buffer.view(len(new), -1, *buffer.shape[1:])[..., self.length : upto, :] = new[:, None]
        return (kept[0][:, :, :upto], kept[1][:, :, :upto]) if self.length else (keys, values)

    def _made(self, like: Tensor) -> Tensor:
        _, heads, _, dimension = like.shape
        return like.new_zeros(self.rows, heads, self.capacity, dimension)


class _Way(Protocol):
    """How the logits after the prompts, and after every further token of each row, are found."""

    @property
    def passes(self) -> Sequence[Callable[[], Tensor]]:
        """Over the prompts, in their order; the last gives the logits (R, V) after them."""
        ...

    def next(self, chosen: Tensor) -> Tensor:
        """(R, V), after another token of each row, (R,)."""
        ...


class Stepwise:
    """One pass over what prompts have in common, one over the rest of each, then one over each further column."""

    def __init__(self, module: nn.Module, prompts: PaddedPrompts, most: int, kept: KeyValues | None = None):
        self.module, self.prompts, self.keeps = module, prompts, _keeps_last(module)
        self.kept = KeyValues(prompts.rows, prompts.width + most) if kept is None else kept
        self.kept.length = 0
        self.dtype = next(module.parameters()).dtype
        begin, own = len(prompts.common), prompts.own
        self.lengths = begin + (own[1] >= 0).sum(1, keepdim=True)
        hidden = torch.zeros(prompts.rows, 1, 1, prompts.width + most, dtype=self.dtype, device=own.device)
        hidden[:, 0, 0, begin : prompts.width].masked_fill_(own[1] < 0, torch.finfo(self.dtype).min)
        self.hidden = hidden

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
        generated = self.kept.length - self.prompts.width
        return self._pass(chosen[:, None], self.hidden[..., : self.kept.length + 1], self.lengths + generated)

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
        begin, own = len(prompts.common), prompts.own
        self.ids = torch.zeros(prompts.rows, prompts.width + most, dtype=torch.int64, device=own.device)
        self.ids[:, :begin] = prompts.common
        self.ends = begin + (own[1] >= 0).sum(1)
        for row, end in enumerate(self.ends.tolist()):
            self.ids[row, begin:end] = own[0, row, own.shape[2] - end + begin :]
        self.rows = torch.arange(prompts.rows, device=own.device)

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


def read(way: _Way, around: Sequence[Around] = ()) -> Tensor:
    """All passes over the prompts, each with what surrounds it: the logits (R, V) after them."""
    found: Tensor | None = None
    for run, surrounded in zip(way.passes, around or [nullcontext] * len(way.passes), strict=True):
        with surrounded():
            found = run()
    assert found is not None
    return found


def generate(
    module: nn.Module,
    prompts: PaddedPrompts,
    decoding: Decoding,
    noise: Tensor | None = None,
    kept: KeyValues | None = None,
    around: Sequence[Around] = (),
) -> Tensor:
    """What follows each of the prompts: (R, most) tokens, `ENDED` after the one that ends a row.

    noise: (R, most), uniform in [0, 1): which token is sampled; None: the likeliest is taken. kept: buffers of these
    prompts, to be used again. around: what surrounds the passes over the prompts. It stops when all rows have ended.
    """
    rows, device = prompts.rows, prompts.own.device
    said = torch.full((rows, decoding.most), ENDED, dtype=torch.int64, device=device)
    alive = torch.ones(rows, dtype=torch.bool, device=device)
    with torch.no_grad():
        way: _Way = (
            Stepwise(module, prompts, decoding.most, kept)
            if decoding.stepwise
            else Whole(module, prompts, decoding.most)
        )
        logits = read(way, around)
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
