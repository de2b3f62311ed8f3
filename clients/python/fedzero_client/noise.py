"""Discrete Gaussian noise, P(z) ∝ exp(−z²/(2 variance)) on the integers, drawn exactly: algorithms 1 to 3 of Canonne,
Kamath and Steinke (arXiv:2004.00010). Every decision compares integers."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from fractions import Fraction
from math import isqrt

BLOCK = 512
"""Words of 64 bits that are drawn at a time."""
Word = Callable[[], int]


def discrete_gaussian(variance: Fraction, count: int, entropy: Callable[[int], bytes]) -> list[int]:
    word = _words(entropy).__next__
    return [_gaussian(variance, word) for _ in range(count)]


def _words(entropy: Callable[[int], bytes]) -> Iterator[int]:
    while True:
        yield from struct.unpack(f"<{BLOCK}Q", entropy(8 * BLOCK))


def _gaussian(variance: Fraction, word: Word) -> int:
    """A discrete Laplace number of scale t = ⌊σ⌋ + 1, kept with probability exp(−(|y| − σ²/t)²/(2σ²)); σ² = a/b."""
    a, b = variance.numerator, variance.denominator
    t = isqrt(a // b) + 1
    while True:
        y = _laplace(t, word)
        if _survives((abs(y) * t * b - a) ** 2, 2 * a * b * t * t, word):
            return y


def _laplace(t: int, word: Word) -> int:
    """P(y) ∝ exp(−|y|/t)"""
    while True:
        rest = _below(t, word)
        if not _survives(rest, t, word):
            continue
        times = 0
        while _survives(1, 1, word):
            times += 1
        size = rest + t * times
        if word() & 1:
            return size
        if size:
            return -size


def _survives(numerator: int, denominator: int, word: Word) -> bool:
    """True with probability exp(−numerator/denominator)."""
    while numerator > denominator:
        if not _survives(1, 1, word):
            return False
        numerator -= denominator
    k = 1
    while _happens(numerator, denominator * k, word):
        k += 1
    return k % 2 == 1


def _happens(numerator: int, denominator: int, word: Word) -> bool:
    """True with probability numerator/denominator: a uniform number of [0, 1) is compared with it, digit by digit."""
    while True:
        digits, numerator = divmod(numerator << 64, denominator)
        drawn = word()
        if drawn != digits:
            return drawn < digits


def _below(limit: int, word: Word) -> int:
    """Uniform on 0 … limit − 1."""
    bits = (limit - 1).bit_length()
    while True:
        found, have = 0, 0
        while have < bits:
            found, have = found << 64 | word(), have + 64
        found >>= have - bits
        if found < limit:
            return found
