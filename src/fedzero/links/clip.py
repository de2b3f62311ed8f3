"""Clipping on the client."""

from __future__ import annotations

from fedzero.links.bounds import norm_of, shortened
from fedzero.links.contract import F32, Shaper
from fedzero.model.numbers import Positive


class Clip(Shaper, tag="clip"):
    """Scale contributions down to an L2 norm of at most `norm`: v ← v · min(1, norm/‖v‖₂)."""

    norm: Positive

    def shape(self, values: F32) -> F32:
        return shortened(values, norm_of(values), self.norm)

    def longest(self, length: float) -> float:
        return min(length, self.norm)
