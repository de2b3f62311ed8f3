"""The draws of README.md in Python: a batch without replacement, and a Poisson batch."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from fedzero.directions.reference import philox

SAMPLE, COINS = 6, 7
"""Domains of the two draws."""


def words(key: int, domain: int) -> Iterator[int]:
    """Words of blocks 0, 1, … of a key, tensor 0."""
    block = 0
    while True:
        yield from (int(word[0]) for word in philox(np.array([block], np.uint64), 0, domain, key))  # type: ignore[arg-type]
        block += 1


def below(source: Iterator[int], n: int) -> int:
    """A number below n: m = word · n, again while m mod 2³² < 2³² mod n; the number is m div 2³²."""
    while (m := next(source) * n) % 2**32 < 2**32 % n:
        pass
    return m >> 32


def sample(key: int, count: int, size: int) -> list[int]:
    """`size` of 0 … count − 1, each set with the same probability (Floyd), ascending."""
    if size >= count:
        return list(range(count))
    source, taken = words(key, SAMPLE), set[int]()
    for last in range(count - size, count):
        place = below(source, last + 1)
        taken.add(last if place in taken else place)
    return sorted(taken)


def poisson(key: int, count: int, rate: float) -> list[int]:
    """Each of 0 … count − 1 whose coin, 64 bits, is below rate · 2⁶⁴."""
    source, limit = words(key, COINS), Fraction(rate) * 2**64
    coins = [next(source) | next(source) << 32 for _ in range(count)]
    return [unit for unit, coin in enumerate(coins) if coin < (limit.numerator // limit.denominator)]
