"""CPU kernels, compiled by numba.

Work is cut into chunks of 4096 coordinates, small enough for the first-level cache, so a fold of many terms reads and
writes memory once. Inner loops run over 32 lanes or 256 coordinates without dependences: LLVM vectorises them, and
without fast-math it never fuses a multiply with an add. Sums of rank-one terms are vectors by name, and fused: their
products are exact.

One file: what is kept of compiled kernels is named after it (`compiled`).
"""

from __future__ import annotations

import math

import numpy as np
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import njit, types
from numba.extending import intrinsic, models, register_model

from fedzero.directions import spec
from fedzero.directions.cpu.compiled import kernel
from fedzero.directions.spec import Domain
from fedzero.directions.terms import Rule

CHUNK = 4096
f32, i32, i64, u16, u32, u64 = np.float32, np.int32, np.int64, np.uint16, np.uint32, np.uint64
_M0, _M1, _W0, _W1 = u64(spec.PHILOX_M0), u64(spec.PHILOX_M1), u32(spec.PHILOX_W0), u32(spec.PHILOX_W1)
_Q0, _Q1, _Q2, _Q3, _Q4, _Q5, _Q6 = (f32(c) for c in spec.LOG2)
_S0, _S1, _S2 = (f32(c) for c in spec.SIN)
_C0, _C1, _C2, _C3 = (f32(c) for c in spec.COS)
_BIAS, _SQRT_HALF = i32(spec.LOG_BIAS), i32(spec.SQRT_HALF_BITS)
_GAUSSIAN, _RADEMACHER, _ROUNDING = u32(Domain.GAUSSIAN), u32(Domain.RADEMACHER), u32(Domain.ROUNDING)
_RANK1, _RANK1_COLUMNS, _COLUMN_KEY = u32(Domain.RANK1), u32(Domain.RANK1_COLUMNS), u64(spec.COLUMN_KEY)
_GOLDEN, _H0, _H1 = u64(spec.CHECK_GOLDEN), u64(spec.CHECK_M0), u64(spec.CHECK_M1)
_SIGN_BIT, _ONE, _SCALE = u32(0x80000000), u32(0x3F800000), f32(spec.SQUARES_SCALE)
_MOMENTUM, _ADAM, _SIGN = int(Rule.MOMENTUM), int(Rule.ADAM), int(Rule.SIGN)

inlined = njit(inline="always")

try:
    _wide = bool(get_host_cpu_features().get("avx512f"))
except RuntimeError:  # LLVM does not know this processor's features
    _wide = False
LANES = 32 if _wide else 16
"""Numbers that a kernel of rank one holds of a row in registers, a power of two; the bits do not depend on it."""
DEPTH = 128
"""Terms whose signs of `LANES` columns stay in the first-level cache while rows use them."""
_VECTOR, _FIRST = ir.VectorType(ir.FloatType(), LANES), ir.Constant(ir.IntType(32), 0)


class _Lanes(types.Type):
    """LANES numbers side by side: LLVM finds such vectors in a loop over numbers, not in one over terms around it."""

    def __init__(self):
        super().__init__(name="Lanes")


@register_model(_Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, _VECTOR)


_lanes = _Lanes()


