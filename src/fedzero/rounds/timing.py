"""The seconds of a step, for schedules with deadlines and leases: simulated ones of clients that have them, otherwise
those of the server's own clock."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from msgspec import UnsetType

from fedzero.ledger.records import Round, TimedRound
from fedzero.protocol.engine import FOREVER, Clients, Event, Timed


def timed(record: Round, now: float, since: Mapping[int, float]) -> TimedRound:
    """A round with its simulated time, and with those of its questions."""
    fields = {name: getattr(record, name) for name in record.__struct_fields__}
    asked = () if isinstance(record.asked, UnsetType) else record.asked
    return TimedRound(**fields, time=now, asked_at=tuple(since[client] for client in asked))


class Timing:
    """began: when the step began. since: by client with an open question, when it was asked."""

    def __init__(self) -> None:
        self.began = 0.0
        self.since: dict[int, float] = {}

    def now(self, clients: Clients) -> float:
        return clients.now if isinstance(clients, Timed) else time.monotonic()

    def begin(self, clients: Clients, open: Iterable[int]) -> None:
        """A step begins. open: clients with a question. If an earlier process asked it, its time begins now."""
        self.began = self.now(clients)
        self.since = {client: self.since.get(client, self.began) for client in open}

    def asked(self, clients: Clients, which: Iterable[int]) -> None:
        self.since |= dict.fromkeys(which, self.now(clients))

    def receive(self, clients: Clients, until: float) -> Sequence[Event]:
        """The next events up to a time."""
        if isinstance(clients, Timed):
            return clients.receive_until(until)
        return clients.receive(FOREVER if until == FOREVER else max(0.0, until - time.monotonic()))
