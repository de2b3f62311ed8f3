"""Tensors and factors as tables that kernels read: addresses, sizes, and which tile belongs to which tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from fedzero.directions.terms import Piece

TABLE_BYTES = 1 << 28
"""Of the factors of some terms, at most: more terms are worked on in several passes."""
ROW_BLOCK, COLUMN_BLOCK = 128, 256
"""Rows that one Philox block signs; columns that two of them do, eight words."""
BLOCKS = 32
"""Blocks of a factor that one program makes."""
TILE_ROWS = 64
"""Rows of a tile of a matrix whose columns come in blocks."""


def addresses(piece: Piece) -> tuple[int, int, int, int]:
    """Of source, out and two slots; 0 where there is none."""
    found = [tensor.data_ptr() for tensor in (piece.source, piece.out, *piece.slots)]
    source, out, first, second = (*found, 0, 0)[:4]
    return source, out, first, second


def aligned(piece: Piece) -> bool:
    """Whole tensors are; slices of larger ones need not be."""
    return all(address % 16 == 0 for address in addresses(piece))


def owned(rows: Sequence[tuple[int, ...]], tiles: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """The table of some tensors, and for every tile the number of its tensor."""
    owners = np.repeat(np.arange(len(rows)), tiles)
    return (
        torch.tensor(rows, dtype=torch.int64, device=device),
        torch.tensor(owners, dtype=torch.int64, device=device),
    )


@lru_cache(maxsize=1024)
def row_layout(sizes: tuple[tuple[int, int], ...], tile: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """`owned` of tensors (ordinal, n) that lie side by side in a row: n, ordinal, first tile, first column of each."""
    tiles = [_blocks(n, tile) for _, n in sizes]
    firsts, columns = [0, *accumulate(tiles)], [0, *accumulate(n for _, n in sizes)]
    rows = [(n, ordinal, *place) for (ordinal, n), *place in zip(sizes, firsts[:-1], columns[:-1], strict=True)]
    return owned(rows, tiles, device)


@dataclass(frozen=True, eq=False)
class Plan:
    """Which program makes which piece of which factor, and where the factors of a matrix lie in the two tables."""

    jobs: Tensor  # (jobs, 4): ordinal, place, blocks in all, first block
    jobs_of_rows: int
    row_words: int
    column_blocks: int
    places: tuple[tuple[int, int], ...]
    """first word of rows, first block of columns"""

    def room(self, terms: int) -> tuple[Tensor, Tensor]:
        """Both tables for so many terms."""
        device = self.jobs.device
        return (
            torch.empty(terms * self.row_words, dtype=torch.int32, device=device),
            torch.empty(terms * self.column_blocks * 8, dtype=torch.int32, device=device),
        )


def _blocks(n: int, size: int) -> int:
    return -(-n // size)


@lru_cache(maxsize=64)
def plan_of(shapes: tuple[tuple[int, int, int], ...], device: torch.device) -> Plan:
    """Of matrices (ordinal, rows, columns)."""
    down = [_blocks(rows, ROW_BLOCK) for _, rows, _ in shapes]
    across = [_blocks(columns, COLUMN_BLOCK) for _, _, columns in shapes]
    firsts, starts = [0, *accumulate(4 * n for n in down)], [0, *accumulate(across)]

    def jobs(places: Sequence[int], blocks: Sequence[int]) -> list[tuple[int, int, int, int]]:
        return [(shapes[k][0], places[k], n, first) for k, n in enumerate(blocks) for first in range(0, n, BLOCKS)]

    of_rows, of_columns = jobs(firsts, down), jobs(starts, across)
    table = torch.tensor(of_rows + of_columns, dtype=torch.int64, device=device)
    return Plan(table, len(of_rows), firsts[-1], starts[-1], tuple(zip(firsts[:-1], starts[:-1], strict=True)))


@dataclass(frozen=True, eq=False)
class Matrices:
    """Matrices of one type, all with columns in multiples of 256 and aligned, or of any kind."""

    dtype: torch.dtype
    aligned: bool
    table: Tensor  # (matrices, 10): four addresses, rows, columns, ordinal, first tile, places of both factors
    owners: Tensor
    plan: Plan
    pieces: tuple[Piece, ...]
    """kept because their addresses are"""
    _kept: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @property
    def most_terms(self) -> int:
        """How many terms have tables that fit, in eights."""
        return max(8, TABLE_BYTES // (4 * self.plan.row_words + 32 * self.plan.column_blocks) // 8 * 8)

    def factors(self, terms: int, keep: bool) -> tuple[Tensor, Tensor]:
        """Room for both tables; kept where a recording needs fixed addresses."""
        if terms in self._kept:
            return self._kept[terms]
        room = self.plan.room(terms)
        if keep:
            self._kept[terms] = room
        return room


def matrices_of(pieces: Sequence[Piece], lanes: int) -> tuple[Matrices, ...]:
    """Matrices in groups that one launch serves; lanes: of a tile."""
    groups: dict[tuple[torch.dtype, bool], list[Piece]] = {}
    for piece in pieces:
        groups.setdefault((piece.source.dtype, piece.columns % COLUMN_BLOCK == 0 and aligned(piece)), []).append(piece)
    return tuple(_group(dtype, whole, some, lanes) for (dtype, whole), some in groups.items())


def _group(dtype: torch.dtype, whole: bool, pieces: Sequence[Piece], lanes: int) -> Matrices:
    device = pieces[0].source.device
    sizes = [(piece.source.numel() // piece.columns, piece.columns) for piece in pieces]
    plan = plan_of(tuple((piece.ordinal, *size) for piece, size in zip(pieces, sizes, strict=True)), device)
    tiles = [
        _blocks(rows, TILE_ROWS) * (columns // COLUMN_BLOCK) if whole else _blocks(rows * columns, 8 * lanes)
        for rows, columns in sizes
    ]
    table = [
        (*addresses(piece), *size, piece.ordinal, start, *places)
        for piece, size, start, places in zip(pieces, sizes, [0, *accumulate(tiles)][:-1], plan.places, strict=True)
    ]
    return Matrices(dtype, whole, *owned(table, tiles, device), plan, tuple(pieces))
