"""Keys and the direction stream, after docs/directions.md."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

GAUSSIAN, RADEMACHER, ROUNDING, RANK1, COLUMNS = 1, 2, 3, 4, 5
SHARED = -1
Q = (0x3FB8AA46, 0xBF38AB8E, 0x3EF61796, 0xBEB7E712, 0x3E971750, 0xBE8ABD92, 0x3E346531)
S = (0x3FECBB64, 0xBF42A7D7, 0x3DBBF9CC)
C = (0x3F96B55F, 0xBFB9EDB9, 0x3E98E0BC, 0xBCC4D877)


def root_of(seed: int) -> bytes:
    return hashlib.blake2b(struct.pack("<q", seed), digest_size=32, person=b"fedzero-root").digest()


def derived(root: bytes, purpose: str, *numbers: int) -> int:
    message = b"".join(number.to_bytes(8, "little", signed=True) for number in numbers)
    return int.from_bytes(hashlib.blake2b(message, digest_size=8, key=root, person=purpose.encode()).digest(), "little")


def blocks(key: int, domain: int, tensor: int, count: int) -> np.ndarray:
    """The first blocks of a stream, (count, 4) words."""
    number = np.arange(count, dtype=np.uint64)
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    c = [number & low, number >> half, np.full_like(number, tensor), np.full_like(number, domain)]
    k = [key & 0xFFFFFFFF, key >> 32]
    for _ in range(10):
        p0, p1 = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(p1 >> half) ^ c[1] ^ np.uint64(k[0]), p1 & low, (p0 >> half) ^ c[3] ^ np.uint64(k[1]), p0 & low]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return np.stack(c, axis=1).astype(np.uint32)


def _horner(constants: Sequence[int], x: np.ndarray) -> np.ndarray:
    values = np.array(constants, np.uint32).view(np.float32)
    total = np.full_like(x, values[-1])
    for value in values[-2::-1]:
        total = total * x + value
    return total


def _pair(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    n = (a | np.uint32(1)).astype(np.float32).view(np.int32) - np.int32(0x4F3504F3)
    t = ((n & np.int32(0x7FFFFF)) + np.int32(0x3F3504F3)).view(np.float32) - np.float32(1)
    r = np.sqrt((-(n >> 23)).astype(np.float32) - t * _horner(Q, t))
    x = ((b & np.uint32(0x7FFFFF)) | np.uint32(0x3F800000)).view(np.float32) - np.float32(1.5)
    y = x * x
    sine, cosine = (_horner(S, y) * x) * r, _horner(C, y) * r
    cosine = (cosine.view(np.uint32) ^ (b & np.uint32(0x80000000))).view(np.float32)
    swap = (b & np.uint32(0x40000000)) != 0
    return np.where(swap, sine, cosine), np.where(swap, cosine, sine)


def _signs(key: int, domain: int, tensor: int, n: int) -> np.ndarray:
    """A factor of a direction of rank one."""
    i = np.arange(n)
    word = blocks(key, domain, tensor, -(-n // 128))[i // 128, (i // 32) % 4]
    return np.float32(1) - np.float32(2) * ((word >> (i % 32).astype(np.uint32)) & np.uint32(1)).astype(np.float32)


@lru_cache(maxsize=256)
def direction(domain: int, key: int, tensor: int, n: int, columns: int = 0) -> np.ndarray:
    """z(key) of a tensor with n coordinates: gaussian, ±1, or of rank one, of a matrix with so many columns."""
    if domain == RANK1:
        if not columns:
            return direction(RADEMACHER, key, tensor, n)
        rows, low = _signs(key, RANK1, tensor, n // columns), key & 0xFFFFFFFF
        return np.outer(rows, _signs(low, COLUMNS, tensor, columns)).reshape(-1)
    i = np.arange(n)
    if domain == GAUSSIAN:
        w = blocks(key, domain, tensor, 32 * -(-n // 128))
        numbers = np.stack([*_pair(w[:, 0], w[:, 1]), *_pair(w[:, 2], w[:, 3])], axis=1)
        return numbers[32 * (i // 128) + i % 32, (i // 32) % 4]
    w = blocks(key, domain, tensor, 32 * -(-n // 4096))
    byte = (i // 256) % 16
    word = w[32 * (i // 4096) + (i // 8) % 32, byte // 4]
    bit = (word >> (8 * (byte % 4) + i % 8).astype(np.uint32)) & np.uint32(1)
    return np.float32(1) - np.float32(2) * bit.astype(np.float32)


def rounding_bits(key: int, tensor: int, n: int) -> np.ndarray:
    i = np.arange(n)
    j = (i // 32) % 8
    word = blocks(key, ROUNDING, tensor, 32 * -(-n // 256))[32 * (i // 256) + i % 32, j // 2]
    return (word >> (16 * (j % 2)).astype(np.uint32)) & np.uint32(0xFFFF)


Model = dict[str, np.ndarray]
"""Tensors by name, float32, in order: a position is an ordinal."""


def folded(model: Model, domain: int, terms: Sequence[tuple[int, np.float32]]) -> Model:
    """x + Σ c z, term by term."""
    out = {}
    for ordinal, (name, x) in enumerate(model.items()):
        total, columns = x.reshape(-1), 0 if x.ndim < 2 else x.size // len(x)
        for key, c in terms:
            total = total + c * direction(domain, key, ordinal, total.size, columns)
        out[name] = total.reshape(x.shape)
    return out


def checksum(bits: np.ndarray) -> int:
    with np.errstate(over="ignore"):
        h = np.arange(bits.size, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + bits.astype(np.uint64)
        for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
            h = (h ^ (h >> np.uint64(33))) * np.uint64(factor)
        return int(np.sum(h ^ (h >> np.uint64(33)), dtype=np.uint64))


def sha256(model: Mapping[str, np.ndarray], kind: str = "float32") -> bytes:
    """The other digest of the same model."""
    hasher = hashlib.sha256(b"fedzero model 1")
    for name, x in model.items():
        header, values = f"{name}\0{kind}\0{x.shape}\0".encode(), np.ascontiguousarray(x).tobytes()
        hasher.update(len(header).to_bytes(8, "little") + len(values).to_bytes(8, "little") + header + values)
    return hasher.digest()


def digest(model: Mapping[str, np.ndarray], kind: str = "float32") -> bytes:
    """Of a model whose tensors are float32, or unsigned integers that are the bits of another `kind`."""
    hasher = hashlib.blake2b(digest_size=8, person=b"fedzero-model")
    for name, x in model.items():
        bits = x.reshape(-1).view(np.uint32) if x.dtype == np.float32 else x.reshape(-1)
        hasher.update(f"{name}\0{kind}\0{x.shape}\0".encode() + checksum(bits).to_bytes(8, "little"))
    return hasher.digest()
