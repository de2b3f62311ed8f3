"""Keys, directions, batches and the checksum, after docs/directions.md of fedzero."""

from __future__ import annotations

import hashlib
import struct
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedzero_client import core as cores

GAUSSIAN, RADEMACHER, RANK1, COLUMNS, BATCH = 1, 2, 4, 5, 6
SHARED = -1
F32 = NDArray[np.float32]
LOW, HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


def _constants(*bits: int) -> list[np.float32]:
    return list(np.array(bits, np.uint32).view(np.float32))


LOG2 = _constants(0x3FB8AA46, 0xBF38AB8E, 0x3EF61796, 0xBEB7E712, 0x3E971750, 0xBE8ABD92, 0x3E346531)
SIN = _constants(0x3FECBB64, 0xBF42A7D7, 0x3DBBF9CC)
COS = _constants(0x3F96B55F, 0xBFB9EDB9, 0x3E98E0BC, 0xBCC4D877)


def derived(root: bytes, purpose: str, *numbers: int) -> int:
    message = struct.pack(f"<{len(numbers)}q", *numbers)
    digest = hashlib.blake2b(message, digest_size=8, key=root, person=purpose.encode()).digest()
    return int.from_bytes(digest, "little")


def blocks(key: int, domain: int, ordinal: int, count: int, first: int = 0) -> NDArray[np.uint32]:
    """Philox4x32-10: blocks `first` … of a stream, (count, 4) words."""
    number = np.arange(first, first + count, dtype=np.uint64)
    c = [number & LOW, number >> HALF, np.full_like(number, ordinal), np.full_like(number, domain)]
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        p0, p1 = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(p1 >> HALF) ^ c[1] ^ np.uint64(k0), p1 & LOW, (p0 >> HALF) ^ c[3] ^ np.uint64(k1), p0 & LOW]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack(c, axis=1).astype(np.uint32)


def _signs(bits: NDArray[np.uint8]) -> F32:
    """+1 for a bit 0, −1 for a bit 1."""
    return np.float32(1) - np.float32(2) * bits.astype(np.float32)


@lru_cache(maxsize=256)
def rademacher(key: int, ordinal: int, count: int) -> F32:
    """z of a tensor with `count` coordinates."""
    groups = -(-count // 4096)
    octets = blocks(key, RADEMACHER, ordinal, 32 * groups).astype("<u4").view(np.uint8).reshape(groups, 32, 16)
    bits = np.unpackbits(octets.transpose(0, 2, 1).reshape(-1), bitorder="little")
    return _signs(bits[:count])


def _polynomial(constants: list[np.float32], t: F32) -> F32:
    """Horner's scheme; every operation is rounded by itself."""
    found = np.full_like(t, constants[-1])
    for constant in constants[-2::-1]:
        found = found * t + constant
    return found


def pairs(a: NDArray[np.uint32], b: NDArray[np.uint32]) -> tuple[F32, F32]:
    """Box and Muller's transform of two words. Additions, products and square roots of float32 alone, which IEEE 754
    rounds correctly everywhere."""
    n = (a | np.uint32(1)).astype(np.float32).view(np.int32) - np.int32(0x4F3504F3)
    k, mantissa = n >> np.int32(23), (n & np.int32(0x7FFFFF)) + np.int32(0x3F3504F3)
    t = mantissa.view(np.float32) - np.float32(1)
    r = np.sqrt((-k).astype(np.float32) - t * _polynomial(LOG2, t))
    x = ((b & np.uint32(0x7FFFFF)) | np.uint32(0x3F800000)).view(np.float32) - np.float32(1.5)
    y = x * x
    sine, cosine = _polynomial(SIN, y) * x * r, _polynomial(COS, y) * r
    cosine = (cosine.view(np.uint32) ^ (b & np.uint32(0x80000000))).view(np.float32)
    swap = (b & np.uint32(0x40000000)) != 0
    return np.where(swap, sine, cosine), np.where(swap, cosine, sine)


@lru_cache(maxsize=256)
def gaussian(key: int, ordinal: int, count: int) -> F32:
    """z of a tensor with `count` coordinates."""
    groups = -(-count // 128)
    words = blocks(key, GAUSSIAN, ordinal, 32 * groups)
    four = np.stack([*pairs(words[:, 0], words[:, 1]), *pairs(words[:, 2], words[:, 3])], axis=1)
    found: F32 = four.reshape(groups, 32, 4).transpose(0, 2, 1).reshape(-1)[:count]
    return found


def factor(key: int, domain: int, ordinal: int, count: int) -> F32:
    """Signs of rows (domain 4), or of columns (5, with the low half of the key)."""
    octets = blocks(key, domain, ordinal, -(-count // 128)).astype("<u4").view(np.uint8)
    return _signs(np.unpackbits(octets.reshape(-1), bitorder="little")[:count])


@lru_cache(maxsize=256)
def rank_one(key: int, ordinal: int, rows: int, columns: int) -> F32:
    """a bᵀ, row by row."""
    a, b = factor(key, RANK1, ordinal, rows), factor(key & 0xFFFFFFFF, COLUMNS, ordinal, columns)
    return np.outer(a, b).reshape(-1)


def direction(distribution: int, key: int, ordinal: int, shape: tuple[int, ...]) -> F32:
    """z(key) of a tensor of a model, flat."""
    count = int(np.prod(shape, dtype=np.int64))
    if distribution == GAUSSIAN:
        return gaussian(key, ordinal, count)
    if distribution == RANK1 and len(shape) > 1:
        return rank_one(key, ordinal, shape[0], count // shape[0])
    return rademacher(key, ordinal, count)


def batch(root: bytes, round: int, step: int, place: int, rows: int, size: int) -> NDArray[np.int64]:
    """`size` of 0 … rows − 1 without replacement, ascending; all of them if there are no more."""
    if rows <= size:
        return np.arange(rows)
    key = derived(root, "batch", round, step, place)
    if cores.core is not None:
        return cores.core.sample(key, rows, size)
    words = _Words(key)
    taken: set[int] = set()
    for j in range(rows - size, rows):  # Floyd
        t = words.below(j + 1)
        taken.add(j if t in taken else t)
    return np.array(sorted(taken), np.int64)


class _Words:
    """The words of a key's stream of batches, one after the other."""

    def __init__(self, key: int):
        self._key, self._block, self._left = key, 0, list[int]()

    def below(self, n: int) -> int:
        """One of 0 … n − 1, all equally likely (Lemire)."""
        if n == 1:
            return 0
        least = (2**32 - n) % n
        while (product := self._next() * n) % 2**32 < least:
            pass
        return product >> 32

    def _next(self) -> int:
        if not self._left:
            self._left = blocks(self._key, BATCH, 0, 8, self._block).reshape(-1).tolist()[::-1]
            self._block += 8
        return self._left.pop()


def checksum(x: F32) -> int:
    if cores.core is not None:
        return cores.core.checksum(x)
    with np.errstate(over="ignore"):
        h = np.arange(x.size, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + x.view(np.uint32).astype(np.uint64)
        for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
            h = (h ^ (h >> np.uint64(33))) * np.uint64(factor)
        return int(np.sum(h ^ (h >> np.uint64(33)), dtype=np.uint64))
