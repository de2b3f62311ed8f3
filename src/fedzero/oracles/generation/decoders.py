"""Decoders that are used again: what a GPU has recorded serves other prompts, other points, and weights that moved."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor, nn

from fedzero.model.params import Params
from fedzero.oracles.generation.decoder import Decoder, Decoding
from fedzero.oracles.generation.prompts import PaddedPrompts
from fedzero.oracles.generation.strategies import Stepwise, columns_of, read
from fedzero.oracles.low_rank import Neighbours
from fedzero.oracles.products import products

KEPT_BYTES = {"cpu": 1 << 30, "cuda": 12 << 30}
"""Keys and values of rows that are decoded side by side, at most."""


def most_columns(module: nn.Module, weight: Tensor) -> int:
    """Of keys and values, those of all rows together, at most; `weight`: one of the module's."""
    trial = Stepwise(module, PaddedPrompts.of([[5]]).to(weight.device), 0)
    with torch.no_grad(), products(weight):
        read(trial)
    return trial.kept.capacity * KEPT_BYTES[weight.device.type] // max(1, trial.kept.bytes)


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
