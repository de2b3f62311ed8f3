"""Tensors of a model that are worked on together."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Piece(NamedTuple):
    """One flat tensor, where its result goes, its memory of a rule, and its ordinal."""

    source: torch.Tensor
    out: torch.Tensor
    slots: tuple[torch.Tensor, ...]
    ordinal: int
