"""An engine's view of its run; it sees nothing of the server."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fedzero.callbacks import ignore
from fedzero.errors import FedzeroError
from fedzero.ledger.query_log import LedgerLog
from fedzero.methods.contract import Numbers, Observer
from fedzero.model.updates import Update
from fedzero.protocol.replica import Replica
from fedzero.recipe.environment import Environment
from fedzero.recipe.plan import Plan
from fedzero.recipe.recipe import Recipe
from fedzero.recipe.setup import Setup
from fedzero.tasks.contract import Phase

CatchUpPart = tuple[tuple[bytes, int, Numbers] | None, Sequence[Update]]
"""A part of the catch-up that brings a replica from the base model to the run's current round: a checkpoint (tensors,
rounds, numbers), only in the first part and if there is one; and updates to fold."""


class Past(Protocol):
    """The past of a run, from its ledger. Available from the first message on."""

    def known(self, client: int) -> int:
        """The round for which a client's model is known to be ready."""
        ...

    def updates(self, first: int, last: int) -> Sequence[bytes]:
        """Encoded updates of rounds first … last − 1."""
        ...

    def catch_up(self, part: int) -> Iterator[CatchUpPart]:
        """Everything that a replica of the base model lacks, in parts of `part` updates."""
        ...

    def memory(self, client: int) -> Sequence[bytes]:
        """A client's memory of its last turn that counted, in pieces; empty: it has no memory."""
        ...

    def limit(self, round: int, exchange: int) -> int:
        """The most bytes that a reply may have."""
        ...

    @property
    def queries(self) -> LedgerLog | None:
        """The log of queries of clients with black boxes."""
        ...


@dataclass(frozen=True)
class RunView:
    """A run, for its engine.

    replica: the clients' model if the engine is in this process; it is the base model while the engine is opened. None
    on a server without a model, which has no set-up either. phase: is told of the current activity; warn: is told of
    problems, in sentences. observe: is told of local steps. oldest: replies to questions of up to so many rounds before
    may still count. here: the clients that an engine at a host has; None: all of the run.
    """

    recipe: Recipe
    plan: Plan
    past: Past
    setup: Setup | None = None
    replica: Replica | None = None
    environment: Environment = field(default_factory=Environment)
    phase: Phase = ignore
    warn: Callable[[str], None] = ignore
    observe: Observer = ignore
    oldest: int = 0
    here: Collection[int] | None = None

    def built(self) -> tuple[Setup, Replica]:
        """Set-up and replica, if the run has them in this process."""
        if self.setup is None or self.replica is None:
            raise FedzeroError("clients of this engine need the model here: set federation.server_model = true")
        return self.setup, self.replica
