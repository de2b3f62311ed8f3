"""Terms and programs as arrays on a device, where kernels read them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedzero.directions.spec import Domain
from fedzero.directions.terms import HYPERS, Program, Terms


class Tables(NamedTuple):
    """Integers: keys, rounding keys, 0, ends. Floats: coefficients, hyper-parameters. `terms` and `steps` are the
    capacities, by which a kernel finds the parts; how many terms a step has follows from the ends."""

    integers: Tensor
    floats: Tensor
    terms: int
    steps: int


def _split(there: Tensor, terms: int, steps: int) -> Tables:
    even = _even(terms, steps)
    return Tables(there[: 2 * even].view(torch.int64), there[2 * even :].view(torch.float32), terms, steps)


def _even(terms: int, steps: int) -> int:
    """The number of integers, rounded up, so that the floats start at a multiple of 16 bytes."""
    integers = terms + 2 * steps + 1
    return integers + integers % 2


def _packed(program: Program, terms: int) -> NDArray[np.int32]:
    """A program in one array with a capacity of `terms`."""
    steps, given, even = len(program), len(program.keys), _even(terms, len(program))
    buffer = np.zeros(2 * even + terms + steps * HYPERS, np.int32)
    integers, floats = buffer[: 2 * even].view(np.int64), buffer[2 * even :].view(np.float32)
    integers[:given] = program.keys.view(np.int64)
    integers[terms : terms + steps] = program.rounding.view(np.int64)
    integers[terms + steps + 1 : terms + 2 * steps + 1] = program.ends
    floats[:given] = program.coefficients
    floats[terms:] = program.hypers.reshape(-1)
    return buffer


class TermsBuffer:
    """Terms at a fixed address whose content is replaced between replays of a CUDA graph.

    `upload` brings the terms of many points to the device in one copy; `load` puts one of them in place.
    """

    def __init__(self, stream: Domain, capacity: int, device: torch.device):
        self.stream, self.capacity = stream, capacity
        self._buffer = torch.from_numpy(_packed(Program.of([Terms.of([], [], stream)], [0]), capacity)).to(device)
        self.tables = _split(self._buffer, capacity, 1)

    def __len__(self) -> int:
        return self.capacity

    def upload(self, points: Sequence[Terms]) -> Tensor:
        """(points, …) on the device. With a capacity of one, each point must have one term: kernels do not count."""
        if any(len(p) > self.capacity or (self.capacity == 1 and len(p) != 1) for p in points):
            raise ValueError(f"points with {[len(p) for p in points]} terms where there is room for {self.capacity}")
        rows = [_packed(Program.of([terms], [0]), self.capacity) for terms in points]
        return torch.from_numpy(np.stack(rows)).to(self._buffer.device)

    def load(self, row: Tensor) -> None:
        self._buffer.copy_(row)


def tables_of(work: Program | Terms | TermsBuffer, device: torch.device) -> Tables:
    return work.tables if isinstance(work, TermsBuffer) else _uploaded(work, device)


@lru_cache(maxsize=8)
def _uploaded(work: Program | Terms, device: torch.device) -> Tables:
    """One upload serves all tensors of a model, which are worked on one after the other."""
    program = Program.of([work], [0]) if isinstance(work, Terms) else work
    packed = torch.from_numpy(_packed(program, len(program.keys))).to(device)
    return _split(packed, len(program.keys), len(program))
