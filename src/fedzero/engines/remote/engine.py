"""Clients in other processes, with their own replicas, reached through a link that may break at any time.

    clients.agreed()   an epoch begins: sites say what they have, and are sent from the ledger what they lack
    clients.send(…)    messages to the clients' sites, replies back

An epoch that ends in the middle of a round interrupts nothing: the next epoch begins, and unanswered messages are sent
again, after the exchanges of the round that a site's new process has not played. Answers that have come remain valid. A
site that comes, or comes back, in the middle of a round gets ready while the others continue, joins, and takes part
from the next round on. A site that leaves has left at once. In neither case is anything sent again to the others. No
site keeps the others waiting for long: a site that still gets ready, catches up or evaluates when most are done is left
out of rounds until its answer has come.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress

from fedzero.engines.remote import messages
from fedzero.engines.remote.assignment import Assignment, at_sites
from fedzero.engines.remote.replicas import OVERHEAD, Replicas
from fedzero.engines.remote.sites import Service as Service
from fedzero.engines.remote.sites import Sites
from fedzero.engines.remote.transport import Gone, News, NoAnswer, Waiting
from fedzero.errors import FedzeroError, Refused
from fedzero.model.identity import Identity
from fedzero.model.updates import Update
from fedzero.oracles import Metrics, Objective
from fedzero.oracles.blackbox import Unmeasured
from fedzero.protocol.engine import Arrival, Event, Interrupted, Left, Undelivered
from fedzero.protocol.outstanding import Batch, Outstanding
from fedzero.recipe.view import RunView
from fedzero.rounds.refusals import AT_SITE, named

FINISHING = 5.0
"""Seconds to confirm the end of a run."""


class RemoteClients:
    """prepare: the order that begins an epoch; the clients of each site are added to it. assign: which clients are at
    which site; asked at the beginning of an epoch, when the sites are known. objective: for a server with a model,
    which evaluates the model itself. fits: whether a site has the base model from which the run is known to start."""

    def __init__(
        self,
        service: Service,
        prepare: messages.Prepare,
        assign: Callable[[Collection[str]], Assignment],
        objective: Objective | None = None,
        fits: Callable[[messages.Prepared], bool] = lambda found: False,
    ):
        self.sites = Sites(service, prepare, assign, fits)
        self.objective, self.deadline = objective, service.deadline
        self._replicas: Replicas | None = None
        self._questions = Outstanding[Iterator[Sequence[Event]]]()
        """with their events"""
        self._asked: dict[int, list[Mapping[int, bytes]]] = {}
        """by round with open questions: its instructions, by exchange"""

    @property
    def replicas(self) -> Replicas:
        assert self._replicas is not None, "attach comes before the first round"
        return self._replicas

    @property
    def run(self) -> RunView:
        return self.replicas.run

    def attach(self, run: RunView) -> None:
        """Set the run that begins or continues now."""
        self._replicas, self.sites.started = Replicas(self.sites, run, self.deadline), True
        self._questions.oldest = run.oldest

    def agreed(self) -> messages.Prepared:
        """The start on which the sites of the first epoch agree."""
        self.sites.lasting(lambda: None)
        assert self.sites.common is not None
        return self.sites.common

    def send(self, asked: int, exchange: int, messages: Sequence[bytes], which: Mapping[int, int]) -> None:
        said = {client: messages[message] for client, message in which.items()}
        batch = self._questions.add(asked, exchange, said, iter(()))
        busy = [each for each in self._questions.batches[:-1] if each.awaited]
        if busy and not getattr(self.sites.link, "several", False):
            raise FedzeroError(
                f"{named(busy[0].awaited)} still work on round {busy[0].asked}, and this transport carries one "
                "question at a time: wait for the replies to the first, or use another transport"
            )
        if not exchange:
            for client in said:
                self.sites.played.pop(client, None)
        rounds = {each.asked for each in self._questions.batches}
        self._asked = {round: of for round, of in self._asked.items() if round in rounds}
        before = self._asked.get(asked, [])
        same = before[exchange] if exchange < len(before) else {}
        self._asked[asked] = [*before[:exchange], {**same, **said}]
        batch.work = self._exchange(batch)

    def receive(self, seconds: float) -> Sequence[Event]:
        end = time.monotonic() + seconds
        while self._questions.batches:
            for batch in list(self._questions.batches):
                events = next(batch.work, None)
                if events is None:
                    self._questions.batches.remove(batch)
                elif found := _settled(batch, events):
                    return found
            if time.monotonic() >= end:
                break
        return ()

    def _exchange(self, batch: Batch[Iterator[Sequence[Event]]]) -> Iterator[Sequence[Event]]:
        """Replies as they come, and no events while none does. Failures come last: a client that could not be reached
        in an epoch that ended is asked again in the next epoch."""
        failed = list[Arrival]()
        while True:
            try:
                if not self.sites.open:
                    self.sites.begin()
                elif not batch.exchange:
                    self.sites.arrivals()
                    self.sites.welcome(between=self._alone)
                failed.clear()
                epoch = self.sites.epoch
                for event in self._asking(batch.asked, batch.exchange, batch.awaited):
                    if isinstance(event, Arrival) and isinstance(event.data, Exception):
                        failed.append(event)
                        continue
                    yield [] if event is None else [event]
                    if not self.sites.open or self.sites.epoch != epoch:
                        break  # it ended while others were asked
                else:
                    break
            except Interrupted as reason:
                self.sites.over(reason)
        yield [*self.sites.joined(), *self.sites.left(), *failed]

    @property
    def _alone(self) -> bool:
        """Whether all clients that are awaited were asked together."""
        return len(self._questions.batches) == 1

    def _asking(self, round: int, exchange: int, awaited: Mapping[int, bytes]) -> Iterator[Event | None]:
        """Ask the clients that have not answered yet, once their sites' processes have been brought to the exchange.
        None: nothing has come for a while."""
        by_site = at_sites(self.sites.assignment, awaited)
        self._repeat(round, exchange, by_site)
        yield from self.sites.joined()
        for site in sorted(by_site.keys() & self.sites.away.keys()):
            for client in by_site.pop(site):
                yield Arrival(client, Undelivered(f"{AT_SITE} {site} {self.sites.away[site]}"), site)
        if self._alone:
            self.sites.since.clear()
        for site, answer in self._ordered(round, exchange, by_site):
            if isinstance(answer, Waiting):
                yield None
            elif isinstance(answer, News):
                self.sites.arrivals()
                self.sites.welcome(between=False)
                yield from self.sites.joined()
            elif isinstance(answer, Gone):
                self.sites.miss(site, str(answer))
                self.sites.told.discard(site)
                yield Left(site, by_site[site], f"{AT_SITE} {site} {answer}")
            else:
                yield from self._replies(round, site, answer, by_site[site])

    def _repeat(self, round: int, exchange: int, by_site: Assignment) -> None:
        """Bring sites to an exchange: replicas that are behind catch up, and clients of a new process play the earlier
        exchanges of the round again."""
        late = {
            s: tuple(c for c in mine if self.sites.played.get(c) != self.sites.epoch) for s, mine in by_site.items()
        }
        late = {site: mine for site, mine in late.items() if mine and site not in self.sites.away}
        self.replicas.recover(round, late)
        for earlier in range(exchange):
            again = {site: mine for site, mine in late.items() if site not in self.sites.away}
            for _ in self._ordered(round, earlier, again):
                pass  # these answers have come before

    def _ordered(
        self, round: int, exchange: int, by_site: Assignment
    ) -> Iterator[tuple[str, messages.Replies | Exception]]:
        said = self._asked[round][exchange]
        orders = {s: messages.Exchange(round, exchange, {c: said[c] for c in mine}) for s, mine in by_site.items()}
        limit = OVERHEAD + max(map(len, by_site.values()), default=0) * (self.run.past.limit(round, exchange) + 64)
        return self.sites.ask(orders, messages.Replies, self.deadline, limit, news=True)

    def _replies(
        self, round: int, site: str, answer: messages.Replies | Exception, clients: Sequence[int]
    ) -> Iterator[Arrival]:
        if isinstance(answer, messages.Replies):
            others = (answer.replies.keys() | answer.failed.keys()) - set(clients)
            if others:
                answer = Refused(f"{site} answered for client {min(others)}, which it was not asked about")
            self.sites.find(site)
        elif isinstance(answer, NoAnswer | Undelivered):
            if site not in self.sites.since:
                self.sites.miss(site, str(answer))
            answer = type(answer)(f"{AT_SITE} {site} {answer}")
        for client in clients:
            if isinstance(answer, Exception):
                yield Arrival(client, answer, site)
            elif client in answer.replies:
                self.sites.ready[site] = max(round, self.sites.ready[site])
                self.sites.played[client] = self.sites.epoch
                yield Arrival(client, answer.replies[client], site)
            else:
                yield Arrival(client, FedzeroError(answer.failed.get(client, "did not answer")), site)

    def hosts(self) -> Collection[str]:
        return sorted(self.sites.assignment.keys() - self.sites.away.keys())

    def phase(
        self, asked: int, exchange: int, phase: int, bodies: Mapping[str, bytes]
    ) -> Mapping[str, bytes | Exception]:
        """A site answers from its disk, so its new process need not play the round again. Sites that did not answer in
        an epoch that ended are asked again in the next one."""
        answered: dict[str, bytes | Exception] = {}
        limit = self._phase_limit(asked, exchange)
        while True:
            try:
                if not self.sites.open:
                    self.sites.begin()
                awaited = bodies.keys() - answered.keys()
                away = {
                    site: Undelivered(f"{AT_SITE} {site} {self.sites.away[site]}")
                    for site in awaited & self.sites.away.keys()
                }
                orders = {s: messages.Phase(asked, exchange, phase, bodies[s]) for s in sorted(awaited - away.keys())}
                failed: dict[str, Exception] = {}
                for site, answer in self.sites.ask(orders, messages.Phased, self.deadline, limit):
                    if isinstance(answer, messages.Phased):
                        answered[site] = answer.body
                        self.sites.find(site)
                    else:
                        failed[site] = answer
                return answered | away | failed
            except Interrupted as reason:
                self.sites.over(reason)

    def _phase_limit(self, round: int, exchange: int) -> int:
        plan = self.run.plan
        assert plan.chain.gathering is not None, "phases of a run without a gathering"
        numbers, clients = plan.cost(round).replies[exchange], plan.federation.cohort
        return OVERHEAD + plan.chain.gathering.limit(numbers, clients)

    def settle(
        self, round: int, update: Update | None, closings: Mapping[int, bytes], diverged: Collection[int]
    ) -> None:
        self.sites.ready |= dict.fromkeys(at_sites(self.sites.assignment, diverged), -1)
        by_site = {
            s: clients for s, clients in at_sites(self.sites.assignment, closings).items() if s not in self.sites.away
        }
        orders = {s: messages.Deliver({c: closings[c] for c in clients}) for s, clients in by_site.items()}
        try:
            for site, answer in self.sites.ask(orders, messages.Done, self.deadline, OVERHEAD):
                if isinstance(answer, messages.Done):
                    self.sites.ready[site] = round + 1
        except Interrupted as reason:  # the round is on the ledger; a site that missed this catches up at its next turn
            self.sites.over(reason)

    def finish(self, rounds: int) -> None:
        """Tell the sites, and the people there, that the run has ended."""
        orders = {site: messages.Finish(rounds) for site in self.sites.ready if site not in self.sites.away}
        with suppress(Interrupted):
            for _ in self.sites.ask(orders, messages.Done, FINISHING, OVERHEAD):
                pass

    def evaluate(self, after: int = 0, last: bool = False) -> tuple[Identity, Metrics]:
        replica = self.run.replica
        if replica is not None and self.objective is not None:
            return replica.identity, self.objective.evaluate(replica.state.params)
        measured = self.sites.lasting(lambda: self.replicas.measure(after))
        if measured.metrics is None:
            raise Unmeasured("no site can evaluate the model, or they do not agree")
        return measured.identity, measured.metrics

    def identity(self, after: int) -> Identity:
        replica = self.run.replica
        if replica is not None:
            return replica.identity
        return self.sites.lasting(lambda: self.replicas.measure(after)).identity


def _settled(batch: Batch[Iterator[Sequence[Event]]], events: Sequence[Event]) -> list[Event]:
    """Events of some questions that end with them, without arrivals of clients that are not awaited."""
    found = list[Event]()
    for event in events:
        mine = batch.arrived(event) if isinstance(event, Arrival) else event
        found += [] if mine is None else [mine]
    for event in found:
        if isinstance(event, Left):
            batch.left(event.clients)
    return found
