"""An engine carries instruction bytes to clients and reply bytes back. Nothing above it knows which one runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Protocol

from fedzero.errors import FedzeroError
from fedzero.model.identity import Identity
from fedzero.model.updates import Update
from fedzero.oracles import Metrics
from fedzero.protocol.messages import MemoryChange


class Interrupted(FedzeroError):
    """What was going on is lost and has to be done again: the epoch is over, or somebody waits to be let in."""


class Tied(Interrupted):
    """Replicas differ, and as many have the one model as the other: nobody knows who is right."""


class Undelivered(FedzeroError):
    """An instruction was never sent, so its bytes do not count."""


class Engine(Protocol):
    """One federation's clients, wherever they are."""

    def exchange(
        self, round: int, exchange: int, instructions: Mapping[int, bytes]
    ) -> Iterator[tuple[int, bytes | Exception]]:
        """Deliver and gather: (sender, reply) pairs in any order; an exception stands for a client that failed,
        `Undelivered` for one that could not even be asked."""
        ...

    def memories(self, clients: Collection[int]) -> Mapping[int, MemoryChange]:
        """What clients of this process will remember of the round, to be made durable with it."""
        ...

    def close(self, round: int, update: Update | None, closings: Mapping[int, bytes]) -> None:
        """The round is on the ledger: deliver its outcome to those who get it now."""
        ...

    def voters(self, clients: Collection[int]) -> Mapping[int, str]:
        """Who has a vote for each client where replicas differ: clients that share a replica have one together."""
        ...

    def rebuild(self, clients: Collection[int]) -> None:
        """These clients work on another model than they should: let them make it anew."""
        ...

    def renew(self) -> None:
        """A round was interrupted (`Interrupted`): make ready to play it again."""
        ...

    def identity(self, after: int) -> Identity:
        """Of the current model, that of `after` rounds."""
        ...

    def evaluate(self, after: int = 0, last: bool = False) -> tuple[Identity, Metrics]:
        """Identity and quality of the current model, that of `after` rounds; last: no round follows."""
        ...
