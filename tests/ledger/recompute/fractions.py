"""Draws of numbers with fractions (docs/ledger.md, "Draws that are NumPy's own"), for a language without NumPy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from recompute.generator import Generator

R, R_EXPONENTIAL = 3.6541528853610087963519472518, 7.69711747013104972


@dataclass(frozen=True)
class Ziggurat:
    """256 layers each: widths, the integers below which a point is inside, and heights."""

    w: Sequence[Any]
    k: Sequence[int]
    f: Sequence[Any]


@dataclass(frozen=True)
class Tables:
    """NumPy's, of float64 and, with float32 numbers, of `short`."""

    normal: Ziggurat
    exponential: Ziggurat
    short: Ziggurat


class Fractions(Generator):
    def __init__(self, tables: Tables, root: bytes, purpose: str, *numbers: int):
        super().__init__(root, purpose, *numbers)
        self.tables = tables

    def random(self) -> float:
        return (self.word() >> 11) * 2.0**-53

    def random32(self) -> np.float32:
        return np.float32((self.half() >> 8) * 2.0**-24)

    def normal(self) -> float:
        w, k, f = self.tables.normal.w, self.tables.normal.k, self.tables.normal.f
        while True:
            word = self.word()
            i, a = word & 0xFF, word >> 9 & (1 << 52) - 1
            x = -a * w[i] if word >> 8 & 1 else a * w[i]
            if a < k[i]:
                return x
            if i == 0:
                while True:
                    t, v = -(1 / R) * math.log1p(-self.random()), -math.log1p(-self.random())
                    if 2 * v > t * t:
                        return -(R + t) if a >> 8 & 1 else R + t
            if (f[i - 1] - f[i]) * self.random() + f[i] < math.exp(-0.5 * x * x):
                return x

    def normal32(self) -> np.float32:
        """The same from 32 bits, in float32."""
        w, k, f = self.tables.short.w, self.tables.short.k, self.tables.short.f
        r, inverse = np.float32(R), np.float32(1 / R)
        while True:
            half = self.half()
            i, a = half & 0xFF, half >> 9
            x = np.float32(a) * w[i] * np.float32(-1 if half >> 8 & 1 else 1)
            if a < k[i]:
                return x
            if i == 0:
                while True:
                    t, v = -inverse * np.log1p(-self.random32()), -np.log1p(-self.random32())
                    if v + v > t * t:
                        return -(r + t) if a >> 8 & 1 else r + t
            if (f[i - 1] - f[i]) * self.random32() + f[i] < math.exp(-0.5 * float(x) * float(x)):
                return x

    def exponential(self) -> float:
        w, k, f = self.tables.exponential.w, self.tables.exponential.k, self.tables.exponential.f
        while True:
            word = self.word()
            i, a = word >> 3 & 0xFF, word >> 11
            x = a * w[i]
            if a < k[i]:
                return x
            if i == 0:
                return R_EXPONENTIAL - math.log1p(-self.random())
            if (f[i - 1] - f[i]) * self.random() + f[i] < math.exp(-x):
                return x

    def gamma(self, shape: float) -> float:
        if shape == 1:
            return self.exponential()
        if shape < 1:
            while True:
                u, e = self.random(), self.exponential()
                if u <= 1 - shape:
                    y, limit = u ** (1 / shape), e
                else:
                    tail = -math.log((1 - u) / shape)
                    y, limit = (1 - shape + shape * tail) ** (1 / shape), e + tail
                if y <= limit:
                    return y
        b = shape - 1 / 3
        c = 1 / math.sqrt(9 * b)
        while True:
            while (v := 1 + c * (x := self.normal())) <= 0:
                pass
            v, u = v * v * v, self.random()
            if u < 1 - 0.0331 * (x * x) * (x * x) or math.log(u) < 0.5 * x * x + b * (1 - v + math.log(v)):
                return b * v

    def beta(self, a: float, b: float) -> float:
        if a > 1 or b > 1:
            one, other = self.gamma(a), self.gamma(b)
            return one / (one + other)
        while True:
            u, v = self.random(), self.random()
            x, y = u ** (1 / a), v ** (1 / b)
            if x + y <= 1 and u + v > 0:
                if x > 0 and y > 0:
                    return x / (x + y)
                p, q = math.log(u) / a, math.log(v) / b
                p, q = p - max(p, q), q - max(p, q)
                return math.exp(p - math.log(math.exp(p) + math.exp(q)))

    def dirichlet(self, alpha: float, count: int) -> list[float]:
        if alpha >= 0.1:
            drawn = [self.gamma(alpha) for _ in range(count)]
            total = 0.0
            for each in drawn:
                total += each
            return [each * (1 / total) for each in drawn]
        shares, rest = list[float](), 1.0
        sums = list(accumulate([alpha] * (count - 1)))
        for others in reversed(sums):
            part = self.beta(alpha, others)
            shares.append(rest * part)
            rest *= 1 - part
        return [*shares, rest]
