"""The direction stream in plain NumPy: slow, obvious, and what tests compare the kernels with.

Read beside docs/directions.md. Arrays of float32 and uint32 only, so NumPy rounds after every operation, as specified.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedzero.directions import spec
from fedzero.directions.spec import Domain
from fedzero.directions.terms import F32

U32 = NDArray[np.uint32]


def philox(blocks: NDArray[np.uint64], tensor: int, domain: Domain, key: int) -> tuple[U32, U32, U32, U32]:
    """Philox4x32-10 at counters (block low, block high, tensor, domain); four words a block."""
    c0 = blocks.astype(np.uint32)
    c1 = (blocks >> np.uint64(32)).astype(np.uint32)
    c2 = np.full_like(c0, tensor)
    c3 = np.full_like(c0, domain)
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(spec.PHILOX_ROUNDS):
        p0 = c0.astype(np.uint64) * np.uint64(spec.PHILOX_M0)
        p1 = c2.astype(np.uint64) * np.uint64(spec.PHILOX_M1)
        c0, c1, c2, c3 = (
            (p1 >> np.uint64(32)).astype(np.uint32) ^ c1 ^ np.uint32(k0),
            p1.astype(np.uint32),
            (p0 >> np.uint64(32)).astype(np.uint32) ^ c3 ^ np.uint32(k1),
            p0.astype(np.uint32),
        )
        k0 = (k0 + spec.PHILOX_W0) & 0xFFFFFFFF
        k1 = (k1 + spec.PHILOX_W1) & 0xFFFFFFFF
    return c0, c1, c2, c3


def _polynomial(coefficients: tuple[float, ...], x: F32) -> F32:
    """Horner's rule, from the highest power down: multiply, round, add, round."""
    value = np.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = value * x + np.float32(coefficient)
    return value


def box_muller(radius_word: U32, angle_word: U32) -> tuple[F32, F32]:
    """Two standard gaussians from two words.

    u = (w | 1)/2³² = 2^k (1+t) gives the radius √(−log2 u); the angle word gives sign (bit 31), swap (bit 30) and an
    angle in ±π/4 (bits 0…22), so that sine and cosine need no range reduction.
    """
    bits = (radius_word | np.uint32(1)).astype(np.float32).view(np.int32) - np.int32(spec.LOG_BIAS)
    k = bits >> 23
    t = ((bits & 0x7FFFFF) + np.int32(spec.SQRT_HALF_BITS)).view(np.float32) - np.float32(1)
    r = np.sqrt((-k).astype(np.float32) - t * _polynomial(spec.LOG2, t))
    x = ((angle_word & np.uint32(0x7FFFFF)) | np.uint32(0x3F800000)).view(np.float32) - np.float32(1.5)
    y = x * x
    sine = (_polynomial(spec.SIN, y) * x) * r
    cosine = _polynomial(spec.COS, y) * r
    cosine = (cosine.view(np.uint32) ^ (angle_word & np.uint32(0x80000000))).view(np.float32)
    swap = (angle_word & np.uint32(0x40000000)) != 0
    return np.where(swap, sine, cosine), np.where(swap, cosine, sine)


