"""Clients whose replies somebody changes on the way to the server."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from fedzero.model.identity import Identity
from fedzero.model.updates import Update
from fedzero.oracles import Metrics
from fedzero.protocol.engine import FOREVER, Arrival, Clients, Event, Left

Pass = Callable[[int, int, Sequence[Arrival]], Sequence[Arrival]]
"""(round, exchange, the clients' replies) → the replies that arrive"""


class Altered:
    """Clients whose replies are changed on the way to the server, once all replies of an exchange are known. Other
    events pass at once."""

    def __init__(self, clients: Clients, alter: Pass):
        self.inner, self._alter = clients, alter
        self._place = 0, 0
        self._awaited, self._held = set[int](), list[Arrival]()

    def send(self, asked: int, exchange: int, messages: Sequence[bytes], which: Mapping[int, int]) -> None:
        self._place, self._awaited, self._held = (asked, exchange), set(which), []
        self.inner.send(asked, exchange, messages, which)

    def receive(self, seconds: float) -> Sequence[Event]:
        while True:
            found = self.inner.receive(seconds) if self._awaited else ()
            others = [event for event in found if not isinstance(event, Arrival)]
            self._held += [event for event in found if isinstance(event, Arrival)]
            self._awaited -= {event.client for event in found if isinstance(event, Arrival)}
            self._awaited -= {client for event in others if isinstance(event, Left) for client in event.clients}
            if others or (not found and self._awaited and seconds < FOREVER):
                return others
            if not found or not self._awaited:
                held, self._held, self._awaited = self._held, [], set()
                return self._alter(*self._place, held) if held else ()

    def settle(
        self, round: int, update: Update | None, closings: Mapping[int, bytes], diverged: Collection[int]
    ) -> None:
        self.inner.settle(round, update, closings, diverged)

    def phase(
        self, asked: int, exchange: int, phase: int, bodies: Mapping[str, bytes]
    ) -> Mapping[str, bytes | Exception]:
        return self.inner.phase(asked, exchange, phase, bodies)

    def identity(self, after: int) -> Identity:
        return self.inner.identity(after)

    def evaluate(self, after: int = 0, last: bool = False) -> tuple[Identity, Metrics]:
        return self.inner.evaluate(after, last)
