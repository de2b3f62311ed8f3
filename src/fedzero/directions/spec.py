"""The numbers of the direction stream, version 1 (docs/directions.md states them in words).

Every constant here is part of a public format. Changing one makes a new version of the format, new golden digests
and ledgers that older releases cannot replay.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

VERSION = 1


class Domain(IntEnum):
    """Fourth counter word of Philox: which stream of a key is meant."""

    GAUSSIAN = 1
    RADEMACHER = 2
    ROUNDING = 3
    RANK1 = 4
    """a bᵀ for every matrix; the domain itself is that of a, the signs of rows"""
    RANK1_COLUMNS = 5
    """the signs b of columns, keyed by the low half of the key alone"""


# Philox4x32-10 (Salmon et al., SC 2011).
PHILOX_ROUNDS = 10
PHILOX_M0, PHILOX_M1 = 0xD2511F53, 0xCD9E8D57
PHILOX_W0, PHILOX_W1 = 0x9E3779B9, 0xBB67AE85

# Coordinates made by one group of 32 consecutive Philox blocks.
LANES = 32
GAUSSIAN_CHUNK = 4 * LANES
RADEMACHER_CHUNK = 128 * LANES
ROUNDING_CHUNK = 8 * LANES

FACTOR_BLOCK = 128
"""Signs of a factor in one block, in the order of its bits."""
COLUMN_KEY = 0xFFFFFFFF
"""What is kept of a key for the signs of columns, so that keys with equal low halves share b."""


def _float32(*bits: int) -> tuple[float, ...]:
    return tuple(float(value) for value in np.array(bits, np.uint32).view(np.float32))


# log2(1+t) ≈ t·q(t) on [√½−1, √2−1]; √(2 ln 2)·sin(πx/2) ≈ x·S(x²) and √(2 ln 2)·cos(πx/2) ≈ C(x²) on [−½, ½].
# The factor √(2 ln 2) turns the radius √(−log2 u) into Box and Muller's √(−2 ln u). Relative errors ≤ 3e-6.
LOG2 = _float32(0x3FB8AA46, 0xBF38AB8E, 0x3EF61796, 0xBEB7E712, 0x3E971750, 0xBE8ABD92, 0x3E346531)
SIN = _float32(0x3FECBB64, 0xBF42A7D7, 0x3DBBF9CC)
COS = _float32(0x3F96B55F, 0xBFB9EDB9, 0x3E98E0BC, 0xBCC4D877)

SQRT_HALF_BITS = 0x3F3504F3
"""Bits of the float32 nearest √½: mantissas are brought into [√½, √2)."""

LOG_BIAS = SQRT_HALF_BITS + (32 << 23)
"""The same, 32 octaves up: the exponent of a 32-bit integer comes out as that of a number in (0, 1]."""

# Checksum: the finaliser of MurmurHash3 over (index·GOLDEN + bits).
CHECK_GOLDEN = 0x9E3779B97F4A7C15
CHECK_M0, CHECK_M1 = 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53

SQUARES_SCALE = float(1 << 24)
"""Squares of gaussians are summed as integers in units of 2⁻²⁴, so their sum needs no order."""
