"""Prompts side by side on a sheet: several in a row, none longer than the row, and little left empty.

A prompt's tokens see those of the same prompt and none after them; positions count from the prompt's beginning. Models
that cannot be told so get every prompt in a row of its own, filled up on the right: attention is causal, so what stands
after a prompt's end changes nothing before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

WIDTH = 128
"""Rows are at least so long, where there are tokens for it."""
STEP = 16
"""Rows are a multiple of this long, so that few shapes occur."""


@dataclass(frozen=True, eq=False)
class PackedBatch:
    """`tokens` (3, R, T): token, owner (a prompt, −1: nobody), position. `ends` (2, B): row and column of the last
    token of each prompt. `which` (B,): which prompts those are. Without `shared` every row is one prompt's alone."""

    tokens: Tensor
    ends: Tensor
    which: NDArray[np.int64]
    shared: bool

    def to(self, device: torch.device) -> PackedBatch:
        return PackedBatch(self.tokens.to(device), self.ends.to(device), self.which, self.shared)


def mask_of(tokens: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to attention scores of a sheet (3, R, T), (R, 1, T, T): nought where a token may look."""
    owners, columns = tokens[1], torch.arange(tokens.shape[2], device=tokens.device)
    seen = (owners[:, :, None] == owners[:, None, :]) & (columns[:, None] >= columns)
    return torch.zeros(seen.shape, dtype=dtype, device=tokens.device).masked_fill(~seen, torch.finfo(dtype).min)[
        :, None
    ]


def sheets(prompts: Sequence[Sequence[int]], upto: int, tokens: int) -> Iterator[PackedBatch]:
    """Sheets of `tokens` at most (but at least a row each) with all prompts; rows of up to `upto` tokens are shared."""
    lengths = np.array([len(prompt) for prompt in prompts])
    width = max(_rounded(int(lengths.max())), min(WIDTH, _rounded(int(lengths.sum()))))
    shared = width <= upto
    if not shared:
        width = int(lengths.max())
    rows = _shared_rows(lengths, width) if shared else [[int(i)] for i in np.argsort(lengths, kind="stable")]
    height = max(1, tokens // width)
    for first in range(0, len(rows), height):
        yield _sheet(prompts, rows[first : first + height], width, shared)


def _rounded(size: int) -> int:
    return -(-size // STEP) * STEP


def _shared_rows(lengths: NDArray[np.int64], width: int) -> list[list[int]]:
    """First fit, the longest first."""
    rows: list[list[int]] = []
    room: list[int] = []
    for i in np.argsort(-lengths, kind="stable"):
        row = next((r for r, left in enumerate(room) if left >= lengths[i]), len(rows))
        if row == len(rows):
            rows.append([])
            room.append(width)
        rows[row].append(int(i))
        room[row] -= int(lengths[i])
    return rows


def _sheet(prompts: Sequence[Sequence[int]], rows: Sequence[Sequence[int]], width: int, shared: bool) -> PackedBatch:
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
