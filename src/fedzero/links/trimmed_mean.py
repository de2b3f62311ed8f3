"""The mean without the extremes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import numpy as np
from msgspec import Meta

from fedzero.links.combining import stacked
from fedzero.links.contract import F32, Combiner


class TrimmedMean(Combiner, tag="trimmed-mean"):
    """Coordinate-wise mean without the largest and the smallest `fraction` of the contributions (at least one each)."""

    fraction: Annotated[float, Meta(gt=0, lt=0.5)] = 0.1

    def least(self) -> int:
        return 3

    def withstands(self, count: int) -> int:
        return min(max(1, int(self.fraction * count)), (count - 1) // 2)

    def combine(self, contributions: Mapping[int, F32], weights: Mapping[int, int]) -> F32:
        rows = np.sort(stacked(contributions, weights), axis=0)
        cut = self.withstands(len(rows))
        middle: F32 = rows[cut : len(rows) - cut].mean(axis=0).astype(np.float32)
        return middle
