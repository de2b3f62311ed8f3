"""Curves of any length in bounded memory: where there are too many points, neighbours become one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Thinned(Generic[T]):
    """At most `most` of the things added, in order, the first and the last among them as they are.

    Every entry stands for `stride` things: `merge` makes one of two neighbours. When all places are taken, the stride
    doubles. Fewer than `most` things are kept as they are.
    """

    def __init__(self, merge: Callable[[T, T], T], most: int = 1 << 16):
        self._merge, self._most = merge, most
        self._kept: list[T] = []
        self._stride = 1
        self._open: list[T] = []
        """what the next entry is made of: merged parts, the longest first, with how many things each stands for"""
        self._counts: list[int] = []
        self._ends: tuple[T, ...] = ()
        self.count = 0

    def add(self, thing: T) -> None:
        self._ends = (*self._ends[:1], thing)
        self.count += 1
        size = 1
        while self._counts and self._counts[-1] == size:
            thing, size = self._merge(self._open.pop(), thing), size + self._counts.pop()
        if size < self._stride:
            self._open.append(thing)
            self._counts.append(size)
            return
        self._kept.append(thing)
        if len(self._kept) == self._most:
            self._kept = [self._merge(a, b) for a, b in zip(self._kept[::2], self._kept[1::2], strict=True)]
            self._stride *= 2

    def things(self) -> tuple[T, ...]:
        found = [*self._kept, *self._open]
        if self._stride > 1:
            found = [self._ends[0], *found[1:-1], self._ends[-1]]
        return tuple(found)
