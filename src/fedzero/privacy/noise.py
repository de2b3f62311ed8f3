"""Integers that are Gaussian noise, drawn exactly from random bytes.

    rounded_gaussian     the nearest integer to N(0, σ²): for noise that one party adds. For an integer x,
                         x + round(G) = round(x + G): a function of x + G, so bounds of the continuous mechanism hold
    discrete_gaussian    P(z) ∝ exp(−z²/(2σ²)) on the integers: for noise that several parties add, whose sum has a
                         bound of its own (`renyi.sum_of_discrete_gaussians`)

Every decision compares integers, and every real number is compared digit by digit until the answer is certain. So the
distributions are exact if the bytes are uniform: there is no error to bound. Floating-point noise has gaps and
repetitions that tell its input (Mironov 2012). How long a draw takes depends on its value: pad what others can time.
"""

from __future__ import annotations

from fractions import Fraction
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from fedzero.errors import Invalid
from fedzero.privacy.words import BITS, Draws, Word, below, survives, words

LARGEST = 1 << 56
"""Of σ: a draw beyond 64 bits is then 64 standard deviations away."""
Digits = list[int]
"""A uniform number of (0, 1): as many of its binary digits as were needed so far, 64 an entry; more are drawn on
demand."""


def rounded_gaussian(sigma: Fraction | float, count: int, draws: Draws) -> NDArray[np.int64]:
    """count integers round(σ N(0, 1)), by algorithm N of Karney, "Sampling exactly from the normal distribution"
    (arXiv:1303.6257). A float is taken as the fraction that it is."""
    size = _checked(Fraction(sigma), "sigma")
    word = words(draws)
    return np.array([_rounded(size, word) for _ in range(count)], np.int64)


def discrete_gaussian(variance: Fraction | float, count: int, draws: Draws) -> NDArray[np.int64]:
    """count integers z with P(z) ∝ exp(−z²/(2 variance)), by algorithm 3 of Canonne, Kamath and Steinke, "The discrete
    Gaussian for differential privacy" (arXiv:2004.00010)."""
    size = _checked(Fraction(variance), "variance", LARGEST**2)
    word = words(draws)
    return np.array([_discrete(size, word) for _ in range(count)], np.int64)


def _checked(size: Fraction, name: str, most: int = LARGEST) -> Fraction:
    if not 0 < size <= most:
        raise Invalid(f"{name} = {float(size):g} is not valid: a number above 0, at most {most:g}")
    return size


def _rounded(sigma: Fraction, word: Word) -> int:
    """|N(0, 1)| = k + x with an integer k and x in (0, 1); σ (k + x) + 1/2 is known to lie between two multiples of
    1/2⁶⁴, 1/2¹²⁸ …, until both have the same integer below."""
    whole, digits = _normal(word)
    fraction, bits = 0, 0
    top, bottom = 2 * sigma.numerator, 2 * sigma.denominator
    place = 0
    while True:
        if place == len(digits):
            digits.append(word())
        fraction, bits = fraction << BITS | digits[place], bits + BITS
        scaled = top * ((whole << bits) + fraction) + (sigma.denominator << bits)
        least, most = scaled // (bottom << bits), (scaled + top) // (bottom << bits)
        if least == most:
            return least if word() & 1 else -least
        place += 1


def _normal(word: Word) -> tuple[int, Digits]:
    """(k, x) with density ∝ exp(−(k + x)²/2): k with weight exp(−k/2), kept with probability exp(−k(k − 1)/2), and then
    x, kept with probability exp(−x(2k + x)/2) = exp(−x(2k + x)/(2k + 2))^(k+1)."""
    while True:
        k = 0
        while _half(word):
            k += 1
        if not all(_half(word) for _ in range(k * (k - 1))):
            continue
        x = [word()]
        if all(_kept(k, x, word) for _ in range(k + 1)):
            return k, x


def _half(word: Word) -> bool:
    """True with probability exp(−1/2): the longest chain 1/2 > u₁ > u₂ > … has an even length (von Neumann)."""
    last = [word()]
    if last[0] >> (BITS - 1):
        return True
    even = False
    while True:
        fresh = [word()]
        if not _less(fresh, last, word):
            return even
        last, even = fresh, not even


def _kept(k: int, x: Digits, word: Word) -> bool:
    """True with probability exp(−x c), c = (2k + x)/(2k + 2): the longest chain x > u₁ > u₂ > …, each link of which
    also needs a success of probability c, has an even length."""
    last, even = x, True
    while True:
        fresh = [word()]
        if not _less(fresh, last, word):
            return even
        side = below(2 * k + 2, word)
        if side > 2 * k or (side == 2 * k and not _less([word()], x, word)):
            return even
        last, even = fresh, not even


def _less(a: Digits, b: Digits, word: Word) -> bool:
    """a < b; draws further digits of both while they are equal."""
    place = 0
    while a[place] == b[place]:
        place += 1
        for each in (a, b):
            if place == len(each):
                each.append(word())
    return a[place] < b[place]


def _discrete(variance: Fraction, word: Word) -> int:
    """A discrete Laplace number of scale t = ⌊σ⌋ + 1, kept with probability exp(−(|y| − σ²/t)²/(2σ²)). With σ² = a/b
    the exponent is (|y| t b − a)²/(2 a b t²)."""
    a, b = variance.numerator, variance.denominator
    t = isqrt(a // b) + 1
    while True:
        y = _laplace(t, word)
        if survives((abs(y) * t * b - a) ** 2, 2 * a * b * t * t, word):
            return y


def _laplace(t: int, word: Word) -> int:
    """P(y) ∝ exp(−|y|/t) (the same paper, algorithm 2)."""
    while True:
        rest = below(t, word)
        if not survives(rest, t, word):
            continue
        times = 0
        while survives(1, 1, word):
            times += 1
        size = rest + t * times
        if word() & 1:
            return size
        if size:
            return -size


__all__ = ["Draws", "discrete_gaussian", "rounded_gaussian"]