def _place(context, builder, kind, array, i):
    """Where number i of a contiguous array is, as a vector."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [i]), _VECTOR.as_pointer())


@intrinsic
def _load_lanes(typing, array, i):
    """array[i : i + LANES]; the array has one axis and no gaps."""

    def made(context, builder, signature, given):
        return builder.load(_place(context, builder, signature.args[0], given[0], given[1]), align=4)

    return _lanes(array, types.intp), made


@intrinsic
def _store_lanes(typing, array, i, v):
    """array[i : i + LANES] ← v"""

    def made(context, builder, signature, given):
        builder.store(given[2], _place(context, builder, signature.args[0], given[0], given[1]), align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, _lanes), made


@intrinsic
def _add_signs(typing, v, c, b):
    """v + c b for b of ±1. The product is exact, so it may be fused with the addition: the bits are the same."""

    def made(context, builder, signature, given):
        v, c, b = given
        nothing = ir.Constant(_VECTOR, ir.Undefined)
        everywhere = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        c = builder.shuffle_vector(builder.insert_element(nothing, c, _FIRST), nothing, everywhere)
        return builder.fadd(v, builder.fmul(c, b, flags=("contract",)), flags=("contract",))

    return _lanes(_lanes, types.float32, _lanes), made


@inlined
def _philox(c0, c1, c2, c3, k0, k1):
    for _ in range(10):
        p0 = _M0 * u64(c0)
        p1 = _M1 * u64(c2)
        c0, c1, c2, c3 = (u32(u32(p1 >> u64(32)) ^ c1 ^ k0), u32(p1), u32(u32(p0 >> u64(32)) ^ c3 ^ k1), u32(p0))
        k0 = u32(k0 + _W0)
        k1 = u32(k1 + _W1)
    return c0, c1, c2, c3


@inlined
def _block(group, lane, tensor, domain, key):
    """The four words of block 32·group + lane."""
    low, high = u32(u64(group) << u64(5)), u32(u64(group) >> u64(27))
    return _philox(u32(low + u32(lane)), high, tensor, domain, u32(key), u32(key >> u64(32)))


@inlined
def _box_muller(a, b):
    bits = i32(f32(u32(a | u32(1))).view(np.int32) - _BIAS)
    k = i32(bits >> i32(23))
    t = f32(i32(i32(bits & i32(0x7FFFFF)) + _SQRT_HALF).view(np.float32) - f32(1))
    q = f32(f32(f32(f32(f32(f32(_Q6 * t + _Q5) * t + _Q4) * t + _Q3) * t + _Q2) * t + _Q1) * t + _Q0)
    r = math.sqrt(f32(f32(-k) - t * q))
    x = f32(u32(u32(b & u32(0x7FFFFF)) | u32(0x3F800000)).view(np.float32) - f32(1.5))
    y = f32(x * x)
    sine = f32(f32(f32(f32(_S2 * y + _S1) * y + _S0) * x) * r)
    cosine = f32(f32(f32(f32(f32(_C3 * y + _C2) * y + _C1) * y + _C0)) * r)
    cosine = f32(u32(cosine.view(np.uint32) ^ u32(b & _SIGN_BIT)).view(np.float32))
    swap = u32(b & u32(0x40000000)) != u32(0)
    return (sine if swap else cosine), (cosine if swap else sine)


@inlined
def _gaussian128(out, group, tensor, key):
    """The 128 coordinates of group `group` (32 blocks, four planes of 32)."""
    for lane in range(32):
        a, b, c, d = _block(group, lane, tensor, _GAUSSIAN, key)
        z0, z1 = _box_muller(a, b)
        z2, z3 = _box_muller(c, d)
        out[lane] = z0
        out[32 + lane] = z1
        out[64 + lane] = z2
        out[96 + lane] = z3


@kernel
def _add_gaussian(y, m, group, tensor, keys, coefs, first, last):
    """Terms first … last − 1 on m coordinates, of which the first begins group `group`."""
    z = np.empty(128, np.float32)
    for j in range(first, last):
        c = coefs[j]
        for g in range((m + 127) // 128):
            _gaussian128(z, group + g, tensor, keys[j])
            o = g * 128
            if m - o >= 128:
                for i in range(128):
                    y[o + i] += f32(c * z[i])
            else:
                for i in range(m - o):
                    y[o + i] += f32(c * z[i])


@kernel
def _add_rademacher(y, m, chunk, tensor, keys, coefs, first, last):
    """Terms first … last − 1 on the m coordinates of a chunk."""
    words = np.empty((4, 32), np.uint32)
    spread = np.empty(256, np.uint32)
    for j in range(first, last):
        key, bits = keys[j], f32(coefs[j]).view(np.uint32)  # read once: a load in the loop would keep LLVM from vectors
        for lane in range(32):
            a, b, c, d = _block(chunk, lane, tensor, _RADEMACHER, key)
            words[0, lane] = a
            words[1, lane] = b
            words[2, lane] = c
            words[3, lane] = d
        for q in range(4):
            if q * 1024 >= m:
                break
            # Bit v of each octet to bit 7: then one uniform shift serves 256 neighbours.
            for g in range(32):
                for v in range(8):
                    spread[g * 8 + v] = u32(words[q, g] << u32(7 - v))
            for s in range(4):
                o = q * 1024 + s * 256
                shift = u32(24 - 8 * s)
                if m - o >= 256:
                    for i in range(256):
                        sign = u32(u32(spread[i] << shift) & _SIGN_BIT)
                        y[o + i] += f32(u32(bits ^ sign).view(np.float32))
                else:
                    for i in range(m - o):
                        sign = u32(u32(spread[i] << shift) & _SIGN_BIT)
                        y[o + i] += f32(u32(bits ^ sign).view(np.float32))


@kernel
def _factor_words(out, tensor, domain, key):
    """Signs of a factor as words, 32 a word; a bit 1 is −1."""
    for block in range((out.size + 3) // 4):
        low, high = u32(u64(block)), u32(u64(block) >> u64(32))
        words = _philox(low, high, tensor, domain, u32(key), u32(key >> u64(32)))
        for w in range(min(4, out.size - 4 * block)):
            out[4 * block + w] = words[w]


@kernel
def _factors(rows, columns, across, tensor, keys):
    """rows[w, j]: word w of a of term j, so that a row of the matrix finds its signs of all terms side by side;
    columns[k, j, i]: b of column k·LANES + i of term j, ±1, and 0 beyond the last of `across` columns."""
    words = np.empty((across + 31) // 32, np.uint32)
    for j in range(keys.size):
        _factor_words(rows[:, j], tensor, _RANK1, keys[j])
        _factor_words(words, tensor, _RANK1_COLUMNS, keys[j] & _COLUMN_KEY)
        for k in range(columns.shape[0]):
            for i in range(k * LANES, min(k * LANES + LANES, across)):
                sign = u32(u32(words[i >> 5] << u32(31 - (i & 31))) & _SIGN_BIT)
                columns[k, j, i - k * LANES] = f32(u32(_ONE | sign).view(np.float32))
            for i in range(max(0, across - k * LANES), LANES):
                columns[k, j, i] = f32(0)


@inlined
def _sign_rows(c, row, height, rows, coefs, first, last):
    """c[r, j] ← c_j a_j[row + r] of terms first … last − 1; what is beyond `height` stays 0."""
    for r in range(height):
        words, shift = rows[(row + r) >> 5], u32(31 - ((row + r) & 31))
        for j in range(first, last):
            sign = u32(u32(words[j] << shift) & _SIGN_BIT)
            c[r, j - first] = f32(u32(f32(coefs[j]).view(np.uint32) ^ sign).view(np.float32))


@inlined
def _add_four_rows(y, o, stride, c, r, b, begin, count):
    """y[o + q·stride + i] += c[r + q, 0] b[0, i] + … , one term after the other, q < 4 and i < LANES."""
    p, q, s = o + stride, o + 2 * stride, o + 3 * stride
    v0, v1, v2, v3 = _load_lanes(y, o), _load_lanes(y, p), _load_lanes(y, q), _load_lanes(y, s)
    for j in range(count):
        signs = _load_lanes(b, begin + j * LANES)
        v0 = _add_signs(v0, c[r, j], signs)
        v1 = _add_signs(v1, c[r + 1, j], signs)
        v2 = _add_signs(v2, c[r + 2, j], signs)
        v3 = _add_signs(v3, c[r + 3, j], signs)
    _store_lanes(y, o, v0)
    _store_lanes(y, p, v1)
    _store_lanes(y, q, v2)
    _store_lanes(y, s, v3)


@kernel
def _add_rank1_block(y, origin, stride, height, width, row, column, rows, columns, coefs, first, last):
    """Terms first … last − 1 on `height` rows of `width` numbers, of which the first is at (row, column) of the matrix
    and at y[origin], each `stride` after the one before.

    Sums of four rows stay in registers for `DEPTH` terms. What is no whole block of four rows and LANES columns is
    copied into one and back.
    """
    b, terms = columns.reshape(-1), columns.shape[1]
    c = np.zeros((height + 3, min(DEPTH, last - first)), np.float32)
    spare = np.zeros(4 * LANES, np.float32)
    for begin in range(first, last, DEPTH):
        end = min(begin + DEPTH, last)
        _sign_rows(c, row, height, rows, coefs, begin, end)
        for k in range(column // LANES, (column + width + LANES - 1) // LANES):
            left, right = max(column, k * LANES), min(column + width, k * LANES + LANES)
            shift = left - k * LANES
            for r in range(0, height, 4):
                o, many = origin + r * stride + left - column, min(4, height - r)
                whole = right - left == LANES and many == 4
                part, place, step = (y, o, stride) if whole else (spare, 0, LANES)
                if not whole:
                    for q in range(many):
                        for i in range(right - left):
                            spare[q * LANES + shift + i] = y[o + q * stride + i]
                _add_four_rows(part, place, step, c, r, b, (k * terms + begin) * LANES, end - begin)
                if not whole:
                    for q in range(many):
                        for i in range(right - left):
                            y[o + q * stride + i] = spare[q * LANES + shift + i]


@kernel
def _add_rank1(y, m, chunk, stream, coefs, first, last):
    """Terms first … last − 1 on the m coordinates of a chunk, which begins somewhere in a row: what is left of that
    row, whole rows, and the beginning of another one."""
    rows, columns, width = stream[1], stream[2], stream[3]
    row, column, o = chunk * CHUNK // width, chunk * CHUNK % width, 0
    while o < m:
        size = min(width - column, m - o)
        height = max(1, (m - o) // width) if column == 0 else 1
        _add_rank1_block(y, o, size, height, size, row, column, rows, columns, coefs, first, last)
        o += height * size
        row += height
        column = 0


# Compiling takes seconds for every kernel that is part of another one, so those of rank one are part of few.
@inlined
def _add_flat(y, m, chunk, tensor, stream, keys, coefs, first, last):
    """Of streams that do not know of matrices."""
    if stream[0] == _GAUSSIAN:
        _add_gaussian(y, m, chunk * 32, tensor, keys, coefs, first, last)
    else:
        _add_rademacher(y, m, chunk, tensor, keys, coefs, first, last)


@inlined
def _add_terms(y, m, chunk, tensor, stream, keys, coefs, first, last):
    """stream: its number, and if it is of rank one the factors of all terms (`_factors`) and the number of columns."""
    if stream[0] == _RANK1:
        _add_rank1(y, m, chunk, stream, coefs, first, last)
    else:
        _add_flat(y, m, chunk, tensor, stream, keys, coefs, first, last)


@kernel
def _generate(rows, tensor, stream, keys, lo, hi):
    """rows[j] ← z of term j, chunks lo … hi − 1; not of rank one."""
    ones = np.ones(keys.size, np.float32)
    z = np.empty(128, np.float32)
    for chunk in range(lo, hi):
        for j in range(keys.size):
            y = rows[j, chunk * CHUNK : chunk * CHUNK + CHUNK]
            m = y.size
            if stream[0] == _GAUSSIAN:  # not 0 + z, which would lose the sign of −0
                for g in range((m + 127) // 128):
                    _gaussian128(z, chunk * 32 + g, tensor, keys[j])
                    for i in range(min(128, m - g * 128)):
                        y[g * 128 + i] = z[i]
            else:
                y[:] = f32(0)
                _add_rademacher(y, m, chunk, tensor, keys, ones, j, j + 1)


@kernel
def _generate_rank1(rows, stream, lo, hi):
    """The same of rank one."""
    ones = np.ones(rows.shape[0], np.float32)
    for chunk in range(lo, hi):
        for j in range(rows.shape[0]):
            y = rows[j, chunk * CHUNK : chunk * CHUNK + CHUNK]
            y[:] = f32(0)
            _add_rank1(y, y.size, chunk, stream, ones, j, j + 1)


@kernel
def _generate_groups(out, tensor, key, groups):
    z = np.empty(128, np.float32)
    for g in groups:
        _gaussian128(z, g, tensor, key)
        o = g * 128
        for i in range(min(128, out.size - o)):
            out[o + i] = z[i]


@kernel
def _rule_step(rule, x, m0, v0, grad, m, h):
    """One step of a rule with memory (Rule states the equations); `grad` holds G."""
    if rule == _MOMENTUM:
        for i in range(m):
            mo = f32(f32(h[1] * m0[i]) + f32(h[2] * grad[i]))
            m0[i] = mo
            x[i] = f32(x[i] - f32(h[0] * mo))
    elif rule == _ADAM:
        for i in range(m):
            g = grad[i]
            mo = f32(f32(h[1] * m0[i]) + f32(h[2] * g))
            ve = f32(f32(h[3] * v0[i]) + f32(h[4] * f32(g * g)))
            m0[i] = mo
            v0[i] = ve
            x[i] = f32(x[i] - f32(f32(h[0] * mo) / f32(math.sqrt(ve) + h[5])))
    elif rule == _SIGN:
        for i in range(m):
            s = f32(1) if grad[i] > f32(0) else (f32(-1) if grad[i] < f32(0) else f32(0))
            x[i] = f32(x[i] - f32(h[0] * s))


@inlined
def _step(rule, y, a, b, grad, m, chunk, tensor, stream, keys, coefs, first, last, h):
    if rule == 0:
        _add_flat(y, m, chunk, tensor, stream, keys, coefs, first, last)
    else:
        grad[:m] = f32(0)
        _add_flat(grad, m, chunk, tensor, stream, keys, coefs, first, last)
        _rule_step(rule, y, a, b, grad, m, h)


@kernel
def _advance32(x, slot0, slot1, tensor, stream, rule, keys, coefs, ends, hypers, lo, hi):
    grad = np.empty(CHUNK, np.float32)
    for chunk in range(lo, hi):
        o = chunk * CHUNK
        y, a, b = x[o : o + CHUNK], slot0[o : o + CHUNK], slot1[o : o + CHUNK]
        first = 0
        for s in range(ends.size):
            _step(rule, y, a, b, grad, y.size, chunk, tensor, stream, keys, coefs, first, ends[s], hypers[s])
            first = ends[s]


@kernel
def _points32(x, out, tensor, stream, keys, coefs, ends, lo, hi):
    """A row of `out` for every point: x, and the point's terms added one by one as `_advance32` does."""
    for chunk in range(lo, hi):
        o = chunk * CHUNK
        first = 0
        for p in range(ends.size):
            y = out[p, o : o + CHUNK]
            y[:] = x[o : o + CHUNK]
            _add_terms(y, y.size, chunk, tensor, stream, keys, coefs, first, ends[p])
            first = ends[p]


