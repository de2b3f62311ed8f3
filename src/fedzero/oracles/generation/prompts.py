"""Prompts side by side: padded on the left, with what all begin with apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

SHARED = 8
"""Tokens that all prompts begin with, at least, for a pass of their own."""


def left_padded(prompts: Sequence[Sequence[int]], begin: int = 0, step: int = 1) -> Tensor:
    """(3, R, T): token, owner (the row; −1: padding), position, as of a `PackedBatch`; without `begin` first tokens. T
    is a multiple of `step`."""
    width = -(-(max(map(len, prompts)) - begin) // step) * step
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
    def of(prompts: Sequence[Sequence[int]], step: int = 1) -> PaddedPrompts:
        begin = common_length(prompts)
        return PaddedPrompts(torch.tensor(prompts[0][:begin], dtype=torch.int64), left_padded(prompts, begin, step))

    def to(self, device: torch.device) -> PaddedPrompts:
        return PaddedPrompts(self.common.to(device), self.own.to(device), self.points)

    def repeated(self, points: int) -> PaddedPrompts:
        """The same prompts at so many points."""
        return PaddedPrompts(self.common, self.own.repeat(1, points, 1), points)

    @property
    def rows(self) -> int:
        return self.own.shape[1]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Points, rows, and tokens: those that are the same in all rows, and those of a row."""
        return self.points, self.rows, len(self.common), self.own.shape[2]

    @property
    def width(self) -> int:
        """Of all rows, padding included."""
        return len(self.common) + self.own.shape[2]


def chunks(prompts: Sequence[Sequence[int]], most: int, tokens: int, columns: int) -> Iterator[NDArray[np.int64]]:
    """Which prompts to decode side by side, those of similar length: at most so many tokens that are read or generated
    for every row, and so many `columns` with those that are the same in all rows."""
    order = np.argsort([len(prompt) for prompt in prompts], kind="stable")
    width = len(prompts[order[-1]]) + most
    height = max(1, min(tokens // (width - common_length(prompts)), columns // width))
    for first in range(0, len(order), height):
        yield order[first : first + height]
