"""A module at a view of its parameters, made piece by piece as the forward pass reaches them.

    with piecewise.at(view):           the module at x + Σ c z
        module(...)

Before a block (an element of a list of layers, or any other module with parameters of its own) runs, its weights are
made in a scratch buffer and the module is pointed at them; afterwards it is pointed back. So x is never written, and
beside the model there is room for its largest block only. Of an embedding only the rows of the tokens at hand are made,
of the head only the rows of the answers that are asked for (`chosen`), at the positions where they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedzero.params import View

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
        if not own:
            return

        def enter(*_: object) -> None:
            if self._point is not None:
                for name, piece in self._room(own).items():
                    self._make(name, piece)
                    own[name].data = piece
                self._depth += 1

        def leave(*_: object) -> None:
            if self._point is not None:
                self._depth -= 1
                for name, parameter in own.items():
                    parameter.data = self._point.view.params.tensors[name]

        block.register_forward_pre_hook(enter)
        block.register_forward_hook(leave)

    def _room(self, own: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
        """Room for these tensors in the scratch buffer of this depth: blocks may lie inside each other."""
        sizes = {name: -(-p.numel() // ALIGNED) * ALIGNED for name, p in own.items()}
        room: dict[str, Tensor] = {}
        for dtype in {p.dtype for p in own.values()}:
            names = [name for name, p in own.items() if p.dtype == dtype]
            wanted = sum(sizes[name] for name in names)
            held = self._scratch.get((self._depth, dtype))
            if held is None or len(held) < wanted:
                held = torch.empty(wanted, dtype=dtype, device=own[names[0]].device)
                self._scratch[self._depth, dtype] = held
            pieces = torch.split(held[:wanted], [sizes[name] for name in names])
            room |= {n: piece[: own[n].numel()].view(own[n].shape) for n, piece in zip(names, pieces, strict=True)}
        return room

    def _make(self, name: str, out: Tensor) -> None:
        assert self._point is not None
        self._point.view.write_one(name, out)
        if self._point.offset is not None:
            out.copy_(out.float() + self._point.offset[name].view(out.shape))

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
        self._make(self._names[id(parameter)], out)
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