@inlined
def _from16(bits, bfloat):
    if bfloat:
        return f32(u32(u32(bits) << u32(16)).view(np.float32))
    magnitude = u32(bits & u16(0x7FFF))
    exponent = u32(magnitude >> u32(10))
    sign = u32(u32(bits & u16(0x8000)) << u32(16))
    if exponent == u32(31):
        value = u32(u32(magnitude << u32(13)) + u32(0x70000000))
    elif exponent > u32(0):
        value = u32(u32(magnitude << u32(13)) + u32(112 << 23))
    else:
        value = f32(f32(magnitude) * f32(2.0**-24)).view(np.uint32)
    return f32(u32(value | sign).view(np.float32))


@inlined
def _to16(x, random, bfloat):
    """float32 to 16 bits: up with the probability that `random` (16 bits) gives it; reference.py says how."""
    bits = f32(x).view(np.uint32)
    if x != x:
        return u16(0x7FC0) if bfloat else u16(0x7E00)
    if bfloat:
        return u16(u64(u64(bits) + u64(random)) >> u64(16))
    magnitude = i64(u32(bits & u32(0x7FFFFFFF)))
    exponent = i64(magnitude >> i64(23))
    if exponent >= 113:
        value = i64(((magnitude + i64(random >> u32(3))) >> i64(13)) - (112 << 10))
    else:
        drop = min(max(126 - exponent, 14), 40)
        mantissa = magnitude & 0x7FFFFF
        if exponent > 0:
            mantissa |= 0x800000
        noise = i64(random) >> (16 - drop) if drop <= 16 else i64(random) << (drop - 16)
        value = (mantissa + noise) >> drop
    return u16(u16(u32(bits >> u32(16)) & u32(0x8000)) | u16(min(value, i64(0x7C00))))


