"""GPU kernels (Triton). The only module that imports triton.

One program owns a tile of 8 planes × LANES lanes and keeps it in registers: parameters are read once, all terms of all
steps are added, and they are written once. Lane l of plane j is coordinate 256·(l div 32) + 32 j + l mod 32, so a lane
owns whole Philox blocks of the gaussian (two) and of the rounding stream (one), and neighbouring lanes are neighbours
in memory. Signs come by the octet: eight neighbouring lanes share a byte, which its maker hands over in shared memory.

Bits equal those of cpu.py because every operation is IEEE and rounded by itself: no fused multiply-add but the two
inside a square root, no flush of denormals. With TRITON_INTERPRET=1 the same kernels run on CPU tensors.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from fedzero.directions import spec
from fedzero.directions.spec import Domain
from fedzero.directions.terms import HYPERS, Program, Rule, Terms

LANES = 512
"""Lanes of a tile: 8 × 512 coordinates, a chunk of signs."""
WARPS = 4
"""128 threads, each with 4 neighbouring lanes in all 8 planes: 32 numbers in registers, loads of 8 or 16 bytes."""
SIGN_WARPS = 2
"""Signs need few registers besides: 64 numbers a thread, and half the threads that make them."""
SPAN = 512
"""Columns of a row that one program makes where single rows are wanted."""
SUM_PROGRAMS = 1 << 14
"""Programs that share a checksum or a sum of squares, each with many tiles: few additions to one address."""

_M0, _M1, _W0, _W1 = (tl.constexpr(v) for v in (spec.PHILOX_M0, spec.PHILOX_M1, spec.PHILOX_W0, spec.PHILOX_W1))
_Q0, _Q1, _Q2, _Q3, _Q4, _Q5, _Q6 = (tl.constexpr(c) for c in spec.LOG2)
_S0, _S1, _S2 = (tl.constexpr(c) for c in spec.SIN)
_C0, _C1, _C2, _C3 = (tl.constexpr(c) for c in spec.COS)
_BIAS, _SQRT_HALF = tl.constexpr(spec.LOG_BIAS), tl.constexpr(spec.SQRT_HALF_BITS)
_GAUSSIAN, _RADEMACHER, _ROUNDING = (tl.constexpr(int(domain)) for domain in Domain)
_SGD, _MOMENTUM, _ADAM, _SIGN = (tl.constexpr(int(rule)) for rule in Rule)
_HYPERS = tl.constexpr(HYPERS)
_GOLDEN, _H0, _H1 = (tl.constexpr(v) for v in (spec.CHECK_GOLDEN, spec.CHECK_M0, spec.CHECK_M1))
_SCALE = tl.constexpr(spec.SQUARES_SCALE)
_FLOAT32, _BFLOAT16, _FLOAT16 = (tl.constexpr(v) for v in range(3))
_INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def _bits(x):
    return x.to(tl.uint32, bitcast=True)


@triton.jit
def _float(bits):
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _pick(index, a, b, c, d):
    """(a, b, c, d)[index]; costs nothing where `index` numbers registers, since the compiler knows it there."""
    return tl.where(index < 2, tl.where(index == 0, a, b), tl.where(index == 2, c, d))


@triton.jit
def _philox(block, local, tensor, DOMAIN: tl.constexpr, key):
    """Philox4x32-10 at counters (block + local, tensor, DOMAIN); `block` is a multiple of a power of two > `local`.

    What is the same for all lanes stays scalar: most of the first two rounds and the whole key schedule.
    """
    c0 = block.to(tl.uint32) + local.to(tl.uint32)
    c1 = (block >> 32).to(tl.uint32)
    c2 = tensor.to(tl.uint32)
    c3 = tl.full((), DOMAIN, tl.uint32)
    k0 = key.to(tl.uint32)
    k1 = (key >> 32).to(tl.uint32)
    for _ in tl.static_range(10):
        p0 = c0.to(tl.uint64) * _M0
        p1 = c2.to(tl.uint64) * _M1
        c0 = (p1 >> 32).to(tl.uint32) ^ c1 ^ k0
        c1 = p1.to(tl.uint32)
        c2 = (p0 >> 32).to(tl.uint32) ^ c3 ^ k1
        c3 = p0.to(tl.uint32)
        k0 += _W0
        k1 += _W1
    return c0, c1, c2, c3


@triton.jit
def _radius(s):
    """IEEE √s for s in {0} ∪ [2⁻²⁴, 32]: the hardware's 1/√s and one Heron step, without the branch for denormals."""
    if _INTERPRETED:  # its fma rounds twice
        r = tl.sqrt_rn(s)
    else:
        h = tl.rsqrt(tl.maximum(s, 1e-9))
        r = s * h
        r = tl.fma(tl.fma(-r, r, s), 0.5 * h, r)
    return r


