"""Draws of whole numbers (docs/ledger.md, "The generator"): Philox4x64-10, bounded numbers, permutations, choices."""

from __future__ import annotations

from collections.abc import Callable

from recompute.stream import derived

ONES = (1 << 64) - 1


class Generator:
    def __init__(self, root: bytes, purpose: str, *numbers: int):
        self.key, self.block, self._left = derived(root, purpose, *numbers), 0, list[int]()
        self._high: int | None = None

    def _words(self) -> list[int]:
        """Four words of 64 bits: the next block; the first has number 1."""
        self.block += 1
        c, k = [self.block, 0, 0, 0], [self.key, 0]
        for _ in range(10):
            p0, p1 = c[0] * 0xD2E7470EE14C6C93, c[2] * 0xCA5A826395121157
            c = [(p1 >> 64) ^ c[1] ^ k[0], p1 & ONES, (p0 >> 64) ^ c[3] ^ k[1], p0 & ONES]
            k = [(k[0] + 0x9E3779B97F4A7C15) & ONES, (k[1] + 0xBB67AE8584CAA73B) & ONES]
        return c

    def word(self) -> int:
        """The next 64 bits."""
        if not self._left:
            self._left = self._words()
        return self._left.pop(0)

    def half(self) -> int:
        """The next 32 bits: the low half of a word, then its high half, which waits while words are taken."""
        if self._high is not None:
            high, self._high = self._high, None
            return high
        word = self.word()
        self._high = word >> 32
        return word & 0xFFFFFFFF

    def below(self, n: int) -> int:
        """A number from 0 to n − 1, n < 2³²."""
        if n == 1:
            return 0
        product = self.half() * n
        while product % 2**32 < (2**32 - n) % n:
            product = self.half() * n
        return product >> 32

    def _masked(self, n: int) -> int:
        """The same by another way: the low bits of 32, until they are below n."""
        mask = (1 << (n - 1).bit_length()) - 1
        while (drawn := self.half() & mask) >= n:
            pass
        return drawn

    def permuted(self, n: int) -> list[int]:
        """0 … n − 1 in random order."""
        return self._exchanged(n, 1, self._masked)

    @staticmethod
    def _exchanged(n: int, first: int, draw: Callable[[int], int]) -> list[int]:
        """0 … n − 1 with places n − 1 down to `first` exchanged with one at or before them."""
        order = list(range(n))
        for i in range(n - 1, first - 1, -1):
            j = draw(i + 1)
            order[i], order[j] = order[j], order[i]
        return order

    def chosen(self, n: int, size: int) -> list[int]:
        """`size` different ones of 0 … n − 1."""
        if n > 10_000 and size > n // 20:
            return self._exchanged(n, max(n - size, 1), self.below)[n - size :]
        found, seen = list[int](), set[int]()
        for j in range(n - size, n):
            drawn = self.below(j + 1)
            found.append(j if drawn in seen else drawn)
            seen.add(found[-1])
        return found
