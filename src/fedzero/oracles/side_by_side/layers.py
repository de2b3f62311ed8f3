"""Classes of modules while points are side by side: how each kind of layer is evaluated at all of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fedzero.oracles.patches import PatchConv
from fedzero.oracles.products import made_in_float32
from fedzero.oracles.side_by_side.arithmetic import add, fused, linear
from fedzero.oracles.side_by_side.scope import BESIDE, Layer
from fedzero.oracles.vocabulary import Moved, log_probabilities


class LinearBeside(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        layer: Layer = getattr(self, BESIDE)
        return linear(x, layer, layer.tensors["weight"])


class TurnedBeside(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        layer: Layer = getattr(self, BESIDE)
        return linear(x, layer, layer.tensors["weight"].T)


class HeadBeside(LinearBeside):
    """The layer over the vocabulary: where answers are `chosen`, their logits (points · B, 1, A), and of targets log p
    (points · B, 1, 1); else all logits."""

    def forward(self, x: Tensor) -> Tensor:
        layer: Layer = getattr(self, BESIDE)
        if layer.scope.chosen is None:
            return super().forward(x)
        ids, count = layer.scope.chosen.answers, layer.scope.count
        x, dtype = x[*layer.scope.chosen.ends].view(count, -1, x.shape[-1]), x.dtype
        if layer.scope.chosen.targets is not None:
            return self._targets(x, layer, layer.scope.chosen.targets)
        assert ids is not None
        x = x.float() if made_in_float32(x) else x
        bias, factors, shift = layer.tensors.get("bias"), layer.factors.get("weight"), layer.offsets.get("bias")
        y = F.linear(x, layer.tensors["weight"][ids].to(x.dtype), None if bias is None else bias[ids].to(x.dtype))
        moved = add(y, x, factors and factors.rows(ids), None if shift is None else shift[:, ids])
        return moved.view(-1, 1, len(ids)).to(dtype)

    @staticmethod
    def _targets(x: Tensor, layer: Layer, targets: Tensor) -> Tensor:
        """log p of targets (points · B,) after x (points, B, H)."""
        weight, bias, factors = layer.tensors["weight"], layer.tensors.get("bias"), layer.factors.get("weight")
        scaled, left = (None, None) if factors is None else (factors.scaled(x), factors.left)
        moved = Moved(scaled, left, layer.offsets.get("bias"))
        bias_of = None if bias is None else lambda first, last: bias[first:last]
        rows, weight_of = x.reshape(-1, x.shape[-1]), lambda first, last: weight[first:last]
        found = log_probabilities(rows, targets, len(weight), weight_of, bias_of, moved, layer.scope.count)
        return found[:, None, None]


class EmbeddingBeside(nn.Embedding):
    def forward(self, ids: Tensor) -> Tensor:
        layer: Layer = getattr(self, BESIDE)
        scope, factors = layer.scope, layer.factors["weight"]
        shared = scope.is_shared(ids)
        ids = scope.every_row(ids) if shared else ids
        rows = (scope.count * len(ids) if shared else len(ids), *ids.shape[1:])
        each = ids.reshape(1, -1).expand(scope.count, -1) if shared else ids.reshape(scope.count, -1)
        y = F.embedding(each, layer.tensors["weight"])
        if (gpu := fused(y)) is not None:
            # c a[id] b = c (x·e) b, where x has the a[id] of all terms and e is the unit vector of one of them.
            terms = len(factors.left)
            x = factors.left[:, :, 0].gather(2, each.expand(terms, *each.shape)).permute(1, 2, 0)
            e = torch.eye(terms, device=y.device)[:, None].expand(-1, scope.count, -1)
            return gpu.add_terms(y, x, factors.coefficients, factors.right, e).view(*rows, -1)  # type: ignore[no-any-return]
        for c, a, b in zip(factors.coefficients, factors.left, factors.right, strict=True):
            y = y + (c * a[:, 0].gather(1, each)[..., None]).to(y.dtype) * b.to(y.dtype)
        return y.view(*rows, -1)


class EachBeside(nn.Module):
    """Any module: its parameters at every point, and a run for each of them."""

    def forward(self, *positional: Any, **named: Any) -> Any:
        layer: Layer | None = getattr(self, BESIDE)
        if layer is None:
            return super().forward(*positional, **named)
        scope = layer.scope
        inputs = (*positional, *named.values())
        split = [isinstance(x, Tensor) and x.dim() > 0 and not scope.is_shared(x) for x in inputs]
        given = [x.reshape(scope.count, -1, *x.shape[1:]) if cut else x for x, cut in zip(inputs, split, strict=True)]
        weights_of_a_number = max(t.numel() // t.shape[1] if t.dim() > 1 else 1 for t in layer.tensors.values())
        scope.computes(weights_of_a_number * sum(x.numel() for x, cut in zip(inputs, split, strict=True) if cut))

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


class ConvBeside(EachBeside):
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
        layer.scope.computes(layer.scope.count * y.numel())
        for c, a, b in zip(factors.coefficients, factors.left, factors.right, strict=True):
            s = F.conv2d(x, b.to(x.dtype).view(-1, *weight.shape[1:]), None, *how).transpose(0, 1)[:, :, None]
            y = torch.addcmul(y, (c[..., None, None] * s).to(y.dtype), a.to(y.dtype).mT[:, None, :, :, None])
        shift = layer.offsets.get("bias")
        y = y if shift is None else y + shift[:, None, :, None, None].to(y.dtype)
        return y.flatten(0, 1)


class PatchConvBeside(ConvBeside):
    """The same of patches (n, places, numbers of a patch): a linear layer."""

    def forward(self, x: Tensor) -> Tensor:
        layer: Layer | None = getattr(self, BESIDE)
        if layer is None or x.dim() != 3:
            return super().forward(x)
        return linear(x, layer, layer.tensors["weight"].flatten(1))


class LayerNormBeside(nn.LayerNorm):
    """In float32, rounded once."""

    def forward(self, x: Tensor) -> Tensor:
        layer: Layer = getattr(self, BESIDE)
        scope, size = layer.scope, len(self.normalized_shape)
        x = scope.spread(x)
        if (gpu := fused(x)) is not None:
            rows = x.reshape(scope.count, -1, math.prod(self.normalized_shape))
            normed: Tensor = gpu.layer_norm(rows, layer.parts("weight"), layer.parts("bias"), self.eps)
            return normed.view(x.shape)
        y = F.layer_norm(x.float(), self.normalized_shape, None, None, self.eps)
        y = y.view(scope.count, -1, *x.shape[x.dim() - size :])
        for name, join in (("weight", torch.mul), ("bias", torch.add)):
            if name in layer.tensors:
                y = join(y, layer.vector(name) if name in layer.offsets else layer.tensors[name].float())
        return y.view(x.shape).to(x.dtype)


class BroadcastBeside(nn.Module):
    """A norm over the last axis that multiplies by vectors: it is given theirs as (points, 1, n), and x to fit."""

    def forward(self, x: Tensor) -> Tensor:
        scope = getattr(self, BESIDE).scope
        x = scope.spread(x)
        y: Tensor = super().forward(x.reshape(scope.count, -1, x.shape[-1]))
        return y.view(x.shape).to(x.dtype)


def kind_of(part: nn.Module, head: nn.Module | None) -> type[nn.Module]:
    """How a module is evaluated at many points."""
    kind = type(part)
    if kind is nn.Linear:
        return HeadBeside if part is head else LinearBeside
    if kind.__name__ == "Conv1D" and hasattr(part, "nf"):  # of transformers: a linear layer, its weight transposed
        return TurnedBeside
    if isinstance(part, nn.Embedding) and part.max_norm is None:
        return EmbeddingBeside
    if kind is PatchConv:
        return PatchConvBeside
    if kind is nn.Conv2d and part.padding_mode == "zeros":
        return ConvBeside
    if kind is nn.LayerNorm:
        return LayerNormBeside
    vectors = all(p.dim() == 1 for p in part.parameters()) and not list(part.children())
    if kind.__name__.endswith("RMSNorm") and kind is not nn.RMSNorm and vectors:
        return BroadcastBeside
    return EachBeside


_CLASSES: dict[tuple[type, type, tuple[str, ...]], type[nn.Module]] = {}


def swapped(kind: type[nn.Module], how: type[nn.Module], own: tuple[str, ...]) -> type[nn.Module]:
    """A class for a module while points are side by side. Layers of one kind share it, hence compiled code."""
    key = kind, how, own
    if key not in _CLASSES:
        broadcast = issubclass(how, BroadcastBeside)
        members = {name: property(_broadcast(name)) for name in own} if broadcast else {}
        # An embedding may move positions before it looks them up: its own forward comes first, and calls ours.
        above = issubclass(kind, nn.Embedding) and kind is not nn.Embedding
        _CLASSES[key] = type(kind.__name__, (kind, how) if above else (how, kind), members)
    return _CLASSES[key]


def _broadcast(name: str) -> Callable[[Any], Tensor]:
    return lambda module: getattr(module, BESIDE).vector(name)
