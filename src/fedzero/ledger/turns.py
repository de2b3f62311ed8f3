"""Of every client: the last round in which a reply of it counted, and the digest of what it remembers of that round.

Two arrays, 24 bytes a client, whatever the number of rounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedzero.ledger.records import Round
from fedzero.protocol.messages import MEMORY_DIGEST

NEVER = -1


@dataclass
class Turns:
    """counted: (N,) int64, `NEVER` before a client's first turn that counted. memories: (N, 16) bytes, once there are
    any."""

    counted: NDArray[np.int64]
    memories: NDArray[np.uint8] | None = None

    @staticmethod
    def of(clients: int) -> Turns:
        return Turns(np.full(clients, NEVER, np.int64))

    def note(self, record: Round) -> None:
        out = {client for client, _ in record.refused}
        counted = [client for client in record.cohort if client not in out] if out else record.cohort
        self.counted[list(counted)] = record.round
        if record.remembered:
            if self.memories is None:
                self.memories = np.zeros((len(self.counted), MEMORY_DIGEST), np.uint8)
            for client, digest in record.remembered:
                self.memories[client] = np.frombuffer(digest.ljust(MEMORY_DIGEST, b"\0")[:MEMORY_DIGEST], np.uint8)

    def last(self, client: int) -> int | None:
        """The last round that counted; None: there was none."""
        round = int(self.counted[client])
        return None if round == NEVER else round

    def memory(self, client: int) -> bytes:
        """The digest of a client's memory; empty where it has none."""
        if self.memories is None or not self.memories[client].any():
            return b""
        digest: bytes = self.memories[client].tobytes()
        return digest

    @property
    def remembering(self) -> NDArray[np.bool_]:
        """Which clients have a memory, (N,)."""
        found = np.zeros(len(self.counted), np.bool_)
        return found if self.memories is None else np.any(self.memories, axis=1, out=found)

    def to_bytes(self) -> tuple[bytes, bytes]:
        return self.counted.tobytes(), b"" if self.memories is None else self.memories.tobytes()

    @staticmethod
    def from_bytes(counted: bytes, memories: bytes) -> Turns:
        rounds = np.frombuffer(counted, np.int64).copy()
        digests = np.frombuffer(memories, np.uint8).reshape(len(rounds), MEMORY_DIGEST).copy() if memories else None
        return Turns(rounds, digests)
