"""Which weights of a model are trained."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated

from msgspec import Meta, Struct

from fedzero.tasks.contract import Positive


class Full(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="full"):
    """All of them."""


class Names(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="names"):
    """Those whose names match one of the patterns, such as `*.self_attn.*` or `*.bias`."""

    patterns: Annotated[tuple[str, ...], Meta(min_length=1)]

    def match(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.patterns)


class Last(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="last"):
    """Those of the last so many layers."""

    layers: Positive


class Lora(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="lora"):
    """Low-rank matrices beside frozen weights (Hu et al., 2022), by `peft`: W + (alpha/rank) B A, B nought at first."""

    rank: Positive = 8
    """r: B has so many columns, A so many rows"""
    alpha: Positive = 16
    """how much they count"""
    targets: tuple[str, ...] = ()
    """last parts of the names of linear layers; default: what peft takes for this kind of model"""
    last: Positive | None = None
    """in the last so many layers; default: in all"""


Train = Full | Names | Last | Lora
