"""Gatherings bring replies from hosts to the server in several phases, which may leave a sum and no single reply.

    client links ──▶ contributions at a host ──▶ phases between hosts and server ──▶ Total | Replies ──▶ server links

A run has at most one gathering. Without one, every reply carries its values. With one, a reply has only the digest of
its model, the number of queries and the digest of the client's memory; values and loss stay at the host, a process with
one client or several, until the gathering's phases ask for them. `Replies` have no losses.

    at_server   yields the messages to all hosts in a phase, receives their answers, returns the outcome
    at_host     yields the answer to a phase, receives the message of the next phase

Both are generators, so a phase finds the results of earlier phases in local variables. A host that was killed runs its
half again, with the same contributions, the same messages and the same random numbers, whose seed is on its disk before
its first answer leaves. So its half must be a function of these alone.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Generator, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np
from msgspec import Struct

from fedzero.directions.terms import F32, F64
from fedzero.errors import FedzeroError
from fedzero.links.contract import Contribution, Entropy, Replies
from fedzero.model.value import Named

MOST_PHASES = 16
"""The most phases of one exchange."""


class Total(Struct, frozen=True, eq=False):
    """The outcome of a gathering that hides replies.

    values: Σ w_i v_i; weight: Σ w_i, w_i how often client i was drawn; clients: the clients whose values are in the
    sum; loss: Σ loss_i, each client once; None: unknown.
    """

    values: F64
    weight: float
    clients: tuple[int, ...]
    loss: float | None = None

    def mean(self) -> F32:
        mean: F32 = (self.values / self.weight).astype(np.float32)
        return mean

    @property
    def mean_loss(self) -> float | None:
        return None if self.loss is None else self.loss / len(self.clients)


@dataclass(frozen=True)
class HostContext:
    """A host's knowledge when a gathering begins. opening: the server's message of the first phase; numbers: how many
    values a contribution has; entropy: random bytes that nobody else knows.

    run: names the run, equally at all hosts; store: what this host keeps between the rounds of this run. Whatever is
    written there becomes durable together with the answer to the phase, or not at all if the phase fails; a phase that
    is repeated finds what it wrote. identity: a private key of 32 bytes that outlasts runs, empty: this host has none;
    pinned: the fingerprint of the hosts that the people here agreed on, empty: they did not."""

    round: int
    exchange: int
    numbers: int
    opening: bytes
    entropy: Entropy
    run: str = ""
    store: MutableMapping[str, bytes] = field(default_factory=dict)
    identity: bytes = b""
    pinned: str = ""


@dataclass(frozen=True)
class ServerContext:
    """The server's knowledge when a gathering begins. weights: how often each client was drawn; entropy: random bytes
    that nobody else knows, for the outcome and never for a message."""

    round: int
    exchange: int
    numbers: int
    weights: Mapping[int, int]
    entropy: Entropy = os.urandom


AtHost = Generator[bytes, bytes, None]
AtServer = Generator[Mapping[str, bytes], Mapping[str, bytes | Exception], Replies | Total]


class Gathering(Named):
    """The contract of gatherings. The fields are the keys of `[gathering]` in a recipe."""

    hides_replies = True
    """Whether it leaves a `Total`. Links and methods that read the reply of a single client are refused then."""
    idle = False
    """Whether hosts take part that have no reply in an exchange: `at_server` gets them with no clients."""
    hides_clients = False
    """Whether nothing that is kept or shown may depend on who took part: a round without clients is played like any
    other, its record names nobody, and its costs are those that are expected."""

    def at_host(self, mine: Mapping[int, Contribution], host: HostContext) -> AtHost:
        """The phases of an exchange at one host: `body = yield answer`. mine: by client, its contribution as the server
        would decode it."""
        raise NotImplementedError

    def at_server(self, hosts: Mapping[str, tuple[int, ...]], server: ServerContext) -> AtServer:
        """The phases at the server: `answers = yield bodies`, both by host. hosts: the clients whose replies count, by
        host.

        The answer of a host that did not answer is an exception; the host may be left out of the next phase, or asked
        again in it. Hosts without a body are not asked in a phase. Clients missing from the outcome are refused; raise
        `Refused` if too few are left. A server that was killed begins again, so its messages must be a function of the
        arguments and answers alone.
        """
        raise NotImplementedError

    def ended(self, store: MutableMapping[str, bytes]) -> None:
        """Erase what a host kept for later rounds: the run has ended."""
        store.clear()

    def limit(self, numbers: int, clients: int) -> int:
        """The most bytes of a host's answer to a phase. clients: number of clients in the round."""
        return 16 * numbers + 4096 * (clients + 1)

    def bytes_up(self, numbers: int, hosts: int, asked: float) -> float:
        """Expected bytes of all answers in an exchange, for gatherings that hide clients. hosts: all of them; asked:
        the expected number of clients that take part."""
        raise NotImplementedError


class Hidden(Mapping[int, F32]):
    """Stands in the place of contributions that nobody may read."""

    def __init__(self, gathering: str):
        self._gathering = gathering

    def _refuse(self) -> NoReturn:
        raise FedzeroError(f"gathering {self._gathering!r} hides the replies of single clients: use gathered.mean()")

    def __getitem__(self, client: int) -> F32:
        self._refuse()

    def __iter__(self) -> Iterator[int]:
        self._refuse()

    def __len__(self) -> int:
        self._refuse()


def repeatable(seed: bytes) -> Entropy:
    """Bytes that follow from a seed that nobody else knows: call n is SHAKE-256 of seed and n."""
    calls = 0

    def draw(count: int) -> bytes:
        nonlocal calls
        calls += 1
        return hashlib.shake_256(seed + calls.to_bytes(8, "little")).digest(count)

    return draw
