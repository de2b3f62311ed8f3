"""What an engine opens: a federation's clients, wherever they are. The server sends messages and receives events.

    clients.send(asked, exchange, messages, which)     many clients, one message
    clients.receive(seconds)                           what has happened: replies, clients that come and go, queries
    clients.settle(round, update, closings, diverged)  the round is over

Nothing above knows which engine runs. An engine itself is a value with a tag (`recipe.engines`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from fedzero.errors import FedzeroError
from fedzero.model.identity import Identity
from fedzero.model.updates import Update
from fedzero.oracles import Metrics
from fedzero.oracles.blackbox import Query
from fedzero.protocol.messages import MemoryChange

FOREVER = math.inf
"""Seconds of `receive`: until something happens, or nothing can happen any more."""


class Interrupted(FedzeroError):
    """What carries messages broke off: what is outstanding has to be sent again."""


class Tied(FedzeroError):
    """Replicas differ, and as many have the one model as the other: nobody knows who is right."""


class Undelivered(FedzeroError):
    """An instruction was never sent, so its bytes do not count."""


class Arrival(Struct, frozen=True):
    """A reply, or why there is none (`Undelivered`: the client could not even be asked).

    host: who has the replica that the client works on; clients of one host have one vote together where replicas
    differ. Empty: nobody else has it. memory: of a client of this process, what it will remember of the round; with the
    reply of the last exchange.
    """

    client: int
    data: bytes | Exception
    host: str = ""
    memory: MemoryChange | None = None


class Joined(Struct, frozen=True):
    """A host and its clients are here (again)."""

    host: str
    clients: tuple[int, ...]


class Left(Struct, frozen=True):
    """A host is gone, and why. Those of its clients that were asked and did not arrive do not arrive any more."""

    host: str
    clients: tuple[int, ...]
    why: str


class Rows(Struct, frozen=True):
    """Queries of black boxes. The next `receive` says that they are durable; until then no answer depends on them."""

    rows: Sequence[Query]


Event = Arrival | Joined | Left | Rows


class Clients(Protocol):
    """One federation's clients while a run lasts."""

    def send(self, asked: int, exchange: int, messages: Sequence[bytes], which: Mapping[int, int]) -> None:
        """Begin an exchange of the round `asked`, or ask more clients in it. which: by client, the message it gets.
        What was still awaited of an earlier exchange is given up, unless replies to it may still count
        (`RunView.oldest`)."""
        ...

    def receive(self, seconds: float) -> Sequence[Event]:
        """What has happened, in any order; waits so long for the first event. Every client that was asked arrives once,
        if only with an exception, or leaves with its host. Nothing after `FOREVER`: nobody is awaited."""
        ...

    def settle(
        self, round: int, update: Update | None, closings: Mapping[int, bytes], diverged: Collection[int]
    ) -> None:
        """The round is on the ledger, or will be repeated (no update): deliver its outcome to those who get it now.
        diverged: clients that worked on another model than they should; theirs is made anew."""
        ...

    def phase(
        self, asked: int, exchange: int, phase: int, bodies: Mapping[str, bytes]
    ) -> Mapping[str, bytes | Exception]:
        """A phase of a gathering, between an exchange's replies and what comes next: what hosts answer, or why there is
        no answer. bodies: by host, as `Arrival` names it."""
        ...

    def identity(self, after: int) -> Identity:
        """Of the current model, that of `after` rounds."""
        ...

    def evaluate(self, after: int = 0, last: bool = False) -> tuple[Identity, Metrics]:
        """Identity and quality of the current model, that of `after` rounds; last: no round follows."""
        ...


def arrivals(clients: Clients) -> Iterator[Arrival]:
    """All that arrive of what was sent, where nothing else happens."""
    while events := clients.receive(FOREVER):
        yield from (event for event in events if isinstance(event, Arrival))


Pass = Callable[[int, int, Sequence[Arrival]], Sequence[Arrival]]
"""(round, exchange, what clients send) → what arrives"""


class Altered:
    """Clients between whom and the server somebody stands who has seen all replies of an exchange before one arrives.
    Whatever else happens goes through at once."""

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
