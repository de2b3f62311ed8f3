"""The points of an ask as rows of numbers: for objectives that look at all coordinates of a small vector."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fedzero.directions import Terms
from fedzero.model.params import Params
from fedzero.oracles.contract import F64, Basis


def coordinates(base: Params, points: Sequence[Terms], basis: Basis | None) -> Tensor:
    """x + Σ c z of every point, (points, d), float32."""
    xs = base.at(points)
    return xs if basis is None else xs + basis.offsets(range(len(points)))


def wide_coordinates(base: Params, points: Sequence[Terms], basis: Basis | None) -> F64:
    """The same in float64: what the basis adds is not rounded to the size of x."""
    xs: F64 = base.at(points).double().cpu().numpy()
    if basis is not None:
        xs += basis.offsets(range(len(points))).cpu().numpy()
    return xs
