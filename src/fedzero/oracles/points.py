"""The points of an ask as rows of numbers: for objectives that look at all coordinates of a small vector."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fedzero.directions import Terms
from fedzero.oracles.contract import Basis
from fedzero.params import Params


def coordinates(base: Params, points: Sequence[Terms], basis: Basis | None) -> Tensor:
    """x + Σ c z of every point, (points, d), float32."""
    xs = base.at(points)
    return xs if basis is None else xs + basis.offsets(range(len(points)))
