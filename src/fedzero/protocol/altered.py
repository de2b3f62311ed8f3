"""Clients whose replies somebody changes on the way to the server."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from fedzero.protocol.engine import FOREVER, Arrival, Clients, Event, Left
from fedzero.protocol.forwarding import Forwarding
from fedzero.protocol.outstanding import Outstanding

Pass = Callable[[int, int, Sequence[Arrival]], Sequence[Arrival]]
"""(round, exchange, the clients' replies) → the replies that arrive"""


class Altered(Forwarding):
    """Clients whose replies are changed on the way to the server, once all replies of an exchange are known. Other
    events pass at once."""

    def __init__(self, clients: Clients, alter: Pass, oldest: int = 0):
        super().__init__(clients)
        self._alter = alter
        self._open = Outstanding[list[Arrival]](oldest)
        """with the arrivals of each exchange so far"""

    def send(self, asked: int, exchange: int, messages: Sequence[bytes], which: Mapping[int, int]) -> None:
        for batch in self._open.batches:
            batch.work = [arrival for arrival in batch.work if arrival.client not in which]
        self._open.add(asked, exchange, {client: messages[message] for client, message in which.items()}, [])
        self.inner.send(asked, exchange, messages, which)

    def receive(self, seconds: float) -> Sequence[Event]:
        end = time.monotonic() + seconds
        while self._open.batches:
            found = self.inner.receive(max(0.0, end - time.monotonic()))
            others = [event for event in found if not isinstance(event, Arrival)]
            whole = list[Event]()
            gone = [client for event in others if isinstance(event, Left) for client in event.clients]
            for batch in self._open.batches:
                arrived = [batch.arrived(event) for event in found if isinstance(event, Arrival)]
                batch.work += [arrival for arrival in arrived if arrival is not None]
                batch.left(gone)
                if not batch.awaited or (not found and seconds == FOREVER):
                    whole += self._alter(batch.asked, batch.exchange, batch.work)
                    batch.awaited.clear()
            self._open.prune()
            if others or whole or time.monotonic() >= end:
                return [*others, *whole]
        return ()
