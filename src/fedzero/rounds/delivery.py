"""Messages to clients at the beginning of their turns: work with the updates that they missed, or the state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fedzero.errors import FedzeroError
from fedzero.methods.contract import Part
from fedzero.protocol.messages import Snapshot, encode, encode_joined_work
from fedzero.protocol.replica import Replica
from fedzero.recipe.plan import Plan
from fedzero.rounds.tracker import ClientTracker


@dataclass
class Sending:
    """The messages of an exchange, and by client the index of its message: many clients get the same one."""

    messages: list[bytes] = field(default_factory=list)
    which: dict[int, int] = field(default_factory=dict)

    @staticmethod
    def to_all(clients: Iterable[int], message: bytes) -> Sending:
        return Sending([message], dict.fromkeys(clients, 0))

    def add(self, message: bytes) -> int:
        """Add a message; returns its index."""
        self.messages.append(message)
        return len(self.messages) - 1

    def size(self, client: int) -> int:
        return len(self.messages[self.which[client]])


class Delivery:
    """replica: the server's, None on a server without a model. remembering: see `Admission`."""

    def __init__(self, plan: Plan, replica: Replica | None, tracker: ClientTracker, remembering: bool):
        self.plan, self.replica, self.tracker, self.remembering = plan, replica, tracker, remembering

    def instructions(self, round: int, cohort: Sequence[int], ready: Sequence[int] | None = None) -> Sending:
        """The messages of a round. ready: the rounds that the clients' models are ready for; None: as far as is
        known."""
        delivery, limit = self.plan.traits.delivery, self.plan.federation.pull_after
        states: dict[tuple[Part, int | None], int] = {}
        works: dict[tuple[int, int | None], int] = {}
        sending = Sending()
        known = self.tracker.known[list(cohort)].tolist() if ready is None else ready
        for client, knows in zip(cohort, known, strict=True):
            counted = self.tracker.turns.last(client) if self.remembering else None
            pulls = limit is not None and round - knows > limit
            if delivery == "snapshot" or pulls:
                sending.which[client] = self._snapshot(round, client, counted, states, sending)
                continue
            if (knows, counted) not in works:
                works[knows, counted] = sending.add(
                    encode_joined_work(round, 0, *self.tracker.missed(knows, round), counted)
                )
            sending.which[client] = works[knows, counted]
            if delivery == "fewer" and self.replica is not None:
                snapshot = self._snapshot(round, client, counted, states, sending)
                if len(sending.messages[snapshot]) < sending.size(client):
                    sending.which[client] = snapshot
        return sending

    def _snapshot(
        self, round: int, client: int, counted: int | None, states: dict[tuple[Part, int | None], int], sending: Sending
    ) -> int:
        """The index of a message with the state, or with the part of it that a client needs; `states` has the messages
        that were encoded before."""
        if self.replica is None:
            raise FedzeroError("the server holds no model and cannot send one: set federation.server_model = true")
        state, part = self.replica.state, self.replica.state.carry.part(client)
        if (part, counted) not in states:
            states[part, counted] = sending.add(
                encode(Snapshot(round, 0, state.numbers, state.to_bytes(part), counted))
            )
        return states[part, counted]
