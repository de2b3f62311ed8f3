"""A replica: a copy of the model that reaches every round by folding updates.

The server's model, a client that comes back after a week, and a replay next year run the same line, `follow`, and end
with the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from fedzero.directions import Keys
from fedzero.errors import Refused
from fedzero.methods.contract import Method, State, Traits
from fedzero.methods.shared.groups import why_one_round
from fedzero.model.identity import Identity
from fedzero.model.params import Params
from fedzero.model.updates import Stepped, Update, clients_of
from fedzero.protocol.messages import Close, Snapshot
from fedzero.protocol.messages import Work as WorkMessage

LAST = (1 << 62) - 1
"""The last round that fits into keys."""
UNFIT = (AssertionError, AttributeError, IndexError, KeyError, TypeError, ValueError, OverflowError)
"""Exceptions that methods raise for an update with too few or too many numbers, or of the wrong kind."""


class Replica:
    """The current state of a method; the only object whose state changes."""

    def __init__(self, algorithm: Method, params: Params, keys: Keys, clients: int):
        self.algorithm, self.keys = algorithm, keys
        self.state: State = algorithm.init(params, clients)

    def begin(self) -> None:
        """Start over: the parameters have become the base model's again."""
        self.state = self.algorithm.init(self.state.params, self.state.clients)

    @property
    def round(self) -> int:
        """The round for which this replica is ready."""
        return self.state.round

    def digest(self) -> bytes:
        return self.state.params.digest()

    @property
    def identity(self) -> Identity:
        return self.state.params.identity

    def matches(self, model: Identity) -> bool:
        return self.state.params.matches(model)

    def follow(self, updates: Sequence[Update]) -> None:
        """Fold the updates that this replica has not seen yet, in one pass."""
        missed = [update for update in updates if update.round >= self.round]
        if not missed:
            return
        for update in missed:
            self._expect_known(update)
        try:
            self.state = self.algorithm.apply(self.state, missed, self.keys)
        except (*UNFIT, RuntimeError) as error:
            if "memory" in str(error):  # torch's errors show it only in their text
                raise
            rounds = f"rounds {missed[0].round} to {missed[-1].round}"
            raise Refused(f"the updates of {rounds} do not fit {self.algorithm.name} ({error!r})") from error

    def _expect_known(self, update: Update) -> None:
        """Refuse updates with unknown clients or rounds: client numbers index into the method's state. Refuse steps of
        several rounds if the method does not allow them."""
        if isinstance(update, Stepped) and (why := why_one_round(self.traits, self.exchanges)):
            raise Refused(
                f"the update of round {update.round} is made of replies of several rounds, which {self.algorithm.name} "
                f"does not allow: {why}"
            )
        if update.round > LAST:
            raise Refused(f"an update of round {update.round}, where {LAST} is the last that can be")
        named = max(clients_of(update), default=0)
        if named >= self.state.clients:
            raise Refused(f"the update of round {update.round} names client {named} of {self.state.clients}")

    def obey(self, instruction: WorkMessage | Snapshot | Close, client: int) -> None:
        """Bring this replica to the round of an instruction."""
        if isinstance(instruction, Snapshot):
            part = self.state.carry.part(client)
            state = self.state.restored(instruction.state, instruction.round, instruction.numbers, part)
            if not part.params:
                state.carry.rebuild_params(state.params, self.keys)
            self.state = state
        elif isinstance(instruction, Close):
            self.follow([instruction.update])
        else:
            self.follow(instruction.updates)
        if self.round > instruction.round + isinstance(instruction, Close):
            raise Refused(f"instruction of round {instruction.round} reached a replica at round {self.round}")

    @cached_property
    def traits(self) -> Traits:
        """The properties of the method in this federation, the same in every round."""
        return self.algorithm.traits(self.state.scale)

    @property
    def exchanges(self) -> int:
        """The number of exchanges in a round."""
        return len(self.algorithm.cost(self.round, self.state.scale).replies)