def gaussian(key: int, tensor: int, n: int) -> F32:
    """Coordinate i: number (i div 32) mod 4 of block 32·(i div 128) + i mod 32."""
    chunks = -(-n // spec.GAUSSIAN_CHUNK)
    words = philox(np.arange(chunks * spec.LANES, dtype=np.uint64), tensor, Domain.GAUSSIAN, key)
    planes = (*box_muller(words[0], words[1]), *box_muller(words[2], words[3]))
    return np.stack([p.reshape(chunks, spec.LANES) for p in planes], axis=1).reshape(-1)[:n]


def rademacher(key: int, tensor: int, n: int) -> F32:
    """Coordinate i: bit i mod 8 of byte (i div 256) mod 16 of block 32·(i div 4096) + (i div 8) mod 32; 1 is −1."""
    chunks = -(-n // spec.RADEMACHER_CHUNK)
    words = philox(np.arange(chunks * spec.LANES, dtype=np.uint64), tensor, Domain.RADEMACHER, key)
    octets = np.stack(words, axis=1).astype("<u4").view(np.uint8).reshape(chunks, spec.LANES, 16)
    bits = np.unpackbits(octets.transpose(0, 2, 1).reshape(-1), bitorder="little")
    return (1 - 2 * bits.astype(np.float32))[:n]


def factor(key: int, tensor: int, n: int, domain: Domain) -> F32:
    """n signs: i is bit i mod 32 of word (i div 32) mod 4 of block i div 128; 1 is −1."""
    blocks = np.arange(-(-n // spec.FACTOR_BLOCK), dtype=np.uint64)
    octets = np.stack(philox(blocks, tensor, domain, key), axis=1).astype("<u4").view(np.uint8)
    return (1 - 2 * np.unpackbits(octets.reshape(-1), bitorder="little").astype(np.float32))[:n]


def factors(key: int, tensor: int, rows: int, columns: int) -> tuple[F32, F32]:
    """a (rows,) of the whole key and b (columns,) of its low half."""
    a = factor(key, tensor, rows, Domain.RANK1)
    return a, factor(key & spec.COLUMN_KEY, tensor, columns, Domain.RANK1_COLUMNS)


def rank1(key: int, tensor: int, n: int, columns: int) -> F32:
    """z = a bᵀ of a matrix with so many columns, row by row; of a vector (no columns): signs."""
    if not columns:
        return rademacher(key, tensor, n)
    a, b = factors(key, tensor, n // columns, columns)
    return (a[:, None] * b).reshape(-1)


def direction(stream: Domain, key: int, tensor: int, n: int, columns: int = 0) -> F32:
    """z(key) of a tensor with n coordinates; columns: those of a matrix, 0 for a vector."""
    if stream is Domain.GAUSSIAN:
        return gaussian(key, tensor, n)
    if stream is Domain.RADEMACHER:
        return rademacher(key, tensor, n)
    if stream is Domain.RANK1:
        return rank1(key, tensor, n, columns)
    raise ValueError(f"{stream!r} is no stream of directions")


def rounding_bits(key: int, tensor: int, n: int) -> NDArray[np.uint32]:
    """16 random bits a coordinate i, with j = (i div 32) mod 8: half j mod 2 of word j div 2 of block
    32·(i div 256) + i mod 32."""
    chunks = -(-n // spec.ROUNDING_CHUNK)
    words = philox(np.arange(chunks * spec.LANES, dtype=np.uint64), tensor, Domain.ROUNDING, key)
    halves = [half for word in words for half in (word & np.uint32(0xFFFF), word >> np.uint32(16))]
    return np.stack([h.reshape(chunks, spec.LANES) for h in halves], axis=1).reshape(-1)[:n]


def round_bfloat16(x: F32, random: NDArray[np.uint32]) -> NDArray[np.uint16]:
    """Stochastic rounding to bfloat16 (as bits): up with probability (dropped bits)/2¹⁶. NaN stays NaN."""
    bits = x.view(np.uint32)
    rounded = ((bits.astype(np.uint64) + random) >> np.uint64(16)).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), rounded)


def round_float16(x: F32, random: NDArray[np.uint32]) -> NDArray[np.uint16]:
    """Stochastic rounding to float16 (as bits), subnormals included; beyond 65504 to infinity."""
    bits = x.view(np.uint32)
    sign = ((bits >> np.uint32(16)) & np.uint32(0x8000)).astype(np.uint16)
    magnitude = (bits & np.uint32(0x7FFFFFFF)).astype(np.int64)
    exponent = magnitude >> 23
    normal = ((magnitude + (random >> np.uint32(3))) >> 13) - (112 << 10)
    # Below 2⁻¹⁴ the unit is 2⁻²⁴ whatever the exponent: more bits are dropped the smaller the number.
    drop = np.clip(126 - exponent, 14, 40)
    mantissa = np.where(exponent > 0, (magnitude & 0x7FFFFF) | 0x800000, magnitude & 0x7FFFFF)
    wide = random.astype(np.int64)
    noise = np.where(drop <= 16, wide >> np.maximum(16 - drop, 0), wide << np.maximum(drop - 16, 0))
    small = (mantissa + noise) >> drop
    result = np.minimum(np.where(exponent >= 113, normal, small), 0x7C00)
    return np.where(np.isnan(x), np.uint16(0x7E00), sign | result.astype(np.uint16))


def checksum(bits: NDArray[np.uint32] | NDArray[np.uint16]) -> int:
    """Σ_i mix(i, bits_i) mod 2⁶⁴, mix the MurmurHash3 finaliser of i·GOLDEN + bits_i."""
    h = np.arange(bits.size, dtype=np.uint64) * np.uint64(spec.CHECK_GOLDEN) + bits.astype(np.uint64)
    h = (h ^ (h >> np.uint64(33))) * np.uint64(spec.CHECK_M0)
    h = (h ^ (h >> np.uint64(33))) * np.uint64(spec.CHECK_M1)
    return int(np.sum(h ^ (h >> np.uint64(33)), dtype=np.uint64))


def squares(key: int, tensor: int, n: int) -> int:
    """Σ_i ⌊z_i² · 2²⁴⌋ of a gaussian direction: ‖z‖² as an integer that needs no order of summation."""
    z = gaussian(key, tensor, n)
    return int(np.sum((z * z * np.float32(spec.SQUARES_SCALE)).astype(np.int64)))
