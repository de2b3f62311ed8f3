"""What a filter is: a link of the chain that a client's numbers pass on their way into the update.

    Shaper      values → values, on the client, before anything is coded
    Coder       values ↔ bytes: how the numbers travel
    Combiner    the contributions of a cohort → one vector, on the server

A filter of your own is a frozen struct derived from one of the three, with a tag.
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
"""Random numbers for those who need them: a function of the run's keys, the round and the client."""


class Filter(Value):
    """Derive from Shaper, Coder or Combiner. `feedback`: clients add what the link left out to what they send next."""

    stage: ClassVar[int]
    feedback = False

    @property
    def name(self) -> str:
        return str(self.__struct_config__.tag)


class Shaper(Filter):
    """Changes a client's numbers. `sparse`: most of what it returns is zero, and only the rest travels, with places."""

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
        """What `encode` wrote; raises `Refused` where the scale is none. Lengths are checked before."""
        raise NotImplementedError

    def length(self, count: int) -> int:
        raise NotImplementedError


class Combiner(Filter):
    """Takes the place of the mean, whatever order the contributions come in; who was drawn twice counts twice."""

    stage: ClassVar[int] = 2

    def least(self) -> int:
        """How many clients it needs."""
        return 1

    def combine(self, contributions: Mapping[int, F32], weights: Mapping[int, int]) -> F32:
        raise NotImplementedError
