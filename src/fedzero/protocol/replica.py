"""A replica: a copy of the model that gets everywhere by folding updates.

The server's model, a client that comes back after a week, and a replay next year run the same line, `follow`, and end
in the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedzero.algorithms.contract import Method, State, Wire
from fedzero.directions import Keys
from fedzero.errors import Refused
from fedzero.model.params import Params
from fedzero.model.updates import Update
from fedzero.protocol.messages import Close, Snapshot
from fedzero.protocol.messages import Work as WorkMessage


class Replica:
    """The current state under a method; the only holder of a state that changes."""

    def __init__(self, algorithm: Method, params: Params, keys: Keys, clients: int):
        self.algorithm, self.keys = algorithm, keys
        self.state: State = algorithm.init(params, clients)

    @property
    def round(self) -> int:
        """The round this replica is ready for."""
        return self.state.round

    def digest(self) -> bytes:
        return self.state.params.digest()

    def follow(self, updates: Sequence[Update]) -> None:
        """Fold the updates this replica has not seen yet, in one pass."""
        missed = [update for update in updates if update.round >= self.round]
        if missed:
            self.state = self.algorithm.apply(self.state, missed, self.keys)

    def obey(self, instruction: WorkMessage | Snapshot | Close, client: int) -> None:
        """Come to where an instruction wants this replica to be."""
        if isinstance(instruction, Snapshot):
            part = self.state.carry.part(client)
            self.state = self.state.restored(instruction.state, instruction.round, instruction.numbers, part)
        elif isinstance(instruction, Close):
            self.follow([instruction.update])
        else:
            self.follow(instruction.updates)
        if self.round > instruction.round + isinstance(instruction, Close):
            raise Refused(f"instruction of round {instruction.round} reached a replica at round {self.round}")

    @property
    def wire(self) -> Wire:
        """What holds in every round: how the model is delivered, whether clients remember."""
        return self.algorithm.wire(self.round, self.state.scale)
