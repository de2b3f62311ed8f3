"""Matrices that grow: kept in rooms of twice the size when one runs out, so that a new row moves no more than itself.

The first filling is taken as it comes, without a copy: what never grows pays nothing for being able to.
"""

from __future__ import annotations

import torch
from torch import Tensor

LEAST = 64


def taller(room: Tensor, used: int, new: Tensor) -> Tensor:
    """`room` with the rows `new` behind the `used` ones, in a larger one if need be."""
    wanted = used + len(new)
    if used == 0 and wanted > len(room):
        return new
    if wanted > len(room):
        larger = new.new_empty(max(wanted, 2 * len(room), LEAST), new.shape[1])
        larger[:used] = room[:used]
        room = larger
    room[used:wanted] = new
    return room


def wider(square: Tensor, used: int, wanted: int) -> Tensor:
    """A square matrix of which the first `used` rows and columns count, with room for `wanted`."""
    if wanted <= len(square):
        return square
    side = max(wanted, 2 * len(square), LEAST)
    room = torch.zeros(side, side, dtype=square.dtype)
    room[:used, :used] = square[:used, :used]
    return room
