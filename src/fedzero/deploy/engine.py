"""The engine for clients in other processes: replicas of their own, reached through a link that may break at any time.

    engine.open()        an epoch begins: sites say what they have; what they lack they are sent, from the ledger
    engine.exchange(…)   instructions to the clients' sites, replies back

An epoch that ends in the middle of a round raises `Interrupted`; the round is then played again under its own number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from fedzero.deploy.assignment import Assignment, at_sites, site_of
from fedzero.deploy.link import Link
from fedzero.deploy.messages import (
    Answer,
    Deliver,
    Delivered,
    Exchange,
    Failed,
    Measure,
    Measured,
    Prepare,
    Prepared,
    Recover,
    Recovered,
    Replies,
    decode_answer,
    encode,
)
from fedzero.errors import FedzeroError, Refused
from fedzero.model.updates import Update
from fedzero.oracles import Metrics
from fedzero.protocol.engine import Interrupted
from fedzero.protocol.messages import MemoryChange

BURST = 256
"""Updates in one message to a replica that is behind."""
PREPARING, RECOVERING = 3600.0, 600.0
"""Seconds a site may take to load its model and data, and to fold a burst."""
ROOM = 4096
"""Bytes of an answer beside the replies in it."""


@dataclass(frozen=True)
class Own:
    """What a server with a model measures itself."""

    digest: Callable[[], bytes]
    evaluate: Callable[[], Metrics]


@dataclass(frozen=True)
class Run:
    """What the engine has to know of the run it serves.

    updates(first, last): encoded updates of those rounds, from the ledger. known(client): the round its replica is
    ready for, by the server's books. limit(round, exchange): bytes of a reply at most.
    """

    updates: Callable[[int, int], Sequence[bytes]]
    known: Callable[[int], int]
    limit: Callable[[int, int], int]
    catch_up: bool
    own: Own | None = None


class RemoteEngine:
    """`name` tells the run from all others. `assign` says which clients are at which site, anew at the beginning of an
    epoch, when the sites are known."""

    def __init__(
        self,
        link: Link,
        name: str,
        recipe: bytes,
        assignment: Callable[[Collection[str]], Assignment],
        deadline: float = 60.0,
        say: Callable[[str], None] = lambda text: None,
    ):
        self.link, self.name, self.recipe, self.assign, self.deadline, self.say = (
            link,
            name,
            recipe,
            assignment,
            deadline,
            say,
        )
        self.assignment: Assignment = {}
        self.site_of_client: dict[int, str] = {}
        self.away: dict[str, str] = {}
        """sites that have no part in this epoch, or none any more, and why"""
        self.run: Run | None = None
        self._groups: dict[int, tuple[int, ...]] = {}
        """clients that share a replica with this one"""
        self._ready: dict[int, int] = {}
        """the round a client's replica is known to be ready for; −1: to be made anew"""

    # ---- epochs

    def open(self) -> Prepared:
        """Begin an epoch; what the sites agree on. Who has another base than most is left out, by name."""
        here = self.link.begin()
        self.assignment = self.assign(here)
        self.site_of_client, self.away = (
            site_of(self.assignment),
            {site: "is away" for site in self.assignment if site not in here},
        )
        orders = {
            site: encode(Prepare(self.name, self.recipe, self.assignment[site]))
            for site in here
            if self.assignment.get(site)
        }
        found: dict[str, Prepared] = {}
        for site, answer in self._answers(orders, PREPARING, 1 << 20):
            if isinstance(answer, Prepared):
                found[site] = answer
            else:
                self._lose(site, str(answer.reason) if isinstance(answer, Failed) else str(answer))
        if not found:
            reasons = "; ".join(f"{site} {why}" for site, why in self.away.items())
            # A run that has begun waits for better times; one that has not is told.
            raise (FedzeroError if self.run is None else Interrupted)(f"no site could make ready: {reasons}")
        votes = Counter((p.base, p.parameters, p.secret) for p in found.values())
        common = max(votes, key=lambda key: (votes[key], key[0]))
        for site in [s for s, p in found.items() if (p.base, p.parameters, p.secret) != common]:
            self._lose(site, f"starts from model {found.pop(site).base.hex()}, not {common[0].hex()}")
        self._ready, self._groups = {}, {}
        for site, prepared in found.items():
            for group, round in prepared.replicas:
                for client in set(group) & set(self.assignment[site]):
                    self._ready[client], self._groups[client] = round, group
        return next(iter(found.values()))

    def renew(self) -> None:
        """After an interruption."""
        self.open()

    def _lose(self, site: str, why: str) -> None:
        self.away[site] = why
        self.say(f"{site} {why}")

    # ---- the contract

    def exchange(
        self, round: int, exchange: int, instructions: Mapping[int, bytes]
    ) -> Iterator[tuple[int, bytes | Exception]]:
        if not exchange:
            if waiting := sorted(self.link.waiting()):
                raise Interrupted(f"{', '.join(waiting)} waits to take part")
            ahead = [client for client in instructions if self._ready.get(client, 0) > round]
            self.rebuild(ahead)  # of rounds that are not on the ledger (any more)
            self._recover(instructions)
        by_site = at_sites(self.assignment, instructions)
        for client in instructions.keys() - self.site_of_client.keys():
            yield client, FedzeroError("nobody is this client yet")
        for site in sorted(by_site.keys() & self.away.keys()):
            for client in by_site.pop(site):
                yield client, FedzeroError(f"its site {site} {self.away[site]}")
        orders = {
            site: encode(Exchange(round, exchange, {client: instructions[client] for client in clients}))
            for site, clients in by_site.items()
        }
        assert self.run is not None
        limit = ROOM + max(map(len, by_site.values()), default=0) * (self.run.limit(round, exchange) + 64)
        for site, answer in self._answers(orders, self.deadline, limit):
            yield from self._replies(round, site, answer, by_site[site])

    def _replies(
        self, round: int, site: str, answer: Answer | Exception, clients: Sequence[int]
    ) -> Iterator[tuple[int, bytes | Exception]]:
        if isinstance(answer, Replies):
            others = (answer.replies.keys() | answer.failed.keys()) - set(clients)
            if others:
                answer = Refused(f"{site} spoke for client {min(others)}, which it was not asked about")
        elif isinstance(answer, Failed):
            answer = FedzeroError(answer.reason)
        elif not isinstance(answer, Exception):
            answer = Refused(f"{site} answered something else")
        for client in clients:
            if isinstance(answer, Exception):
                yield client, answer
            elif client in answer.replies:
                for sharing in self._groups.get(client, (client,)):
                    self._ready[sharing] = max(round, self._ready.get(sharing, 0))
                yield client, answer.replies[client]
            else:
                yield client, FedzeroError(answer.failed.get(client, "did not answer"))

    def memories(self, clients: Collection[int]) -> Mapping[int, MemoryChange]:
        """Sites keep what their clients remember."""
        return {}

    def close(self, round: int, update: Update | None, closings: Mapping[int, bytes]) -> None:
        by_site = {s: clients for s, clients in at_sites(self.assignment, closings).items() if s not in self.away}
        orders = {s: encode(Deliver(round, {c: closings[c] for c in clients})) for s, clients in by_site.items()}
        with suppress(Interrupted):  # the round is on the ledger; who did not get this is sent it before its next turn
            for site, answer in self._answers(orders, self.deadline, ROOM):
                if isinstance(answer, Delivered):
                    for client in by_site[site]:
                        self._ready[client] = round + 1

    def rebuild(self, clients: Collection[int]) -> None:
        for client in clients:
            for sharing in self._groups.get(client, (client,)):
                self._ready[sharing] = -1

    def evaluate(self, after: int = 0) -> tuple[bytes, Metrics]:
        assert self.run is not None
        if self.run.own is not None:
            return self.run.own.digest(), self.run.own.evaluate()
        measured = self._measure(after)
        if measured.metrics is None:
            raise FedzeroError("no site can measure the model")
        return measured.model, measured.metrics

    def digest(self, after: int) -> bytes:
        assert self.run is not None
        return self.run.own.digest() if self.run.own is not None else self._measure(after).model

    # ---- replicas that are behind

    def _recover(self, clients: Collection[int]) -> None:
        """Bring replicas to where the server believes them to be."""
        assert self.run is not None
        if not self.run.catch_up:
            return  # every instruction carries the state
        for site, some in at_sites(self.assignment, clients).items():
            for client in some:
                if site in self.away or self._ready.get(client, 0) >= self.run.known(client):
                    continue
                self._bring(site, client, max(self.run.known(c) for c in self._groups.get(client, (client,))))

    def _bring(self, site: str, client: int, to: int) -> None:
        assert self.run is not None
        ready = self._ready.get(client, 0)
        updates, fresh = self.run.updates(max(ready, 0), to), ready < 0
        for first in range(0, max(1, len(updates)), BURST):
            order = encode(Recover(client, fresh and not first, tuple(updates[first : first + BURST])))
            for _, answer in self._answers({site: order}, PREPARING if fresh else RECOVERING, ROOM):
                if isinstance(answer, Failed):
                    self._lose(site, f"cannot rebuild its model: {answer.reason}")
                if not isinstance(answer, Recovered):
                    return  # silent, perhaps: it is asked again before its next turn
        for sharing in self._groups.get(client, (client,)):
            self._ready[sharing] = to

    def _measure(self, after: int) -> Measured:
        """By the first site that can."""
        assert self.run is not None
        for site in [s for s, clients in sorted(self.assignment.items()) if clients and s not in self.away]:
            client = self.assignment[site][0]
            updates: Sequence[bytes] = ()
            if self.run.catch_up:
                if self._ready.get(client, 0) < 0:
                    self._bring(site, client, after)
                updates = self.run.updates(max(self._ready.get(client, 0), 0), after)
            order = encode(Measure(after, tuple(updates)))
            for _, answer in self._answers({site: order}, PREPARING, 1 << 20):
                if isinstance(answer, Measured):
                    for sharing in self._groups.get(client, (client,)):
                        self._ready[sharing] = max(after, self._ready.get(sharing, 0))
                    return answer
                self.say(f"{site} could not measure the model: {answer}")
        raise Interrupted("no site could measure the model")

    def _answers(
        self, orders: Mapping[str, bytes], seconds: float, limit: int
    ) -> Iterator[tuple[str, Answer | Exception]]:
        if not orders:
            return
        for site, data in self.link.ask(orders, seconds, limit):
            if isinstance(data, bytes):
                try:
                    yield site, decode_answer(data)
                except Refused as reason:
                    yield site, reason
            else:
                yield site, data
