"""Private randomness that a test chooses, of this process until the block ends: two runs draw the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from fedzero.links.contract import Entropy
from fedzero.links.gathering import ServerContext, repeatable
from fedzero.protocol.client import Client
from fedzero.recipe.sampling import PrivateBatches, PrivateCohorts
from fedzero.rounds import gathering


@contextmanager
def given_entropy(
    coins: bytes | None = None, rounding: bytes | None = None, noise: bytes | None = None
) -> Iterator[None]:
    """coins: of cohorts and batches; rounding: of clients, the same for a client and a round whoever else is asked;
    noise: of the server, the same for a round. None: the operating system's."""
    with ExitStack() as stack:
        for kind in (PrivateCohorts, PrivateBatches) if coins is not None else ():
            stack.enter_context(patch.object(kind, "__init__", _drawing(kind.__init__, coins or b"")))
        if rounding is not None:
            context = Client._context

            def of_client(client: Client, exchange: int) -> Any:
                found = context(client, exchange)
                return replace(found, entropy=_entropy(rounding, found.round, found.client))

            stack.enter_context(patch.object(Client, "_context", of_client))
        if noise is not None:

            def of_server(round: int, exchange: int, *others: Any) -> ServerContext:
                return ServerContext(round, exchange, *others, entropy=_entropy(noise, round, exchange))

            stack.enter_context(patch.object(gathering, "ServerContext", of_server))
        yield


def _drawing(init: Any, coins: bytes) -> Any:
    """Each run begins again with the first of the bytes."""

    def made(self: Any, *given: Any, **named: Any) -> None:
        init(self, *given, **named)
        self._entropy = repeatable(coins)

    return made


def _entropy(seed: bytes, *place: int) -> Entropy:
    return repeatable(seed + repr(place).encode())
