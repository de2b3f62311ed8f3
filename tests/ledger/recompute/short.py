"""bfloat16 parameters under DeComFL with plain steps: one sum in float32 and one stochastic rounding a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from recompute.file import File, floats
from recompute.rounds import rate_at
from recompute.stream import RADEMACHER, SHARED, derived, folded, rounding_bits

Bits = dict[str, np.ndarray]
"""Tensors as the bits of bfloat16 numbers."""


def bits_of(tensors: Mapping[str, tuple[str, Sequence[int], bytes]]) -> Bits:
    assert {kind for kind, _, _ in tensors.values()} == {"BF16"}
    return {name: np.frombuffer(data, "<u2").reshape(shape) for name, (_, shape, data) in tensors.items()}


def replayed(file: File, root: bytes, bits: Bits) -> Bits:
    a: dict[str, Any] = file.recipe["algorithm"]
    assert (a["distribution"], a["optimizer"]["kind"]) == ("rademacher", "sgd")
    for record in file.rounds:
        _, round, scalars = msgspec.msgpack.decode(record["update"])
        terms = []
        for k, g in enumerate(floats(scalars).reshape(a["local_steps"], -1).astype(np.float64)):
            keys = [derived(root, "direction", round, k, p, SHARED) for p in range(g.size)]
            terms += zip(keys, (-rate_at(a["rate"], round) / g.size * g).astype(np.float32), strict=True)
        wide = {name: (b.astype(np.uint32) << np.uint32(16)).view(np.float32) for name, b in bits.items()}
        moved, key = folded(wide, RADEMACHER, terms), derived(root, "rounding", round, 0)
        bits = {name: _rounded(x, key, ordinal) for ordinal, (name, x) in enumerate(moved.items())}
    return bits


def _rounded(x: np.ndarray, key: int, ordinal: int) -> np.ndarray:
    random = rounding_bits(key, ordinal, x.size).reshape(x.shape)
    return ((x.view(np.uint32) + random) >> np.uint32(16)).astype(np.uint16)
