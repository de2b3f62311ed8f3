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
from dataclasses import dataclass
from typing import TypeVar

from msgspec import Struct, structs

from fedzero.callbacks import always_false
from fedzero.engines.remote import measuring, messages
from fedzero.engines.remote.agreement import common, differs
from fedzero.engines.remote.answers import SiteFailure, T, received
from fedzero.engines.remote.assignment import Assignment, at_sites
from fedzero.engines.remote.transport import Enough, Gone, Link, News, NoAnswer, Pending, Waiting
from fedzero.errors import FedzeroError, Refused
from fedzero.model.identity import Identity
from fedzero.model.updates import Update, decode_update
from fedzero.oracles import Metrics, Objective
from fedzero.oracles.blackbox import Unmeasured
from fedzero.protocol.engine import Arrival, Event, Interrupted, Joined, Left, Tied, Undelivered
from fedzero.protocol.outstanding import Batch, Outstanding
from fedzero.recipe.view import RunView
from fedzero.rounds import votes
from fedzero.rounds.refusals import AT_SITE, named

W = TypeVar("W")
BURST = 256
"""Updates in one message to a replica that is behind."""
PREPARING, FINISHING = 3600.0, 5.0
"""Seconds after which a site that gets ready, catches up or evaluates counts as gone; and seconds to confirm the end of
a run. The others wait for it only as long as `Enough` or the deadline of an exchange says."""
OVERHEAD = 4096
"""Bytes of an answer in addition to the replies in it."""
DOING: dict[type[Struct], str] = {
    messages.Prepared: "still gets ready",
    messages.Done: "still catches up",
    messages.Measured: "still evaluates",
}
"""By kind of answer: what a site does while its answer is pending."""


