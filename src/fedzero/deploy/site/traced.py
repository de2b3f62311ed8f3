"""A replica with a history, by which a site distinguishes questions about different models.

The digest of a model is fast, but somebody can construct a second model with the same digest. So the folded updates are
hashed in their order with SHA-256, instead of the model; the cost does not depend on the size of the model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from fedzero.ledger.answers import UNKNOWN as UNKNOWN
from fedzero.model.updates import Update, encode_update
from fedzero.protocol.messages import Close, Snapshot, Work
from fedzero.protocol.replica import Replica

BASE = hashlib.sha256(b"base").digest()


class TracedReplica(Replica):
    """history: SHA-256 over the sources of the model: base model and updates, or the last sent state and updates."""

    history = BASE

    def begin(self) -> None:
        super().begin()
        self.history = BASE

    def follow(self, updates: Sequence[Update]) -> None:
        missed = [update for update in updates if update.round >= self.round]
        before, self.history = self.history, UNKNOWN  # remains unknown if folding fails half way
        super().follow(missed)
        if before != UNKNOWN:
            for update in missed:
                before = hashlib.sha256(before + encode_update(update)).digest()
        self.history = before

    def obey(self, instruction: Work | Snapshot | Close, client: int) -> None:
        if not isinstance(instruction, Snapshot):
            super().obey(instruction, client)
            return
        self.history = UNKNOWN
        super().obey(instruction, client)
        numbers = msgspec.msgpack.encode((instruction.round, instruction.numbers))
        self.history = hashlib.sha256(numbers + hashlib.sha256(instruction.state).digest()).digest()
