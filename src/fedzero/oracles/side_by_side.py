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
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fedzero.directions import Terms
from fedzero.model.params import Params
from fedzero.oracles.low_rank import Factors, Neighbours, neighbours
from fedzero.oracles.patches import PatchConv
from fedzero.oracles.piecewise import Chosen

PAYS = 64
"""On a CPU the factors of a matrix are worth their passes over what goes in and comes out if rows · columns is so many
times rows + columns; otherwise its weights are made for every point."""
BESIDE = "_beside"
"""The attribute of a module that holds its weights at all points, while they are side by side."""


class NotSideBySide(Exception):
    """The module cannot be evaluated so: views can."""


class Once:
    """What is the same for all points of a pass, made by whoever comes first: groups of points may have threads."""

    def __init__(self) -> None:
        self._made: dict[str, Tensor] = {}
        self._lock = threading.Lock()

    def get(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        with self._lock:
            if name not in self._made:
                self._made[name] = make()
            return self._made[name]


class Scope:
    """What all layers know during a pass: how many points, how many rows, which logits are wanted."""

    def __init__(self, count: int, same: bool = False, once: Once | None = None):
        self.count, self.same, self.once = count, same, once
        self.rows = 0
        """Of all points together; set when the module is called."""
        self.chosen: Chosen | None = None

    def called(self, _: nn.Module, positional: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        """Before the module runs: the number of rows is that of its first tensor."""
        first = next((len(x) for x in (*positional, *named.values()) if isinstance(x, Tensor) and x.dim()), 0)
        self.rows = first * self.count if self.same else first
        if not first or self.rows % self.count:
            raise NotSideBySide(f"{first} rows are not those of {self.count} points")

    def is_shared(self, x: Tensor) -> bool:
        """Whether x is the same for all points; else its first axis is points-major."""
        if self.same:  # until the first trained layer has run
            self.same = False
            if x.shape[0] % (self.rows // self.count):
                raise NotSideBySide(f"an input of {x.shape[0]} rows is not the module's")
            return True
        if x.shape[0] == 1 < self.rows:
            return True
        # Compiled code would be compiled again for every number of rows.
        many = self.count if torch.compiler.is_compiling() else self.rows
        if x.shape[0] % many:
            raise NotSideBySide(f"an input of {x.shape[0]} rows, where {many} are those of all points")
        return False

    def every_row(self, x: Tensor) -> Tensor:
        """A shared input; one that has a single row is shared by the rows of a point, too."""
        return x.expand(self.rows // self.count, *x.shape[1:]) if x.shape[0] == 1 < self.rows else x

    def spread(self, x: Tensor) -> Tensor:
        """An input, shared or not, as points-major."""
        if not self.is_shared(x):
            return x
        x = self.every_row(x)
        return x.expand(self.count, *x.shape).flatten(0, 1)

    def made_once(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        return make() if self.once is None else self.once.get(name, make)


@dataclass(frozen=True, eq=False)
class Layer:
    """A module's own parameters during a pass: at the base, and what the points add to those that are trained."""

    name: str
    scope: Scope
    tensors: dict[str, Tensor]
    factors: dict[str, Factors] = field(default_factory=dict)
    offsets: dict[str, Tensor] = field(default_factory=dict)

    def vector(self, name: str) -> Tensor:
        """A vector at every point, (points, 1, n), float32."""
        return (self.tensors[name].float() + self.offsets[name].view(-1, *self.tensors[name].shape))[:, None]

    def all(self) -> dict[str, Tensor]:
        """All parameters at every point, (points, …)."""
        made = {}
        for name, tensor in self.tensors.items():
            if name in self.factors:
                matrix = tensor.view(len(tensor), -1)
                made[name] = self.factors[name].at(matrix).view(-1, *tensor.shape)
            elif name in self.offsets:
                made[name] = self.vector(name)[:, 0].to(tensor.dtype)
        return made


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
        self.possible = not any(p.module is module and issubclass(p.swapped, _Each) for p in self._parts)
        """False where the module itself has parameters between others: it would run once for every point."""

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
    kind = _kind(module, head)
    swapped = _swapped(type(module), kind, _own(module, trained))
    parameters = tuple((own, parameter, trained.get(parameter)) for own, parameter in module.named_parameters())
    return Part(name, module, swapped, kind is _Turned, parameters)


def _parts(module: nn.Module, trained: Mapping[Tensor, str], name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Modules with trained parameters of their own, each with all that is below it."""
    if _own(module, trained):
        yield name, module
        return
    for child, below in module.named_children():
        yield from _parts(below, trained, f"{name}.{child}" if name else child)


def _own(module: nn.Module, trained: Mapping[Tensor, str]) -> tuple[str, ...]:
    return tuple(name for name, p in module.named_parameters(recurse=False) if p in trained)


def _kind(part: nn.Module, head: nn.Module | None) -> type[nn.Module]:
    """How a module is evaluated at many points."""
    kind = type(part)
    if kind is nn.Linear:
        return _Head if part is head else _Linear
    if kind.__name__ == "Conv1D" and hasattr(part, "nf"):  # of transformers: a linear layer, its weight transposed
        return _Turned
    if isinstance(part, nn.Embedding) and part.max_norm is None:
        return _Embedding
    if kind is PatchConv:
        return _PatchConv
    if kind is nn.Conv2d and part.padding_mode == "zeros":
        return _Conv
    if kind is nn.LayerNorm:
        return _LayerNorm
    vectors = all(p.dim() == 1 for p in part.parameters()) and not list(part.children())
    if kind.__name__.endswith("RMSNorm") and kind is not nn.RMSNorm and vectors:
        return _Broadcast
    return _Each


_CLASSES: dict[tuple[type, type, tuple[str, ...]], type[nn.Module]] = {}


def _swapped(kind: type[nn.Module], how: type[nn.Module], own: tuple[str, ...]) -> type[nn.Module]:
    """A class for a module while points are side by side. Layers of one kind share it, hence compiled code."""
    key = kind, how, own
    if key not in _CLASSES:
        broadcast = issubclass(how, _Broadcast)
        members = {name: property(_broadcast(name)) for name in own} if broadcast else {}
        # An embedding may move positions before it looks them up: its own forward comes first, and calls ours.
        above = issubclass(kind, nn.Embedding) and kind is not nn.Embedding
        _CLASSES[key] = type(kind.__name__, (kind, how) if above else (how, kind), members)
    return _CLASSES[key]


def _broadcast(name: str) -> Callable[[Any], Tensor]:
    return lambda module: getattr(module, BESIDE).vector(name)


def _inner(x: Tensor, b: Tensor) -> Tensor:
    """x (points, n, m) · b (points, 1, m), (points, n, 1), float32."""
    if torch.compiler.is_compiling() and x.device.type != "cpu":
        return (x * b).sum(-1, keepdim=True, dtype=torch.float32)  # fused with what made x
    return torch.bmm(x, b.to(x.dtype).mT).float()


def _add(y: Tensor, x: Tensor, factors: Factors | None, shift: Tensor | None) -> Tensor:
    """y + Σ c (x·b) a + shift of (points, n, out), (points, n, in) and (points, out); y may be overwritten."""
    if factors is None:
        return y if shift is None else y + shift[:, None].to(y.dtype)
    if y.device.type != "cpu" and not torch.compiler.is_compiling():
        return _add_by_products(y, x, factors, shift)
    scaled = [(c * _inner(x, b)).to(y.dtype) for c, b in zip(factors.coefficients, factors.right, strict=True)]
    if y.dtype != torch.float32:
        return y + _moved(scaled, factors, shift, y.dtype)
    for s, a in zip(scaled, factors.left, strict=True):
        y = y.addcmul_(s, a)
    return y if shift is None else y.add_(shift[:, None])


def _add_by_products(y: Tensor, x: Tensor, factors: Factors, shift: Tensor | None) -> Tensor:
    """The same by two products, all terms at once: on a GPU the fewest passes over x and y where nothing is fused."""
    left, right = (each[:, :, 0].transpose(0, 1) for each in (factors.left, factors.right))  # (points, terms, …)
    scaled = torch.bmm(x, right.to(x.dtype).mT) * factors.coefficients[:, :, 0].permute(1, 2, 0)
    if shift is not None:  # as another term
        scaled = torch.cat([scaled, torch.ones_like(scaled[..., :1])], 2)
        left = torch.cat([left, shift[:, None]], 1)
    return y.baddbmm_(scaled.to(y.dtype), left.to(y.dtype))


def _add_shared(y: Tensor, x: Tensor, factors: Factors | None, shift: Tensor | None, count: int) -> Tensor:
    """The same where y (n, out) and x (n, in) are those of all points; y is kept."""
    if factors is None:
        each = y.expand(count, *y.shape)
        return each if shift is None else each + shift[:, None].to(y.dtype)
    inner = (torch.mm(b[:, 0].to(x.dtype), x.T)[..., None].float() for b in factors.right)
    scaled = [(c * s).to(y.dtype) for c, s in zip(factors.coefficients, inner, strict=True)]
    if y.dtype != torch.float32:
        return y + _moved(scaled, factors, shift, y.dtype)
    total = torch.addcmul(y, scaled[0], factors.left[0])
    for s, a in zip(scaled[1:], factors.left[1:], strict=True):
        total.addcmul_(s, a)
    return total if shift is None else total.add_(shift[:, None])


def _moved(scaled: list[Tensor], factors: Factors, shift: Tensor | None, dtype: torch.dtype) -> Tensor:
    """All that moves, summed before it is added in 16 bits: what is small would vanish in the rounding of the sum."""
    total = torch.zeros((), dtype=dtype, device=scaled[0].device) if shift is None else shift[:, None].to(dtype)
    for s, a in zip(scaled, factors.left, strict=True):
        total = torch.addcmul(total, s, a.to(dtype))
    return total


def _linear(x: Tensor, layer: Layer, weight: Tensor) -> Tensor:
    """A linear layer with a weight (out, in) at the base."""
    scope, factors, shift = layer.scope, layer.factors.get("weight"), layer.offsets.get("bias")
    bias, count = layer.tensors.get("bias"), scope.count
    shared = scope.is_shared(x)
    x = scope.every_row(x) if shared else x
    lead = (count * len(x) if shared else len(x), *x.shape[1:-1])
    if x.device.type == "cpu" and x.dtype == torch.float32 and factors is not None and not _pays(weight):
        each = x.reshape(-1, x.shape[-1]).expand(count, -1, -1) if shared else x.reshape(count, -1, x.shape[-1])
        return _apart(each, factors.at(weight), layer.vector("bias") if shift is not None else bias).view(*lead, -1)
    if shared:
        flat = x.reshape(-1, x.shape[-1])
        y = scope.made_once(layer.name, lambda: F.linear(flat, weight, bias))
        return _add_shared(y, flat, factors, shift, count).reshape(*lead, -1)
    x = x.reshape(count, -1, x.shape[-1])
    return _add(F.linear(x, weight, bias), x, factors, shift).view(*lead, -1)


def _pays(weight: Tensor) -> bool:
    rows, columns = weight.shape
    return rows * columns > PAYS * (rows + columns)


def _apart(x: Tensor, weights: Tensor, bias: Tensor | None) -> Tensor:
    """x (points, n, in) by weights (points, out, in) that were made for every point."""
    if len(x) == 1:
        return F.linear(x[0], weights[0], None if bias is None else bias.view(-1))
    return torch.bmm(x, weights.mT) if bias is None else torch.baddbmm(bias, x, weights.mT)


class _Linear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        layer: Layer = getattr(self, BESIDE)
        return _linear(x, layer, layer.tensors["weight"])


class _Turned(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        layer: Layer = getattr(self, BESIDE)
        return _linear(x, layer, layer.tensors["weight"].T)


class _Head(_Linear):
    """The layer over the vocabulary: where answers are `chosen`, their logits (points · B, 1, A), else all of them."""

    def forward(self, x: Tensor) -> Tensor:
        layer: Layer = getattr(self, BESIDE)
        if layer.scope.chosen is None:
            return super().forward(x)
        ids, count = layer.scope.chosen.answers, layer.scope.count
        x = x[*layer.scope.chosen.ends].view(count, -1, x.shape[-1])
        bias, factors, shift = layer.tensors.get("bias"), layer.factors.get("weight"), layer.offsets.get("bias")
        y = F.linear(x, layer.tensors["weight"][ids], None if bias is None else bias[ids])
        moved = _add(y, x, factors and factors.rows(ids), None if shift is None else shift[:, ids])
        return moved.view(-1, 1, len(ids))


class _Embedding(nn.Embedding):
    def forward(self, ids: Tensor) -> Tensor:
        layer: Layer = getattr(self, BESIDE)
        scope, factors = layer.scope, layer.factors["weight"]
        shared = scope.is_shared(ids)
        ids = scope.every_row(ids) if shared else ids
        rows = (scope.count * len(ids) if shared else len(ids), *ids.shape[1:])
        each = ids.reshape(1, -1).expand(scope.count, -1) if shared else ids.reshape(scope.count, -1)
        y = F.embedding(each, layer.tensors["weight"])
        for c, a, b in zip(factors.coefficients, factors.left, factors.right, strict=True):
            y = y + (c * a[:, 0].gather(1, each)[..., None]).to(y.dtype) * b.to(y.dtype)
        return y.view(*rows, -1)


class _Each(nn.Module):
    """Any module: its parameters at every point, and a run for each of them."""

    def forward(self, *positional: Any, **named: Any) -> Any:
        layer: Layer | None = getattr(self, BESIDE)
        if layer is None:
            return super().forward(*positional, **named)
        scope = layer.scope
        inputs = (*positional, *named.values())
        split = [isinstance(x, Tensor) and x.dim() > 0 and not scope.is_shared(x) for x in inputs]
        given = [x.reshape(scope.count, -1, *x.shape[1:]) if cut else x for x, cut in zip(inputs, split, strict=True)]

        def run(weights: dict[str, Tensor], *some: Any) -> Any:
            each, others = some[: len(positional)], some[len(positional) :]
            return functional_call(self, weights, each, dict(zip(named, others, strict=True)))

        self.__dict__[BESIDE] = None
        try:
            return _runs(run, layer.all(), given, split, scope.count)
        finally:
            self.__dict__[BESIDE] = layer


def _runs(run: Callable[..., Any], weights: dict[str, Tensor], given: list[Any], split: list[bool], count: int) -> Any:
    """Outputs at every point, points-major."""
    if next(iter(weights.values())).device.type != "cpu":
        axes = (dict.fromkeys(weights, 0), *(0 if cut else None for cut in split))
        output = torch.vmap(run, in_dims=axes)(weights, *given)
        return tuple(x.flatten(0, 1) for x in output) if isinstance(output, tuple) else output.flatten(0, 1)
    found = [
        run(
            {name: tensor[p] for name, tensor in weights.items()},
            *(x[p] if cut else x for x, cut in zip(given, split, strict=True)),
        )
        for p in range(count)
    ]
    if isinstance(found[0], tuple):
        return tuple(torch.cat(column) for column in zip(*found, strict=True))
    return found[0] if count == 1 else torch.cat(found)  # channels stay last, if they are


class _Conv(_Each):
    """A convolution: where all points have the same input it is made once, and a point adds one channel times a.

    Elsewhere its weights are small beside what they are applied to, and made.
    """

    def forward(self, x: Tensor) -> Tensor:
        layer: Layer | None = getattr(self, BESIDE)
        conv: Any = self
        alone = layer is None or not layer.scope.same or "weight" not in layer.factors
        if layer is None or alone or x.dim() != 4 or conv.groups != 1 or not layer.scope.is_shared(x):
            result: Tensor = super().forward(x)
            return result
        how = (conv.stride, conv.padding, conv.dilation)
        weight, bias, factors = layer.tensors["weight"], layer.tensors.get("bias"), layer.factors["weight"]
        y = layer.scope.made_once(layer.name, lambda: F.conv2d(x, weight, bias, *how))[None]
        for c, a, b in zip(factors.coefficients, factors.left, factors.right, strict=True):
            s = F.conv2d(x, b.to(x.dtype).view(-1, *weight.shape[1:]), None, *how).transpose(0, 1)[:, :, None]
            y = torch.addcmul(y, (c[..., None, None] * s).to(y.dtype), a.to(y.dtype).mT[:, None, :, :, None])
        shift = layer.offsets.get("bias")
        y = y if shift is None else y + shift[:, None, :, None, None].to(y.dtype)
        return y.flatten(0, 1)


class _PatchConv(_Conv):
    """The same of patches (n, places, numbers of a patch): a linear layer."""

    def forward(self, x: Tensor) -> Tensor:
        layer: Layer | None = getattr(self, BESIDE)
        if layer is None or x.dim() != 3:
            return super().forward(x)
        return _linear(x, layer, layer.tensors["weight"].flatten(1))


class _LayerNorm(nn.LayerNorm):
    """In float32, rounded once."""

    def forward(self, x: Tensor) -> Tensor:
        layer: Layer = getattr(self, BESIDE)
        scope, size = layer.scope, len(self.normalized_shape)
        x = scope.spread(x)
        y = F.layer_norm(x.float(), self.normalized_shape, None, None, self.eps)
        y = y.view(scope.count, -1, *x.shape[x.dim() - size :])
        for name, join in (("weight", torch.mul), ("bias", torch.add)):
            if name in layer.tensors:
                y = join(y, layer.vector(name) if name in layer.offsets else layer.tensors[name].float())
        return y.view(x.shape).to(x.dtype)


class _Broadcast(nn.Module):
    """A norm over the last axis that multiplies by vectors: it is given theirs as (points, 1, n), and x to fit."""

    def forward(self, x: Tensor) -> Tensor:
        scope = getattr(self, BESIDE).scope
        x = scope.spread(x)
        y: Tensor = super().forward(x.reshape(scope.count, -1, x.shape[-1]))
        return y.view(x.shape).to(x.dtype)


TRIED = 3
"""Points of a trial at most."""


def trial_points(base: Params, points: Sequence[Terms]) -> list[Terms]:
    """Some of the points, so far away that a weight that is left out shows."""
    rms = math.sqrt(sum(float(t.float().square().sum()) for t in base.tensors.values()) / base.size)
    far = 0.3 * rms if math.isfinite(rms) and rms else 0.1
    moved = [terms for terms in points if len(terms) and terms.coefficients.any()][:TRIED]
    scales = [np.float32(far / np.abs(terms.coefficients).max()) for terms in moved]
    there = [Terms(t.keys, t.coefficients * scale, t.stream) for t, scale in zip(moved, scales, strict=True)]
    return there if len(there) != 1 else [*there, Terms(there[0].keys, -there[0].coefficients, there[0].stream)]


def agree(found: Tensor, wanted: Tensor, exact: bool) -> bool:
    """Whether values of points (points, …) are the same but for rounding; `exact`: in float32 with exact products."""
    spread = (wanted - wanted.mean(0)).abs().max() + 1e-3 * wanted.abs().max()
    return bool((found - wanted).abs().max() <= (2e-3 if exact else 0.1) * spread)
