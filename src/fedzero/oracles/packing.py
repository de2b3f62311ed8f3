"""Prompts packed into batches of rows: several in a row, with little padding.

A prompt's tokens see those of the same prompt and none after them; positions count from the prompt's beginning. Models
that take no mask and positions get every prompt in a row of its own, padded on the right: attention is causal, so what
follows a prompt changes nothing before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

WIDTH = 128
"""The least length of a shared row, where there are enough tokens."""
STEP = 16
"""Lengths of shared rows are multiples of this, so that few shapes occur."""


@dataclass(frozen=True, eq=False)
class PackedBatch:
    """`tokens` (3, R, T): token, owner (a prompt; −1: none), position. `ends` (2, B): row and column of the last token
    of each prompt. `which` (B,): which prompts those are. `shared`: rows hold several prompts.

    Or `ends` (3, B) are row and column of tokens, and the targets after them; `which` has the prompt of each.
    """

    tokens: Tensor
    ends: Tensor
    which: NDArray[np.int64]
    shared: bool

    def to(self, device: torch.device) -> PackedBatch:
        return PackedBatch(self.tokens.to(device), self.ends.to(device), self.which, self.shared)


def evened(batch: PackedBatch) -> PackedBatch:
    """The same batch in one of few shapes: rows, columns and ends are padded by at most an eighth, or to `STEP`.

    Batches of a random number of prompts would have a shape of their own each, and a recording is of one shape. Padding
    belongs to no prompt, and ends that are added point at the first token: nobody reads what is found there.
    """
    _, rows, width = batch.tokens.shape
    tokens = batch.tokens.new_zeros(3, _few(rows), _rounded(width))
    tokens[1] = -1
    tokens[:, :rows, :width] = batch.tokens
    ends = batch.ends.new_zeros(len(batch.ends), _few(batch.ends.shape[1]))
    ends[:, : batch.ends.shape[1]] = batch.ends
    return PackedBatch(tokens, ends, batch.which, batch.shared)


def _few(size: int) -> int:
    """The next multiple of an eighth of the power of two below, and of `STEP` where that is less."""
    step = max(STEP, (1 << (size.bit_length() - 1)) // 8)
    return -(-size // step) * step


def targeted(batch: PackedBatch, targets: Sequence[Sequence[int]]) -> PackedBatch:
    """The same batch with what shall follow the last tokens of each of its prompts, as many as there are targets."""
    ends = [
        (row, last - len(targets[i]) + 1 + k, target)
        for (row, last), i in zip(batch.ends.T.tolist(), batch.which.tolist(), strict=True)
        for k, target in enumerate(targets[i])
    ]
    which = np.repeat(batch.which, [len(targets[i]) for i in batch.which])
    return PackedBatch(batch.tokens, torch.tensor(ends).T.contiguous(), which, batch.shared)


def mask_of(tokens: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to the attention scores of a batch (3, R, T), (R, 1, T, T): zero where a token may look."""
    owners, columns = tokens[1], torch.arange(tokens.shape[2], device=tokens.device)
    seen = (owners[:, :, None] == owners[:, None, :]) & (columns[:, None] >= columns)
    mask = torch.zeros(seen.shape, dtype=dtype, device=tokens.device)
    return mask.masked_fill(~seen, torch.finfo(dtype).min)[:, None]


def pack_prompts(prompts: Sequence[Sequence[int]], upto: int, tokens: int) -> Iterator[PackedBatch]:
    """Batches of at most `tokens` (but at least one row) with all prompts; rows of up to `upto` tokens are shared."""
    lengths = np.array([len(prompt) for prompt in prompts])
    width = max(_rounded(int(lengths.max())), min(WIDTH, _rounded(int(lengths.sum()))))
    shared = width <= upto
    if not shared:
        width = int(lengths.max())
    rows = _shared_rows(lengths, width) if shared else [[int(i)] for i in np.argsort(lengths, kind="stable")]
    height = max(1, tokens // width)
    for first in range(0, len(rows), height):
        yield _batch(prompts, rows[first : first + height], width, shared)


def _rounded(size: int) -> int:
    return -(-size // STEP) * STEP


def _shared_rows(lengths: NDArray[np.int64], width: int) -> list[list[int]]:
    """First fit, the longest first."""
    rows: list[list[int]] = []
    free: list[int] = []
    for i in np.argsort(-lengths, kind="stable"):
        row = next((r for r, left in enumerate(free) if left >= lengths[i]), len(rows))
        if row == len(rows):
            rows.append([])
            free.append(width)
        rows[row].append(int(i))
        free[row] -= int(lengths[i])
    return rows


def _batch(prompts: Sequence[Sequence[int]], rows: Sequence[Sequence[int]], width: int, shared: bool) -> PackedBatch:
    if not shared:
        width = max(len(prompts[i]) for row in rows for i in row)
    tokens = np.zeros((3, len(rows), width), np.int64)
    tokens[1] = -1
    ends, which = [], []
    for r, row in enumerate(rows):
        column = 0
        for i in row:
            here = slice(column, column + len(prompts[i]))
            tokens[0, r, here], tokens[1, r, here], tokens[2, r, here] = prompts[i], i, range(len(prompts[i]))
            column = here.stop
            ends.append((r, column - 1))
            which.append(i)
    return PackedBatch(torch.from_numpy(tokens), torch.tensor(ends).T.contiguous(), np.array(which), shared)
