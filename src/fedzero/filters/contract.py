"""What a filter is: a link of the chain between a client's numbers and the update.

    Shaper      values → values, on the client, before anything is coded
    Coder       values ↔ bytes, as they are sent
    Combiner    the contributions of a cohort → one vector, on the server

A filter of your own is derived from one of the three, with a tag.
"""

from __future__ import annotations

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
    """Derive from Shaper, Coder or Combiner. `feedback`: clients add what the link left out to what they send next."""

    stage: ClassVar[int]
    feedback = False

    @property
    def name(self) -> str:
        return str(self.__struct_config__.tag)


class Shaper(Filter):
    """Changes a client's numbers. `sparse`: most results are zero, and only the others are sent, with their places."""

    stage: ClassVar[int] = 0
    sparse = False

    def shape(self, values: F32) -> F32:
        raise NotImplementedError


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


class Combiner(Filter):
    """Replaces the mean; independent of the order of contributions. A client that was drawn twice counts twice."""

    stage: ClassVar[int] = 2

    def least(self) -> int:
        """How many clients it needs."""
        return 1

    def combine(self, contributions: Mapping[int, F32], weights: Mapping[int, int]) -> F32:
        raise NotImplementedError
