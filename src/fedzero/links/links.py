"""Shapers and coders of a client's numbers v."""

from __future__ import annotations

import math
import struct
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedzero.errors import Refused
from fedzero.links.bounds import norm_of, shortened
from fedzero.links.contract import F32, Coder, Draw, Shaper
from fedzero.model.numbers import Positive, PositiveFraction
from fedzero.model.updates import pack

LEVELS = 127
"""Steps from 0 to the largest magnitude in 8 bits."""


def _pack_scale(scale: float) -> bytes:
    return struct.pack("<f", scale)


def _unpack_scale(scale: bytes) -> float:
    """A finite magnitude; `Refused` otherwise."""
    if len(scale) != 4:
        raise Refused("sent no scale with its codes")
    (value,) = struct.unpack("<f", scale)
    if not (math.isfinite(value) and value >= 0):
        raise Refused("sent a scale that is NaN, infinite or negative")
    return float(value)


class Clip(Shaper, tag="clip"):
    """Contributions are scaled down to an L2 norm of at most `norm`: v ← v · min(1, norm/‖v‖₂)."""

    norm: Positive

    def shape(self, values: F32) -> F32:
        return shortened(values, norm_of(values), self.norm)

    def longest(self, length: float) -> float:
        return min(length, self.norm)


class TopK(Shaper, tag="top-k"):
    """Only the ⌈fraction · n⌉ largest |v_j| travel, with their places; the others become 0."""

    fraction: PositiveFraction = 0.1
    """of all numbers"""
    feedback: bool = False
    """Add what was left out to the next contribution."""

    sparse = True

    def places(self, values: F32) -> NDArray[np.int64]:
        """Where the k largest magnitudes are, in order; of equal ones the first."""
        magnitudes, n = np.abs(values), len(values)
        k = self.most_places(n)
        least = np.partition(magnitudes, n - k)[n - k]
        above = np.flatnonzero(magnitudes > least)
        return np.sort(np.concatenate([above, np.flatnonzero(magnitudes == least)[: k - len(above)]]))

    def shape(self, values: F32) -> F32:
        out, places = np.zeros_like(values), self.places(values)
        out[places] = values[places]
        return out

    def most_places(self, count: int) -> int:
        return math.ceil(self.fraction * count)

    def longest(self, length: float) -> float:
        return length


class Quantise(Coder, tag="quantise"):
    """Eight bits per number, v_j → s q_j/127 with s = max |v|, q_j rounded at random without bias (FedCom)."""

    bits: Literal[8] = 8

    def encode(self, values: F32, draw: Draw) -> tuple[bytes, bytes]:
        largest = float(np.abs(values).max(initial=0.0))
        if largest == 0:
            return _pack_scale(0.0), bytes(len(values))
        exact = values.astype(np.float64) * (LEVELS / largest)
        whole = np.floor(exact + draw().random(len(values))).clip(-LEVELS, LEVELS)
        return _pack_scale(largest), whole.astype(np.int8).tobytes()

    def decode(self, scale: bytes, codes: bytes, count: int) -> F32:
        return (np.frombuffer(codes, np.int8).astype(np.float64) * (_unpack_scale(scale) / LEVELS)).astype(np.float32)

    def length(self, count: int) -> int:
        return count

    def longest(self, length: float, count: int) -> float:
        """Each number moves by less than s/127, and s ≤ ‖v‖: ‖v‖ + √n ‖v‖/127 at most."""
        return length * (1 + math.sqrt(count) / LEVELS)


class Sign(Coder, tag="sign"):
    """One bit per number, v_j → ± s, and one magnitude for all, s = mean |v|."""

    feedback: bool = False
    """Add what was left out to the next contribution."""

    def encode(self, values: F32, draw: Draw) -> tuple[bytes, bytes]:
        scale = float(np.abs(values.astype(np.float64)).mean()) if len(values) else 0.0
        return _pack_scale(scale), np.packbits(values < 0, bitorder="little").tobytes()

    def decode(self, scale: bytes, codes: bytes, count: int) -> F32:
        negative = np.unpackbits(np.frombuffer(codes, np.uint8), bitorder="little", count=count)
        magnitude = np.float32(_unpack_scale(scale))
        return np.where(negative, -magnitude, magnitude).astype(np.float32)

    def length(self, count: int) -> int:
        return -(-count // 8)

    def longest(self, length: float, count: int) -> float:
        """√n s = ‖v‖₁/√n ≤ ‖v‖₂: it never grows."""
        return length


class Bits(Coder):
    """One bit per number and nothing else: v_j → 1, or −1 where v_j < 0. For methods whose numbers are signs."""

    def encode(self, values: F32, draw: Draw) -> tuple[bytes, bytes]:
        return b"", np.packbits(values < 0, bitorder="little").tobytes()

    def decode(self, scale: bytes, codes: bytes, count: int) -> F32:
        negative = np.unpackbits(np.frombuffer(codes, np.uint8), bitorder="little", count=count)
        return 1 - 2 * negative.astype(np.float32)

    def length(self, count: int) -> int:
        return -(-count // 8)

    def longest(self, length: float, count: int) -> float:
        return math.sqrt(count)


class Plain(Coder):
    """Float32, as they are: what travels unless a link says otherwise."""

    def encode(self, values: F32, draw: Draw) -> tuple[bytes, bytes]:
        return b"", pack(values)

    def decode(self, scale: bytes, codes: bytes, count: int) -> F32:
        return np.frombuffer(codes, "<f4").astype(np.float32, copy=False)

    def length(self, count: int) -> int:
        return 4 * count

    def longest(self, length: float, count: int) -> float:
        return length


class Doubles(Coder):
    """Float64, as they are: for methods whose numbers are compared to more than seven digits."""

    def encode(self, values: F32, draw: Draw) -> tuple[bytes, bytes]:
        return b"", values.astype("<f8", copy=False).tobytes()

    def decode(self, scale: bytes, codes: bytes, count: int) -> F32:
        return np.frombuffer(codes, "<f8")  # wider than others send

    def length(self, count: int) -> int:
        return 8 * count

    def longest(self, length: float, count: int) -> float:
        return length
