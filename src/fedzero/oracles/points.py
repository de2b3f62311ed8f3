"""The points of an ask as rows of numbers: for objectives that look at all coordinates of a small vector."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedzero.directions import Terms
from fedzero.oracles.contract import Basis
from fedzero.params import Params


def coordinates(base: Params, points: Sequence[Terms], basis: Basis | None) -> Tensor:
    """x + Σ c z of every point, (points, d), in the parameters' own type."""
    if all(len(terms) <= 1 for terms in points):
        xs = base.vector() + base.offsets(points)
    else:
        xs = torch.stack([base.view(terms).vector() for terms in points])
    if basis is not None:
        xs = xs + torch.stack([basis.offset(point) for point in range(len(points))])
    return xs
