"""Keys: every random number of a run is a function of one root and a few integers.

    key(purpose, n1, n2, …) = BLAKE2b-64(key = root, person = purpose, message = n1 ‖ n2 ‖ …)

Integers are 8 bytes, little-endian, signed. Nothing is drawn from a global generator, and no seed is ever sent:
the directions follow from the root and the round number.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

import numpy as np

SHARED = -1
"""The client in the key of a direction that the whole cohort shares."""


def derive(root: bytes, purpose: str, *numbers: int) -> int:
    """The 64-bit key for `purpose` and `numbers` under `root` (32 bytes)."""
    message = struct.pack(f"<{len(numbers)}q", *numbers)
    digest = hashlib.blake2b(message, digest_size=8, key=root, person=purpose.encode("ascii")).digest()
    return int.from_bytes(digest, "little")


def root_of(seed: int) -> bytes:
    """The 32-byte root of a run, from the seed of its recipe."""
    return hashlib.blake2b(struct.pack("<q", seed), digest_size=32, person=b"fedzero-root").digest()


def shift(root: bytes, secret: bytes) -> bytes:
    """Private seed shift: the root of the directions once mixed with a secret that only the clients share."""
    if not 1 <= len(secret) <= 64:
        raise ValueError("a secret has 1 to 64 bytes")
    return hashlib.blake2b(root, digest_size=32, key=secret, person=b"fedzero-shift").digest()


def fingerprint(secret: bytes) -> str:
    """What a ledger keeps of the secret: enough to notice a wrong one, not enough to find it."""
    return hashlib.blake2b(b"", digest_size=8, key=secret, person=b"fedzero-check").hexdigest()


@dataclass(frozen=True)
class Keys:
    """All keys of a run. A secret moves the directions and nothing else; only its fingerprint is kept."""

    root: bytes
    direction_root: bytes
    secret: str | None = None

    @staticmethod
    def of_seed(seed: int, secret: bytes | None = None) -> Keys:
        root = root_of(seed)
        return Keys(root, root) if secret is None else Keys(root, shift(root, secret), fingerprint(secret))

    def direction(self, round: int, step: int, direction: int, client: int = SHARED) -> int:
        return derive(self.direction_root, "direction", round, step, direction, client)

    def rounding(self, round: int, step: int = 0) -> int:
        """Key of the stochastic rounding of 16-bit parameters."""
        return derive(self.root, "rounding", round, step)

    def generator(self, purpose: str, *numbers: int) -> np.random.Generator:
        """A host-side generator for cohorts, batches and partitions: NumPy's Philox, keyed like everything else."""
        return np.random.Generator(np.random.Philox(key=derive(self.root, purpose, *numbers)))
