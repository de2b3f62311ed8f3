"""Which weights of a model are trained."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated

from msgspec import Meta

from fedzero.model.numbers import Fraction, PositiveInt
from fedzero.model.value import Checked


class Full(Checked, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="full"):
    """All of them."""


class Names(Checked, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="names"):
    """Those whose names match one of the patterns, such as `*.self_attn.*` or `*.bias`."""

    patterns: Annotated[tuple[str, ...], Meta(min_length=1)]

    def match(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.patterns)


class Layers(Checked, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="layers"):
    """Those of the layers `first` to `last`, which count from 0, or from the end as -1, -2, …"""

    first: int = 0
    last: int = -1


class Span(Checked, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="span"):
    """Those of the layers between two relative depths, 0 the first layer and 1 the last; at least one layer."""

    low: Fraction = 0.0
    """from this depth on"""
    high: Fraction = 1.0
    """up to this one"""

    def of(self, layers: int) -> tuple[int, int]:
        """The first and the last of them, counted from 0."""
        first = min(round(self.low * layers), layers - 1)
        return first, max(first, round(self.high * layers) - 1)


class Lora(Checked, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="lora"):
    """Low-rank matrices beside frozen weights (Hu et al., 2022), by `peft`: W + (alpha/rank) B A, B = 0 at first."""

    rank: PositiveInt = 8
    """r: B has so many columns, A so many rows"""
    alpha: PositiveInt = 16
    """α, their weight"""
    targets: tuple[str, ...] = ()
    """last parts of the names of linear layers; default: peft's choice for this kind of model"""
    first: int = 0
    """in the layers from this one on; they count from 0, or from the end as -1, -2, …"""
    last: int = -1
    """and up to this one"""


Train = Full | Layers | Span | Names | Lora
