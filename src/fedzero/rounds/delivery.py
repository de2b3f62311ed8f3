"""What a client is sent: work with the updates it missed, or the state; the next exchange; the outcome."""

from __future__ import annotations

from collections.abc import Sequence

from fedzero.errors import FedzeroError
from fedzero.methods.contract import Part
from fedzero.protocol.messages import Snapshot, encode, encode_joined_work
from fedzero.protocol.replica import Replica
from fedzero.recipe.plan import Plan
from fedzero.rounds.tracker import ClientTracker


class Delivery:
    """replica: the server's, None on a server without a model. remembering: see `Admission`."""

    def __init__(self, plan: Plan, replica: Replica | None, tracker: ClientTracker, remembering: bool):
        self.plan, self.replica, self.tracker, self.remembering = plan, replica, tracker, remembering

    def instructions(self, round: int, cohort: Sequence[int]) -> dict[int, bytes]:
        delivery, limit = self.plan.wire(round).delivery, self.plan.federation.pull_after
        states: dict[Part, bytes] = {}
        works: dict[tuple[int, int | None], bytes] = {}
        instructions = {}
        known = self.tracker.known[list(cohort)].tolist()
        for client, knows in zip(cohort, known, strict=True):
            counted = self.tracker.turns.last(client) if self.remembering else None
            pulls = limit is not None and round - knows > limit
            if delivery == "snapshot" or pulls:
                instructions[client] = self._snapshot(round, client, counted, states)
                continue
            if (knows, counted) not in works:
                works[knows, counted] = encode_joined_work(round, 0, *self.tracker.missed(knows, round), counted)
            instructions[client] = works[knows, counted]
            if delivery == "fewer" and self.replica is not None:
                snapshot = self._snapshot(round, client, counted, states)
                instructions[client] = min(instructions[client], snapshot, key=len)
        return instructions

    def _snapshot(self, round: int, client: int, counted: int | None, states: dict[Part, bytes]) -> bytes:
        """The state, or what of it a client needs; `states` has the parts that were encoded before."""
        if self.replica is None:
            raise FedzeroError("the server holds no model and cannot send one: set federation.server_model = true")
        state, part = self.replica.state, self.replica.state.carry.part(client)
        if part not in states:
            states[part] = state.to_bytes(part)
        return encode(Snapshot(round, 0, state.numbers, states[part], counted))
