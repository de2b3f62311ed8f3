"""The members of a method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedzero.directions import Keys
from fedzero.directions.terms import F32
from fedzero.errors import FedzeroError
from fedzero.methods.contract.federation import Federation, Scale
from fedzero.methods.contract.state import State
from fedzero.methods.contract.traits import Cost, Traits
from fedzero.methods.contract.turn import IntermediateResult, StepInputs, Turn, Work
from fedzero.model.params import Params
from fedzero.model.updates import Dense, Update, parts_of, unpack
from fedzero.model.value import Named

MAX_ABS_COORDINATE = 7.0
"""A bound on the coordinates of directions: Box–Muller with 32 bits reaches √(2 ln 2³³) = 6.8."""


class Method(Named):
    """The contract of methods. The fields are hyper-parameters, and the keys of a recipe's `[algorithm]` table."""

    def traits(self, scale: Scale) -> Traits:
        """The properties of the method in a federation of this scale."""
        return Traits()

    def cost(self, round: int, scale: Scale) -> Cost:
        """Numbers that a client sends in a round, and its queries."""
        raise NotImplementedError

    def client(self, state: State, turn: Turn) -> Work:
        """One client's part of a round: a generator that yields asks or an `Intermediate`; returns its contribution."""
        raise NotImplementedError

    def aggregate(self, gathered: StepInputs) -> Update:
        """The update that a round's contributions make."""
        raise NotImplementedError

    def apply(self, state: State, updates: Sequence[Update], keys: Keys) -> State:
        """The state after updates; applying many at once gives the same bits as applying one after the other."""
        raise NotImplementedError

    def init(self, params: Params, clients: int) -> State:
        """The state before round 0."""
        return State(params, clients=clients)

    def share(self, gathered: StepInputs) -> IntermediateResult:
        """The answer to all clients after an exchange that is not the last; only for rounds of several exchanges."""
        raise NotImplementedError

    def decode_update(self, update: Update) -> F32:
        """The numbers of an update, for the check of their size."""
        return unpack(update.values if isinstance(update, Dense) else b"".join(part for _, part in parts_of(update)))

    def max_update_scale(self, state: State, round: int) -> float:
        """The largest factor from the numbers of an update to the model: |Δx| ≤ scale · |sum of the update|.

        A cheap upper bound. Updates above it are tested before they are committed.
        """
        return 1.0

    def check(self, federation: Federation) -> None:
        """Raise `FedzeroError` for a federation that the method cannot serve."""
        why = "needs a server that holds the model and sends it to clients before their turns (decomfl does not)"
        federation.expect(f"{self.name} {why}", private=False, server_model=True, sync=False, pull_after=None)


def advance_round(state: State, updates: Sequence[Update]) -> State:
    """The state with the round after `updates`, its tensors unchanged; checks that the updates follow the state's round
    in order."""
    expected = state.round
    for update in updates:
        if update.round < expected:
            raise FedzeroError(f"update of round {update.round} comes after round {expected - 1} was applied")
        expected = update.round + 1
    return replace(state, round=expected)
