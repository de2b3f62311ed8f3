"""Layers at many points of rank-one directions (Triton): what each point adds to a product, and normalised rows.

One kernel a layer. Decoding has few rows a point, so that its time is the number of kernels; reading prompts has many,
so that it is the bytes, and here every number is read once. Sums are in float32, results rounded once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedzero.directions.gpu.launch import start

ROWS, NUMBERS = 8, 4096
"""Of a tile: rows at most, and numbers."""
PROGRAMS = 512
"""Below so many, the columns of a row are shared out among programs; each makes x·b for itself."""
WARPS = 4


@triton.jit(do_not_specialize=["n"])
def _add_terms(
    n, y, x, coefficients, left, right, shift,
    TERMS: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, SHIFTED: tl.constexpr, COEFFICIENTS: tl.constexpr,
    LEFT_TERM: tl.constexpr, LEFT_POINT: tl.constexpr, RIGHT_TERM: tl.constexpr, RIGHT_POINT: tl.constexpr,
    SHIFT_POINT: tl.constexpr, PARTS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """n rows a point; a program has ROWS of them, and one of PARTS of their columns. WIDTH: a power of two ≥ TERMS."""
    part, blocks = tl.program_id(0) % PARTS, tl.cdiv(n, ROWS)
    block = tl.program_id(0) // PARTS
    point = (block // blocks).to(tl.int64)
    row = (block % blocks) * ROWS + tl.arange(0, ROWS)
    here, inside = point * n + row, row < n
    which, lane = tl.arange(0, WIDTH), tl.arange(0, SPAN)

    scaled = tl.zeros((ROWS, WIDTH), tl.float32)  # c (x·b) of every term
    for t in range(TERMS):
        products = tl.zeros((ROWS, SPAN), tl.float32)
        for first in range(0, IN, SPAN):
            column = first + lane
            known = column < IN
            numbers = tl.load(x + here[:, None] * IN + column[None, :], inside[:, None] & known[None, :], 0)
            b = tl.load(right + t * RIGHT_TERM + point * RIGHT_POINT + column, known, 0)
            products += numbers.to(tl.float32) * b.to(tl.float32)[None, :]
        c = tl.load(coefficients + t * COEFFICIENTS + point)
        scaled = tl.where(which[None, :] == t, (c * tl.sum(products, 1))[:, None], scaled)

    for first in range(part * SPAN, OUT, PARTS * SPAN):
        column = first + lane
        known = column < OUT
        place = y + here[:, None] * OUT + column[None, :]
        total = tl.load(place, inside[:, None] & known[None, :], 0.0).to(tl.float32)
        for t in range(TERMS):
            a = tl.load(left + t * LEFT_TERM + point * LEFT_POINT + column, known, 0)
            total += tl.sum(tl.where(which[None, :] == t, scaled, 0.0), 1)[:, None] * a.to(tl.float32)[None, :]
        if SHIFTED:
            total += tl.load(shift + point * SHIFT_POINT + column, known, 0.0)[None, :]
        tl.store(place, total.to(y.dtype.element_ty), inside[:, None] & known[None, :])


def add_terms(
    y: Tensor, x: Tensor, coefficients: Tensor, left: Tensor, right: Tensor, shift: Tensor | None = None
) -> Tensor:
    """y ← y + Σ c (x·b) a + shift of (points, n, out), (points, n, in), in place.

    coefficients (terms, points, …) and shift (points, out) are float32; left (terms, points, …, out), right (terms,
    points, …, in), y and x of any type, y without gaps.
    """
    points, n, out = y.shape
    x = x.contiguous()
    left, right = (each if each.stride(-1) == 1 else each.contiguous() for each in (left, right))
    rows = min(ROWS, triton.next_power_of_2(n))
    span = min(NUMBERS // rows, triton.next_power_of_2(max(out, x.shape[2])))
    programs = points * triton.cdiv(n, rows)
    parts = max(1, min(triton.cdiv(out, span), PROGRAMS // programs))
    terms = len(coefficients)
    strides = (
        coefficients.stride(0), left.stride(0), left.stride(1), right.stride(0), right.stride(1),
        0 if shift is None else shift.stride(0),
    )  # fmt: skip
    constants = (terms, x.shape[2], out, shift is not None, *strides)
    tile = (parts, triton.next_power_of_2(terms), rows, span)
    with torch.cuda.device_of(y):
        arguments = (n, y, x, coefficients, left, right, y if shift is None else shift)
        start(_add_terms, programs * parts, WARPS, arguments, (*constants, *tile))
    return y


@triton.jit
def _vector(base, offsets, point, column, known, KIND: tl.constexpr, STRIDE: tl.constexpr):
    """Numbers of a vector at a point, one that has moved (KIND 2) or not."""
    found = tl.load(base + column, known, 0.0).to(tl.float32)
    if KIND == 2:
        found += tl.load(offsets + point * STRIDE + column, known, 0.0)
    return found


@triton.jit(do_not_specialize=["n"])
def _layer_norm(
    n, y, x, weight, weights, bias, biases,
    WEIGHT: tl.constexpr, BIAS: tl.constexpr, WEIGHT_STRIDE: tl.constexpr, BIAS_STRIDE: tl.constexpr,
    EPSILON: tl.constexpr, SIZE: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """A program has a row; n rows a point. WEIGHT, BIAS: 0, there is none; 1, the same at all points; 2, offsets."""
    row = tl.program_id(0).to(tl.int64)
    point, column = row // n, tl.arange(0, SPAN)
    known = column < SIZE
    numbers = tl.load(x + row * SIZE + column, known, 0.0).to(tl.float32)
    away = tl.where(known, numbers - tl.sum(numbers, 0) / SIZE, 0.0)
    found = away * tl.rsqrt(tl.sum(away * away, 0) / SIZE + EPSILON)
    if WEIGHT:
        found *= _vector(weight, weights, point, column, known, WEIGHT, WEIGHT_STRIDE)
    if BIAS:
        found += _vector(bias, biases, point, column, known, BIAS, BIAS_STRIDE)
    tl.store(y + row * SIZE + column, found.to(y.dtype.element_ty), known)


def layer_norm(
    x: Tensor, weight: tuple[Tensor, Tensor | None] | None, bias: tuple[Tensor, Tensor | None] | None, epsilon: float
) -> Tensor:
    """(x − mean) / √(variance + ε) · w + v over the last axis of (points, n, size).

    weight, bias: at the base, (size,), and offsets (points, size), float32, where it has moved; None: there is none.
    """
    x = x.contiguous()
    points, n, size = x.shape
    y = torch.empty_like(x)
    vectors, kinds, strides = [], [], []
    for base, offsets in (each or (None, None) for each in (weight, bias)):
        vectors += [x if base is None else base, x if offsets is None else offsets]
        kinds.append(0 if base is None else 1 if offsets is None else 2)
        strides.append(0 if offsets is None else offsets.stride(0))
    with torch.cuda.device_of(x):
        constants = (*kinds, *strides, epsilon, size, triton.next_power_of_2(size))
        start(_layer_norm, points * n, WARPS, (n, y, x, *vectors), constants)
    return y
