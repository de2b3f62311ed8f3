"""Random words of 64 bits, and exact decisions made of them. Integer arithmetic only.

Each function here takes `word`, which returns an independent uniform integer of 0 … 2⁶⁴ − 1 with each call.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

Draws = Callable[[int], bytes]
"""Draws so many random bytes that nobody else knows: `os.urandom`, or `Entropy` of a link's contract."""
Word = Callable[[], int]

BITS = 64
BLOCK = 512
"""Words that are drawn at a time."""


def words(draws: Draws) -> Word:
    return _read(draws).__next__


def _read(draws: Draws) -> Iterator[int]:
    while True:
        yield from struct.unpack(f"<{BLOCK}Q", draws(BLOCK * BITS // 8))


def below(limit: int, word: Word) -> int:
    """Uniform on 0 … limit − 1: as many bits as limit − 1 has, again while they are too large."""
    bits = (limit - 1).bit_length()
    while True:
        found, have = 0, 0
        while have < bits:
            found, have = found << BITS | word(), have + BITS
        found >>= have - bits
        if found < limit:
            return found


def happens(numerator: int, denominator: int, word: Word) -> bool:
    """True with probability numerator/denominator ≤ 1, exactly: a uniform number of [0, 1) is compared with it, 64
    binary digits at a time, until they differ."""
    while True:
        digits, numerator = divmod(numerator << BITS, denominator)
        drawn = word()
        if drawn != digits:
            return drawn < digits


def survives(numerator: int, denominator: int, word: Word) -> bool:
    """True with probability exp(−numerator/denominator), exactly (Canonne, Kamath, Steinke 2020, algorithm 1).

    For γ ≤ 1 the first k with no success of probability γ/k is odd with probability Σ (−γ)ʲ/j! = exp(−γ).
    """
    while numerator > denominator:
        if not survives(1, 1, word):
            return False
        numerator -= denominator
    k = 1
    while happens(numerator, denominator * k, word):
        k += 1
    return k % 2 == 1
