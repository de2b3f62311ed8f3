"""The encodings of numbers that no link codes, and the four-byte scale that coders share."""

from __future__ import annotations

import math
import struct

import numpy as np

from fedzero.errors import Refused
from fedzero.links.contract import F32, Coder, Draw
from fedzero.model.updates import pack


def pack_scale(scale: float) -> bytes:
    return struct.pack("<f", scale)


def unpack_scale(scale: bytes) -> float:
    """A finite magnitude; `Refused` otherwise."""
    if len(scale) != 4:
        raise Refused("sent no scale with its codes")
    (value,) = struct.unpack("<f", scale)
    if not (math.isfinite(value) and value >= 0):
        raise Refused("sent a scale that is NaN, infinite or negative")
    return float(value)


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
    """Float32, unchanged: the default encoding."""

    def encode(self, values: F32, draw: Draw) -> tuple[bytes, bytes]:
        return b"", pack(values)

    def decode(self, scale: bytes, codes: bytes, count: int) -> F32:
        return np.frombuffer(codes, "<f4").astype(np.float32, copy=False)

    def length(self, count: int) -> int:
        return 4 * count

    def longest(self, length: float, count: int) -> float:
        return length


class Doubles(Coder):
    """Float64, unchanged: for methods whose numbers are compared to more than seven digits."""

    def encode(self, values: F32, draw: Draw) -> tuple[bytes, bytes]:
        return b"", values.astype("<f8", copy=False).tobytes()

    def decode(self, scale: bytes, codes: bytes, count: int) -> F32:
        return np.frombuffer(codes, "<f8")  # wider than others send

    def length(self, count: int) -> int:
        return 8 * count

    def longest(self, length: float, count: int) -> float:
        return length
