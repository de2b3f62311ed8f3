"""Which model it is: two digests of the same tensors, for two kinds of doubt."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

SHA256 = 32
"""Bytes of the cryptographic digest."""
Sha256 = Annotated[bytes, Meta(min_length=SHA256, max_length=SHA256)]


class Identity(Struct, frozen=True, array_like=True):
    """digest: 8 bytes that are cheap enough for every reply (`Params.digest`). It finds accidents, not adversaries: the
    sum behind it is linear, and another model with the same sum is found in a second. sha256: 32 bytes, for a model
    that comes from a file or from a stranger; empty where an older release wrote the record.
    """

    digest: bytes
    sha256: bytes = b""

    def __str__(self) -> str:
        return f"{self.digest.hex()} (SHA-256 {self.sha256.hex()[:16]}…)" if self.sha256 else self.digest.hex()

    def agrees(self, other: Identity) -> bool:
        """Whether both say the same, as far as both say something."""
        same = not (self.sha256 and other.sha256) or self.sha256 == other.sha256
        return self.digest == other.digest and same
