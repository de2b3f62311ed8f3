"""Keys and values of past tokens, in buffers that stay in place."""

from __future__ import annotations

from typing import Any

from torch import Tensor


class KeyValues:
    """Keys and values of past tokens of so many rows, by layer: what `transformers` asks of a cache.

    Prompts are written column by column. Then `column` is where the next token of every row goes, a tensor (1,), and
    attention is over all columns, with a mask: a step then does the same whichever it is, and can be recorded.
    """

    def __init__(self, rows: int, capacity: int):
        self.rows, self.capacity, self.length = rows, capacity, 0
        self.column: Tensor | None = None
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def bytes(self) -> int:
        return sum(buffer.nbytes for kept in self._layers.values() for buffer in kept)

    def begin(self, width: int) -> None:
        """For prompts of so many columns. Further columns are masked until they are written, but a mask adds to what is
        there: it must be finite."""
        self.length, self.column = 0, None
        for kept in self._layers.values():
            for buffer in kept:
                buffer[:, :, width:] = 0

    def load(self, few: KeyValues) -> None:
        """What is kept there, for as many points as there is room for."""
        for layer, (keys, values) in few._layers.items():
            for buffer, new in zip(self._of(layer, keys, values), (keys, values), strict=True):
                buffer.view(-1, *new.shape).copy_(new)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.length if self.column is None else self.capacity - 1

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """(rows, heads, tokens, dimension) of a layer's new tokens to those of all tokens so far.

        New tokens of prompts may have fewer rows: each is then the same for as many rows, one after the other.
        """
        kept = self._of(layer_idx, keys, values)
        if self.column is not None:
            for buffer, new in zip(kept, (keys, values), strict=True):
                buffer.index_copy_(2, self.column, new)
            return kept
        upto = self.length + keys.shape[2]
        for buffer, new in zip(kept, (keys, values), strict=True):
            buffer.view(len(new), -1, *buffer.shape[1:])[..., self.length : upto, :] = new[:, None]
        return (kept[0][:, :, :upto], kept[1][:, :, :upto]) if self.length else (keys, values)

    def _of(self, layer: int, *like: Tensor) -> tuple[Tensor, Tensor]:
        if layer not in self._layers:
            keys, values = (each.new_zeros(self.rows, each.shape[1], self.capacity, each.shape[3]) for each in like)
            self._layers[layer] = keys, values
        return self._layers[layer]
