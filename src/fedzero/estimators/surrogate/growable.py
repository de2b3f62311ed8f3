"""Matrices that grow: buffers double when full; the first content is taken without a copy."""

from __future__ import annotations

import torch
from torch import Tensor

MIN_SIZE = 64


def append_rows(buffer: Tensor, used: int, new: Tensor) -> Tensor:
    """`buffer` with the rows `new` behind the first `used`, in a larger one if need be."""
    wanted = used + len(new)
    if used == 0 and wanted > len(buffer):
        return new
    if wanted > len(buffer):
        larger = new.new_empty(max(wanted, 2 * len(buffer), MIN_SIZE), new.shape[1])
        larger[:used] = buffer[:used]
        buffer = larger
    buffer[used:wanted] = new
    return buffer


def enlarge(square: Tensor, used: int, wanted: int) -> Tensor:
    """A square buffer whose first `used` rows and columns are in use, large enough for `wanted`."""
    if wanted <= len(square):
        return square
    side = max(wanted, 2 * len(square), MIN_SIZE)
    larger = torch.zeros(side, side, dtype=square.dtype)
    larger[:used, :used] = square[:used, :used]
    return larger