@triton.jit
def _box_muller(a, b):
    """Two gaussians from two words; reference.box_muller says how."""
    bits = (a | 1).to(tl.float32).to(tl.int32, bitcast=True) - _BIAS
    t = _float((bits & 0x7FFFFF) + _SQRT_HALF) - 1.0
    q = (((((_Q6 * t + _Q5) * t + _Q4) * t + _Q3) * t + _Q2) * t + _Q1) * t + _Q0
    r = _radius((-(bits >> 23)).to(tl.float32) - t * q)
    x = _float((b & 0x7FFFFF) | 0x3F800000) - 1.5
    y = x * x
    sine = (((_S2 * y + _S1) * y + _S0) * x) * r
    cosine = (((_C3 * y + _C2) * y + _C1) * y + _C0) * r
    cosine = _float(_bits(cosine) ^ (b & 0x80000000))
    swap = (b & 0x40000000) != 0
    return tl.where(swap, sine, cosine), tl.where(swap, cosine, sine)


@triton.jit
def _offsets(LANES: tl.constexpr):
    """Coordinates of a tile, [8, LANES]. Four neighbours a thread, whatever their size: registers matter more."""
    lane = tl.arange(0, LANES)[None, :]
    return tl.max_contiguous((lane // 32) * 256 + tl.arange(0, 8)[:, None] * 32 + lane % 32, [1, 4])


@triton.jit
def _gaussian(base, tensor, key, LANES: tl.constexpr):
    """z, [8, LANES]: a lane's two blocks fill planes 0…3 and 4…7."""
    lane = tl.arange(0, LANES)[None, :]
    local = (lane // 32) * 64 + tl.arange(0, 2)[:, None] * 32 + lane % 32
    a, b, c, d = _philox(base // 4, local, tensor, _GAUSSIAN, key)
    z0, z1 = _box_muller(a, b)
    z2, z3 = _box_muller(c, d)
    plane = tl.arange(0, 4)[None, :, None]
    return tl.reshape(_pick(plane, z0[:, None, :], z1[:, None, :], z2[:, None, :], z3[:, None, :]), (8, LANES))


@triton.jit
def _signs(base, tensor, key, LANES: tl.constexpr):
    """Sign bits of z (bit 31, the others 0), [8, LANES], for a tile that is one chunk.

    Lane l of plane j in group g of 256 is bit 8·(g mod 4) + l mod 8 of word g div 4 of block 4 j + (l div 8) mod 4.
    With l mod 8 = 4·high + low, the last shift is by a constant and the others are made for four neighbours at once.
    """
    a, b, c, d = _philox(base // 128, tl.arange(0, 32)[None, :], tensor, _RADEMACHER, key)
    words = _pick(tl.arange(0, 4)[:, None], a, b, c, d)
    # The join also keeps the compiler from making the words again in every lane that needs them.
    words = tl.reshape(tl.join(words << 4, words), (4, 8, 4, 2))  # word, plane, (l div 8) mod 4, high
    words = tl.reshape(tl.permute(words, (1, 0, 2, 3)), (8, 4, 1, 4, 2, 1))
    octet = tl.arange(0, 4)[None, None, :, None, None, None]
    low = tl.arange(0, 4)[None, None, None, None, None, :]
    bits = (words << (24 - 8 * octet).to(tl.uint32)) << (3 - low).to(tl.uint32)
    return tl.reshape(bits & 0x80000000, (8, LANES))


@triton.jit
def _term(base, tensor, keys, coefs, j, STREAM: tl.constexpr, LANES: tl.constexpr):
    """c_j z_j, [8, LANES]; a sign needs no product."""
    key = tl.load(keys + j)
    c = tl.load(coefs + j)
    if STREAM == _GAUSSIAN:
        y = c * _gaussian(base, tensor, key, LANES)
    else:
        y = _float(_signs(base, tensor, key, LANES) ^ _bits(c))
    return y


@triton.jit
def _add_terms(y, base, tensor, keys, coefs, cuts, ONE: tl.constexpr, STREAM: tl.constexpr, LANES: tl.constexpr):
    """y + c_j z_j + … for j in cuts[0] … cuts[1] − 1, in this order. ONE spares a lone term the wait for `cuts`."""
    if ONE:
        y += _term(base, tensor, keys, coefs, 0, STREAM, LANES)
    else:
        for j in range(tl.load(cuts), tl.load(cuts + 1)):
            y += _term(base, tensor, keys, coefs, j, STREAM, LANES)
    return y


@triton.jit
def _random(base, tensor, key, LANES: tl.constexpr):
    """16 random bits a coordinate, [8, LANES]: plane j is half j mod 2 of word j div 2 of the lane's block."""
    a, b, c, d = _philox(base // 8, tl.arange(0, LANES)[None, :], tensor, _ROUNDING, key)
    plane = tl.arange(0, 8)[:, None]
    return (_pick(plane // 2, a, b, c, d) >> (16 * (plane % 2)).to(tl.uint32)) & 0xFFFF


@triton.jit
def _widen(stored, KIND: tl.constexpr):
    """The float32 behind what memory holds (16-bit numbers come as int16)."""
    if KIND == _BFLOAT16:
        y = _float(stored.to(tl.uint16, bitcast=True).to(tl.uint32) << 16)
    elif KIND == _FLOAT16:
        y = stored.to(tl.float16, bitcast=True).to(tl.float32)
    else:
        y = stored
    return y


@triton.jit
def _bits_one_nan(y, COMPUTED: tl.constexpr):
    """Bits of y, all NaN as 0x7FC00000, which no rounding to bfloat16 can carry out of.

    COMPUTED says that y is the result of an addition: then a GPU has but one NaN, 0x7FFFFFFF, and a minimum does.
    """
    if COMPUTED and not _INTERPRETED:
        bits = tl.minimum(y.to(tl.int32, bitcast=True), 0x7FC00000).to(tl.uint32, bitcast=True)
    else:
        bits = tl.where(y != y, 0x7FC00000, _bits(y))
    return bits


@triton.jit
def _round(y, random, KIND: tl.constexpr, COMPUTED: tl.constexpr):
    """float32 to 16 bits, up with the probability that `random` gives it; reference.round_… say how. NaN stays NaN."""
    if KIND == _BFLOAT16:
        rounded = (_bits_one_nan(y, COMPUTED) + random) >> 16
    else:
        bits = _bits(y)
        magnitude = bits & 0x7FFFFFFF
        exponent = (magnitude >> 23).to(tl.int32)
        normal = ((magnitude + (random >> 3)) >> 13) - (112 << 10)
        # Below 2⁻¹⁴ the unit is 2⁻²⁴ whatever the exponent. Bits under the last one of `random` cannot carry.
        drop = tl.minimum(tl.maximum(112 - exponent, 0), 26).to(tl.uint32)
        small = (((magnitude & 0x7FFFFF) << 2 | 0x2000000) >> drop) + random >> 16
        rounded = tl.minimum(tl.where(exponent >= 113, normal, small), 0x7C00) | ((bits >> 16) & 0x8000)
        rounded = tl.where(y != y, 0x7E00, rounded)
    return rounded.to(tl.uint16).to(tl.int16, bitcast=True)


@triton.jit
def _nearest(y, KIND: tl.constexpr):
    """float32, the result of an addition, to 16 bits: to nearest, ties to even."""
    if KIND == _BFLOAT16:
        bits = _bits_one_nan(y, True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    else:
        rounded = tl.where(y != y, 0x7E00, y.to(tl.float16).to(tl.uint16, bitcast=True))
    return rounded.to(tl.uint16).to(tl.int16, bitcast=True)


@triton.jit
def _apply(y, m, v, g, hypers, RULE: tl.constexpr):
    """One step of a rule other than SGD (Rule states the equations) for G = g."""
    h0 = tl.load(hypers)
    if RULE == _SIGN:
        y -= h0 * tl.where(g > 0, 1.0, tl.where(g < 0, -1.0, 0.0))
    else:
        m = tl.load(hypers + 1) * m + tl.load(hypers + 2) * g
        if RULE == _MOMENTUM:
            y -= h0 * m
        else:
            v = tl.load(hypers + 3) * v + tl.load(hypers + 4) * (g * g)
            y -= tl.div_rn(h0 * m, tl.sqrt_rn(v) + tl.load(hypers + 5))
    return y, m, v


@triton.jit(do_not_specialize=["n", "first", "tensor", "terms", "steps"])
def _advance(
    n, first, source, out, slot0, slot1, tensor, integers, floats, terms, steps,
    STREAM: tl.constexpr, RULE: tl.constexpr, SLOTS: tl.constexpr, KIND: tl.constexpr, STOCHASTIC: tl.constexpr,
    ONE: tl.constexpr, MASKED: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """All steps on tile `first` + program id. 16-bit numbers are rounded after each, at random or to nearest.

    Step s takes terms cuts[s] … cuts[s+1] − 1. Both are loaded: of a value carried from step to step and used as the
    bound of an inner loop, Triton 3.6 and 3.9 keep only the first. ONE says that there is but one step of one term.
    """
    keys, rounding, cuts = integers, integers + terms, integers + terms + steps
    coefs, hypers = floats, floats + terms
    base = (first + tl.program_id(0)).to(tl.int64) * (8 * LANES)
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


@triton.jit(do_not_specialize=["n", "tensor"])
def _spread(n, out, tensor, keys, coefs, STREAM: tl.constexpr, LANES: tl.constexpr):
    """out[j] ← c_j z(key_j) on one tile; programs go through the tiles of row 0, then 1, … Always masked."""
    tiles = tl.cdiv(n, 8 * LANES)
    j = (tl.program_id(0) // tiles).to(tl.int64)
    base = (tl.program_id(0) % tiles).to(tl.int64) * (8 * LANES)
    off = _offsets(LANES)
    tl.store(out + j * n + base + off, _term(base, tensor, keys, coefs, j, STREAM, LANES), off < n - base)


@triton.jit
def _single(i, tensor, key, STREAM: tl.constexpr):
    """z at coordinates i, one by one: each makes its whole block, which pays where few coordinates are wanted."""
    if STREAM == _GAUSSIAN:
        plane = (i // 32) % 4
        a, b, c, d = _philox((i // 128) * 32 + i % 32, i - i, tensor, _GAUSSIAN, key)
        z0, z1 = _box_muller(tl.where(plane < 2, a, c), tl.where(plane < 2, b, d))
        z = tl.where(plane % 2 == 0, z0, z1)
    else:
        octet = (i // 256) % 16
        a, b, c, d = _philox((i // 4096) * 32 + (i // 8) % 32, i - i, tensor, _RADEMACHER, key)
        word = _pick(octet // 4, a, b, c, d) >> (8 * (octet % 4) + i % 8).to(tl.uint32)
        z = _float((word << 31) | 0x3F800000)
    return z


@triton.jit(do_not_specialize=["width", "tensor", "terms"])
def _rows(width, x, ids, out, tensor, keys, coefs, terms, STREAM: tl.constexpr, KIND: tl.constexpr, SPAN: tl.constexpr):
    """out[r, h] ← x[ids[r], h] + Σ c z for SPAN columns of row r; programs go through row 0, then 1, …"""
    spans = tl.cdiv(width, SPAN)
    r = (tl.program_id(0) // spans).to(tl.int64)
    h = (tl.program_id(0) % spans) * SPAN + tl.arange(0, SPAN)
    i = tl.load(ids + r) * width + h
    y = _widen(tl.load(x + i, h < width, 0), KIND)
    for j in range(terms):
        y += tl.load(coefs + j) * _single(i, tensor, tl.load(keys + j), STREAM)
    tl.store(out + r * width + h, y if KIND == _FLOAT32 else _nearest(y, KIND), h < width)


@triton.jit(do_not_specialize=["n", "first", "tensor", "key"])
def _narrow(n, first, source, out, tensor, key, KIND: tl.constexpr, MASKED: tl.constexpr, LANES: tl.constexpr):
    """out ← source, rounded at random, on tile `first` + program id."""
    base = (first + tl.program_id(0)).to(tl.int64) * (8 * LANES)
    off = _offsets(LANES)
    mask = off < n - base if MASKED else None
    random = _random(base, tensor, key.to(tl.int64), LANES)
    tl.store(out + base + off, _round(tl.load(source + base + off, mask), random, KIND, False), mask)


@triton.jit(do_not_specialize=["n", "first", "last"])
def _checksum(n, first, last, total, bits, WORD: tl.constexpr, MASKED: tl.constexpr, LANES: tl.constexpr):
    """total += Σ mix(i·GOLDEN + bits_i) over tiles first … last − 1, shared by the programs; reference.checksum."""
    WIDTH: tl.constexpr = 128 // WORD  # coordinates in a load of 16 bytes
    row = tl.arange(0, 8 * LANES // WIDTH)
    column = tl.arange(0, WIDTH)[None, :]
    off = row[:, None] * WIDTH + column
    acc = tl.zeros_like(row).to(tl.uint64)
    for tile in range(first + tl.program_id(0), last, tl.num_programs(0)):
        base = tl.full((), 8 * LANES, tl.int64) * tile
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
        acc += tl.sum(h, axis=1)
    tl.atomic_add(total, tl.sum(acc, axis=0).to(tl.int64, bitcast=True))


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


_KINDS = {torch.float32: _FLOAT32.value, torch.bfloat16: _BFLOAT16.value, torch.float16: _FLOAT16.value}
_compiled: dict[tuple[Any, ...], Any] = {}


def _start(kernel: Any, programs: int, warps: int, arguments: tuple[Any, ...], constants: tuple[Any, ...]) -> None:
    """Launch on the current device. Triton looks at everything anew each time, longer than most tensors take; so what
    it compiled is kept by all it looked at: device, type and alignment of tensors, width of integers, constants."""
    looks: list[Any] = [kernel.__name__, constants]
    for value in arguments:
        if isinstance(value, torch.Tensor):
            looks.append((value.dtype, value.get_device(), value.data_ptr() % 16 == 0))
        else:
            looks.append(value.bit_length() < 32)
    known = _compiled.get(tuple(looks))
    if known is None:
        launched = kernel[(programs,)](*arguments, *constants, num_warps=warps, enable_fp_fusion=False)
        if launched is not None:  # the interpreter compiles nothing
            _compiled[tuple(looks)] = launched
    else:
        known[(programs, 1, 1)](*arguments, *constants)


def _launch(kernel: Any, n: int, warps: int, arguments: tuple[Any, ...], constants: tuple[Any, ...]) -> None:
    """Run `kernel` over n coordinates, on the device of its first argument: whole tiles, then a rest with masks."""
    whole, rest = divmod(n, 8 * LANES)
    with torch.cuda.device_of(arguments[0]):
        if whole:
            _start(kernel, whole, warps, (n, 0, *arguments), (*constants, False, LANES))
        if rest:
            _start(kernel, 1, warps, (n, whole, *arguments), (*constants, True, LANES))


def _total(kernel: Any, n: int, device: torch.device, arguments: tuple[Any, ...], constants: tuple[Any, ...]) -> int:
    """What the programs of `kernel` add up over n coordinates, as a signed 64-bit integer."""
    whole, rest = divmod(n, 8 * LANES)
    total = torch.zeros(1, dtype=torch.int64, device=device)
    with torch.cuda.device_of(total):
        if whole:
            programs = min(whole, SUM_PROGRAMS)
            _start(kernel, programs, WARPS, (n, 0, whole, total, *arguments), (*constants, False, LANES))
        if rest:
            _start(kernel, 1, WARPS, (n, whole, whole + 1, total, *arguments), (*constants, True, LANES))
    return int(total.item())


class _Tables(NamedTuple):
    """A program's arrays on the device: keys, rounding keys, 0 and ends; coefficients, hyper-parameters."""

    integers: torch.Tensor
    floats: torch.Tensor
    terms: int
    steps: int


_recent: dict[tuple[int, torch.device], tuple[Program | Terms, _Tables]] = {}


def _tables(work: Program | Terms, device: torch.device) -> _Tables:
    """Upload in one copy, and once for all tensors of a model: the last few are kept, and with them their `id`."""
    held = _recent.get((id(work), device))
    if held is None:
        program = Program.of([work], [0]) if isinstance(work, Terms) else work
        terms, steps = len(program.keys), len(program)
        integers = terms + 2 * steps + 1
        even = integers + integers % 2  # what follows starts at a multiple of 16 bytes, as Triton likes it
        buffer = np.zeros(2 * even + terms + steps * HYPERS, np.int32)
        parts = (program.keys.view(np.int64), program.rounding.view(np.int64), np.zeros(1, np.int64), program.ends)
        buffer[: 2 * integers].view(np.int64)[:] = np.concatenate(parts)
        buffer[2 * even :].view(np.float32)[:] = np.concatenate([program.coefficients, program.hypers.reshape(-1)])
        there = torch.from_numpy(buffer).to(device)
        floats = there[2 * even :].view(torch.float32)
        held = work, _Tables(there[: 2 * even].view(torch.int64), floats, terms, steps)
        while len(_recent) >= 8:
            _recent.pop(next(iter(_recent)), None)
        _recent[id(work), device] = held
    return held[1]


def _warps(stream: Domain, rule: Rule = Rule.SGD) -> int:
    return SIGN_WARPS if stream is Domain.RADEMACHER and not rule.slots else WARPS


def _integers(x: torch.Tensor) -> torch.Tensor:
    """16-bit numbers as int16: rounding is done on bits."""
    return x if x.dtype == torch.float32 else x.view(torch.int16)


def _signed(key: int) -> int:
    return key - (1 << 64) if key >> 63 else key


def generate(out: torch.Tensor, stream: Domain, key: int, tensor: int) -> None:
    """out ← z(key) of tensor `tensor` (float32)."""
    _launch(_generate, out.numel(), _warps(stream), (out, tensor, _signed(key)), (int(stream),))


def generate_some(out: torch.Tensor, stream: Domain, key: int, tensor: int, groups: NDArray[np.int64]) -> None:
    """All of it: on a GPU a launch costs more than the numbers nobody asked for."""
    generate(out, stream, key, tensor)


def advance(x: torch.Tensor, slots: tuple[torch.Tensor, ...], program: Program, tensor: int) -> None:
    """Run all steps of `program` on one flat tensor in place, `slots` (float32) with it, in one pass over memory."""
    bits, tables, rule = _integers(x), _tables(program, x.device), program.rule
    arguments = (bits, bits, *(*slots, bits, bits)[:2], tensor, *tables)
    one = tables.terms == tables.steps == 1
    constants = (int(program.stream), int(rule), rule.slots, _KINDS[x.dtype], True, one)
    _launch(_advance, x.numel(), _warps(program.stream, rule), arguments, constants)


def perturb(x: torch.Tensor, out: torch.Tensor, terms: Terms, tensor: int) -> None:
    """out ← x + Σ c z, x untouched; 16-bit results are rounded to nearest."""
    bits, tables = _integers(x), _tables(terms, x.device)
    arguments = (bits, _integers(out), bits, bits, tensor, *tables)
    constants = (int(terms.stream), int(Rule.SGD), 0, _KINDS[x.dtype], False, tables.terms == 1)
    _launch(_advance, x.numel(), _warps(terms.stream), arguments, constants)


def rows(x: torch.Tensor, ids: torch.Tensor, out: torch.Tensor, terms: Terms, tensor: int) -> None:
    """out[r] ← row ids[r] of x + Σ c z, x (V, H) untouched: what `perturb` gives, of these rows alone."""
    width, tables = x.shape[1], _tables(terms, x.device)
    programs = ids.numel() * triton.cdiv(width, SPAN)
    if programs:
        with torch.cuda.device_of(out):
            arguments = (width, _integers(x), ids, _integers(out), tensor, tables.integers, tables.floats, tables.terms)
            _start(_rows, programs, WARPS, arguments, (int(terms.stream), _KINDS[x.dtype], SPAN))


def spread(out: torch.Tensor, terms: Terms, tensor: int) -> None:
    """out[j] ← c_j z(key_j), (terms, n) float32: the terms side by side instead of added up, in one launch."""
    n, tables = out.shape[1], _tables(terms, out.device)
    programs = len(terms) * triton.cdiv(n, 8 * LANES)
    if programs:
        with torch.cuda.device_of(out):
            arguments = (n, out, tensor, tables.integers, tables.floats)
            _start(_spread, programs, _warps(terms.stream), arguments, (int(terms.stream), LANES))


def round_into(x: torch.Tensor, source: torch.Tensor, key: int, tensor: int) -> None:
    """x ← source (float32), rounded stochastically to the 16 bits of x."""
    _launch(_narrow, x.numel(), WARPS, (source, _integers(x), tensor, _signed(key)), (_KINDS[x.dtype],))


def checksum(x: torch.Tensor) -> int:
    """Σ mix(index, bits) mod 2⁶⁴ of one flat tensor."""
    bits = x.view(torch.int32) if x.element_size() == 4 else x.view(torch.int16)
    return _total(_checksum, x.numel(), x.device, (bits,), (8 * x.element_size(),)) % (1 << 64)


def squares(key: int, tensor: int, n: int, device: torch.device) -> int:
    """Σ ⌊z² · 2²⁴⌋ of a gaussian direction over one tensor of n coordinates."""
    return _total(_squares, n, device, (tensor, _signed(key)), ())
