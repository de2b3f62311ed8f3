"""Triton kernels for directions of rank one, z = a bᵀ for every matrix.

The factors of all terms are made first and lie in two tables: c_j a_j of every row as a float32 number, and b_j of 256
columns as 32 bytes, bit p of byte l the sign of column 32 p + l (1 is −1). A term then costs a program two loads, and a
coordinate one fused multiply-add: a product with ±1 is exact, so it rounds like the product and the sum of the
specification.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fedzero.directions.gpu.kernels import _pointer
from fedzero.directions.gpu.primitives import (
    _BFLOAT16,
    _COLUMN_KEY,
    _FLOAT32,
    _HYPERS,
    _RANK1,
    _RANK1_COLUMNS,
    _ROUNDING,
    _SGD,
    _apply,
    _bits,
    _float,
    _nearest,
    _philox,
    _pick,
    _round,
    _widen,
)

_FIELDS = tl.constexpr(10)
"""Numbers of a matrix in the table `pieces`."""
_JOB = tl.constexpr(4)
"""Numbers of a piece of a factor in the table `jobs`."""
_BLOCKS = tl.constexpr(16)
"""Blocks of a factor that one program makes."""


@triton.jit(do_not_specialize=["jobs_of_rows", "job_count", "rows_stride", "columns_stride", "terms", "steps"])
def _factor_tables(
    jobs, jobs_of_rows, job_count, rows, columns, rows_stride, columns_stride, integers, floats, terms, steps
):
    """Both tables; a program makes 16 blocks of one factor of one term. A job is ordinal, place in the table, numbers
    in all, first block."""
    j = tl.program_id(0) // job_count
    job = tl.program_id(0) % job_count
    if j < tl.load(integers + terms + 2 * steps):  # there may be fewer terms than there is room for
        row = jobs + job * _JOB
        tensor, place, count, first = tl.load(row), tl.load(row + 1), tl.load(row + 2), tl.load(row + 3)
        key = tl.load(integers + j)
        block = first + tl.arange(0, _BLOCKS)[:, None]
        if job < jobs_of_rows:
            a, b, c, d = _philox(block, block - block, tensor, _RANK1, key)
            bit = tl.arange(0, 128)[None, :]
            sign = (_pick(bit // 32, a, b, c, d) >> (bit % 32).to(tl.uint32)) << 31
            i = block * 128 + bit
            value = _float(sign ^ _bits(tl.load(floats + j)))
            tl.store(rows + j.to(tl.int64) * rows_stride + place + i, value, i < count)
        else:
            lane = tl.arange(0, 32)[None, :]
            low = key & _COLUMN_KEY
            a, b, c, d = _philox(2 * block, block - block, tensor, _RANK1_COLUMNS, low)
            e, f, g, h = _philox(2 * block + 1, block - block, tensor, _RANK1_COLUMNS, low)
            shift = lane.to(tl.uint32)
            byte = ((a >> shift) & 1) | (((b >> shift) & 1) << 1) | (((c >> shift) & 1) << 2)
            byte |= (((d >> shift) & 1) << 3) | (((e >> shift) & 1) << 4) | (((f >> shift) & 1) << 5)
            byte |= (((g >> shift) & 1) << 6) | (((h >> shift) & 1) << 7)
            i = block * 32 + lane
            tl.store(columns + j.to(tl.int64) * columns_stride + place + i, byte.to(tl.uint8), i < count)


@triton.jit
def _random_of(group, lane, tensor, key):
    """16 random bits a coordinate, [8, LANES]; a lane is number `lane` of group `group` of 256 coordinates."""
    block = group * 32 + lane
    a, b, c, d = _philox(block, block - block, tensor, _ROUNDING, key)
    plane = tl.arange(0, 8)[:, None]
    return (_pick(plane // 2, a, b, c, d) >> (16 * (plane % 2)).to(tl.uint32)) & 0xFFFF


@triton.jit
def _begin(x, KIND: tl.constexpr, RULE: tl.constexpr):
    """What the terms are added to: the numbers themselves, or zero."""
    y = _widen(x, KIND)
    return y if RULE == _SGD else tl.where(y == y, 0.0, 0.0)


@triton.jit
def _end(
    x, y, m, v, zero, hypers, group, lane, tensor, key,
    RULE: tl.constexpr, KIND: tl.constexpr, STOCHASTIC: tl.constexpr,
):  # fmt: skip
    """The step with y = x + Σ c z, or G: (new numbers as stored, m, v)."""
    if RULE != _SGD:
        y, m, v = _apply(_widen(x, KIND), m, v, y, hypers, RULE)
    elif KIND == _BFLOAT16:  # perhaps there was no term; y − 0 is computed
        y -= zero
    if KIND == _FLOAT32:
        x = y
    elif STOCHASTIC:
        x = _round(y, _random_of(group, lane, tensor, key), KIND, True)
    else:
        x = _nearest(y, KIND)
    return x, m, v


@triton.jit(do_not_specialize=["rows_stride", "columns_stride", "terms", "steps"])
def _advance_aligned(
    pieces, owners, rows, columns, rows_stride, columns_stride, integers, floats, terms, steps,
    RULE: tl.constexpr, SLOTS: tl.constexpr, KIND: tl.constexpr, STOCHASTIC: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """All steps on a tile of 256 columns and 2 · LANES/32 rows of a matrix whose columns are a multiple of 256.

    The rows are two halves with one column each a lane and plane, so that signs of columns serve both.
    """
    tile = tl.program_id(0)
    piece = pieces + tl.load(owners + tile) * _FIELDS
    source, out = _pointer(tl.load(piece), KIND), _pointer(tl.load(piece + 1), KIND)
    slot0, slot1 = _pointer(tl.load(piece + 2), _FLOAT32), _pointer(tl.load(piece + 3), _FLOAT32)
    height, width, tensor = tl.load(piece + 4), tl.multiple_of(tl.load(piece + 5), 256), tl.load(piece + 6)
    rows += tl.load(piece + 8)
    columns += tl.load(piece + 9)
    across = width // 256
    local = tile - tl.load(piece + 7)
    block = local % across
    lane = tl.arange(0, LANES)[None, :]
    plane = tl.arange(0, 8)[:, None]
    row0 = (local // across) * (LANES // 16) + lane // 32
    row1 = row0 + LANES // 32
    inside0, inside1 = row0 < height, row1 < height
    off0 = tl.max_contiguous(row0 * width + block * 256 + plane * 32 + lane % 32, [1, 4])
    off1 = off0 + (LANES // 32) * width
    x0, x1 = tl.load(source + off0, inside0), tl.load(source + off1, inside1)
    m0 = tl.load(slot0 + off0, inside0) if SLOTS > 0 else 0.0
    m1 = tl.load(slot0 + off1, inside1) if SLOTS > 0 else 0.0
    v0 = tl.load(slot1 + off0, inside0) if SLOTS > 1 else 0.0
    v1 = tl.load(slot1 + off1, inside1) if SLOTS > 1 else 0.0
    rounding, cuts, hypers = integers + terms, integers + terms + steps, floats + terms
    zero = tl.load(cuts).to(tl.float32)
    columns += block * 32
    for s in range(steps):
        y0, y1 = _begin(x0, KIND, RULE), _begin(x1, KIND, RULE)
        for j in range(tl.load(cuts + s), tl.load(cuts + s + 1)):
            byte = tl.load(columns + j * columns_stride + lane % 32).to(tl.uint32)
            c0 = tl.load(rows + j * rows_stride + row0, inside0)
            c1 = tl.load(rows + j * rows_stride + row1, inside1)
            sign = _float(((byte << (31 - plane).to(tl.uint32)) & 0x80000000) | 0x3F800000)
            y0 = tl.fma(sign, tl.broadcast_to(c0, (8, LANES)), y0)
            y1 = tl.fma(sign, tl.broadcast_to(c1, (8, LANES)), y1)
        key = tl.load(rounding + s)
        h = hypers + s * _HYPERS
        group0, group1 = row0 * across + block, row1 * across + block
        x0, m0, v0 = _end(x0, y0, m0, v0, zero, h, group0, lane % 32, tensor, key, RULE, KIND, STOCHASTIC)
        x1, m1, v1 = _end(x1, y1, m1, v1, zero, h, group1, lane % 32, tensor, key, RULE, KIND, STOCHASTIC)
    tl.store(out + off0, x0, inside0)
    tl.store(out + off1, x1, inside1)
    if SLOTS > 0:
        tl.store(slot0 + off0, m0, inside0)
        tl.store(slot0 + off1, m1, inside1)
    if SLOTS > 1:
        tl.store(slot1 + off0, v0, inside0)
        tl.store(slot1 + off1, v1, inside1)


@triton.jit
def _plain_pointer(address, KIND: tl.constexpr):
    """A number as an address of which nothing is known."""
    kind: tl.constexpr = tl.pointer_type(tl.float32 if KIND == _FLOAT32 else tl.int16)
    return address.to(kind)


@triton.jit(do_not_specialize=["rows_stride", "columns_stride", "terms", "steps"])
def _advance_general(
    pieces, owners, rows, columns, rows_stride, columns_stride, integers, floats, terms, steps,
    RULE: tl.constexpr, SLOTS: tl.constexpr, KIND: tl.constexpr, STOCHASTIC: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """All steps on 8 · LANES consecutive numbers of a matrix of any width: each looks for its row and column."""
    tile = tl.program_id(0)
    piece = pieces + tl.load(owners + tile) * _FIELDS
    source, out = _plain_pointer(tl.load(piece), KIND), _plain_pointer(tl.load(piece + 1), KIND)
    slot0, slot1 = _plain_pointer(tl.load(piece + 2), _FLOAT32), _plain_pointer(tl.load(piece + 3), _FLOAT32)
    height, width, tensor = tl.load(piece + 4), tl.load(piece + 5), tl.load(piece + 6)
    rows += tl.load(piece + 8)
    columns += tl.load(piece + 9)
    lane = tl.arange(0, LANES)[None, :]
    group = (tile - tl.load(piece + 7)) * (LANES // 32) + lane // 32
    off = group * 256 + tl.arange(0, 8)[:, None] * 32 + lane % 32
    inside = off < height * width
    row = off // width
    column = (off - row * width).to(tl.int32)
    byte_of = (column // 256) * 32 + column % 32
    shift = (31 - (column // 32) % 8).to(tl.uint32)
    x = tl.load(source + off, inside)
    m = tl.load(slot0 + off, inside) if SLOTS > 0 else 0.0
    v = tl.load(slot1 + off, inside) if SLOTS > 1 else 0.0
    rounding, cuts, hypers = integers + terms, integers + terms + steps, floats + terms
    zero = tl.load(cuts).to(tl.float32)
    for s in range(steps):
        y = _begin(x, KIND, RULE)
        for j in range(tl.load(cuts + s), tl.load(cuts + s + 1)):
            byte = tl.load(columns + j * columns_stride + byte_of, inside, 0).to(tl.uint32)
            c = tl.load(rows + j * rows_stride + row, inside, 0.0)
            y += _float(((byte << shift) & 0x80000000) ^ _bits(c))
        h = hypers + s * _HYPERS
        x, m, v = _end(
            x, y, m, v, zero, h, group, lane % 32, tensor, tl.load(rounding + s), RULE, KIND, STOCHASTIC
        )  # fmt: skip
    tl.store(out + off, x, inside)
    if SLOTS > 0:
        tl.store(slot0 + off, m, inside)
    if SLOTS > 1:
        tl.store(slot1 + off, v, inside)
