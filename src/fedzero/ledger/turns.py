"""Of every client: the last round whose question it answered with a reply that counted, the digest of what it remembers
of that round, and the round whose question it has still to answer.

Three arrays, 32 bytes a client at most, whatever the number of rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from msgspec import UnsetType
from numpy.typing import NDArray

from fedzero.errors import Refused
from fedzero.ledger.database import Tampered
from fedzero.ledger.records import Round
from fedzero.model.updates import Stepped, decode_update, is_stepped
from fedzero.protocol.messages import MEMORY_DIGEST

NEVER = -1


@dataclass
class Turns:
    """counted: (N,) int64, `NEVER` before a client's first turn that counted. memories: (N, 16) bytes, once there are
    any. asked: (N,) int64, `NEVER` where no question is open, once one outlasts its round."""

    counted: NDArray[np.int64]
    memories: NDArray[np.uint8] | None = None
    asked: NDArray[np.int64] | None = None

    @staticmethod
    def of(clients: int) -> Turns:
        return Turns(np.full(clients, NEVER, np.int64))

    def note(self, record: Round) -> None:
        out = {client for client, _ in record.refused}
        counted = [client for client in record.cohort if client not in out] if out else record.cohort
        mixed = not record.dense and record.update is not None and is_stepped(record.update)
        if self.asked is None and isinstance(record.asked, UnsetType) and not mixed:
            self.counted[list(counted)] = record.round
        else:
            self._answered(record, list(counted))
        if record.remembered:
            if self.memories is None:
                self.memories = np.zeros((len(self.counted), MEMORY_DIGEST), np.uint8)
            for client, digest in record.remembered:
                self.memories[client] = np.frombuffer(digest.ljust(MEMORY_DIGEST, b"\0")[:MEMORY_DIGEST], np.uint8)

    def _answered(self, record: Round, counted: list[int]) -> None:
        """Questions that were asked, and those that are over."""
        if self.asked is None:
            self.asked = np.full(len(self.counted), NEVER, np.int64)
        fresh = record.cohort if isinstance(record.asked, UnsetType) else record.asked
        for client in set(fresh):
            if self.asked[client] != NEVER:
                raise Tampered(
                    record.round, f"client {client} is asked while its answer to round {self.asked[client]} is open"
                )
        self.asked[list(fresh)] = record.round
        for client in record.cohort:
            if self.asked[client] == NEVER:
                raise Tampered(record.round, f"client {client} has a turn, who was not asked")
        _expect_groups(record, {client: int(self.asked[client]) for client in counted})
        self.counted[counted] = self.asked[counted]
        self.asked[list(record.cohort)] = NEVER

    def open(self) -> dict[int, int]:
        """By client whose answer to a question is open, the round that it was asked in."""
        if self.asked is None:
            return {}
        clients = np.flatnonzero(self.asked != NEVER)
        return dict(zip(clients.tolist(), self.asked[clients].tolist(), strict=True))

    def last(self, client: int) -> int | None:
        """The last round whose question it answered with a reply that counted; None: there was none."""
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

    def to_bytes(self) -> tuple[bytes, bytes, bytes]:
        memories, asked = (b"" if each is None else each.tobytes() for each in (self.memories, self.asked))
        return self.counted.tobytes(), memories, asked

    @staticmethod
    def from_bytes(counted: bytes, memories: bytes, asked: bytes = b"") -> Turns:
        rounds = np.frombuffer(counted, np.int64).copy()
        still_open = np.frombuffer(asked, np.int64).reshape(len(rounds)).copy() if asked else None
        digests = np.frombuffer(memories, np.uint8).reshape(len(rounds), MEMORY_DIGEST).copy() if memories else None
        return Turns(rounds, digests, still_open)


def _expect_groups(record: Round, answered: Mapping[int, int]) -> None:
    """The groups of a round's update are those of the questions that its clients answered (by client)."""
    if record.dense or record.update is None:
        return
    try:
        update = decode_update(record.update)
    except Refused as error:
        raise Tampered(record.round, f"the update cannot be read ({error})") from error
    groups = update.groups if isinstance(update, Stepped) else ()
    rounds = {group.asked for group in groups} or {update.round}
    named = {client: group.asked for group in groups for client in group.clients}
    if rounds != set(answered.values()) or not named.items() <= answered.items():
        raise Tampered(record.round, "its update is made of replies to other questions than its clients answered")
