"""Terms and programs as arrays on a device, where kernels read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedzero.directions.spec import Domain
from fedzero.directions.terms import HYPERS, Program, Terms


class Tables(NamedTuple):
    """Keys, rounding keys, 0 and ends; coefficients, hyper-parameters; and how many terms and steps there is room for.

    A kernel finds its parts by `terms` and `steps`, and how many terms there are by the ends.
    """

    integers: torch.Tensor
    floats: torch.Tensor
    terms: int
    steps: int


def _split(there: torch.Tensor, terms: int, steps: int) -> Tables:
    even = _even(terms, steps)
    return Tables(there[: 2 * even].view(torch.int64), there[2 * even :].view(torch.float32), terms, steps)


def _even(terms: int, steps: int) -> int:
    """How many integers, rounded up: what follows starts at a multiple of 16 bytes, as Triton likes it."""
    integers = terms + 2 * steps + 1
    return integers + integers % 2


def _packed(program: Program, terms: int) -> NDArray[np.int32]:
    """A program in one array, with room for `terms` of them."""
    steps, given, even = len(program), len(program.keys), _even(terms, len(program))
    buffer = np.zeros(2 * even + terms + steps * HYPERS, np.int32)
    integers, floats = buffer[: 2 * even].view(np.int64), buffer[2 * even :].view(np.float32)
    integers[:given] = program.keys.view(np.int64)
    integers[terms : terms + steps] = program.rounding.view(np.int64)
    integers[terms + steps + 1 : terms + 2 * steps + 1] = program.ends
    floats[:given] = program.coefficients
    floats[terms:] = program.hypers.reshape(-1)
    return buffer


class LiveTerms:
    """Terms at a fixed place, replaced while whatever reads them stays the same: what a recorded graph needs.

    `bank` brings the terms of many points to the device in one copy; `take` puts one of them in place.
    """

    def __init__(self, stream: Domain, capacity: int, device: torch.device):
        self.stream, self.capacity = stream, capacity
        self._there = torch.from_numpy(_packed(Program.of([Terms.of([], [], stream)], [0]), capacity)).to(device)
        self.tables = _split(self._there, capacity, 1)

    def __len__(self) -> int:
        return self.capacity

    def bank(self, points: Sequence[Terms]) -> torch.Tensor:
        """(points, …) on the device. With room for one term each has to have one: kernels then do not count."""
        if any(len(p) > self.capacity or (self.capacity == 1 and len(p) != 1) for p in points):
            raise ValueError(f"points with {[len(p) for p in points]} terms where there is room for {self.capacity}")
        rows = [_packed(Program.of([terms], [0]), self.capacity) for terms in points]
        return torch.from_numpy(np.stack(rows)).to(self._there.device)

    def take(self, row: torch.Tensor) -> None:
        self._there.copy_(row)


_recent: dict[tuple[int, torch.device], tuple[Program | Terms, Tables]] = {}


def tables_of(work: Program | Terms | LiveTerms, device: torch.device) -> Tables:
    """Upload in one copy, and once for all tensors of a model: the last few are kept, and with them their `id`."""
    if isinstance(work, LiveTerms):
        return work.tables
    held = _recent.get((id(work), device))
    if held is None:
        program = Program.of([work], [0]) if isinstance(work, Terms) else work
        there = torch.from_numpy(_packed(program, len(program.keys))).to(device)
        held = work, _split(there, len(program.keys), len(program))
        while len(_recent) >= 8:
            _recent.pop(next(iter(_recent)), None)
        _recent[id(work), device] = held
    return held[1]
