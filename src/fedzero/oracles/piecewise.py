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

from fedzero.model.params import Params, View

ALIGNED = 128
"""Numbers to which pieces of the scratch buffer are rounded up: whole cache lines for every type."""


@dataclass(frozen=True, eq=False)
class Chosen:
    """Which logits are wanted: `answers` (A,) of the vocabulary, at B places, `ends` (2, B): row and column of each."""

    answers: Tensor
    ends: Tensor


@dataclass(frozen=True, eq=False)
class Point:
    """Where the module is: a view, and what is to be added beside its terms, by name."""

    view: View
    offset: Mapping[str, Tensor] | None


@dataclass(frozen=True, eq=False)
class ScratchSlot:
    """Flat pieces of a scratch buffer for some tensors of a model, made ready for writing."""

    pieces: tuple[Tensor, ...]
    listing: Any

    @staticmethod
    def of(base: Params, names: Sequence[str], pieces: tuple[Tensor, ...]) -> ScratchSlot:
        return ScratchSlot(pieces, base.listing(names, pieces))


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
        self._scratch: dict[tuple[int, int, torch.dtype], Tensor] = {}
        self._rooms: dict[tuple[int, int, tuple[str, ...]], ScratchSlot] = {}
        self._rooms_of: Params | None = None
        self._lane = self._depth = 0
        self.scratch_bytes = 0
        """What the buffers of one lane take, about: the largest block."""
        for block, whole in blocks(module):
            if block is head and type(block) is nn.Linear:
                block.forward = partial(self._head, block)  # type: ignore[method-assign]
            elif type(block) is nn.Embedding and block.max_norm is None:
                block.forward = partial(self._embedding, block)  # type: ignore[method-assign]
            else:
                self._watch(block, whole)

    @property
    def held(self) -> tuple[object, ...]:
        """Buffers and lists of addresses as they are now: who recorded their use must keep them."""
        return tuple(self._rooms.values())

    @contextmanager
    def at(self, view: View, offset: Tensor | None = None, lane: int = 0) -> Iterator[None]:
        """The module at a view; `offset` (d,) is added to it, in float32, as `Params.add` would.

        Each lane has buffers of its own, so that what was launched in one can run beside what is in another.
        """
        base, self._lane = view.params, lane
        before = {name: parameter.data for name, parameter in self._owned.items()}
        pieces = None if offset is None else dict(zip(base.names, base.split(offset), strict=True))
        try:
            for name, parameter in self._owned.items():
                parameter.data = base.tensors[name]
            if len(view.terms) or pieces is not None:
                self._point = Point(view, pieces)
            yield
        finally:
            self._point, self._lane, self._depth = None, 0, 0
            for name, parameter in self._owned.items():
                parameter.data = before[name]

    def _watch(self, block: nn.Module, whole: bool) -> None:
        own = {self._names[id(p)]: p for p in block.parameters(recurse=whole) if id(p) in self._names}
        names = tuple(own)
        if not own:
            return
        self.scratch_bytes = max(self.scratch_bytes, sum(p.numel() * p.element_size() for p in own.values()))

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

    def _room(self, names: tuple[str, ...], own: Mapping[str, nn.Parameter]) -> ScratchSlot:
        """Room for these tensors in the scratch buffers of this depth: blocks may lie inside each other."""
        assert self._point is not None
        base = self._point.view.params
        if self._rooms_of is not base:
            self._rooms, self._rooms_of = {}, base
        key = (self._lane, self._depth, names)
        if key not in self._rooms:
            self._rooms[key] = ScratchSlot.of(base, names, self._pieces(names, own))
        return self._rooms[key]

    def _pieces(self, names: Sequence[str], own: Mapping[str, nn.Parameter]) -> tuple[Tensor, ...]:
        used: dict[torch.dtype, int] = {}
        places = []
        for name in names:
            dtype, size = own[name].dtype, own[name].numel()
            places.append((dtype, used.get(dtype, 0), size))
            used[dtype] = used.get(dtype, 0) + -(-size // ALIGNED) * ALIGNED
        for dtype, wanted in used.items():
            held = self._scratch.get((self._lane, self._depth, dtype))
            if held is None or len(held) < wanted:
                self._rooms.clear()  # they point into a buffer that is too small
                fresh = torch.empty(wanted, dtype=dtype, device=own[names[0]].device)
                self._scratch[self._lane, self._depth, dtype] = fresh
        buffers = {dtype: self._scratch[self._lane, self._depth, dtype] for dtype in used}
        return tuple(buffers[dtype][start : start + size] for dtype, start, size in places)

    def _make(self, names: Sequence[str], room: ScratchSlot) -> None:
        assert self._point is not None
        self._point.view.write_listed(room.listing)
        if self._point.offset is not None:
            for name, piece in zip(names, room.pieces, strict=True):
                piece.copy_(piece.float() + self._point.offset[name])

    def _rows(self, weight: Tensor, ids: Tensor) -> Tensor:
        """Rows of a matrix, trained or not, where the module is; of a vector, a column."""
        name, matrix = self._names.get(id(weight)), weight.view(len(weight), -1)
        if self._point is None or name is None:
            return F.embedding(ids, matrix)
        rows = self._point.view.rows(name, ids)
        if self._point.offset is not None:
            rows.copy_(rows.float() + self._point.offset[name].view(matrix.shape)[ids])
        return rows

    def _embedding(self, embedding: nn.Embedding, ids: Tensor) -> Tensor:
        return self._rows(embedding.weight, ids)

    def _head(self, head: nn.Linear, hidden: Tensor) -> Tensor:
        """Logits (B, 1, A) of what is chosen of hidden states (R, T, H), or all of them."""
        if self.chosen is None:
            weight = self._whole(head.weight)
            assert weight is not None
            return F.linear(hidden, weight, self._whole(head.bias))
        answers = self.chosen.answers
        at_last = hidden[*self.chosen.ends]
        bias = None if head.bias is None else self._rows(head.bias, answers)[:, 0]
        return F.linear(at_last, self._rows(head.weight, answers), bias)[:, None]

    def _whole(self, parameter: Tensor | None) -> Tensor | None:
        if parameter is None or self._point is None or id(parameter) not in self._names:
            return parameter
        out = torch.empty_like(parameter)
        names = (self._names[id(parameter)],)
        self._make(names, ScratchSlot.of(self._point.view.params, names, (out.view(-1),)))
        return out


def blocks(module: nn.Module) -> Iterator[tuple[nn.Module, bool]]:
    """(block, with all that is inside it): elements of the outermost lists, and what else has parameters of its own."""
    if isinstance(module, nn.ModuleList):
        yield from ((layer, True) for layer in module)
        return
    if any(True for _ in module.parameters(recurse=False)):
        yield module, False
    for child in module.children():
        yield from blocks(child)
