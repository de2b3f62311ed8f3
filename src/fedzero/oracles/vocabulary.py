"""log p of target tokens: logits over the vocabulary in float32, some of it at a time, and never all of them.

    log p(t | h) = (W h + b)[t] − log Σ_v exp (W h + b)[v]

Of each part of the vocabulary the log-sum-exp of every row is kept, and the logit of its target where that is in the
part. At points of rank-one directions a row has Σ s a in its logits beside those at the base, with s = c (x·b); on a
GPU one kernel adds it, and reads the logits of a part once. Products of 16-bit numbers are added up in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fedzero.directions import kernels

NUMBERS = {"cpu": 1 << 22, "cuda": 1 << 26}
"""Logits at a time, about."""
LEAST = 256
"""Tokens of a part at least; their number is a multiple of it."""


@dataclass(frozen=True, eq=False)
class Moved:
    """What points add to the logits: `scaled` (terms, points, n, 1) and `left` (terms, points, 1, V), and to the bias
    `shift` (points, V), float32; rows are points · n."""

    scaled: Tensor | None
    left: Tensor | None
    shift: Tensor | None

    def added(self, logits: Tensor, first: int, last: int) -> Tensor:
        """`logits` (points · n, last − first) of that part with what is added, in place."""
        for each in () if self.scaled is None or self.left is None else zip(self.scaled, self.left, strict=True):
            s, a = each
            y = logits.view(len(s), -1, last - first)
            y.addcmul_(s, a[..., first:last].to(y.dtype))
        if self.shift is not None:
            logits.view(len(self.shift), -1, last - first).add_(self.shift[:, None, first:last])
        return logits


def log_probabilities(
    x: Tensor, targets: Tensor, size: int, weight: Callable[[int, int], Tensor],
    bias: Callable[[int, int], Tensor] | None = None, moved: Moved | None = None, points: int = 1,
) -> Tensor:  # fmt: skip
    """(n,), float32: log p of `targets` (n,) after hidden states `x` (n, H). `weight(first, last)`: rows of W (V, H);
    `bias` likewise. V is the `size`."""
    width = min(size, max(LEAST, NUMBERS[x.device.type] // max(1, len(x)) // LEAST * LEAST))
    parts, chosen = [], torch.zeros(len(x), device=x.device)
    for first in range(0, size, width):
        last = min(first + width, size)
        some = weight(first, last), None if bias is None else bias(first, last)
        if torch.is_grad_enabled():  # logits are made again for the gradient
            part, at = checkpoint(_part, x, *some, targets - first, use_reentrant=False, preserve_rng_state=False)
        elif x.device.type != "cpu":
            gpu: Any = kernels(x.device)
            added = (None, None, None) if moved is None else (moved.scaled, moved.left, moved.shift)
            part, at = gpu.log_sum_exp(_logits(x, *some), targets - first, *added, first, points)
        else:
            part, at = _part(x, *some, targets - first, moved, first)
        parts.append(part)
        chosen = chosen + at
    return chosen - torch.stack(parts).logsumexp(0)


def _logits(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(n, part), float32."""
    if x.dtype == torch.float32:
        y = torch.mm(x, weight.T)
    elif x.device.type == "cuda" and not torch.is_grad_enabled():
        y = torch.mm(x, weight.T, out_dtype=torch.float32)
    else:
        y = torch.mm(x.float(), weight.float().T)
    return y if bias is None else y + bias.float()


def _part(
    x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, moved: Moved | None = None, first: int = 0
) -> tuple[Tensor, Tensor]:
    """Of some tokens, which `targets` count from: the log-sum-exp of every row, and its target's logit or nought."""
    logits = _logits(x, weight, bias)
    if moved is not None:
        logits = moved.added(logits, first, first + len(weight))
    inside = (targets >= 0) & (targets < len(weight))
    at = logits.gather(1, targets.clamp(0, len(weight) - 1)[:, None])[:, 0]
    return logits.logsumexp(1), torch.where(inside, at, 0.0)
