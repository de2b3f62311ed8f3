"""Clients around other clients: what an engine that changes the exchange hands on as it is."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fedzero.model.identity import Identity
from fedzero.model.updates import Update
from fedzero.oracles import Metrics
from fedzero.protocol.engine import Clients


class Forwarding:
    """The members of `Clients` beside `send` and `receive`."""

    def __init__(self, inner: Clients):
        self.inner = inner

    def settle(
        self, round: int, update: Update | None, closings: Mapping[int, bytes], diverged: Collection[int]
    ) -> None:
        self.inner.settle(round, update, closings, diverged)

    def hosts(self) -> Collection[str]:
        return self.inner.hosts()

    def phase(
        self, asked: int, exchange: int, phase: int, bodies: Mapping[str, bytes]
    ) -> Mapping[str, bytes | Exception]:
        return self.inner.phase(asked, exchange, phase, bodies)

    def identity(self, after: int) -> Identity:
        return self.inner.identity(after)

    def evaluate(self, after: int = 0, last: bool = False) -> tuple[Identity, Metrics]:
        return self.inner.evaluate(after, last)
