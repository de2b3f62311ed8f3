"""A module at a view of its parameters, made piece by piece as the forward pass reaches them.

    with piecewise.at(view):           the module at x + Σ c z
        module(...)

Before a block (an element of a list of layers, or any other module with parameters of its own) runs, its weights are
made in a scratch buffer and the module is pointed at them; afterwards it is pointed back. So x is never written, and
beside the model there is room for its largest block only. Of an embedding only the rows of the tokens at hand are made,
of the head only the rows of the answers that are asked for (`chosen`), at the positions where they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedzero.params import Params, View

ALIGNED = 128
"""Numbers to which pieces of the scratch buffer are rounded up: whole cache lines for every type."""


@dataclass(frozen=True, eq=False)
class Chosen:
    """Which logits are wanted: `answers` (A,) of the vocabulary, at position `last` (B,) of each sequence."""

    answers: Tensor
    last: Tensor


@dataclass(frozen=True, eq=False)
class Point:
    """Where the module is: a view, and what is to be added beside its terms, by name."""

    view: View
    offset: Mapping[str, Tensor] | None


@dataclass(frozen=True, eq=False)
class Room:
    """Flat pieces of a scratch buffer for some tensors of a model, made ready for writing."""

    pieces: tuple[Tensor, ...]
    listing: Any

    @staticmethod
    def of(base: Params, names: Sequence[str], pieces: tuple[Tensor, ...]) -> Room:
        return Room(pieces, base.listing(names, pieces))


class Piecewise:
    """Takes hold of a module: from now on it is evaluated through this object, or at its own weights as before."""

    def __init__(self, module: nn.Module, head: nn.Module | None = None):
        self.module = module
        self.chosen: Chosen | None = None
        self.chooses = type(head) is nn.Linear
        """Whether the head heeds `chosen`; one that is more than a matrix gives all of its logits, as ever."""
        self._owned = {n: p for n, p in module.named_parameters(remove_duplicate=True) if p.requires_grad}
        self._names = {id(parameter): name for name, parameter in self._owned.items()}
        self._point: Point | None = None
        self._scratch: dict[tuple[int, torch.dtype], Tensor] = {}
        self._rooms: dict[tuple[int, tuple[str, ...]], Room] = {}
        self._rooms_of: Params | None = None
        self._depth = 0
        for block, whole in _blocks(module):
            if block is head and type(block) is nn.Linear:
                block.forward = partial(self._head, block)  # type: ignore[method-assign]
            elif type(block) is nn.Embedding and block.max_norm is None:
                block.forward = partial(self._embedding, block)  # type: ignore[method-assign]
            else:
                self._watch(block, whole)

    @contextmanager
    def at(self, view: View, offset: Tensor | None = None) -> Iterator[None]:
        """The module at a view; `offset` (d,) is added to it, in float32, as `Params.add` would."""
        base = view.params
        before = {name: parameter.data for name, parameter in self._owned.items()}
        pieces = None if offset is None else dict(zip(base.names, base.split(offset), strict=True))
        try:
            for name, parameter in self._owned.items():
                parameter.data = base.tensors[name]
            if len(view.terms) or pieces is not None:
                self._point = Point(view, pieces)
            yield
        finally:
            self._point, self._depth = None, 0
            for name, parameter in self._owned.items():
                parameter.data = before[name]

    def _watch(self, block: nn.Module, whole: bool) -> None:
        own = {self._names[id(p)]: p for p in block.parameters(recurse=whole) if id(p) in self._names}
        names = tuple(own)
        if not own:
            return

        def enter(*_: object) -> None:
            if self._point is not None:
                room = self._room(names, own)
                self._make(names, room)
                for name, piece in zip(names, room.pieces, strict=True):
                    own[name].data = piece.view(own[name].shape)
                self._depth += 1

        def leave(*_: object) -> None:
            if self._point is not None:
                self._depth -= 1
                for name, parameter in own.items():
                    parameter.data = self._point.view.params.tensors[name]

        block.register_forward_pre_hook(enter)
        block.register_forward_hook(leave)

    def _room(self, names: tuple[str, ...], own: Mapping[str, nn.Parameter]) -> Room:
        """Room for these tensors in the scratch buffers of this depth: blocks may lie inside each other."""
        assert self._point is not None
        base = self._point.view.params
        if self._rooms_of is not base:
            self._rooms, self._rooms_of = {}, base
        if (self._depth, names) not in self._rooms:
            self._rooms[self._depth, names] = Room.of(base, names, self._pieces(names, own))
        return self._rooms[self._depth, names]

    def _pieces(self, names: Sequence[str], own: Mapping[str, nn.Parameter]) -> tuple[Tensor, ...]:
        used: dict[torch.dtype, int] = {}
        places = []
        for name in names:
            dtype, size = own[name].dtype, own[name].numel()
            places.append((dtype, used.get(dtype, 0), size))
            used[dtype] = used.get(dtype, 0) + -(-size // ALIGNED) * ALIGNED
        for dtype, wanted in used.items():
            held = self._scratch.get((self._depth, dtype))
            if held is None or len(held) < wanted:
                self._rooms.clear()  # they point into a buffer that is too small
                self._scratch[self._depth, dtype] = torch.empty(wanted, dtype=dtype, device=own[names[0]].device)
        return tuple(self._scratch[self._depth, dtype][start : start + size] for dtype, start, size in places)

    def _make(self, names: Sequence[str], room: Room) -> None:
        assert self._point is not None
        self._point.view.write_listed(room.listing)
        if self._point.offset is not None:
            for name, piece in zip(names, room.pieces, strict=True):
                piece.copy_(piece.float() + self._point.offset[name])

    def _rows(self, weight: Tensor, ids: Tensor) -> Tensor:
        """Rows of a matrix, trained or not, where the module is."""
        name = self._names.get(id(weight))
        if self._point is None or name is None:
            return F.embedding(ids, weight)
        rows = self._point.view.rows(name, ids)
        if self._point.offset is not None:
            rows.copy_(rows.float() + self._point.offset[name].view(weight.shape)[ids])
        return rows

    def _embedding(self, embedding: nn.Embedding, ids: Tensor) -> Tensor:
        return self._rows(embedding.weight, ids)

    def _head(self, head: nn.Linear, hidden: Tensor) -> Tensor:
        """Logits (B, 1, A) of what is chosen of hidden states (B, T, H), or all of them."""
        bias = self._whole(head.bias)
        if self.chosen is None:
            weight = self._whole(head.weight)
            assert weight is not None
            return F.linear(hidden, weight, bias)
        answers = self.chosen.answers
        at_last = hidden[torch.arange(len(hidden), device=hidden.device), self.chosen.last]
        return F.linear(at_last, self._rows(head.weight, answers), None if bias is None else bias[answers])[:, None]

    def _whole(self, parameter: Tensor | None) -> Tensor | None:
        if parameter is None or self._point is None or id(parameter) not in self._names:
            return parameter
        out = torch.empty_like(parameter)
        names = (self._names[id(parameter)],)
        self._make(names, Room.of(self._point.view.params, names, (out.view(-1),)))
        return out


def _blocks(module: nn.Module) -> Iterator[tuple[nn.Module, bool]]:
    """(block, with all that is inside it): elements of the outermost lists, and what else has parameters of its own."""
    if isinstance(module, nn.ModuleList):
        yield from ((layer, True) for layer in module)
        return
    if any(True for _ in module.parameters(recurse=False)):
        yield module, False
    for child in module.children():
        yield from _blocks(child)
