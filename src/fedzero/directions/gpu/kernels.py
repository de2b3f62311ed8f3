"""Triton kernels. A program keeps a tile in registers: read once, all terms of all steps added, written once."""

from __future__ import annotations

import triton
import triton.language as tl

from fedzero.directions.gpu.primitives import (
    _BFLOAT16,
    _COLUMN_KEY,
    _FLOAT32,
    _GAUSSIAN,
    _GOLDEN,
    _H0,
    _H1,
    _HYPERS,
    _RADEMACHER,
    _RANK1,
    _RANK1_COLUMNS,
    _SCALE,
    _SGD,
    _add_terms,
    _apply,
    _box_muller,
    _float,
    _gaussian,
    _nearest,
    _offsets,
    _philox,
    _pick,
    _random,
    _round,
    _signs,
    _term,
    _widen,
)


@triton.jit
def _advance_tile(
    base, n, source, out, slot0, slot1, tensor, integers, floats, terms, steps,
    STREAM: tl.constexpr, RULE: tl.constexpr, SLOTS: tl.constexpr, KIND: tl.constexpr, STOCHASTIC: tl.constexpr,
    ONE: tl.constexpr, MASKED: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """All steps on the tile from coordinate `base` on. 16-bit numbers are rounded after each, at random or to nearest.

    Step s takes terms cuts[s] … cuts[s+1] − 1. Both are loaded: of a value carried from step to step and used as the
    bound of an inner loop, Triton 3.6 and 3.9 keep only the first. ONE says that there is but one step of one term.
    """
    keys, rounding, cuts = integers, integers + terms, integers + terms + steps
    coefs, hypers = floats, floats + terms
    off = _offsets(LANES)
    mask = off < n - base if MASKED else None
    x = tl.load(source + base + off, mask)
    m = tl.load(slot0 + base + off, mask) if SLOTS > 0 else 0.0
    v = tl.load(slot1 + base + off, mask) if SLOTS > 1 else 0.0
    for s in range(1 if ONE else steps):
        y = _widen(x, KIND)
        if RULE == _SGD:
            y = _add_terms(y, base, tensor, keys, coefs, cuts + s, ONE, STREAM, LANES)
            if KIND == _BFLOAT16 and not ONE:  # perhaps there was no term; cuts[0] is 0, and y − 0 is computed
                y -= tl.load(cuts).to(tl.float32)
        else:
            zero = tl.where(off < 0, y, 0.0)  # not a constant, so that the compiler gives G the layout of y
            g = _add_terms(zero, base, tensor, keys, coefs, cuts + s, ONE, STREAM, LANES)
            y, m, v = _apply(y, m, v, g, hypers + s * _HYPERS, RULE)
        if KIND == _FLOAT32:
            x = y
        elif STOCHASTIC:
            x = _round(y, _random(base, tensor, tl.load(rounding + s), LANES), KIND, True)
        else:
            x = _nearest(y, KIND)
    tl.store(out + base + off, x, mask)
    if SLOTS > 0:
        tl.store(slot0 + base + off, m, mask)
    if SLOTS > 1:
        tl.store(slot1 + base + off, v, mask)


@triton.jit(do_not_specialize=["n", "first", "tensor", "terms", "steps"])
def _advance(
    n, first, source, out, slot0, slot1, tensor, integers, floats, terms, steps,
    STREAM: tl.constexpr, RULE: tl.constexpr, SLOTS: tl.constexpr, KIND: tl.constexpr, STOCHASTIC: tl.constexpr,
    ONE: tl.constexpr, MASKED: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """All steps on tile `first` + program id of one tensor."""
    base = (first + tl.program_id(0)).to(tl.int64) * (8 * LANES)
    _advance_tile(
        base, n, source, out, slot0, slot1, tensor, integers, floats, terms, steps,
        STREAM, RULE, SLOTS, KIND, STOCHASTIC, ONE, MASKED, LANES,
    )  # fmt: skip


@triton.jit
def _pointer(address, KIND: tl.constexpr):
    """A number as the address of parameters, which lie at multiples of 16 bytes."""
    kind: tl.constexpr = tl.pointer_type(tl.float32 if KIND == _FLOAT32 else tl.int16)
    return tl.multiple_of(address.to(kind), 16)


@triton.jit(do_not_specialize=["terms", "steps"])
def _advance_list(
    pieces, owners, integers, floats, terms, steps,
    STREAM: tl.constexpr, RULE: tl.constexpr, SLOTS: tl.constexpr, KIND: tl.constexpr, STOCHASTIC: tl.constexpr,
    ONE: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """All steps on the tiles of many tensors in one launch: a model's small tensors cost no launch each.

    Row p of `pieces`: addresses of source, out and two slots, coordinates, ordinal, first tile of tensor p; tile t is
    of tensor owners[t].
    """
    tile = tl.program_id(0)
    row = pieces + tl.load(owners + tile) * 7
    source, out = _pointer(tl.load(row), KIND), _pointer(tl.load(row + 1), KIND)
    slot0, slot1 = _pointer(tl.load(row + 2), _FLOAT32), _pointer(tl.load(row + 3), _FLOAT32)
    n, tensor = tl.load(row + 4), tl.load(row + 5)
    base = (tile - tl.load(row + 6)) * (8 * LANES)
    if n - base >= 8 * LANES:
        _advance_tile(
            base, n, source, out, slot0, slot1, tensor, integers, floats, terms, steps,
            STREAM, RULE, SLOTS, KIND, STOCHASTIC, ONE, False, LANES,
        )  # fmt: skip
    else:
        _advance_tile(
            base, n, source, out, slot0, slot1, tensor, integers, floats, terms, steps,
            STREAM, RULE, SLOTS, KIND, STOCHASTIC, ONE, True, LANES,
        )  # fmt: skip


@triton.jit(do_not_specialize=["n", "first", "tensor", "key"])
def _generate(n, first, out, tensor, key, STREAM: tl.constexpr, MASKED: tl.constexpr, LANES: tl.constexpr):
    """out ← z(key) on tile `first` + program id."""
    base = (first + tl.program_id(0)).to(tl.int64) * (8 * LANES)
    off = _offsets(LANES)
    mask = off < n - base if MASKED else None
    if STREAM == _GAUSSIAN:
        z = _gaussian(base, tensor, key.to(tl.int64), LANES)
    else:
        z = _float(_signs(base, tensor, key.to(tl.int64), LANES) | 0x3F800000)
    tl.store(out + base + off, z, mask)


@triton.jit(do_not_specialize=["tiles", "total"])
def _spread(pieces, owners, tiles, total, out, keys, coefs, STREAM: tl.constexpr, LANES: tl.constexpr):
    """out[j] ← c_j z(key_j) on one tile; programs go through the tiles of row 0, then 1, … Always masked.

    Row p of `pieces`: coordinates, ordinal, first tile and first column of tensor p; tile t is of tensor owners[t].
    """
    j, tile = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles
    row = pieces + tl.load(owners + tile) * 4
    n, tensor, first = tl.load(row), tl.load(row + 1), out + j * total + tl.load(row + 3)
    base = (tile - tl.load(row + 2)) * (8 * LANES)
    off = _offsets(LANES)
    tl.store(first + base + off, _term(base, tensor, keys, coefs, j, STREAM, LANES), off < n - base)


@triton.jit
def _factor_sign(i, tensor, key, DOMAIN: tl.constexpr):
    """Sign bits i of a factor (bit 31, the others undefined)."""
    a, b, c, d = _philox(i // 128, i - i, tensor, DOMAIN, key)
    return (_pick((i // 32) % 4, a, b, c, d) >> (i % 32).to(tl.uint32)) << 31


@triton.jit
def _single(row, h, width, tensor, key, STREAM: tl.constexpr):
    """z at columns h of a row, one by one: each makes its whole block, which pays where few coordinates are wanted."""
    i = row * width + h
    if STREAM == _GAUSSIAN:
        plane = (i // 32) % 4
        a, b, c, d = _philox((i // 128) * 32 + i % 32, i - i, tensor, _GAUSSIAN, key)
        z0, z1 = _box_muller(tl.where(plane < 2, a, c), tl.where(plane < 2, b, d))
        z = tl.where(plane % 2 == 0, z0, z1)
    elif STREAM == _RANK1:
        rows = _factor_sign(row + h - h, tensor, key, _RANK1)
        z = _float((rows ^ _factor_sign(h, tensor, key & _COLUMN_KEY, _RANK1_COLUMNS)) | 0x3F800000)
    else:
        octet = (i // 256) % 16
        a, b, c, d = _philox((i // 4096) * 32 + (i // 8) % 32, i - i, tensor, _RADEMACHER, key)
        word = _pick(octet // 4, a, b, c, d) >> (8 * (octet % 4) + i % 8).to(tl.uint32)
        z = _float((word << 31) | 0x3F800000)
    return z


@triton.jit(do_not_specialize=["width", "tensor", "terms"])
def _rows(
    width, x, ids, out, tensor, integers, coefs, terms,
    STREAM: tl.constexpr, KIND: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """out[r, h] ← x[ids[r], h] + Σ c z for SPAN columns of row r; programs go through row 0, then 1, …"""
    spans = tl.cdiv(width, SPAN)
    r = (tl.program_id(0) // spans).to(tl.int64)
    h = (tl.program_id(0) % spans) * SPAN + tl.arange(0, SPAN)
    row = tl.load(ids + r)
    y = _widen(tl.load(x + row * width + h, h < width, 0), KIND)
    cuts = integers + terms + 1
    for j in range(tl.load(cuts), tl.load(cuts + 1)):
        y += tl.load(coefs + j) * _single(row, h.to(tl.int64), width, tensor, tl.load(integers + j), STREAM)
    tl.store(out + r * width + h, y if KIND == _FLOAT32 else _nearest(y, KIND), h < width)


@triton.jit(do_not_specialize=["n", "first", "tensor", "key"])
def _narrow(n, first, source, out, tensor, key, KIND: tl.constexpr, MASKED: tl.constexpr, LANES: tl.constexpr):
    """out ← source, rounded at random, on tile `first` + program id."""
    base = (first + tl.program_id(0)).to(tl.int64) * (8 * LANES)
    off = _offsets(LANES)
    mask = off < n - base if MASKED else None
    random = _random(base, tensor, key.to(tl.int64), LANES)
    tl.store(out + base + off, _round(tl.load(source + base + off, mask), random, KIND, False), mask)


@triton.jit
def _checksum_tile(base, n, bits, WORD: tl.constexpr, MASKED: tl.constexpr, LANES: tl.constexpr):
    """Σ mix(i·GOLDEN + bits_i) of a tile, in parts of 16 bytes; reference.checksum."""
    WIDTH: tl.constexpr = 128 // WORD  # coordinates in a load of 16 bytes
    row = tl.arange(0, 8 * LANES // WIDTH)
    column = tl.arange(0, WIDTH)[None, :]
    off = row[:, None] * WIDTH + column
    mask = off < n - base if MASKED else None
    word = tl.load(bits + base + off, mask)
    word = word.to(tl.uint16, bitcast=True) if WORD == 16 else word.to(tl.uint32, bitcast=True)
    h = ((base + row * WIDTH).to(tl.uint64) * _GOLDEN)[:, None] + column.to(tl.uint64) * _GOLDEN
    h += word.to(tl.uint64)
    h = (h ^ (h >> 33)) * _H0
    h = (h ^ (h >> 33)) * _H1
    h ^= h >> 33
    if MASKED:
        h = tl.where(mask, h, 0)
    return tl.sum(h, axis=1)


@triton.jit(do_not_specialize=["n", "first", "last"])
def _checksum(n, first, last, total, bits, WORD: tl.constexpr, MASKED: tl.constexpr, LANES: tl.constexpr):
    """total += the checksum of tiles first … last − 1, shared by the programs."""
    acc = tl.zeros((8 * LANES * WORD // 128,), tl.uint64)
    for tile in range(first + tl.program_id(0), last, tl.num_programs(0)):
        base = tl.full((), 8 * LANES, tl.int64) * tile
        acc += _checksum_tile(base, n, bits, WORD, MASKED, LANES)
    tl.atomic_add(total, tl.sum(acc, axis=0).to(tl.int64, bitcast=True))


@triton.jit
def _checksum_list(pieces, owners, totals, KIND: tl.constexpr, LANES: tl.constexpr):
    """totals[p] += the checksum of tensor p of a list, as `_advance_list` has them, a tile for each program."""
    WORD: tl.constexpr = 32 if KIND == _FLOAT32 else 16
    tile = tl.program_id(0)
    owner = tl.load(owners + tile)
    row = pieces + owner * 7
    bits, n = _pointer(tl.load(row), KIND), tl.load(row + 4)
    base = (tile - tl.load(row + 6)) * (8 * LANES)
    if n - base >= 8 * LANES:
        part = tl.sum(_checksum_tile(base, n, bits, WORD, False, LANES), axis=0)
    else:
        part = tl.sum(_checksum_tile(base, n, bits, WORD, True, LANES), axis=0)
    tl.atomic_add(totals + owner, part.to(tl.int64, bitcast=True))


@triton.jit(do_not_specialize=["n", "first", "last", "tensor", "key"])
def _squares(n, first, last, total, tensor, key, MASKED: tl.constexpr, LANES: tl.constexpr):
    """total += Σ ⌊z²·2²⁴⌋ over tiles first … last − 1, shared by the programs."""
    block = tl.arange(0, 2 * LANES)
    off = (block // 32) * 128 + block % 32
    acc = tl.zeros_like(block).to(tl.int64)
    for tile in range(first + tl.program_id(0), last, tl.num_programs(0)):
        base = tl.full((), 8 * LANES, tl.int64) * tile
        a, b, c, d = _philox(base // 4, block, tensor, _GAUSSIAN, key.to(tl.int64))
        z0, z1 = _box_muller(a, b)
        z2, z3 = _box_muller(c, d)
        for plane in tl.static_range(4):
            z = _pick(plane, z0, z1, z2, z3)
            square = (z * z * _SCALE).to(tl.int32)
            if MASKED:
                square = tl.where(off + 32 * plane < n - base, square, 0)
            acc += square
    tl.atomic_add(total, tl.sum(acc, axis=0))