@inlined
def _nearest_bits(x, bfloat):
    """The `random` that makes `_to16` round to nearest even, as ordinary arithmetic does."""
    bits = f32(x).view(np.uint32)
    if bfloat:
        return u32(u32(0x7FFF) + u32(u32(bits >> u32(16)) & u32(1)))
    magnitude = u32(bits & u32(0x7FFFFFFF))
    exponent = i64(magnitude >> u32(23))
    if exponent >= 113:
        return u32(u32(u32(0x0FFF) + u32(u32(magnitude >> u32(13)) & u32(1))) << u32(3))
    drop = min(max(126 - exponent, 14), 40)
    mantissa = i64(magnitude & u32(0x7FFFFF))
    if exponent > 0:
        mantissa |= 0x800000
    half = i64(1) << (drop - 1)
    bump = half if ((mantissa >> drop) & 1) != 0 else half - 1
    if drop <= 16:
        return u32(bump << (16 - drop))
    # More bits are dropped than `random` has: all of them or none decide.
    return u32(0xFFFF) if ((mantissa + bump) >> drop) > (mantissa >> drop) else u32(0)


@kernel
def _round_bfloat16(y, out, random):
    """`_to16` and back for the most frequent case, in 32-bit operations alone, so that LLVM makes vectors of it."""
    for i in range(y.size):
        bits = f32(y[i]).view(np.uint32)
        high = u32(u32(bits + random[i]) >> u32(16))  # no carry out of 32 bits but for NaN
        high = high if y[i] == y[i] else u32(0x7FC0)
        out[i] = u16(high)
        y[i] = u32(high << u32(16)).view(np.float32)


