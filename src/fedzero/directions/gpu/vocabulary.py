"""Logits of a part of the vocabulary, at many points of rank-one directions (Triton): what each point adds to them, the
log-sum-exp of every row, and the logit of its target. Every logit is read once, and nothing of that size is written."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedzero.directions.gpu.launch import start

SPAN, WARPS = 1024, 4
"""Columns that a program looks at together."""
_LOWEST = tl.constexpr(-1e30)


@triton.jit(do_not_specialize=["n", "first"])
def _log_sum_exp(
    n, first, y, targets, scaled, left, shift, sums, at,
    TERMS: tl.constexpr, OUT: tl.constexpr, SHIFTED: tl.constexpr, SCALED_TERM: tl.constexpr, LEFT_TERM: tl.constexpr,
    LEFT_POINT: tl.constexpr, SHIFT_POINT: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """A program has a row; n rows a point. Every lane has a maximum and a sum of its own until the end."""
    row = tl.program_id(0).to(tl.int64)
    point, lane, target = row // n, tl.arange(0, SPAN), tl.load(targets + row)
    largest, total = tl.full((SPAN,), _LOWEST, tl.float32), tl.zeros((SPAN,), tl.float32)
    chosen = tl.zeros((SPAN,), tl.float32)
    for begin in range(0, OUT, SPAN):
        column = begin + lane
        known = column < OUT
        logits = tl.load(y + row * OUT + column, known, _LOWEST)
        for t in range(TERMS):
            a = tl.load(left + t * LEFT_TERM + point * LEFT_POINT + first + column, known, 0)
            logits += tl.load(scaled + t * SCALED_TERM + row) * a.to(tl.float32)
        if SHIFTED:
            logits += tl.load(shift + point * SHIFT_POINT + first + column, known, 0.0)
        chosen = tl.where(known & (column == target), logits, chosen)
        larger = tl.maximum(largest, logits)
        total = total * tl.exp(largest - larger) + tl.exp(logits - larger)
        largest = larger
    most = tl.max(largest, 0)
    tl.store(sums + row, most + tl.log(tl.sum(total * tl.exp(largest - most), 0)))
    tl.store(at + row, tl.sum(chosen, 0))


def log_sum_exp(
    y: Tensor,
    targets: Tensor,
    scaled: Tensor | None,
    left: Tensor | None,
    shift: Tensor | None,
    first: int,
    points: int,
) -> tuple[Tensor, Tensor]:
    """Of logits y (points · n, part), float32, plus Σ scaled · left + shift: the log-sum-exp of each row, and the logit
    of its target, or nought where that is not among them. The part begins with token `first`, and targets (points · n,)
    count from there.

    scaled (terms, points, n, 1) and shift (points, V) are float32, left (terms, points, 1, V) of any type.
    """
    rows, out = y.shape
    sums, at = torch.empty_like(targets, dtype=torch.float32), torch.empty_like(targets, dtype=torch.float32)
    scaled = None if scaled is None else scaled.contiguous()
    left = left if left is None or left.stride(-1) == 1 else left.contiguous()
    strides = (
        0 if scaled is None else rows, *((0, 0) if left is None else left.stride()[:2]),
        0 if shift is None else shift.stride(0),
    )  # fmt: skip
    constants = (0 if scaled is None else len(scaled), out, shift is not None, *strides, SPAN)
    given = (each if each is not None else y for each in (scaled, left, shift))
    with torch.cuda.device_of(y):
        arguments = (rows // points, first, y, targets.contiguous(), *given, sums, at)
        start(_log_sum_exp, rows, WARPS, arguments, constants)
    return sums, at
