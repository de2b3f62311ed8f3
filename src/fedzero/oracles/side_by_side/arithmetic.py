"""Linear layers at many points: x Wᵀ + Σ c (x·b) aᵀ, with c, a and b of each row's own point."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedzero.directions import kernels
from fedzero.oracles.low_rank import Factors
from fedzero.oracles.products import made_in_float32
from fedzero.oracles.side_by_side.scope import Layer

PAYS = 64
"""On a CPU the factors of a matrix are worth their passes over what goes in and comes out if rows · columns is so many
times rows + columns; otherwise its weights are made for every point."""


def fused(x: Tensor) -> Any:
    """The kernels that do what a layer adds in one pass: on a GPU, where `torch.compile` does not do it; else None."""
    return None if x.device.type == "cpu" or torch.compiler.is_compiling() else kernels(x.device)


def _inner(x: Tensor, b: Tensor) -> Tensor:
    """x (points, n, m) · b (points, 1, m), (points, n, 1), float32."""
    if torch.compiler.is_compiling() and x.device.type != "cpu":
        return (x * b).sum(-1, keepdim=True, dtype=torch.float32)  # fused with what made x
    return torch.bmm(x, b.to(x.dtype).mT).float()


def add(y: Tensor, x: Tensor, factors: Factors | None, shift: Tensor | None) -> Tensor:
    """y + Σ c (x·b) a + shift of (points, n, out), (points, n, in) and (points, out); y may be overwritten."""
    if factors is None:
        return y if shift is None else y + shift[:, None].to(y.dtype)
    if (gpu := fused(y)) is not None:
        moved: Tensor = gpu.add_terms(y, x, factors.coefficients, factors.left, factors.right, shift)
        return moved
    scaled = [(c * _inner(x, b)).to(y.dtype) for c, b in zip(factors.coefficients, factors.right, strict=True)]
    if y.dtype != torch.float32:
        return y + _moved(scaled, factors, shift, y.dtype)
    for s, a in zip(scaled, factors.left, strict=True):
        y = y.addcmul_(s, a.to(y.dtype))
    return y if shift is None else y.add_(shift[:, None])


def _add_shared(y: Tensor, x: Tensor, factors: Factors | None, shift: Tensor | None, count: int) -> Tensor:
    """The same where y (n, out) and x (n, in) are those of all points; y is kept."""
    if factors is None:
        each = y.expand(count, *y.shape)
        return each if shift is None else each + shift[:, None].to(y.dtype)
    inner = (torch.mm(b[:, 0].to(x.dtype), x.T)[..., None].float() for b in factors.right)
    scaled = [(c * s).to(y.dtype) for c, s in zip(factors.coefficients, inner, strict=True)]
    if y.dtype != torch.float32:
        return y + _moved(scaled, factors, shift, y.dtype)
    total = torch.addcmul(y, scaled[0], factors.left[0].to(y.dtype))
    for s, a in zip(scaled[1:], factors.left[1:], strict=True):
        total.addcmul_(s, a.to(y.dtype))
    return total if shift is None else total.add_(shift[:, None])


def _moved(scaled: list[Tensor], factors: Factors, shift: Tensor | None, dtype: torch.dtype) -> Tensor:
    """All that moves, summed before it is added in 16 bits: what is small would vanish in the rounding of the sum."""
    total = torch.zeros((), dtype=dtype, device=scaled[0].device) if shift is None else shift[:, None].to(dtype)
    for s, a in zip(scaled, factors.left, strict=True):
        total = torch.addcmul(total, s, a.to(dtype))
    return total


def linear(x: Tensor, layer: Layer, weight: Tensor) -> Tensor:
    """A linear layer with a weight (out, in) at the base. Where a CPU would make 16-bit products in float32, all of it
    is, and what comes out is rounded once."""
    if made_in_float32(x):
        return linear(x.float(), layer, weight.float()).to(x.dtype)
    scope, factors, shift = layer.scope, layer.factors.get("weight"), layer.offsets.get("bias")
    bias, count = layer.tensors.get("bias"), scope.count
    bias = None if bias is None else bias.to(x.dtype)
    shared = scope.is_shared(x)
    x = scope.every_row(x) if shared else x
    lead = (count * len(x) if shared else len(x), *x.shape[1:-1])
    scope.computes(len(weight) * (count * x.numel() // x.shape[-1] if shared else x.numel()))
    if x.device.type == "cpu" and x.dtype == torch.float32 and factors is not None and not _pays(weight):
        each = x.reshape(-1, x.shape[-1]).expand(count, -1, -1) if shared else x.reshape(count, -1, x.shape[-1])
        made = factors.turned.at(weight.T.contiguous())
        return _apart(each, made, layer.vector("bias") if shift is not None else bias).view(*lead, -1)
    if shared:
        flat = x.reshape(-1, x.shape[-1])
        y = scope.made_once(layer.name, lambda: F.linear(flat, weight, bias))
        return _add_shared(y, flat, factors, shift, count).reshape(*lead, -1)
    x = x.reshape(count, -1, x.shape[-1])
    return add(F.linear(x, weight, bias), x, factors, shift).view(*lead, -1)


def _pays(weight: Tensor) -> bool:
    rows, columns = weight.shape
    return rows * columns > PAYS * (rows + columns)


def _apart(x: Tensor, weights: Tensor, bias: Tensor | None) -> Tensor:
    """x (points, n, in) by weights (points, in, out) that were made for every point.

    Not (points, out, in), as a layer has them: on Arm64, threads wait for each other in products with a transposed one.
    """
    if len(x) == 1:
        product = torch.mm(x[0], weights[0])
        return product if bias is None else product.add_(bias.view(-1))
    return torch.bmm(x, weights) if bias is None else torch.baddbmm(bias, x, weights)
