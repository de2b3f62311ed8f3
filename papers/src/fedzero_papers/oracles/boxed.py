"""Parameters in the unit box that stand for a bounded change of something: u in [0, 1]^d, change = bound · (2u − 1).

The middle of the box is no change at all. A probe x + μz may lie outside of the box; what is evaluated there is the
nearest point inside, so that no change is ever larger than the bound.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fedzero.directions import Terms
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
