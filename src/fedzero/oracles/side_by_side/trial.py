"""Whether points side by side have the values of views: points to try it at, and the comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from fedzero.directions import Terms
from fedzero.model.params import Params

TRIED = 3
"""Points of a trial at most."""


def trial_points(base: Params, points: Sequence[Terms]) -> list[Terms]:
    """Some of the points, so far away that a weight that is left out shows."""
    rms = math.sqrt(sum(float(t.float().square().sum()) for t in base.tensors.values()) / base.size)
    far = 0.3 * rms if math.isfinite(rms) and rms else 0.1
    moved = [terms for terms in points if len(terms) and terms.coefficients.any()][:TRIED]
    scales = [np.float32(far / np.abs(terms.coefficients).max()) for terms in moved]
    there = [Terms(t.keys, t.coefficients * scale, t.stream) for t, scale in zip(moved, scales, strict=True)]
    return there if len(there) != 1 else [*there, Terms(there[0].keys, -there[0].coefficients, there[0].stream)]


def agree(found: Tensor, wanted: Tensor, exact: bool) -> bool:
    """Whether values of points (points, …) are the same but for rounding; `exact`: in float32 with exact products."""
    spread = (wanted - wanted.mean(0)).abs().max() + 1e-3 * wanted.abs().max()
    return bool((found - wanted).abs().max() <= (2e-3 if exact else 0.1) * spread)
