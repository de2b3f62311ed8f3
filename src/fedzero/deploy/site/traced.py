"""A replica that knows what it was made of: by that a site tells two questions about different models apart.

The digest of a model is fast, and somebody who wants to can make another model with the same one. What was folded, in
its order, is hashed here with SHA-256 instead of the model: that costs the same however large the model is.
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
    """history: SHA-256 of what the model is made of: base model and updates, or the last state and updates."""

    history = BASE

    def begin(self) -> None:
        """The parameters are those of the base model."""
        self.state, self.history = self.algorithm.init(self.state.params, self.state.clients), BASE

    def follow(self, updates: Sequence[Update]) -> None:
        missed = [update for update in updates if update.round >= self.round]
        before, self.history = self.history, UNKNOWN  # stays so where folding fails half way
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
