"""Batches evaluated some samples at a time, where memory is short.

    F(w; B) = Σ_j n_j F(w; B_j) / n        B cut into B_j of n_j samples, n = Σ n_j

Where samples have weights that sum to one, n_j / n is the sum of those of B_j, which are divided by it.
The result is that of the whole batch but for the order of sums: a float32 mean differs by about 1e-7 of its size. Where
a loss is not a mean over samples, it is another function, of smaller batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from fedzero.directions import Terms
from fedzero.model.params import Params
from fedzero.oracles.contract import F64, Basis, Metrics, Objective, Readied
from fedzero.oracles.criteria import Batch, samples_of
from fedzero.oracles.rows import inner_no_rows, inner_row_losses


@runtime_checkable
class Weighed(Protocol):
    """A batch that is no structure of tensors, whose samples may have weights (summing to one; None: equal)."""

    weights: F64 | None

    def __len__(self) -> int: ...

    def part(self, rows: slice) -> Self: ...


class Chunked:
    """An objective that never sees more than `size` samples at once."""

    def __init__(self, inner: Objective, size: int):
        self.inner, self.size = inner, size

    def losses(
        self, base: Params, points: Sequence[Terms], batches: Sequence[Batch], basis: Basis | None = None
    ) -> F64:
        rows = []
        for batch in batches:
            row = np.zeros(len(points))
            for share, piece in shares(batch, self.size):
                row += share * self.inner.losses(base, points, [piece], basis)[0]
            rows.append(row)
        return np.stack(rows)

    @property
    def no_rows(self) -> str:
        return inner_no_rows(self.inner)

    def row_losses(self, base: Params, points: Sequence[Terms], batch: Batch) -> F64:
        some = [inner_row_losses(self.inner, base, points, piece) for piece in pieces(batch, self.size)]
        return np.concatenate(some, axis=1) if some else np.empty((len(points), 0))

    def gradient(self, base: Params, batch: Batch) -> tuple[float, Tensor]:
        loss, total = 0.0, torch.zeros(base.size, device=base.device)
        for share, piece in shares(batch, self.size):
            value, gradient = self.inner.gradient(base, piece)
            loss += share * value
            total.add_(gradient, alpha=share)
        return loss, total

    def evaluate(self, params: Params) -> Metrics:
        return self.inner.evaluate(params)

    def ready(self) -> None:
        if isinstance(self.inner, Readied):
            self.inner.ready()


def shares(batch: Batch | Weighed, size: int) -> Iterator[tuple[float, Any]]:
    """The pieces of a batch, each with its share of the batch's mean."""
    for piece in pieces(batch, size):
        weights = piece.weights if isinstance(piece, Weighed) else None
        if weights is None:
            yield samples_of(piece) / samples_of(batch), piece
        elif share := float(weights.sum()):
            yield share, replace(piece, weights=weights / share)


def pieces(batch: Batch | Weighed, size: int) -> Iterator[Any]:
    """A batch in order, `size` samples at a time."""
    for first in range(0, samples_of(batch), size):
        yield _some(batch, slice(first, first + size))


def _some(batch: Any, rows: slice) -> Any:
    if isinstance(batch, Weighed):
        return batch.part(rows)
    if isinstance(batch, Mapping):
        return {name: _some(part, rows) for name, part in batch.items()}
    if isinstance(batch, tuple | list):
        return tuple(_some(part, rows) for part in batch)
    return batch[rows]
