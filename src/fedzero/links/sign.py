"""One bit per number, and one magnitude for all."""

from __future__ import annotations

import numpy as np

from fedzero.links.coders import pack_scale, unpack_scale
from fedzero.links.contract import F32, Coder, Draw


class Sign(Coder, tag="sign"):
    """One bit per number, v_j → ± s, and one magnitude for all, s = mean |v|."""

    feedback: bool = False
    """Add the part that was left out to the next contribution."""

    def encode(self, values: F32, draw: Draw) -> tuple[bytes, bytes]:
        scale = float(np.abs(values.astype(np.float64)).mean()) if len(values) else 0.0
        return pack_scale(scale), np.packbits(values < 0, bitorder="little").tobytes()

    def decode(self, scale: bytes, codes: bytes, count: int) -> F32:
        negative = np.unpackbits(np.frombuffer(codes, np.uint8), bitorder="little", count=count)
        magnitude = np.float32(unpack_scale(scale))
        return np.where(negative, -magnitude, magnitude).astype(np.float32)

    def length(self, count: int) -> int:
        return -(-count // 8)

    def longest(self, length: float, count: int) -> float:
        """√n s = ‖v‖₁/√n ≤ ‖v‖₂: it never grows."""
        return length
