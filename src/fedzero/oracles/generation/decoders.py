"""Decoders that are used again: what a GPU has recorded serves other prompts, other points, and weights that moved."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

import torch
from torch import nn

from fedzero.model.params import Params
from fedzero.oracles.generation.decoder import Decoder, Decoding
from fedzero.oracles.generation.prompts import PaddedPrompts
from fedzero.oracles.generation.strategies import columns_of
from fedzero.oracles.low_rank import Neighbours


class Decoders:
    """By the shapes of prompts and points. columns: of keys and values, of all decoders together; with more, the least
    recently used are dropped. Where nothing is recorded, none is kept."""

    def __init__(self, module: nn.Module, columns: int):
        self.module, self.columns = module, columns
        self._kept: OrderedDict[Hashable, tuple[Decoder, Neighbours | None]] = OrderedDict()
        self._pool: Any = None

    def of(
        self, base: Params, prompts: PaddedPrompts, decoding: Decoding, sampled: bool, near: Neighbours | None = None
    ) -> tuple[Decoder, Neighbours | None]:
        """A decoder at the base or at points near it, and these points where it has recorded them."""
        if prompts.own.device.type != "cuda" or not decoding.stepwise:
            return Decoder(self.module, prompts, decoding, sampled), near
        key = base, prompts.shape, decoding, sampled, None if near is None else near.shape
        if key in self._kept:
            self._kept.move_to_end(key)
            held = self._kept[key][1]
            if held is not None and near is not None:
                held.load(near)
        else:
            self._make_room(prompts.rows * columns_of(prompts, decoding.most))
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            self._kept[key] = Decoder(self.module, prompts, decoding, sampled, pool=self._pool), near
        return self._kept[key]

    def _make_room(self, wanted: int) -> None:
        used = sum(decoder.columns for decoder, _ in self._kept.values())
        while self._kept and used + wanted > self.columns:
            _, (decoder, _) = self._kept.popitem(last=False)
            used -= decoder.columns
