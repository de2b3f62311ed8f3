"""What an engine sees of the run that it carries; of the server it sees nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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

CatchUp = tuple[tuple[bytes, int, Numbers] | None, Sequence[Update]]
"""A part of what brings a replica of the base model to where the run is: with the first part a checkpoint (tensors,
rounds, numbers), if there is one; updates to fold."""


class Past(Protocol):
    """What has been of a run, as its ledger has it. Known from the first message on."""

    def known(self, client: int) -> int:
        """The round that a client's model is known to be ready for."""
        ...

    def updates(self, first: int, last: int) -> Sequence[bytes]:
        """Encoded updates of rounds first … last − 1."""
        ...

    def catch_up(self, part: int) -> Iterator[CatchUp]:
        """All that a replica of the base model lacks, so many updates at a time."""
        ...

    def memory(self, client: int) -> Sequence[bytes]:
        """What a client remembers of its last turn that counted, in pieces; none: it has no memory."""
        ...

    def limit(self, round: int, exchange: int) -> int:
        """Bytes of a reply at most."""
        ...

    @property
    def queries(self) -> LedgerLog | None:
        """The log of queries of clients with black boxes."""
        ...


@dataclass(frozen=True)
class RunView:
    """A run, for its engine.

    replica: the clients' model where the engine is in this process, the base model while the engine is opened; None on
    a server without a model, which has no set-up either. phase: is told what is going on; warn: is told, in a sentence,
    what should not be. observe: is told of local steps. oldest: replies to what was asked so many rounds before may
    still count.
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

    def built(self) -> tuple[Setup, Replica]:
        """Set-up and replica, of a run that has them in this process."""
        if self.setup is None or self.replica is None:
            raise FedzeroError("clients of this engine need the model here: set federation.server_model = true")
        return self.setup, self.replica
