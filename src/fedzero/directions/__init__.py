"""What a key means: the direction stream, its keys, and the kernels that run it on each device."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedzero.directions.keys import SHARED, Keys, derive, fingerprint
from fedzero.directions.spec import VERSION, Domain
from fedzero.directions.terms import Distribution, LowRank, Piece, Program, Rule, Stream, Terms, stream_of
from fedzero.errors import FedzeroError

__all__ = [
    "SHARED",
    "VERSION",
    "Distribution",
    "Domain",
    "Kernels",
    "Keys",
    "LowRank",
    "Piece",
    "Program",
    "Rule",
    "Stream",
    "Terms",
    "derive",
    "fingerprint",
    "kernels",
    "stream_of",
]


class Kernels(Protocol):
    """What a device has to offer; the packages cpu and gpu are the two implementations."""

    def generate(
        self,
        out: Tensor,
        stream: Domain,
        key: int,
        tensor: int,
        groups: NDArray[np.int64] | None = None,
        columns: int = 0,
    ) -> None: ...
    def factors(
        self, terms: Terms, shapes: Sequence[tuple[int, int, int]], device: torch.device
    ) -> list[tuple[Tensor, Tensor]]: ...
    def advance(
        self, x: Tensor, slots: tuple[Tensor, ...], program: Program, tensor: int, columns: int = 0
    ) -> None: ...
    def perturb(self, x: Tensor, out: Tensor, terms: Terms, tensor: int, columns: int = 0) -> None: ...
    def listing(self, pieces: Sequence[Piece]) -> Any: ...
    def advance_all(self, many: Any, program: Program) -> None: ...
    def perturb_all(self, many: Any, terms: Terms) -> None: ...
    def rows(self, x: Tensor, ids: Tensor, out: Tensor, terms: Terms, tensor: int) -> None: ...
    def points(self, x: Tensor, out: Tensor, program: Program, tensor: int, columns: int = 0) -> None: ...
    def spread(self, out: Tensor, terms: Terms, tensor: int, columns: int = 0) -> None: ...
    def offsets(self, terms: Terms, sizes: Sequence[tuple[int, int]], device: torch.device) -> list[Tensor]: ...
    def round_into(self, x: Tensor, source: Tensor, key: int, tensor: int) -> None: ...
    def checksum(self, x: Tensor) -> int: ...
    def checksums(self, many: Any) -> dict[int, int]: ...
    def squares(self, key: int, tensor: int, n: int, device: torch.device) -> int: ...


_MODULES = {"cpu": "fedzero.directions.cpu", "cuda": "fedzero.directions.gpu"}


def kernels(device: torch.device) -> Kernels:
    """The kernels of a device; numba and triton are imported on first use."""
    return _kernels(device.type)


@cache
def _kernels(kind: str) -> Kernels:
    if kind not in _MODULES:
        raise FedzeroError(f"device {kind!r} has no direction kernels; use cpu or cuda")
    module: Kernels = importlib.import_module(_MODULES[kind])
    return module
