"""Layers whose weight is x + c a bᵀ: what a function makes of it without making it.

linear  W x + c (b·x) a        convolution  W * x + c (b * x) a        any other function: the tensor at its point
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


@dataclass(frozen=True, eq=False)
class RankOne:
    """c (), a (rows,), b (columns,): of one point."""

    c: Tensor
    a: Tensor
    b: Tensor

    def at(self, w: Tensor) -> Tensor:
        return w + self.c * (self.a[:, None] * self.b).view(w.shape)


class Factored(TorchFunctionMode):
    """While it is entered, functions that take one of these tensors see it at its point. table: by `id`."""

    def __init__(self, table: Mapping[int, RankOne]):
        super().__init__()
        self.table = table

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        factors = self.table.get(id(args[1])) if len(args) > 1 else None
        if factors is not None and func is F.linear:
            return _linear(factors, *args, **given)
        if factors is not None and func is F.conv2d:
            return _convolution(factors, *args, **given)
        if getattr(func, "__name__", "") != "__get__" and any(id(each) in self.table for each in args):
            args = tuple(self.table[id(each)].at(each) if id(each) in self.table else each for each in args)
        return func(*args, **given)


def _linear(factors: RankOne, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    y = x @ w.T + (factors.c * (x @ factors.b))[..., None] * factors.a
    return y if bias is None else y + bias


def _convolution(factors: RankOne, x: Tensor, w: Tensor, bias: Tensor | None = None, *how: Any, **named: Any) -> Tensor:
    if (how[3] if len(how) > 3 else named.get("groups", 1)) != 1:
        return F.conv2d(x, factors.at(w), bias, *how, **named)
    b = factors.b.view(1, *w.shape[1:])
    y = F.conv2d(x, w, None, *how, **named) + factors.c * F.conv2d(x, b, None, *how, **named) * factors.a[:, None, None]
    return y if bias is None else y + bias[:, None, None]
