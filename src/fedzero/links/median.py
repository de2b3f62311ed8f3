"""The coordinate-wise median."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedzero.links.combining import stacked
from fedzero.links.contract import F32, Combiner


class Median(Combiner, tag="median"):
    """Coordinate-wise median of the contributions: fewer than half of them may be arbitrary."""

    def least(self) -> int:
        return 2

    def withstands(self, count: int) -> int:
        return (count - 1) // 2

    def combine(self, contributions: Mapping[int, F32], weights: Mapping[int, int]) -> F32:
        return np.median(stacked(contributions, weights), axis=0).astype(np.float32)
