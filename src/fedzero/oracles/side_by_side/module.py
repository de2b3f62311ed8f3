"""A module at many points of rank-one directions, in one pass and with one set of weights.

    sides = SideBySide(module)
    with sides.at(base, points):           points-major: the first axis of every input is points · rows
        module(...)

A linear layer gives x Wᵀ + Σ c (x·b) aᵀ, with c, a and b of each row's own point; embeddings and convolutions likewise.
The small weights of any other module are made for all points, and it runs once for each (on a GPU under vmap). With
`same`, the input is that of one point and all points share it: the first trained layer makes x Wᵀ once for all of them.

What cannot work so is never silently wrong: while points are side by side the parameters themselves are NaN, so one
that is read outside of its own module's forward spoils the result for all to see, and an input whose first axis cannot
be points · rows is refused. Whether rows depend on each other only a trial shows: `agree` compares.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor, nn

from fedzero.directions import Terms
from fedzero.model.params import Params
from fedzero.oracles.low_rank import Neighbours, neighbours
from fedzero.oracles.side_by_side.layers import EachBeside, TurnedBeside, kind_of, swapped
from fedzero.oracles.side_by_side.scope import BESIDE, Layer, Once, Scope
from fedzero.oracles.side_by_side.trial import warn_one_by_one


@dataclass(frozen=True, eq=False)
class Part:
    """A module with trained parameters: its class while points are side by side, and its parameters by their names in
    it, each with its name in the model if it is trained."""

    name: str
    module: nn.Module
    swapped: type[nn.Module]
    turned: bool
    parameters: tuple[tuple[str, nn.Parameter, str | None], ...]

    def layer(self, base: Params, points: Neighbours, scope: Scope) -> Layer:
        layer = Layer(self.name, scope, {})
        for own, parameter, trained in self.parameters:
            layer.tensors[own] = parameter.data if trained is None else base.tensors[trained]
            if trained in points.matrices:
                factors = points.matrices[trained]
                layer.factors[own] = factors.turned if self.turned else factors
            elif trained is not None:
                layer.offsets[own] = points.vectors[trained]
        return layer


class SideBySide:
    """A module and those of its parts that have trained parameters. Outside of `at` the module is as it was."""

    def __init__(self, module: nn.Module, head: nn.Module | None = None):
        self.module = module
        trained: dict[Tensor, str] = {
            p: name for name, p in module.named_parameters(remove_duplicate=True) if p.requires_grad
        }
        self._trained = [(p, p.data.new_full((), math.nan).expand(p.shape)) for p in trained]
        self._parts = [_part(name, part, head, trained) for name, part in _parts(module, trained)]
        self.possible = not any(p.module is module and issubclass(p.swapped, EachBeside) for p in self._parts)
        """False where the module itself has parameters between others: it would run once for every point."""
        self._agreed: bool | None = None

    def agreed(self, trials: Iterable[bool]) -> bool:
        """Whether it gives the values of views, by trials at the first points, with a warning if it does not."""
        if self._agreed is None:
            self._agreed = any(trials)
            if not self._agreed:
                warn_one_by_one("gives other values than at weights of its own")
        return self._agreed

    @contextmanager
    def at(self, base: Params, points: Neighbours | Sequence[Terms]) -> Iterator[Scope]:
        """The module at all points; it may be called any number of times, with any number of rows a point."""
        near = points if isinstance(points, Neighbours) else neighbours(base, points)
        with self.entered() as place:
            yield place(base, near)

    @contextmanager
    def entered(self) -> Iterator[Callable[..., Scope]]:
        """What is given puts the module at some points, and then at others: `at` without coming and going.

        `same`: the input of the next call has the rows of one point, and is that of all. What `once` holds serves other
        points with the same input.
        """
        before = [(p.module, type(p.module), p.module.__dict__.pop("forward", None)) for p in self._parts]
        data = [parameter.data for parameter, _ in self._trained]
        called: list[Scope] = []
        hook = self.module.register_forward_pre_hook(lambda *given: called[-1].called(*given), with_kwargs=True)

        def place(base: Params, points: Neighbours, same: bool = False, once: Once | None = None) -> Scope:
            called[:] = [Scope(points.count, same, once)]
            for part in self._parts:
                part.module.__dict__[BESIDE] = part.layer(base, points, called[0])
            return called[0]

        try:
            for part in self._parts:
                object.__setattr__(part.module, "__class__", part.swapped)
            for parameter, nothing in self._trained:
                parameter.data = nothing
            yield place
        finally:
            hook.remove()
            for (parameter, _), tensor in zip(self._trained, data, strict=True):
                parameter.data = tensor
            for module, kind, forward in before:
                module.__dict__.pop(BESIDE, None)
                object.__setattr__(module, "__class__", kind)
                if forward is not None:
                    module.__dict__["forward"] = forward


def _part(name: str, module: nn.Module, head: nn.Module | None, trained: Mapping[Tensor, str]) -> Part:
    kind = kind_of(module, head)
    class_ = swapped(type(module), kind, _own(module, trained))
    parameters = tuple((own, parameter, trained.get(parameter)) for own, parameter in module.named_parameters())
    return Part(name, module, class_, kind is TurnedBeside, parameters)


def _parts(module: nn.Module, trained: Mapping[Tensor, str], name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Modules with trained parameters of their own, each with all that is below it."""
    if _own(module, trained):
        yield name, module
        return
    for child, below in module.named_children():
        yield from _parts(below, trained, f"{name}.{child}" if name else child)


def _own(module: nn.Module, trained: Mapping[Tensor, str]) -> tuple[str, ...]:
    return tuple(name for name, p in module.named_parameters(recurse=False) if p in trained)
