"""What a filter is: a link of the chain between a client's numbers and the update.

    Shaper      values → values, on the client, before anything is coded
    Coder       values ↔ bytes, as they are sent
    Mixer       the contributions of a cohort → as many others, on the server
    Combiner    the contributions of a cohort → one vector, on the server

A filter of your own is derived from one of the four, with a tag.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import ClassVar

import numpy as np

from fedzero.directions.terms import F32 as F32
from fedzero.model.value import Value

Combine = Callable[[Mapping[int, F32], Mapping[int, int]], F32]
"""(contributions by client, how often each was drawn) → one vector."""
Draw = Callable[[], np.random.Generator]
"""Makes a generator of random numbers, a function of the run's keys, the round and the client."""


class Filter(Value):
    """Derive from Shaper, Coder, Mixer or Combiner.

    feedback: clients add what the link left out to what they send next.
    """

    stage: ClassVar[int]
    feedback = False

    @property
    def name(self) -> str:
        return str(self.__struct_config__.tag)


class Shaper(Filter):
    """Changes a client's numbers. `sparse`: most results are zero, and only the others are sent, with their places.

    What `most_places` and `longest` promise, the server holds clients to.
    """

    stage: ClassVar[int] = 0
    sparse = False

    def shape(self, values: F32) -> F32:
        raise NotImplementedError

    def most_places(self, count: int) -> int:
        """How many of `count` numbers it leaves that are not zero, at most."""
        return count

    def longest(self, length: float) -> float:
        """The largest norm that it leaves of numbers whose norm is at most `length`; infinite: nobody knows."""
        return math.inf


class Coder(Filter):
    """Writes numbers as a scale and codes, `length(n)` bytes of codes for n numbers."""

    stage: ClassVar[int] = 1

    def encode(self, values: F32, draw: Draw) -> tuple[bytes, bytes]:
        raise NotImplementedError

    def decode(self, scale: bytes, codes: bytes, count: int) -> F32:
        """The numbers that `encode` wrote; raises `Refused` for an invalid scale. Lengths are checked before."""
        raise NotImplementedError

    def length(self, count: int) -> int:
        raise NotImplementedError

    def longest(self, length: float, count: int) -> float:
        """The largest norm that `count` numbers of a norm of at most `length` can be read with."""
        return math.inf


class Mixer(Filter):
    """Changes the contributions of a cohort before they are combined; independent of their order.

    compares: it looks at numbers of clients side by side, which must mean the same.
    """

    stage: ClassVar[int] = 2
    compares: ClassVar[bool] = True

    def least(self) -> int:
        """How many clients it needs."""
        return 1

    def withstands(self, count: int) -> int | None:
        """How many of `count` contributions may be anything; None: no number of them."""
        return None

    def mix(self, contributions: Mapping[int, F32], weights: Mapping[int, int]) -> dict[int, F32]:
        raise NotImplementedError


class Combiner(Filter):
    """Replaces the mean; independent of the order of contributions. A client that was drawn twice counts twice."""

    stage: ClassVar[int] = 3

    def least(self) -> int:
        """How many clients it needs."""
        return 1

    def withstands(self, count: int) -> int | None:
        """How many of `count` contributions may be anything; None: no number of them."""
        return None

    def combine(self, contributions: Mapping[int, F32], weights: Mapping[int, int]) -> F32:
        raise NotImplementedError
