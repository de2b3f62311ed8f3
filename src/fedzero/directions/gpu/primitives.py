"""What Triton kernels are made of: Philox, gaussians, signs, rounding, rules; on tiles of 8 planes × LANES lanes.

Lane l of plane j is coordinate 256·(l div 32) + 32 j + l mod 32, so a lane owns whole Philox blocks of the gaussian
(two) and of the rounding stream (one), and neighbouring lanes are neighbours in memory. Eight neighbouring lanes share
a byte of signs, passed through shared memory.

Bits equal those of the CPU because every operation is IEEE and rounded by itself: no fused multiply-add but the two
inside a square root, no flush of denormals.
"""

from __future__ import annotations

import os

import triton
import triton.language as tl

from fedzero.directions import spec
from fedzero.directions.spec import Domain
from fedzero.directions.terms import HYPERS, Rule

_M0, _M1, _W0, _W1 = (tl.constexpr(v) for v in (spec.PHILOX_M0, spec.PHILOX_M1, spec.PHILOX_W0, spec.PHILOX_W1))
_Q0, _Q1, _Q2, _Q3, _Q4, _Q5, _Q6 = (tl.constexpr(c) for c in spec.LOG2)
_S0, _S1, _S2 = (tl.constexpr(c) for c in spec.SIN)
_C0, _C1, _C2, _C3 = (tl.constexpr(c) for c in spec.COS)
_BIAS, _SQRT_HALF = tl.constexpr(spec.LOG_BIAS), tl.constexpr(spec.SQRT_HALF_BITS)
_GAUSSIAN, _RADEMACHER, _ROUNDING, _RANK1, _RANK1_COLUMNS = (tl.constexpr(int(domain)) for domain in Domain)
_COLUMN_KEY = tl.constexpr(spec.COLUMN_KEY)
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
    """Stored numbers as float32 (16-bit ones come as int16)."""
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
