"""Triton kernels for directions of rank one, z = a bᵀ for every matrix.

The factors of all terms are made first and lie in two tables of words, 32 signs a word (1 is −1): word w of a_j at
(place + w) · terms + j, word p of block q of 256 columns of b_j at ((place + q) · terms + j) · 8 + p. So what a program
needs of term after term lies side by side. It reads whole words, the same for all of its lanes; a coordinate costs one
fused multiply-add: a product with ±1 is exact, so it rounds like the product and the sum of the specification.
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
    _INTERPRETED,
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


@triton.jit
def _store_rows(out, block, blocks, j, terms, tensor, key):
    w0, w1, w2, w3 = _philox(block, block - block, tensor, _RANK1, key)
    place = out + (block * 4) * terms + j
    for w in tl.static_range(4):
        word = _pick(w, w0, w1, w2, w3)
        tl.store(place + w * terms, word.to(tl.int32, bitcast=True), block < blocks)


@triton.jit
def _store_columns(out, block, blocks, j, terms, tensor, key):
    for half in tl.static_range(2):
        w0, w1, w2, w3 = _philox(2 * block + half, block - block, tensor, _RANK1_COLUMNS, key)
        place = out + (block * terms + j) * 8 + 4 * half
        for w in tl.static_range(4):
            word = _pick(w, w0, w1, w2, w3)
            tl.store(place + w, word.to(tl.int32, bitcast=True), block < blocks)


@triton.jit(do_not_specialize=["jobs_of_rows", "job_count", "room", "terms", "steps"])
def _factor_tables(jobs, jobs_of_rows, job_count, rows, columns, room, integers, terms, steps, BLOCKS: tl.constexpr):
    """Both tables, with room for so many terms; a program makes some blocks of one factor of one term. A job is
    ordinal, place in the table, blocks in all, first block."""
    j = (tl.program_id(0) // job_count).to(tl.int64)
    job = tl.program_id(0) % job_count
    if j < tl.load(integers + terms + 2 * steps):  # there may be fewer terms than there is room for
        row = jobs + job * _JOB
        tensor, place, blocks, first = tl.load(row), tl.load(row + 1), tl.load(row + 2), tl.load(row + 3)
        key = tl.load(integers + j)
        block = first + tl.arange(0, BLOCKS)
        if job < jobs_of_rows:
            _store_rows(rows + place * room, block, blocks, j, room, tensor, key)
        else:
            _store_columns(columns + place * (8 * room), block, blocks, j, room, tensor, key & _COLUMN_KEY)


@triton.jit
def _sign_of(word, bit):
    """Bit `bit` of words as a sign bit, the others undefined below it: a shift leaves them there."""
    return word.to(tl.uint32, bitcast=True) << (31 - bit).to(tl.uint32)


@triton.jit
def _plus_or_minus_one(signed):
    """±1 by the sign bit: (signed & 2³¹) | bits(1) in one operation, where the compiler would make two of it."""
    if _INTERPRETED:
        one = (signed & 0x80000000) | 0x3F800000
    else:
        one = tl.inline_asm_elementwise(
            "lop3.b32 $0, $1, 0x80000000, 0x3F800000, 0xEA;", "=r,r", [signed], tl.uint32, is_pure=True, pack=1
        )
    return _float(one)


@triton.jit(do_not_specialize=["n", "terms"])
def _spread_signs(out, words, n, terms, ACROSS: tl.constexpr, SPAN: tl.constexpr):
    """out[j, i] ← ±1 (int8) by bit i % 32 of word w = i // 32 of term j, which is words[w // ACROSS, j, w % ACROSS]; n
    numbers a term."""
    blocks = tl.cdiv(n, SPAN)
    j = (tl.program_id(0) // blocks).to(tl.int64)
    i = (tl.program_id(0) % blocks) * SPAN + tl.arange(0, SPAN)
    w = i // 32
    word = tl.load(words + ((w // ACROSS) * terms + j) * ACROSS + w % ACROSS, i < n, 0)
    tl.store(out + j * n + i, (1 - 2 * ((word >> (i % 32)) & 1)).to(tl.int8), i < n)


@triton.jit
def _random_of(group, lane, plane, tensor, key):
    """16 random bits a coordinate; a lane is number `lane` of group `group` of 256 coordinates, in eight planes."""
    block = group * 32 + lane
    a, b, c, d = _philox(block, block - block, tensor, _ROUNDING, key)
    return (_pick(plane // 2, a, b, c, d) >> (16 * (plane % 2)).to(tl.uint32)) & 0xFFFF


@triton.jit
def _begin(x, KIND: tl.constexpr, RULE: tl.constexpr):
    """What the terms are added to: the numbers themselves, or zero."""
    y = _widen(x, KIND)
    return y if RULE == _SGD else tl.where(y == y, 0.0, 0.0)


@triton.jit
def _end(
    x, y, m, v, hypers, group, lane, plane, tensor, key,
    RULE: tl.constexpr, KIND: tl.constexpr, STOCHASTIC: tl.constexpr,
):  # fmt: skip
    """The step with y = x + Σ c z, or G: (new numbers as stored, m, v)."""
    if RULE != _SGD:
        y, m, v = _apply(_widen(x, KIND), m, v, y, hypers, RULE)
    if KIND == _FLOAT32:
        x = y
    elif STOCHASTIC:
        x = _round(y, _random_of(group, lane, plane, tensor, key), KIND, True)
    else:
        x = _nearest(y, KIND)
    return x, m, v


@triton.jit
def _add_aligned(y, j, coefs, rows, columns, room, word_of, bit, lane, plane, HEIGHT: tl.constexpr):
    """y + c_j a_j b_jᵀ; words are scalars, so nothing is loaded lane by lane."""
    at = columns + j * 8
    c = tl.load(coefs + j)
    low = _pick(plane % 4, tl.load(at), tl.load(at + 1), tl.load(at + 2), tl.load(at + 3))
    high = _pick(plane % 4, tl.load(at + 4), tl.load(at + 5), tl.load(at + 6), tl.load(at + 7))
    sign = _plus_or_minus_one(_sign_of(tl.where(plane < 4, low, high), lane))
    word = tl.load(rows + j)
    if HEIGHT > 32:
        word = tl.where(word_of == 0, word, tl.load(rows + room + j))
    factor = _float((_sign_of(word, bit) & 0x80000000) ^ _bits(c))
    return tl.fma(tl.broadcast_to(sign, y.shape), tl.broadcast_to(factor, y.shape), y)


@triton.jit(do_not_specialize=["room", "terms", "steps"])
def _advance_aligned(
    pieces, owners, rows, columns, room, integers, floats, terms, steps,
    RULE: tl.constexpr, SLOTS: tl.constexpr, KIND: tl.constexpr, STOCHASTIC: tl.constexpr,
    GROUPS: tl.constexpr, LANES: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """All steps on a tile of 64 rows and 256 columns of a matrix whose columns are a multiple of 256.

    A lane is one column in each of 8 planes, and GROUPS rows, so that the sign of a column serves several rows.
    """
    HEIGHT: tl.constexpr = GROUPS * LANES // 32
    tile = tl.program_id(0)
    piece = pieces + tl.load(owners + tile) * _FIELDS
    source, out = _pointer(tl.load(piece), KIND), _pointer(tl.load(piece + 1), KIND)
    slot0, slot1 = _pointer(tl.load(piece + 2), _FLOAT32), _pointer(tl.load(piece + 3), _FLOAT32)
    height, width, tensor = tl.load(piece + 4), tl.multiple_of(tl.load(piece + 5), 256), tl.load(piece + 6)
    across = width // 256
    local = tile - tl.load(piece + 7)
    block = local % across
    columns += (tl.load(piece + 9) + block) * (8 * room)
    rounding, cuts, hypers = integers + terms, integers + terms + steps, floats + terms
    all_lanes = tl.arange(0, LANES)[None, None, :]
    lane = all_lanes % 32
    plane = tl.arange(0, 8)[None, :, None]
    for part in range(64 // HEIGHT):
        top = (local // across) * 64 + part * HEIGHT
        inner = tl.arange(0, GROUPS)[:, None, None] * (LANES // 32) + all_lanes // 32
        bit, word_of = (top.to(tl.int32) + inner) % 32, inner // 32
        words = rows + (tl.load(piece + 8) + top // 32) * room
        inside = inner < (height - top).to(tl.int32)
        # A tile's own offsets fit 32 bits; 64 of them for every number would leave no registers.
        base = top * width + block * 256
        off = tl.max_contiguous(inner * width.to(tl.int32) + plane * 32 + lane, [1, 1, 4])
        x = tl.load(source + base + off, inside)
        m = tl.load(slot0 + base + off, inside) if SLOTS > 0 else 0.0
        v = tl.load(slot1 + base + off, inside) if SLOTS > 1 else 0.0
        for s in range(steps):
            y = _begin(x, KIND, RULE)
            first, last = tl.load(cuts + s), tl.load(cuts + s + 1)
            whole = first + (last - first) // AHEAD * AHEAD
            for j in range(first, whole, AHEAD):
                for k in tl.static_range(AHEAD):
                    y = _add_aligned(y, j + k, floats, words, columns, room, word_of, bit, lane, plane, HEIGHT)
            for j in range(whole, last):
                y = _add_aligned(y, j, floats, words, columns, room, word_of, bit, lane, plane, HEIGHT)
            if KIND == _BFLOAT16 and RULE == _SGD:  # noqa: SIM102 (known when compiled; the next one is not)
                if first == last:  # y − 0 is the result of an addition, as rounding wants it
                    y -= tl.load(cuts).to(tl.float32)
            x, m, v = _end(
                x, y, m, v, hypers + s * _HYPERS, (top + inner) * across + block, lane, plane, tensor,
                tl.load(rounding + s), RULE, KIND, STOCHASTIC,
            )  # fmt: skip
        # The same offsets made again: kept over all steps, they would take as many registers as the numbers.
        again = inner + tl.load(cuts, volatile=True).to(tl.int32)
        off = tl.max_contiguous(again * width.to(tl.int32) + plane * 32 + lane, [1, 1, 4])
        tl.store(out + base + off, x, inside)
        if SLOTS > 0:
            tl.store(slot0 + base + off, m, inside)
        if SLOTS > 1:
            tl.store(slot1 + base + off, v, inside)


@triton.jit
def _plain_pointer(address, KIND: tl.constexpr):
    """A number as an address of which nothing is known."""
    kind: tl.constexpr = tl.pointer_type(tl.float32 if KIND == _FLOAT32 else tl.int16)
    return address.to(kind)


@triton.jit(do_not_specialize=["room", "terms", "steps"])
def _advance_general(
    pieces, owners, rows, columns, room, integers, floats, terms, steps,
    RULE: tl.constexpr, SLOTS: tl.constexpr, KIND: tl.constexpr, STOCHASTIC: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """All steps on 8 · LANES consecutive numbers of a matrix of any width: each looks for its row and column."""
    tile = tl.program_id(0)
    piece = pieces + tl.load(owners + tile) * _FIELDS
    source, out = _plain_pointer(tl.load(piece), KIND), _plain_pointer(tl.load(piece + 1), KIND)
    slot0, slot1 = _plain_pointer(tl.load(piece + 2), _FLOAT32), _plain_pointer(tl.load(piece + 3), _FLOAT32)
    height, width, tensor = tl.load(piece + 4), tl.load(piece + 5), tl.load(piece + 6)
    lane = tl.arange(0, LANES)[None, :]
    plane = tl.arange(0, 8)[:, None]
    group = (tile - tl.load(piece + 7)) * (LANES // 32) + lane // 32
    off = group * 256 + plane * 32 + lane % 32
    inside = off < height * width
    row = off // width
    column = off - row * width
    row_words = rows + (tl.load(piece + 8) + row // 32) * room
    column_words = columns + (tl.load(piece + 9) + column // 256) * (8 * room) + (column // 32) % 8
    row_bit, column_bit = (row % 32).to(tl.int32), (column % 32).to(tl.int32)
    x = tl.load(source + off, inside)
    m = tl.load(slot0 + off, inside) if SLOTS > 0 else 0.0
    v = tl.load(slot1 + off, inside) if SLOTS > 1 else 0.0
    rounding, cuts, hypers = integers + terms, integers + terms + steps, floats + terms
    for s in range(steps):
        y = _begin(x, KIND, RULE)
        first, last = tl.load(cuts + s), tl.load(cuts + s + 1)
        for j in range(first, last):
            a = _sign_of(tl.load(row_words + j, inside, 0), row_bit)
            b = _sign_of(tl.load(column_words + j * 8, inside, 0), column_bit)
            y += _float(((a ^ b) & 0x80000000) ^ _bits(tl.load(floats + j)))
        if KIND == _BFLOAT16 and RULE == _SGD:  # noqa: SIM102 (known when compiled; the next one is not)
            if first == last:
                y -= tl.load(cuts).to(tl.float32)
        x, m, v = _end(
            x, y, m, v, hypers + s * _HYPERS, group, lane % 32, plane, tensor,
            tl.load(rounding + s), RULE, KIND, STOCHASTIC,
        )  # fmt: skip
    tl.store(out + off, x, inside)
    if SLOTS > 0:
        tl.store(slot0 + off, m, inside)
    if SLOTS > 1:
        tl.store(slot1 + off, v, inside)