@kernel
def _round_span(y, out, begin, tensor, key, stochastic, bfloat):
    """Round coordinates begin, begin + 1, … of a tensor to 16 bits and put what was stored back into `y`."""
    random = np.empty(256, np.uint32)
    end = begin + y.size
    for group in range(begin // 256, (end + 255) // 256):
        if stochastic:
            for lane in range(32):
                a, b, c, d = _block(group, lane, tensor, _ROUNDING, key)
                random[lane], random[32 + lane] = u32(a & u32(0xFFFF)), u32(a >> u32(16))
                random[64 + lane], random[96 + lane] = u32(b & u32(0xFFFF)), u32(b >> u32(16))
                random[128 + lane], random[160 + lane] = u32(c & u32(0xFFFF)), u32(c >> u32(16))
                random[192 + lane], random[224 + lane] = u32(d & u32(0xFFFF)), u32(d >> u32(16))
        first = max(group * 256, begin)
        size = min(group * 256 + 256, end) - first
        part, stored = y[first - begin : first - begin + size], out[first - begin : first - begin + size]
        noises = random[first - group * 256 : first - group * 256 + size]
        if stochastic and bfloat:
            _round_bfloat16(part, stored, noises)
        else:
            for i in range(size):
                noise = noises[i] if stochastic else _nearest_bits(part[i], bfloat)
                stored[i] = _to16(part[i], noise, bfloat)
                part[i] = _from16(stored[i], bfloat)


@kernel
def _advance16(
    x, out, slot0, slot1, tensor, stream, rule, keys, coefs, ends, hypers, rounding, stochastic, bfloat, lo, hi
):
    grad, y = np.empty(CHUNK, np.float32), np.empty(CHUNK, np.float32)
    for chunk in range(lo, hi):
        o = chunk * CHUNK
        bits, a, b = x[o : o + CHUNK], slot0[o : o + CHUNK], slot1[o : o + CHUNK]
        m = bits.size
        for i in range(m):
            y[i] = _from16(bits[i], bfloat)
        first = 0
        for s in range(ends.size):
            _step(rule, y, a, b, grad, m, chunk, tensor, stream, keys, coefs, first, ends[s], hypers[s])
            first = ends[s]
            _round_span(y[:m], out[o : o + m], o, tensor, rounding[s], stochastic, bfloat)


@inlined
def _load(bits, wide, bfloat):
    return f32(u32(bits).view(np.float32)) if wide else _from16(u16(bits), bfloat)


@inlined
def _nearest(value, wide, bfloat):
    return f32(value).view(np.uint32) if wide else u32(_to16(value, _nearest_bits(value, bfloat), bfloat))


@kernel
def _load_span(y, bits, bfloat):
    """y ← stored 16-bit numbers; the type is asked for once, so that each loop can be vectorised."""
    if bfloat:
        for i in range(y.size):
            y[i] = _load(bits[i], False, True)
    else:
        for i in range(y.size):
            y[i] = _load(bits[i], False, False)


@inlined
def _tile(tile, down, across, height, width, stripes):
    """Row, column, height and width of a tile: tiles follow each other along the rows, or down the columns."""
    if stripes:
        above = (down + height - 1) // height
        row, column = (tile % above) * height, (tile // above) * width
    else:
        beside = (across + width - 1) // width
        row, column = (tile // beside) * height, (tile % beside) * width
    return row, column, min(height, down - row), min(width, across - column)


@kernel
def _advance_rank1_32(x, slot0, slot1, stream, rule, coefs, ends, hypers, height, width, stripes, lo, hi):
    """Steps on tiles lo … hi − 1 of a matrix, each of height × width numbers, in place."""
    rows, columns, across = stream[1], stream[2], stream[3]
    grad = np.empty(height * width, np.float32)
    for tile in range(lo, hi):
        row, column, h, w = _tile(tile, x.size // across, across, height, width, stripes)
        begin, first = row * across + column, 0
        for s in range(ends.size):
            if rule == 0:
                _add_rank1_block(x, begin, across, h, w, row, column, rows, columns, coefs, first, ends[s])
            else:
                grad[:] = f32(0)
                _add_rank1_block(grad, 0, w, h, w, row, column, rows, columns, coefs, first, ends[s])
                for r in range(h):
                    where = slice(begin + r * across, begin + r * across + w)
                    _rule_step(rule, x[where], slot0[where], slot1[where], grad[r * w : r * w + w], w, hypers[s])
            first = ends[s]


@kernel
def _advance_rank1_16(
    x, out, slot0, slot1, tensor, stream, rule, coefs, ends, hypers, rounding, stochastic, bfloat, height, width,
    stripes, lo, hi,
):  # fmt: skip
    """The same of 16-bit numbers, as bits, that are rounded after every step.

    A tile as wide as the matrix is one stretch of memory, a narrower one is one stretch a row.
    """
    rows, columns, across = stream[1], stream[2], stream[3]
    y, grad = np.empty(height * width, np.float32), np.empty(height * width, np.float32)
    for tile in range(lo, hi):
        row, column, h, w = _tile(tile, x.size // across, across, height, width, stripes)
        spans, size = (1, h * w) if w == across else (h, w)
        for r in range(spans):
            o, begin = r * size, (row + r) * across + column
            _load_span(y[o : o + size], x[begin : begin + size], bfloat)
        first = 0
        for s in range(ends.size):
            if rule == 0:
                _add_rank1_block(y, 0, w, h, w, row, column, rows, columns, coefs, first, ends[s])
            else:
                grad[:] = f32(0)
                _add_rank1_block(grad, 0, w, h, w, row, column, rows, columns, coefs, first, ends[s])
            first = ends[s]
            for r in range(spans):
                o, begin = r * size, (row + r) * across + column
                part, where = y[o : o + size], slice(begin, begin + size)
                if rule != 0:
                    _rule_step(rule, part, slot0[where], slot1[where], grad[o : o + size], size, hypers[s])
                _round_span(part, out[where], begin, tensor, rounding[s], stochastic, bfloat)


@kernel
def _rows(x, ids, out, wide, bfloat, tensor, stream, keys, coefs):
    """out[r] ← x[ids[r]] + Σ c z, by whole pieces (groups of gaussians, chunks of signs) that overlap the row."""
    width = x.shape[1]
    size = 128 if stream[0] == _GAUSSIAN else CHUNK
    y = np.empty(size, np.float32)
    for r in range(ids.size):
        begin = ids[r] * width
        for piece in range(begin // size, (begin + width + size - 1) // size):
            first, last = max(piece * size, begin), min(piece * size + size, begin + width)
            y[:] = f32(0)
            for i in range(first, last):
                y[i - piece * size] = _load(x[ids[r], i - begin], wide, bfloat)
            if stream[0] == _GAUSSIAN:
                _add_gaussian(y, size, piece, tensor, keys, coefs, 0, keys.size)
            elif stream[0] == _RADEMACHER:
                _add_rademacher(y, size, piece, tensor, keys, coefs, 0, keys.size)
            else:
                o, w, column = first - piece * size, last - first, first - begin
                _add_rank1_block(y, o, w, 1, w, ids[r], column, stream[1], stream[2], coefs, 0, keys.size)
            for i in range(first, last):
                out[r, i - begin] = _nearest(y[i - piece * size], wide, bfloat)


@kernel
def _round16(source, out, tensor, key, bfloat, lo, hi):
    y = np.empty(CHUNK, np.float32)
    for chunk in range(lo, hi):
        part = source[chunk * CHUNK : chunk * CHUNK + CHUNK]
        m = part.size
        y[:m] = part
        _round_span(y[:m], out[chunk * CHUNK : chunk * CHUNK + m], chunk * CHUNK, tensor, key, True, bfloat)


@kernel
def _checksum(bits, lo, hi):
    total = u64(0)
    for i in range(lo * CHUNK, min(hi * CHUNK, bits.size)):
        h = u64(u64(i) * _GOLDEN + u64(bits[i]))
        h = u64((h ^ (h >> u64(33))) * _H0)
        h = u64((h ^ (h >> u64(33))) * _H1)
        total += h ^ (h >> u64(33))
    return total


@kernel
def _squares(n, tensor, key, lo, hi):
    z = np.empty(128, np.float32)
    total = i64(0)
    for group in range(lo * 32, min(hi * 32, (n + 127) // 128)):
        _gaussian128(z, group, tensor, key)
        for i in range(min(128, n - group * 128)):
            total += i64(f32(f32(z[i] * z[i]) * _SCALE))
    return total
