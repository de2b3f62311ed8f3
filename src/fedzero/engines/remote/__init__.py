"""Clients in other processes, reached over a transport.

transport        the contract of transports: a value that opens a link
correspondence   a link over any connection that sends and receives
pipe             a transport to processes of this machine
bare             a host that trusts its server
engine           the server's side: exchanges, phases and outcomes of rounds
sites            the sites that are there: epochs, answers, sites that come and go
replicas         catch-up of replicas that are behind, votes, measuring
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import msgspec

from fedzero.errors import FedzeroError
from fedzero.model.numbers import Positive
from fedzero.protocol.engine import Clients
from fedzero.recipe import recipe as recipes
from fedzero.recipe.engines import Engine
from fedzero.recipe.view import RunView


class Remote(Engine, tag="remote"):
    """Clients at hosts that a transport reaches. The hosts keep the clients' memories, as long as they last."""

    transport: str | dict[str, Any] = "pipe"
    """A word, or a table with its settings: { kind = "pipe", hosts = 3 }."""
    clients: str = ""
    """Where the clients of a host are: an engine, such as ray:2; default: in its process."""
    deadline: Positive = 60.0
    """Seconds that an exchange may take."""

    def __post_init__(self) -> None:
        super().__post_init__()
        from fedzero.engines.remote.transport import chosen

        chosen(self.transport)

    @staticmethod
    def over(transport: Any, **settings: Any) -> Remote:
        """The engine with a transport given as a value."""
        return Remote(transport=msgspec.to_builtins(transport), **settings)

    @contextmanager
    def open(self, run: RunView) -> Iterator[Clients]:
        from fedzero.engines.remote.assignment import assign
        from fedzero.engines.remote.bare import program_here
        from fedzero.engines.remote.engine import RemoteClients, Service
        from fedzero.engines.remote.messages import Prepare, Prepared
        from fedzero.engines.remote.transport import chosen

        setup, _ = run.built()
        if setup.problem.metered is not None:
            raise FedzeroError("hosts log no queries of black boxes: use the local engine, or sites")
        if self.attack is not None:
            raise FedzeroError("engine.attack changes what clients of this process send: use the local engine")
        start = setup.start
        base, count = start.identity, run.recipe.federation.clients
        where: dict[str, tuple[int, ...]] = {}

        def assigned(here: Any) -> dict[str, tuple[int, ...]]:
            nonlocal where
            where = assign(sorted({*where, *here}), count, where)
            return where

        prepare = Prepare(uuid4().hex, recipes.canonical(run.recipe), (), run.recipe.needs, start.secret)
        with chosen(self.transport).open(program_here(run.environment, self.clients), run.warn) as link:
            service = Service(link, lambda: sorted(where), self.deadline, run.warn)

            def fits(found: Prepared) -> bool:
                return found.identity == base

            clients = RemoteClients(service, prepare, assigned, setup.problem.objective, fits)
            found = clients.agreed()
            if found.identity != base:
                raise FedzeroError(f"the hosts start from model {found.identity}, this process from {base}")
            clients.attach(run)
            yield clients
            if run.replica is not None:
                clients.finish(min(run.replica.round, run.recipe.rounds))
