"""The clients of a federation, wherever they are. An engine opens them; the server sends messages and receives events.

    clients.send(asked, exchange, messages, which)     many clients, one message
    clients.receive(seconds)                           events: replies, clients that come and go, queries
    clients.settle(round, update, closings, diverged)  the round is over

Higher layers do not know which engine runs. An engine itself is a tagged value (`recipe.engines`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct

from fedzero.errors import FedzeroError
from fedzero.model.identity import Identity
from fedzero.model.updates import Update
from fedzero.oracles import Metrics
from fedzero.oracles.blackbox import Query
from fedzero.protocol.messages import MemoryChange

FOREVER = math.inf
"""Seconds of `receive`: wait until an event comes, or no event can come any more."""


class Interrupted(FedzeroError):
    """The connection broke off: unanswered messages have to be sent again."""


class Tied(FedzeroError):
    """Replicas differ, and their votes are tied: nobody knows which model is right."""


class Undelivered(FedzeroError):
    """An instruction was never sent, so its bytes do not count."""


class Arrival(Struct, frozen=True):
    """A reply, or the reason why there is none (`Undelivered`: the client could not even be asked).

    host: the holder of the client's replica; clients of one host have one vote together if replicas differ. Empty: the
    client does not share its replica. memory: the change of the client's memory by this round, if the server keeps it;
    comes with the reply of the last exchange. asked: the round of the question; None: of the client's open question.
    """

    client: int
    data: bytes | Exception
    host: str = ""
    memory: MemoryChange | None = None
    asked: int | None = None


class Joined(Struct, frozen=True):
    """A host and its clients are here (again)."""

    host: str
    clients: tuple[int, ...]


class Left(Struct, frozen=True):
    """A host is gone, and why. Clients of it that were asked and have not arrived will not arrive."""

    host: str
    clients: tuple[int, ...]
    why: str


class Rows(Struct, frozen=True):
    """Queries of black boxes. The next call of `receive` confirms that they are durable; until then no answer depends
    on them."""

    rows: Sequence[Query]


Event = Arrival | Joined | Left | Rows


class Clients(Protocol):
    """The clients of a federation during a run."""

    def send(self, asked: int, exchange: int, messages: Sequence[bytes], which: Mapping[int, int]) -> None:
        """Begin an exchange of the round `asked`, or ask more clients in it. which: by client, the index of its
        message. Other clients that were asked before are still awaited, if their replies may count
        (`outstanding.may_count`, `RunView.oldest`); a client that is asked again gives up its earlier question."""
        ...

    def receive(self, seconds: float) -> Sequence[Event]:
        """Events of all open questions, in any order; waits up to so many seconds for the first. Every client that was
        asked arrives once, perhaps with an exception, or leaves with its host. No events after `FOREVER`: no client is
        awaited. An engine that computes in this process finishes the evaluation that it has begun."""
        ...

    def settle(
        self, round: int, update: Update | None, closings: Mapping[int, bytes], diverged: Collection[int]
    ) -> None:
        """The round is on the ledger, or will be repeated (no update): deliver its outcome to clients that get it now.
        diverged: clients that worked on a wrong model; their replicas are rebuilt."""
        ...

    def hosts(self) -> Collection[str]:
        """The hosts that can be asked for a phase of a gathering, also those without a reply."""
        ...

    def phase(
        self, asked: int, exchange: int, phase: int, bodies: Mapping[str, bytes]
    ) -> Mapping[str, bytes | Exception]:
        """Play a phase of a gathering after an exchange's replies; by host, its answer or the reason why there is none.
        bodies: by host, as `Arrival` names it."""
        ...

    def identity(self, after: int) -> Identity:
        """The identity of the current model, after `after` rounds."""
        ...

    def evaluate(self, after: int = 0, last: bool = False) -> tuple[Identity, Metrics]:
        """Identity and metrics of the current model, after `after` rounds; last: no round follows."""
        ...


@runtime_checkable
class Timed(Protocol):
    """Clients whose replies arrive in simulated time; these members stand beside those of `Clients`."""

    @property
    def now(self) -> float:
        """Simulated seconds since the start of the run."""
        ...

    def set_time(self, now: float) -> None:
        """Continue at this time: of a run that is resumed."""
        ...

    def receive_until(self, time: float) -> Sequence[Event]:
        """The events of the next moment with events, up to `time`; none: the clock has reached `time`, or no event can
        come any more (`FOREVER`)."""
        ...

    def give_back(self, events: Sequence[Event]) -> None:
        """Events of this moment that belong to a later step."""
        ...

    def present(self) -> Sequence[int] | None:
        """The clients that can be asked now, sorted; None: all."""
        ...


def arrivals(clients: Clients) -> Iterator[Arrival]:
    """All arrivals of an exchange; other events are ignored."""
    while events := clients.receive(FOREVER):
        yield from (event for event in events if isinstance(event, Arrival))
