"""Keys: every random number of a run is a function of one root and a few integers.

    key(purpose, n1, n2, …) = BLAKE2b-64(key = root, person = purpose, message = n1 ‖ n2 ‖ …)

Integers are 8 bytes, little-endian, signed. Nothing is drawn from a global generator, and no seed is ever sent:
the directions follow from the root and the round number.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass

import numpy as np

SCRYPT = "scrypt-"
"""How the fingerprint of a secret begins that is salted and stretched."""
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


def fingerprint(secret: bytes, salt: bytes | None = None) -> str:
    """What a ledger keeps of the secret: enough to notice a wrong one. A guess costs scrypt's 32 MiB and a tenth of a
    second, and guesses for one salt (16 bytes) are worth nothing for another. Without a salt: as 0.1 wrote it."""
    if salt is None:
        return hashlib.blake2b(b"", digest_size=8, key=secret, person=b"fedzero-check").hexdigest()
    stretched = hashlib.scrypt(secret, salt=salt, n=1 << 15, r=8, p=1, maxmem=1 << 26, dklen=16)
    return f"{SCRYPT}{salt.hex()}-{stretched.hex()}"


def salt_of(recipe: bytes) -> bytes:
    """The salt of a run: everybody who has its recipe, as the ledger keeps it, has the same."""
    return hashlib.blake2b(recipe, digest_size=16, person=b"fedzero-salt").digest()


def fits(secret: bytes, known: str) -> bool:
    """Whether a fingerprint, of any release, is that of a secret."""
    salt: bytes | None = None
    if known.startswith(SCRYPT):
        try:
            salt = bytes.fromhex(known.removeprefix(SCRYPT).partition("-")[0])
        except ValueError:
            return False
    return hmac.compare_digest(fingerprint(secret, salt).encode(), known.encode())


@dataclass(frozen=True)
class Keys:
    """All keys of a run. A secret moves the directions and nothing else; only its fingerprint is kept."""

    root: bytes
    direction_root: bytes
    secret: str | None = None

    @staticmethod
    def of_seed(seed: int, secret: bytes | None = None, mark: str | None = None) -> Keys:
        """mark: the fingerprint of the secret, where it is known."""
        root = root_of(seed)
        return Keys(root, root) if secret is None else Keys(root, shift(root, secret), mark or fingerprint(secret))

    def direction(self, round: int, step: int, direction: int, client: int = SHARED) -> int:
        return derive(self.direction_root, "direction", round, step, direction, client)

    def rounding(self, round: int, step: int = 0) -> int:
        """Key of the stochastic rounding of 16-bit parameters."""
        return derive(self.root, "rounding", round, step)

    def generator(self, purpose: str, *numbers: int) -> np.random.Generator:
        """A host-side generator for cohorts, batches and partitions: NumPy's Philox, keyed like everything else."""
        return np.random.Generator(np.random.Philox(key=derive(self.root, purpose, *numbers)))
