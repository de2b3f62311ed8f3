"""A module at a view of its parameters, materialised block by block as the forward pass reaches them.

    with piecewise.at(view):           the module at x + Σ c z
        module(...)

Before a block (an element of a list of layers, or any other module with parameters of its own) runs, its weights are
written to a scratch buffer and the module is pointed at them; afterwards it is pointed back. So x is never written, and
the extra memory is that of the largest block. Of an embedding only the rows of the batch's tokens are made, of the head
only the rows of the answers that are wanted (`chosen`), at their positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedzero.model.params import Params, View
from fedzero.oracles.products import products
from fedzero.oracles.vocabulary import log_probabilities

ALIGNED = 128
"""Pieces of the scratch buffer start at multiples of so many numbers: whole cache lines for every type."""


@dataclass(frozen=True, eq=False)
class Chosen:
    """Which numbers are wanted at B places, `ends` (2, B), row and column of each: the logits of `answers` (A,) of the
    vocabulary, or log p of a target (B,) at each of them."""

    answers: Tensor | None
    ends: Tensor
    targets: Tensor | None = None


class ScratchSlot(NamedTuple):
    """Flat pieces of a scratch buffer for some tensors of a model, and the listing that a view is written to."""

    pieces: tuple[Tensor, ...]
    listing: Any


class Piecewise:
    """Hooks into a module: from then on it runs at the view of `at`, or at its own weights as before."""

    def __init__(self, module: nn.Module, head: nn.Module | None = None):
        self.module = module
        self.chosen: Chosen | None = None
        self.chooses = type(head) is nn.Linear
        """Whether the head observes `chosen`; one that is more than a matrix returns all of its logits."""
        self._names: dict[Tensor, str] = {
            p: name for name, p in module.named_parameters(remove_duplicate=True) if p.requires_grad
        }
        self._view: View | None = None
        self._offset: Mapping[str, Tensor] | None = None
        self._scratch: dict[tuple[int, int, torch.dtype], Tensor] = {}
        self._slots: dict[tuple[int, int, tuple[str, ...]], ScratchSlot] = {}
        self._slots_of: Params | None = None
        self._lane = self._depth = 0
        self.scratch_bytes = 0
        """Size of the buffers of one lane, about: the largest block."""
        for block, whole in blocks(module):
            if block is head and type(block) is nn.Linear:
                block.forward = partial(self._head, block)  # type: ignore[method-assign]
            elif type(block) is nn.Embedding and block.max_norm is None:
                block.forward = partial(self._embedding, block)  # type: ignore[method-assign]
            else:
                self._hook(block, whole)

    @property
    def held(self) -> tuple[object, ...]:
        """The present buffers and lists of addresses: a recording of their use must keep them alive."""
        return tuple(self._slots.values())

    @contextmanager
    def at(self, view: View, offset: Tensor | None = None, lane: int = 0) -> Iterator[None]:
        """The module at a view; `offset` (d,) is added to it, in float32, as `Params.add` would.

        Each lane has its own buffers, so that passes in different lanes may run at the same time.
        """
        base, self._lane = view.params, lane
        before = [parameter.data for parameter in self._names]
        try:
            for parameter, name in self._names.items():
                parameter.data = base.tensors[name]
            if offset is not None:
                self._offset = dict(zip(base.names, base.split(offset), strict=True))
            self._view = view if len(view.terms) or offset is not None else None
            yield
        finally:
            self._view, self._offset, self._lane, self._depth = None, None, 0, 0
            for parameter, data in zip(self._names, before, strict=True):
                parameter.data = data

    def _hook(self, block: nn.Module, whole: bool) -> None:
        own = {self._names[p]: p for p in block.parameters(recurse=whole) if p in self._names}
        if not own:
            return
        self.scratch_bytes = max(self.scratch_bytes, sum(p.numel() * p.element_size() for p in own.values()))

        def enter(*_: object) -> None:
            if self._view is not None:
                slot = self._slot(own)
                self._write(tuple(own), slot)
                for parameter, piece in zip(own.values(), slot.pieces, strict=True):
                    parameter.data = piece.view(parameter.shape)
                self._depth += 1

        def leave(*_: object) -> None:
            if self._view is not None:
                self._depth -= 1
                for name, parameter in own.items():
                    parameter.data = self._view.params.tensors[name]

        block.register_forward_pre_hook(enter)
        block.register_forward_hook(leave)

    def _slot(self, own: Mapping[str, nn.Parameter]) -> ScratchSlot:
        """Space for these tensors in the scratch buffers of this depth: blocks may be nested."""
        assert self._view is not None
        base, names = self._view.params, tuple(own)
        if self._slots_of is not base:
            self._slots, self._slots_of = {}, base
        key = (self._lane, self._depth, names)
        if key not in self._slots:
            pieces = self._pieces(tuple(own.values()))
            self._slots[key] = ScratchSlot(pieces, base.listing(names, pieces))
        return self._slots[key]

    def _pieces(self, parameters: Sequence[nn.Parameter]) -> tuple[Tensor, ...]:
        used: dict[torch.dtype, int] = {}
        places = []
        for p in parameters:
            start = used.get(p.dtype, 0)
            places.append((p.dtype, start, p.numel()))
            used[p.dtype] = start + -(-p.numel() // ALIGNED) * ALIGNED
        for dtype, wanted in used.items():
            buffer = self._scratch.get((self._lane, self._depth, dtype))
            if buffer is None or len(buffer) < wanted:
                self._slots.clear()  # they point into a buffer that is too small
                buffer = torch.empty(wanted, dtype=dtype, device=parameters[0].device)
                self._scratch[self._lane, self._depth, dtype] = buffer
        return tuple(self._scratch[self._lane, self._depth, t][start : start + size] for t, start, size in places)

    def _write(self, names: Sequence[str], slot: ScratchSlot) -> None:
        assert self._view is not None
        self._view.write_listed(slot.listing)
        if self._offset is not None:
            for name, piece in zip(names, slot.pieces, strict=True):
                piece.copy_(piece.float() + self._offset[name])

    def _rows(self, weight: Tensor, ids: Tensor) -> Tensor:
        """Rows of a matrix at the point, trained or not; of a vector, a column."""
        name, matrix = self._names.get(weight), weight.view(len(weight), -1)
        if self._view is None or name is None:
            return F.embedding(ids, matrix)
        rows = self._view.rows(name, ids)
        if self._offset is not None:
            rows.copy_(rows.float() + self._offset[name].view(matrix.shape)[ids])
        return rows

    def _embedding(self, embedding: nn.Embedding, ids: Tensor) -> Tensor:
        return self._rows(embedding.weight, ids)

    def _head(self, head: nn.Linear, hidden: Tensor) -> Tensor:
        """The chosen logits (B, 1, A) of hidden states (R, T, H), log p of the targets (B, 1, 1), or all logits."""
        if self.chosen is None:
            bias = None if head.bias is None else self._whole(head.bias)
            return F.linear(hidden, self._whole(head.weight), bias)
        answers, targets = self.chosen.answers, self.chosen.targets
        at_ends = hidden[*self.chosen.ends]
        if targets is not None:
            bias_of = None if head.bias is None else partial(self._range, head.bias)
            weight_of = partial(self._range, head.weight)
            return log_probabilities(at_ends, targets, head.out_features, weight_of, bias_of)[:, None, None]
        assert answers is not None
        bias = None if head.bias is None else self._rows(head.bias, answers)[:, 0]
        return F.linear(at_ends, self._rows(head.weight, answers), bias)[:, None]

    def _range(self, parameter: Tensor, first: int, last: int) -> Tensor:
        """Some rows of a parameter at the point, in one piece."""
        if self._view is None or parameter not in self._names:
            return parameter[first:last]
        rows = self._rows(parameter, torch.arange(first, last, device=parameter.device))
        return rows[:, 0] if parameter.dim() == 1 else rows

    def _whole(self, parameter: Tensor) -> Tensor:
        name = self._names.get(parameter)
        if self._view is None or name is None:
            return parameter
        out = torch.empty_like(parameter)
        pieces = (out.view(-1),)
        self._write((name,), ScratchSlot(pieces, self._view.params.listing((name,), pieces)))
        return out


def logits_of(module: nn.Module, tokens: Tensor, **where: Tensor) -> Tensor:
    """Logits (R, T, V), float32, of tokens (R, T), for trials of a model."""
    first = next(module.parameters())
    with torch.no_grad(), products(first):
        logits: Tensor = module(input_ids=tokens.to(first.device), use_cache=False, **where).logits
    return logits.float()


def blocks(module: nn.Module) -> Iterator[tuple[nn.Module, bool]]:
    """(block, is a layer): elements of the outermost lists as a whole, and other modules with own parameters."""
    if isinstance(module, nn.ModuleList):
        yield from ((layer, True) for layer in module)
        return
    if any(True for _ in module.parameters(recurse=False)):
        yield module, False
    for child in module.children():
        yield from blocks(child)
