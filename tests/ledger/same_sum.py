"""Another model with the same 64-bit sum, found in a second: what the fast digest of a model cannot tell apart.

The sum of a tensor adds one number for each weight. Eight weights with 2¹⁷ neighbours each give enough sums for any
target: Wagner's generalised birthday search (CRYPTO 2002) merges eight lists in three levels, on 16, 16 and 32 bits.
"""

from __future__ import annotations

import numpy as np
from recompute import stream

NUDGED = 8
CHOICES = 1 << 17
"""Values of a weight's low bits: at most 1/64 of the weight."""


def mixed(places: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """The term of each weight in the checksum of docs/directions.md."""
    h = places.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + bits.astype(np.uint64)
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        h = (h ^ (h >> np.uint64(33))) * np.uint64(factor)
    return np.asarray(h ^ (h >> np.uint64(33)))


def merged(left: np.ndarray, right: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pairs of places whose sum is 0 in the lowest `bits` bits, and the sums."""
    mask = np.uint64((1 << bits) - 1)
    wanted, order = (np.uint64(0) - left) & mask, np.argsort(right & mask, kind="stable")
    there = (right & mask)[order]
    first, last = np.searchsorted(there, wanted, "left"), np.searchsorted(there, wanted, "right")
    many = last - first
    of_left = np.repeat(np.arange(left.size), many)
    within = np.arange(of_left.size) - np.repeat(np.cumsum(many) - many, many)
    of_right = order[np.repeat(first, many) + within]
    return of_left, of_right, left[of_left] + right[of_right]


def with_sum_of(weights: np.ndarray, target: np.ndarray) -> np.ndarray:
    """`weights` with the low bits of the last eight of them changed, so that the checksum is that of `target`."""
    with np.errstate(over="ignore"):
        return _found(weights.astype(np.float32), target.astype(np.float32))


def _found(weights: np.ndarray, target: np.ndarray) -> np.ndarray:
    bits, places = weights.view(np.uint32).copy(), np.arange(weights.size - NUDGED, weights.size)
    kept = mixed(np.arange(places[0]), bits[: places[0]]).sum(dtype=np.uint64)
    values = [(bits[p] & np.uint32(~(CHOICES - 1) & 0xFFFFFFFF)) + np.arange(CHOICES, dtype=np.uint32) for p in places]
    lists = [mixed(np.full(CHOICES, p), v) for p, v in zip(places, values, strict=True)]
    lists[0] = lists[0] + kept - np.uint64(stream.checksum(target.view(np.uint32)))
    chosen = [np.arange(CHOICES)[:, None]] * NUDGED
    for width in (16, 32, 64):
        sums, picks = [], []
        for n in range(0, len(lists), 2):
            left, right, both = merged(lists[n], lists[n + 1], width)
            left, right, both = left[: 1 << 19], right[: 1 << 19], both[: 1 << 19]
            sums.append(both)
            picks.append(np.concatenate([chosen[n][left], chosen[n + 1][right]], axis=1))
        lists, chosen = sums, picks
    assert chosen[0].size, "no other weights with this sum: take more choices"
    bits[places] = [value[which] for value, which in zip(values, chosen[0][0], strict=True)]
    return bits.view(np.float32)
