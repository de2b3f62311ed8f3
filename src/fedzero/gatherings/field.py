"""Vectors over the field F_p, p = 2⁶¹ − 1, as arrays of uint64 below p; exact.

A product of two numbers below 2⁶¹ does not fit into 64 bits. It is made of halves, a = 2³¹ a₁ + a₀, and reduced by
2⁶¹ ≡ 1:

    ab = 2⁶² a₁b₁ + 2³¹ (a₁b₀ + a₀b₁) + a₀b₀ ≡ 2 a₁b₁ + 2³¹ m + a₀b₀,    2³¹ m ≡ ⌊m / 2³⁰⌋ + 2³¹ (m mod 2³⁰)

The four parts are below 2⁶¹, 2³², 2⁶¹ and 2⁶², so their sum fits.

Signed integers of magnitude up to (p − 1)/2 are the numbers below p/2 and, negative ones, those above.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedzero.directions.terms import F32
from fedzero.errors import Refused

P = (1 << 61) - 1
LARGEST = 1 << 40
"""The largest magnitude of an integer that a host gives: a sum over fewer than 2¹⁹ hosts stays in the field, and is
exact in float64 up to 2¹³ hosts of that size."""
WIDTH = 8
"""Bytes of a number."""
U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]
_P, _61, _32, _31, _30 = np.uint64(P), np.uint64(61), np.uint64(32), np.uint64(31), np.uint64(30)
_LOW32, _LOW31, _LOW30 = np.uint64((1 << 32) - 1), np.uint64((1 << 31) - 1), np.uint64((1 << 30) - 1)
_TWO32, _ONE = np.full(1, 1 << 32, np.uint64), np.uint64(1)


def reduced(x: U64) -> U64:
    """Any uint64 modulo p."""
    once = (x & _P) + (x >> _61)
    return np.where(once >= _P, once - _P, once)


def add(a: U64, b: U64) -> U64:
    return reduced(a + b)


def multiply(a: U64, b: U64) -> U64:
    high, low = a >> _31, a & _LOW31
    top, bottom = b >> _31, b & _LOW31
    middle = high * bottom + low * top
    return reduced((high * top << _ONE) + (middle >> _30) + ((middle & _LOW30) << _31) + low * bottom)


def total(vectors: U64) -> U64:
    """The sum over the last axis but one, of up to 2³¹ vectors: Σ x = 2³² Σ ⌊x / 2³²⌋ + Σ (x mod 2³²)."""
    high = (vectors >> _32).sum(axis=-2, dtype=np.uint64)
    low = (vectors & _LOW32).sum(axis=-2, dtype=np.uint64)
    return add(multiply(reduced(high), _TWO32), reduced(low))


def of_integers(integers: I64) -> U64:
    if len(integers) and int(np.abs(integers).max()) > P // 2:
        raise Refused("an integer is too large for the field")
    return np.where(integers < 0, integers + P, integers).astype(np.uint64)


def integers_of(vector: U64) -> I64:
    signed = vector.astype(np.int64)
    return np.where(signed > P // 2, signed - P, signed)


def fixed(values: F32, scale: float, exact: bool) -> I64:
    """The integers k of values k / scale, scale a power of two. exact: refuse other values, which are otherwise rounded
    to the nearest, ties to even."""
    scaled = values.astype(np.float64) * scale  # exact: a float32 times a power of two
    found = np.rint(scaled)
    if not np.isfinite(scaled).all() or (len(found) and np.abs(found).max() > LARGEST):
        raise Refused(f"a value is larger than {LARGEST / scale:g}, the largest of a sum of this scale")
    if exact and (found != scaled).any():
        raise Refused(f"a value is no multiple of 1/{scale:g}")
    return found.astype(np.int64)


def to_bytes(vector: U64) -> bytes:
    return vector.astype("<u8").tobytes()


def from_bytes(data: bytes, count: int) -> U64:
    """The `count` numbers of a message; `Refused` if there are more or fewer, or one is not below p."""
    if len(data) != WIDTH * count:
        raise Refused(f"sent {len(data)} bytes where {WIDTH * count} were expected")
    found = np.frombuffer(data, "<u8").astype(np.uint64)
    if (found >= _P).any():
        raise Refused("sent a number that is not in the field")
    return found


def uniform(data: bytes) -> U64:
    """Numbers made of random bytes, 8 each. 61 bits of 2⁶¹ are p, which is 0 again: the statistical distance from the
    uniform distribution is below 2⁻⁶⁰ a number."""
    return reduced(np.frombuffer(data, "<u8").astype(np.uint64) & _P)