@dataclass(frozen=True)
class Service:
    """How a run is served. roster: all sites, whether present or not; deadline: seconds of an exchange; report: is
    told in sentences what happens to sites and epochs; idle: is called repeatedly between runs; minimum: number of
    sites that must be ready before the others are left behind; patience: seconds to wait for these others."""

    link: Link
    roster: Callable[[], Sequence[str]]
    deadline: float = 60.0
    report: Callable[[str], None] = lambda text: None
    idle: Callable[[], None] = lambda: None
    minimum: int = 1
    patience: float = 30.0


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
        self.service, self.link, self.deadline, self.report = service, service.link, service.deadline, service.report
        self._fits = fits
        self.prepare, self.assign, self.objective = prepare, assign, objective
        self.assignment: Assignment = {}
        self.away: dict[str, str] = {}
        """by site that takes no part in this epoch (any more): the reason"""
        self._missed: dict[str, str] = {}
        """by site that was reported missing: the reason; each is reported once"""
        self._seen: set[str] = set()
        """sites that have taken part"""
        self._ready: dict[str, int] = {}
        """the round a site's replica is known to be ready for; −1: to be rebuilt"""
        self._pending: dict[str, type[Struct]] = {}
        """by site that is away until its answer has come: the kind of answer"""
        self._coming: dict[str, int] = {}
        """by site that still catches up: the round for which it will be ready"""
        self._common: messages.Prepared | None = None
        """the start on which the sites agreed"""
        self._last: tuple[int, messages.Measured] | None = None
        """the last evaluation, and after how many rounds"""
        self._run: RunView | None = None
        self._open, self._epoch = False, 0
        """whether an epoch is in progress; its number"""
        self._told = set[str]()
        """sites that were last reported as present"""
        self._come = set[str]()
        """sites that have come and have no clients yet: they get some between two rounds"""
        self._since = set[str]()
        """sites that have come since the orders of this exchange left"""
        self._questions = Outstanding[Iterator[Sequence[Event]]]()
        """with their events"""
        self._asked: dict[int, list[Mapping[int, bytes]]] = {}
        """by round with open questions: its instructions, by exchange"""
        self._played: dict[int, int] = {}
        """by client, the epoch in which it played the exchanges of the round"""
        self._catch_up = True
        """False: every instruction carries the state, so no replica is ever behind"""

    @property
    def run(self) -> RunView:
        assert self._run is not None, "attach comes before the first round"
        return self._run

    def attach(self, run: RunView) -> None:
        """Set the run that begins or continues now."""
        self._run, self._catch_up = run, run.plan.traits.delivery != "snapshot"
        self._questions.oldest = run.oldest

    # ---- epochs

    def agreed(self) -> messages.Prepared:
        """The start on which the sites of the first epoch agree."""
        self._lasting(lambda: None)
        assert self._common is not None
        return self._common

    def _lasting(self, work: Callable[[], W]) -> W:
        """Do work that needs an epoch; if the epoch ends before the work does, repeat it in the next one."""
        while True:
            try:
                if not self._open:
                    self._begin()
                return work()
            except Interrupted as reason:
                self._over(reason)

    def _over(self, reason: Interrupted) -> None:
        self._open = False
        self.report(f"the epoch ended: {reason}")

    def _begin(self) -> None:
        """Begin an epoch. A site with another base model than most is left out, by name."""
        self._epoch += 1
        here = self.link.begin()
        self.assignment = self.assign(here)
        self._pending, self._coming, self._ready, self._come = {}, {}, {}, set()
        self.away = {site: "is away" for site in self.assignment if site not in here}
        for site in self.away:
            self._miss(site)
        orders = self._preparing(here)
        found: dict[str, messages.Prepared] = {}
        enough = self._most_of(orders, self.service.minimum)
        for site, answer in self._ask(orders, messages.Prepared, PREPARING, 1 << 20, enough):
            if isinstance(answer, messages.Prepared):
                enough.answered()
                found[site] = answer
            elif not isinstance(answer, Pending):
                self._lose(site, f"cannot take part: {answer}")
        if not found:
            raise self._nobody()
        if self._common is None:
            self._common = common(found, self._fits)
        for site, prepared in found.items():
            self._admit(site, prepared)
        if not self._ready:
            raise self._nobody()
        self._open = True

    def _preparing(self, sites: Collection[str]) -> dict[str, messages.Order]:
        mine = {site: self.assignment.get(site) for site in sites}
        return {site: structs.replace(self.prepare, clients=clients) for site, clients in mine.items() if clients}

    def _welcome(self, between: bool = True) -> None:
        """Prepare sites that have come since the epoch began, while the others continue. In the middle of a round
        (between = False) clients stay where they are."""
        self._come |= set(self.link.admit())
        come = sorted(site for site in self._come if between or self.assignment.get(site))
        self._come -= set(come)
        if not come:
            return
        if between:
            self.assignment = self.assign(come)
        self._since |= set(come)
        for site in come:  # its new process knows nothing, whatever it knew before
            self._ready.pop(site, None)
            for client in self.assignment.get(site, ()):
                self._played.pop(client, None)
        orders = self._preparing(come)
        for site, answer in self._ask(orders, messages.Prepared, PREPARING, 1 << 20, lambda: True):
            if isinstance(answer, messages.Prepared):
                self._admit(site, answer)
            elif not isinstance(answer, Pending):
                self._lose(site, f"cannot take part: {answer}")

    def _nobody(self) -> FedzeroError:
        reasons = "; ".join(f"{site} {why}" for site, why in self.away.items())
        # A run that has begun waits until a site is ready; a run that has not begun ends here.
        return (FedzeroError if self._run is None else Interrupted)(f"no site is ready: {reasons}")

    def _admit(self, site: str, found: messages.Prepared) -> None:
        assert self._common is not None
        if why := differs(found, self._common):
            self._lose(site, why)
            return
        self.away.pop(site, None)
        self._ready[site] = found.round
        self._find(site)

    def _most_of(self, sites: Collection[str], minimum: int = 1) -> Enough:
        return Enough(min(max(minimum, len(sites) // 2 + 1), len(sites)), self.service.patience)

    def _arrivals(self) -> None:
        """Take the late answers of sites that were not waited for."""
        for site, data in self.link.late() if self._pending else ():
            kind = self._pending.pop(site, messages.Done)
            answer = received(site, data, kind)
            self.away.pop(site, None)
            if isinstance(answer, messages.Prepared):
                self._admit(site, answer)
            elif isinstance(answer, Exception) and (kind is messages.Prepared or isinstance(answer, SiteFailure)):
                self._lose(site, f"cannot take part: {answer}")
            elif not isinstance(answer, Exception):
                self._ready[site] = max(self._ready[site], self._coming.pop(site, -1))

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

    def send(self, asked: int, exchange: int, messages: Sequence[bytes], which: Mapping[int, int]) -> None:
        said = {client: messages[message] for client, message in which.items()}
        batch = self._questions.add(asked, exchange, said, iter(()))
        busy = [each for each in self._questions.batches[:-1] if each.awaited]
        if busy and not getattr(self.link, "several", False):
            raise FedzeroError(
                f"{named(busy[0].awaited)} still work on round {busy[0].asked}, and this transport carries one "
                "question at a time: wait for the replies to the first, or use another transport"
            )
        if not exchange:
            for client in said:
                self._played.pop(client, None)
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
                if not self._open:
                    self._begin()
                elif not batch.exchange:
                    self._arrivals()
                    self._welcome(between=self._alone)
                failed.clear()
                epoch = self._epoch
                for event in self._asking(batch.asked, batch.exchange, batch.awaited):
                    if isinstance(event, Arrival) and isinstance(event.data, Exception):
                        failed.append(event)
                        continue
                    yield [] if event is None else [event]
                    if not self._open or self._epoch != epoch:
                        break  # it ended while others were asked
                else:
                    break
            except Interrupted as reason:
                self._over(reason)
        yield [*self._joined(), *self._left(), *failed]

    @property
    def _alone(self) -> bool:
        """Whether all clients that are awaited were asked together."""
        return len(self._questions.batches) == 1

    def _here(self) -> set[str]:
        return self._ready.keys() - self.away.keys() - self._missed.keys()

    def _joined(self) -> list[Event]:
        """The sites that have come since the last call."""
        come = sorted(self._here() - self._told)
        self._told |= set(come)
        return [Joined(site, self.assignment.get(site, ())) for site in come]

    def _left(self) -> list[Event]:
        """The sites that have gone since the last call. A client that was sent nothing also gets an `Undelivered`
        arrival."""
        gone = sorted(self._told - self._here())
        self._told -= set(gone)
        return [Left(s, self.assignment.get(s, ()), f"{AT_SITE} {s} {self.away.get(s, 'is gone')}") for s in gone]

    def _asking(self, round: int, exchange: int, awaited: Mapping[int, bytes]) -> Iterator[Event | None]:
        """Ask the clients that have not answered yet, once their sites' processes have been brought to the exchange.
        None: nothing has come for a while."""
        by_site = at_sites(self.assignment, awaited)
        self._repeat(round, exchange, by_site)
        yield from self._joined()
        for site in sorted(by_site.keys() & self.away.keys()):
            for client in by_site.pop(site):
                yield Arrival(client, Undelivered(f"{AT_SITE} {site} {self.away[site]}"), site)
        if self._alone:
            self._since.clear()
        for site, answer in self._ordered(round, exchange, by_site):
            if isinstance(answer, Waiting):
                yield None
            elif isinstance(answer, News):
                self._arrivals()
                self._welcome(between=False)
                yield from self._joined()
            elif isinstance(answer, Gone):
                self._miss(site, str(answer))
                self._told.discard(site)
                yield Left(site, by_site[site], f"{AT_SITE} {site} {answer}")
            else:
                yield from self._replies(round, site, answer, by_site[site])

    def _repeat(self, round: int, exchange: int, by_site: Assignment) -> None:
        """Bring sites to an exchange: replicas that are behind catch up, and clients of a new process play the earlier
        exchanges of the round again."""
        late = {s: tuple(c for c in mine if self._played.get(c) != self._epoch) for s, mine in by_site.items()}
        late = {site: mine for site, mine in late.items() if mine and site not in self.away}
        self._recover(round, late)
        for earlier in range(exchange):
            again = {site: mine for site, mine in late.items() if site not in self.away}
            for _ in self._ordered(round, earlier, again):
                pass  # these answers have come before

    def _ordered(
        self, round: int, exchange: int, by_site: Assignment
    ) -> Iterator[tuple[str, messages.Replies | Exception]]:
        said = self._asked[round][exchange]
        orders = {s: messages.Exchange(round, exchange, {c: said[c] for c in mine}) for s, mine in by_site.items()}
        limit = OVERHEAD + max(map(len, by_site.values()), default=0) * (self.run.past.limit(round, exchange) + 64)
        return self._ask(orders, messages.Replies, self.deadline, limit, news=True)

    def _replies(
        self, round: int, site: str, answer: messages.Replies | Exception, clients: Sequence[int]
    ) -> Iterator[Arrival]:
        if isinstance(answer, messages.Replies):
            others = (answer.replies.keys() | answer.failed.keys()) - set(clients)
            if others:
                answer = Refused(f"{site} answered for client {min(others)}, which it was not asked about")
            self._find(site)
        elif isinstance(answer, NoAnswer | Undelivered):
            if site not in self._since:
                self._miss(site, str(answer))
            answer = type(answer)(f"{AT_SITE} {site} {answer}")
        for client in clients:
            if isinstance(answer, Exception):
                yield Arrival(client, answer, site)
            elif client in answer.replies:
                self._ready[site] = max(round, self._ready[site])
                self._played[client] = self._epoch
                yield Arrival(client, answer.replies[client], site)
            else:
                yield Arrival(client, FedzeroError(answer.failed.get(client, "did not answer")), site)

    def phase(
        self, asked: int, exchange: int, phase: int, bodies: Mapping[str, bytes]
    ) -> Mapping[str, bytes | Exception]:
        """A site answers from its disk, so its new process need not play the round again. Sites that did not answer in
        an epoch that ended are asked again in the next one."""
        answered: dict[str, bytes | Exception] = {}
        limit = self._phase_limit(asked, exchange)
        while True:
            try:
                if not self._open:
                    self._begin()
                awaited = bodies.keys() - answered.keys()
                away = {site: Undelivered(f"{AT_SITE} {site} {self.away[site]}") for site in awaited & self.away.keys()}
                orders = {s: messages.Phase(asked, exchange, phase, bodies[s]) for s in sorted(awaited - away.keys())}
                failed: dict[str, Exception] = {}
                for site, answer in self._ask(orders, messages.Phased, self.deadline, limit):
                    if isinstance(answer, messages.Phased):
                        answered[site] = answer.body
                        self._find(site)
                    else:
                        failed[site] = answer
                return answered | away | failed
            except Interrupted as reason:
                self._over(reason)

    def _phase_limit(self, round: int, exchange: int) -> int:
        plan = self.run.plan
        assert plan.chain.gathering is not None, "phases of a run without a gathering"
        numbers, clients = plan.cost(round).replies[exchange], plan.federation.cohort
        return OVERHEAD + plan.chain.gathering.limit(numbers, clients)

    def settle(
        self, round: int, update: Update | None, closings: Mapping[int, bytes], diverged: Collection[int]
    ) -> None:
        self._ready |= dict.fromkeys(at_sites(self.assignment, diverged), -1)
        by_site = {s: clients for s, clients in at_sites(self.assignment, closings).items() if s not in self.away}
        orders = {s: messages.Deliver({c: closings[c] for c in clients}) for s, clients in by_site.items()}
        try:
            for site, answer in self._ask(orders, messages.Done, self.deadline, OVERHEAD):
                if isinstance(answer, messages.Done):
                    self._ready[site] = round + 1
        except Interrupted as reason:  # the round is on the ledger; a site that missed this catches up at its next turn
            self._over(reason)

    def finish(self, rounds: int) -> None:
        """Tell the sites, and the people there, that the run has ended."""
        orders = {site: messages.Finish(rounds) for site in self._ready if site not in self.away}
        with suppress(Interrupted):
            for _ in self._ask(orders, messages.Done, FINISHING, OVERHEAD):
                pass

    def evaluate(self, after: int = 0, last: bool = False) -> tuple[Identity, Metrics]:
        replica = self.run.replica
        if replica is not None and self.objective is not None:
            return replica.identity, self.objective.evaluate(replica.state.params)
        measured = self._lasting(lambda: self._measure(after))
        if measured.metrics is None:
            raise Unmeasured("no site can evaluate the model, or they do not agree")
        return measured.identity, measured.metrics

    def identity(self, after: int) -> Identity:
        replica = self.run.replica
        return replica.identity if replica is not None else self._lasting(lambda: self._measure(after)).identity

    # ---- replicas that are behind

    def _recover(self, round: int, by_site: Assignment) -> None:
        """Bring replicas to the round at which the server takes them to be. A replica with rounds that are not on the
        ledger (any more) begins from the base model. A site that needs longer than the deadline of an exchange
        continues on its own."""
        end = time.monotonic() + self.deadline
        for site in [s for s in by_site if s not in self.away and self._catch_up]:
            if self._ready[site] > round:
                self._ready[site] = -1
            known = max(map(self.run.past.known, by_site[site]))
            if self._ready[site] < known:
                self._bring(site, known, end)

    def _bring(self, site: str, to: int, end: float) -> None:
        ready = self._ready[site]
        updates = self.run.past.updates(ready, to)
        for first in range(0, max(1, len(updates)), BURST):
            burst = tuple(updates[first : first + BURST])
            order = messages.Recover(ready < 0 and not first, burst)
            reached = to if first + BURST >= len(updates) else decode_update(burst[-1]).round + 1
            for _, answer in self._ask(
                {site: order}, messages.Done, PREPARING, OVERHEAD, lambda: time.monotonic() > end
            ):
                if isinstance(answer, SiteFailure):
                    self._lose(site, f"cannot rebuild its model: {answer}")
                if isinstance(answer, Pending):
                    self._coming[site] = reached
                if isinstance(answer, Exception):
                    return  # it is asked again before its next turn
            self._ready[site] = reached

    def _measure(self, after: int) -> messages.Measured:
        """Let a few sites, drawn for each evaluation, evaluate the model; all sites do if these do not agree, or if
        they have their own data."""
        if self._last is not None and self._last[0] == after:
            return self._last[1]
        sites = sorted(self._ready.keys() - self.away.keys())
        drawn = [sites[i] for i in self.run.plan.keys.generator("measure", after).permutation(len(sites))]
        found = self._measured(drawn[: measuring.MEASURING], after)
        least = self.run.plan.least_loss
        if not found or not measuring.settled(found, least):
            found |= self._measured(drawn[measuring.MEASURING :], after)
        if not found:
            raise Interrupted("no site could evaluate the model")
        ballots = {site: measured.identity for site, measured in sorted(found.items())}
        model = votes.leading(ballots)
        if model is None:
            self._ready |= dict.fromkeys(found, -1)
            raise Tied(
                f"the model after {after} rounds is not the same everywhere ({votes.sides(ballots, 'model {}')})"
            )
        for site in [site for site, other in ballots.items() if other != model]:
            self._ready[site] = -1
            self.report(f"{site} evaluated model {found.pop(site).identity}, not {model}: must rebuild")
        clients = {site: len(mine) for site, mine in self.assignment.items()}
        metrics, odd = measuring.combined({site: found[site] for site in sorted(found)}, clients, least)
        for site, why in sorted(odd.items()):
            self.report(f"{site} {why}")
        self._last = after, messages.Measured(model.digest, metrics, sha256=model.sha256)
        return self._last[1]

    def _measured(self, sites: Sequence[str], after: int) -> dict[str, messages.Measured]:
        """The evaluations of the given sites, without the sites that could not evaluate the model."""
        orders, found, end = {}, {}, time.monotonic() + self.deadline
        for site in sites:
            updates: Sequence[bytes] = ()
            if self._catch_up:
                if self._ready[site] < 0:
                    self._bring(site, after, end)
                if site in self.away or self._ready[site] < 0:
                    continue
                updates = self.run.past.updates(self._ready[site], after)
            orders[site] = messages.Measure(tuple(updates), after)
        enough = self._most_of(orders)
        for site, answer in self._ask(orders, messages.Measured, PREPARING, 1 << 20, enough):
            if isinstance(answer, messages.Measured):
                enough.answered()
                self._ready[site] = max(after, self._ready[site])
                found[site] = answer
            else:
                if isinstance(answer, Pending):
                    self._coming[site] = after
                elif not isinstance(answer, Undelivered):  # its absence was reported already
                    self.report(f"{site} could not evaluate the model: {answer}")
        return found

    def _ask(
        self,
        orders: Mapping[str, messages.Order],
        wanted: type[T],
        seconds: float,
        limit: int,
        enough: Callable[[], bool] = always_false,
        news: bool = False,
    ) -> Iterator[tuple[str, T | Exception]]:
        """Send orders to sites; from each, an answer of the wanted kind or the reason why there is none. news: also
        yields news between the answers; otherwise they are read before the next round."""
        if not orders:
            return
        encoded = {site: messages.encode(order) for site, order in orders.items()}
        for site, data in self.link.ask(encoded, seconds, limit, enough):
            if isinstance(data, Pending):
                self._pending[site] = wanted
                self.away[site] = DOING.get(wanted, "is busy")
                if self._missed.get(site) != self.away[site]:
                    self._missed.pop(site, None)
                    self._miss(site, self.away[site])
            if news or not isinstance(data, News | Waiting):
                yield site, received(site, data, wanted)


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
