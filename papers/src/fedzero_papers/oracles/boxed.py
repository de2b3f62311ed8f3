"""Parameters in the unit box that stand for a bounded change of something: u in [0, 1]^d, change = bound · (2u − 1).

The middle of the box is no change at all. A probe x + μz may lie outside of the box; what is evaluated there is the
nearest point inside, so that no change is ever larger than the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from fedzero.directions import Keys, Terms
from fedzero.model.params import Params
from fedzero.oracles.combination import coordinates
from fedzero.oracles.contract import Basis

MIDDLE = 0.5


def change(u: Tensor, bound: float) -> Tensor:
    """bound · (2u − 1), elementwise, after clipping u to [0, 1]."""
    return (2 * u.clamp(0, 1) - 1) * bound


def changes(base: Params, points: Sequence[Terms], basis: Basis | None, bound: float) -> Tensor:
    """The change at every point, (points, d), float32."""
    return change(coordinates(base, points, basis), bound)


def each_once(compute: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
    """compute(value) of all values, computed once where several clients share one object."""
    found = {id(value): compute(value) for value in {id(value): value for value in values}.values()}
    return [found[id(value)] for value in values]


class WholeShards:
    """Every batch of a client is all it has: `held[client]`."""

    def __init__(self, held: Sequence[Any]):
        self.held, self.clients = held, len(held)

    def batch(self, keys: Keys, round: int, step: int, client: int) -> Any:
        return self.held[client]
