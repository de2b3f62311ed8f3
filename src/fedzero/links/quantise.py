"""Eight bits per number."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from fedzero.links.coders import pack_scale, unpack_scale
from fedzero.links.contract import F32, Coder, Draw

LEVELS = 127
"""Steps from 0 to the largest magnitude in 8 bits."""


class Quantise(Coder, tag="quantise"):
    """Eight bits per number, v_j → s q_j/127 with s = max |v|, q_j rounded at random without bias (FedCom)."""

    bits: Literal[8] = 8

    def encode(self, values: F32, draw: Draw) -> tuple[bytes, bytes]:
        largest = float(np.abs(values).max(initial=0.0))
        if largest == 0:
            return pack_scale(0.0), bytes(len(values))
        exact = values.astype(np.float64) * (LEVELS / largest)
        whole = np.floor(exact + draw().random(len(values))).clip(-LEVELS, LEVELS)
        return pack_scale(largest), whole.astype(np.int8).tobytes()

    def decode(self, scale: bytes, codes: bytes, count: int) -> F32:
        return (np.frombuffer(codes, np.int8).astype(np.float64) * (unpack_scale(scale) / LEVELS)).astype(np.float32)

    def length(self, count: int) -> int:
        return count

    def longest(self, length: float, count: int) -> float:
        """Each number moves by less than s/127, and s ≤ ‖v‖: ‖v‖ + √n ‖v‖/127 at most."""
        return length * (1 + math.sqrt(count) / LEVELS)
