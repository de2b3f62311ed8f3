"""Clients of one process whose replies arrive in the order of a simulated clock.

A question is answered when it is sent, at the model of its round, and the reply is held until its time. So the order of
arrivals, and with it the run, is a function of the recipe; a run that was killed asks the open questions again when
its model stands where it stood then, and gets the same replies at the same times.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence

from msgspec import structs

from fedzero.engines.simulated_time import Times
from fedzero.errors import FedzeroError
from fedzero.model.updates import Update
from fedzero.protocol.engine import FOREVER, Arrival, Clients, Event, Joined, arrivals
from fedzero.protocol.forwarding import Forwarding

Due = tuple[float, int, int, Arrival]
"""(time, round of the question, client, reply); a client has one."""


class SimulatedClients(Forwarding):
    """inner: clients that answer when they are asked. oldest: replies to questions of up to so many rounds before may
    count; then every question is answered for itself, because nobody knows any more who was asked together."""

    def __init__(self, inner: Clients, times: Times, oldest: int = 0):
        super().__init__(inner)
        self._times, self._oldest = times, oldest
        self._now = 0.0
        self._due: list[Due] = []

    @property
    def now(self) -> float:
        return self._now

    def set_time(self, now: float) -> None:
        self._now = now

    def present(self) -> Sequence[int] | None:
        return self._times.present(self._now)

    def send(self, asked: int, exchange: int, messages: Sequence[bytes], which: Mapping[int, int]) -> None:
        self._keep([due for due in self._due if due[2] not in which])
        turns = {client: self._times.turn(asked, exchange, client) for client in which}
        answered = {client: message for client, message in which.items() if not turns[client][1]}
        groups = [{client: message} for client, message in answered.items()] if self._oldest else [answered]
        replies: dict[int, Arrival] = {}
        for group in groups if answered else ():
            self.inner.send(asked, exchange, messages, group)
            replies |= {arrival.client: arrival for arrival in arrivals(self.inner)}
        for client, message in which.items():
            seconds, dropped = turns[client]
            gone = Arrival(client, FedzeroError("dropped out"), f"client {client}")
            reply = gone if dropped else replies[client]
            up = len(reply.data) if isinstance(reply.data, bytes) else 0
            at = self._now + seconds + self._times.messages(client, len(messages[message]), up)
            heapq.heappush(self._due, (at, asked, client, structs.replace(reply, asked=asked)))

    def receive(self, seconds: float) -> Sequence[Event]:
        return self.receive_until(self._now + seconds)

    def receive_until(self, time: float) -> Sequence[Event]:
        if self._due and self._due[0][0] <= time:
            self._now = max(self._now, self._due[0][0])
            found = list[Event]()
            while self._due and self._due[0][0] <= self._now:
                found.append(heapq.heappop(self._due)[3])
            return found
        if time < FOREVER:
            self._now = max(self._now, time)
            return ()
        if (here := self.present()) is None or here:
            return ()
        self._now = self._times.next(self._now)
        return [Joined("", tuple(self.present() or ()))]

    def give_back(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Arrival):
                assert event.asked is not None
                heapq.heappush(self._due, (self._now, event.asked, event.client, event))

    def settle(
        self, round: int, update: Update | None, closings: Mapping[int, bytes], diverged: Collection[int]
    ) -> None:
        """Replies that cannot count any more are dropped: the server has refused their clients."""
        self._keep([due for due in self._due if round + 1 - due[1] <= self._oldest])
        super().settle(round, update, closings, diverged)

    def _keep(self, due: list[Due]) -> None:
        if len(due) < len(self._due):
            heapq.heapify(due)
            self._due = due
