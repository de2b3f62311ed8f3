"""The engine for clients in other processes: replicas of their own, reached through a link that may break at any time.

    engine.open()        an epoch begins: sites say what they have; what they lack they are sent, from the ledger
    engine.exchange(…)   instructions to the clients' sites, replies back

An epoch that ends in the middle of a round raises `Interrupted`; the round is then repeated under its own number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from msgspec import structs

from fedzero.deploy import messages
from fedzero.deploy.assignment import Assignment, at_sites
from fedzero.deploy.link import Link, NoAnswer
from fedzero.errors import FedzeroError, Refused
from fedzero.ledger import replay
from fedzero.model.updates import Update
from fedzero.oracles import Metrics, Objective
from fedzero.oracles.blackbox import Unmeasured
from fedzero.protocol.engine import Interrupted, Undelivered
from fedzero.protocol.messages import MemoryChange
from fedzero.runs.refusals import AT_SITE, named
from fedzero.runs.server import Server

T = TypeVar("T", bound=messages.Answer)

BURST = 256
"""Updates in one message to a replica that is behind."""
PREPARING, RECOVERING, FINISHING = 3600.0, 600.0, 5.0
"""Seconds a site may take to load its model and data, to fold a burst, and to hear that a run has ended."""
OVERHEAD = 4096
"""Bytes of an answer beside the replies in it."""


@dataclass(frozen=True)
class Service:
    """How a run is served. roster: all sites there are, whether present or not; deadline: seconds of an exchange;
    report: is told, in a sentence, what happens to sites and epochs; idle: is called again and again between runs."""

    link: Link
    roster: Callable[[], Sequence[str]]
    deadline: float = 60.0
    report: Callable[[str], None] = lambda text: None
    idle: Callable[[], None] = lambda: None


class SiteFailure(FedzeroError):
    """What a site itself says it could not do."""


class RemoteEngine:
    """prepare: the order that begins an epoch, to be completed by the clients of each site. assign: which clients are
    at which site, asked at the beginning of an epoch, when the sites are known. objective: of a server with a model,
    which evaluates it itself."""

    def __init__(
        self,
        service: Service,
        prepare: messages.Prepare,
        assign: Callable[[Collection[str]], Assignment],
        objective: Objective | None = None,
    ):
        self.link, self.deadline, self.report = service.link, service.deadline, service.report
        self.prepare, self.assign, self.objective = prepare, assign, objective
        self.assignment: Assignment = {}
        self.away: dict[str, str] = {}
        """sites that do not take part in this epoch, or no longer, and why"""
        self._missed: dict[str, str] = {}
        """sites that were said to be missing, and why; each is said once"""
        self._seen: set[str] = set()
        """sites that have taken part"""
        self._ready: dict[str, int] = {}
        """the round a site's replica is known to be ready for; −1: to be rebuilt"""
        self._server: Server | None = None
        self._catch_up = True
        """False: every instruction carries the state, so no replica is ever behind"""

    @property
    def server(self) -> Server:
        assert self._server is not None, "attach comes before the first round"
        return self._server

    def attach(self, server: Server) -> None:
        """The server whose rounds are played, once it stands where its ledger ends."""
        self._server, self._catch_up = server, server.wire(0).delivery == "catch-up"

    # ---- epochs

    def open(self) -> messages.Prepared:
        """Begin an epoch; what the sites agree on. A site with another base model than most is left out, by name."""
        here = self.link.begin()
        self.assignment = self.assign(here)
        self.away = {site: "is away" for site in self.assignment if site not in here}
        for site in self.away:
            self._miss(site)
        orders = {s: structs.replace(self.prepare, clients=self.assignment[s]) for s in here if self.assignment.get(s)}
        found: dict[str, messages.Prepared] = {}
        for site, answer in self._ask(orders, messages.Prepared, PREPARING, 1 << 20):
            if isinstance(answer, Exception):
                self._lose(site, f"cannot take part: {answer}")
            else:
                found[site] = answer
        if not found:
            reasons = "; ".join(f"{site} {why}" for site, why in self.away.items())
            # A run that has begun waits until a site is ready; one that has not ends here.
            raise (FedzeroError if self._server is None else Interrupted)(f"no site is ready: {reasons}")
        votes = Counter((p.base, p.parameters, p.secret) for p in found.values())
        common = max(votes, key=lambda key: (votes[key], key[0]))
        for site in [s for s, p in found.items() if (p.base, p.parameters, p.secret) != common]:
            self._lose(site, f"starts from model {found.pop(site).base.hex()}, not {common[0].hex()}")
        self._ready = {site: prepared.round for site, prepared in found.items()}
        for site in found:
            self._find(site)
        return next(iter(found.values()))

    def renew(self) -> None:
        self.open()

    def _lose(self, site: str, why: str) -> None:
        self.away[site] = why
        if self._missed.get(site) != why:
            self._missed[site] = why
            self.report(f"{site} {why}")

    def _miss(self, site: str, cause: str = "") -> None:
        if site in self._missed or not (clients := self.assignment.get(site)):
            return
        known, because = site in self._seen, f" ({cause})" if cause else ""
        left_out = f"{named(clients)} {'are' if len(clients) > 1 else 'is'} left out"
        self._missed[site] = cause
        self.report(
            f"site {site} is {'gone' if known else 'not here yet'}{because}: {left_out} until it "
            f"{'returns' if known else 'joins'}"
        )

    def _find(self, site: str) -> None:
        if self._missed.pop(site, None) is not None:
            self.report(f"site {site} is {'back' if site in self._seen else 'here'}")
        self._seen.add(site)

    # ---- the contract

    def exchange(
        self, round: int, exchange: int, instructions: Mapping[int, bytes]
    ) -> Iterator[tuple[int, bytes | Exception]]:
        by_site = at_sites(self.assignment, instructions)
        if not exchange:
            if waiting := sorted(self.link.waiting()):
                raise Interrupted(f"a new epoch begins with {', '.join(waiting)}")
            self._recover(round, by_site)
        for site in sorted(by_site.keys() & self.away.keys()):
            for client in by_site.pop(site):
                yield client, Undelivered(f"{AT_SITE} {site} {self.away[site]}")
        orders = {s: messages.Exchange(round, exchange, {c: instructions[c] for c in by_site[s]}) for s in by_site}
        limit = OVERHEAD + max(map(len, by_site.values()), default=0) * (self.server.limit(round, exchange) + 64)
        for site, answer in self._ask(orders, messages.Replies, self.deadline, limit):
            yield from self._replies(round, site, answer, by_site[site])

    def _replies(
        self, round: int, site: str, answer: messages.Replies | Exception, clients: Sequence[int]
    ) -> Iterator[tuple[int, bytes | Exception]]:
        if isinstance(answer, messages.Replies):
            others = (answer.replies.keys() | answer.failed.keys()) - set(clients)
            if others:
                answer = Refused(f"{site} answered for client {min(others)}, which it was not asked about")
            self._find(site)
        elif isinstance(answer, NoAnswer | Undelivered):
            self._miss(site, str(answer))
            answer = type(answer)(f"{AT_SITE} {site} {answer}")
        for client in clients:
            if isinstance(answer, Exception):
                yield client, answer
            elif client in answer.replies:
                self._ready[site] = max(round, self._ready[site])
                yield client, answer.replies[client]
            else:
                yield client, FedzeroError(answer.failed.get(client, "did not answer"))

    def memories(self, clients: Collection[int]) -> Mapping[int, MemoryChange]:
        """Sites keep what their clients remember."""
        return {}

    def close(self, round: int, update: Update | None, closings: Mapping[int, bytes]) -> None:
        by_site = {s: clients for s, clients in at_sites(self.assignment, closings).items() if s not in self.away}
        orders = {s: messages.Deliver({c: closings[c] for c in clients}) for s, clients in by_site.items()}
        with suppress(Interrupted):  # the round is on the ledger; who did not get this is sent it before its next turn
            for site, answer in self._ask(orders, messages.Done, self.deadline, OVERHEAD):
                if isinstance(answer, messages.Done):
                    self._ready[site] = round + 1

    def finish(self, rounds: int) -> None:
        """The run has ended: sites are told, for the people there."""
        orders = {site: messages.Finish(rounds) for site in self._ready if site not in self.away}
        with suppress(Interrupted):
            for _ in self._ask(orders, messages.Done, FINISHING, OVERHEAD):
                pass

    def rebuild(self, clients: Collection[int]) -> None:
        self._ready |= dict.fromkeys(at_sites(self.assignment, clients), -1)

    def evaluate(self, after: int = 0, last: bool = False) -> tuple[bytes, Metrics]:
        replica = self.server.replica
        if replica is not None and self.objective is not None:
            return replica.digest(), self.objective.evaluate(replica.state.params)
        measured = self._measure(after)
        if measured.metrics is None:
            raise Unmeasured("no site can evaluate the model")
        return measured.model, measured.metrics

    def digest(self, after: int) -> bytes:
        replica = self.server.replica
        return replica.digest() if replica is not None else self._measure(after).model

    # ---- replicas that are behind

    def _recover(self, round: int, by_site: Assignment) -> None:
        """Bring replicas to where the server takes them to be; those of rounds that are not on the ledger (any more)
        begin from the base model."""
        for site in [s for s in by_site if s not in self.away and self._catch_up]:
            if self._ready[site] > round:
                self._ready[site] = -1
            known = max(self.server.tracker.known[client] for client in by_site[site])
            if self._ready[site] < known:
                self._bring(site, known)

    def _bring(self, site: str, to: int) -> None:
        ready = self._ready[site]
        updates, seconds = self._updates(ready, to), PREPARING if ready < 0 else RECOVERING
        for first in range(0, max(1, len(updates)), BURST):
            order = messages.Recover(ready < 0 and not first, tuple(updates[first : first + BURST]))
            for _, answer in self._ask({site: order}, messages.Done, seconds, OVERHEAD):
                if isinstance(answer, SiteFailure):
                    self._lose(site, f"cannot rebuild its model: {answer}")
                if isinstance(answer, Exception):
                    return  # silent, perhaps: it is asked again before its next turn
        self._ready[site] = to

    def _updates(self, first: int, last: int) -> list[bytes]:
        """Encoded updates of rounds first … last − 1: recent ones are in memory, others on the ledger."""
        server, tracker, first = self.server, self.server.tracker, max(first, 0)
        if server.federation.pull_after is None and first >= tracker.oldest:
            return [tracker.history[round] for round in range(first, last) if round in tracker.history]
        rounds = replay.read(server.ledger).rounds[first:last]
        return [record.update for record in rounds if record.update is not None and not record.dense]

    def _measure(self, after: int) -> messages.Measured:
        """By the first site that can; where each has data of its own, by all of them."""
        left, found = sorted(self._ready.keys() - self.away.keys()), dict[str, messages.Measured]()
        while left and all(measured.own for measured in found.values()):
            asked, left = (left, []) if found else (left[:1], left[1:])
            found |= self._measured(asked, after)
        if not found:
            raise Interrupted("no site could evaluate the model")
        votes = Counter(measured.model for measured in found.values())
        model = max(votes, key=lambda digest: (votes[digest], digest))
        parts = [(len(self.assignment[s]), m.metrics) for s, m in found.items() if m.model == model and m.metrics]
        return messages.Measured(model, _mean(parts) if len(parts) > 1 else parts[0][1] if parts else None)

    def _measured(self, sites: Sequence[str], after: int) -> dict[str, messages.Measured]:
        """What those of some sites found that could evaluate the model."""
        orders, found = {}, {}
        for site in sites:
            updates: Sequence[bytes] = ()
            if self._catch_up:
                if self._ready[site] < 0:
                    self._bring(site, after)
                updates = self._updates(self._ready[site], after)
            orders[site] = messages.Measure(tuple(updates))
        for site, answer in self._ask(orders, messages.Measured, PREPARING, 1 << 20):
            if isinstance(answer, messages.Measured):
                self._ready[site] = max(after, self._ready[site])
                found[site] = answer
            else:
                self.report(f"{site} could not evaluate the model: {answer}")
        return found

    def _ask(
        self, orders: Mapping[str, messages.Order], wanted: type[T], seconds: float, limit: int
    ) -> Iterator[tuple[str, T | Exception]]:
        """Orders to sites; from each, an answer of the wanted kind or why there is none."""
        if not orders:
            return
        encoded = {site: messages.encode(order) for site, order in orders.items()}
        for site, data in self.link.ask(encoded, seconds, limit):
            try:
                answer = messages.decode_answer(data) if isinstance(data, bytes) else data
            except Refused as reason:
                answer = reason
            if isinstance(answer, messages.Failed):
                answer = SiteFailure(answer.reason)
            elif not isinstance(answer, wanted | Exception):
                answer = Refused(f"{site} sent an answer of another kind")
            yield site, answer


def _mean(parts: Sequence[tuple[int, Metrics]]) -> Metrics:
    """Of sites with so many clients each; of a metric that not all sites have, over those that have it."""

    def mean(values: Sequence[tuple[int, float]]) -> float:
        return sum(weight * value for weight, value in values) / sum(weight for weight, _ in values)

    accuracies = [(weight, m.accuracy) for weight, m in parts if m.accuracy is not None]
    names = dict.fromkeys(name for _, m in parts for name in m.others)
    others = {name: mean([(weight, m.others[name]) for weight, m in parts if name in m.others]) for name in names}
    return Metrics(mean([(w, m.loss) for w, m in parts]), mean(accuracies) if accuracies else None, others)
