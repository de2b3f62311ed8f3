"""One round of a federation, start to finish, seen from the server.

whom to ask ← schedule              (synchronous: a function of the keys and the round)
leave out clients that cannot pay for their queries
messages → clients → replies        bytes out, bytes in, both counted; once for every exchange of the round
admit each reply, or refuse it by name and continue with the others; shorten replies far longer than the others'
until the schedule says that the step is made
update ← aggregate, if the model stays finite       → ledger (durable) → only then does any state change
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from msgspec import UNSET, structs

from fedzero.callbacks import ignore
from fedzero.errors import FedzeroError, Refused
from fedzero.ledger.query_log import Meter
from fedzero.ledger.records import Round, Saved
from fedzero.ledger.replay import LedgerView
from fedzero.ledger.store import Ledger
from fedzero.ledger.turns import Turns
from fedzero.lines import LONGEST_SAID, printable
from fedzero.methods.contract import Cost
from fedzero.model.updates import Dense, encode_update, pack
from fedzero.protocol.engine import FOREVER, Arrival, Clients, Event, Left, Rows, Tied, Timed, Undelivered
from fedzero.protocol.messages import Continue, encode, encode_close
from fedzero.protocol.replica import Replica
from fedzero.recipe.plan import Plan
from fedzero.recipe.sampling import PrivateCohorts
from fedzero.rounds.admission import Admission, refuse_diverged
from fedzero.rounds.aggregation import Aggregation
from fedzero.rounds.delivery import Delivery, Sending
from fedzero.rounds.gathering import gather, loss_of
from fedzero.rounds.hiding import without_clients
from fedzero.rounds.losses import beyond as beyond_others
from fedzero.rounds.present import Present
from fedzero.rounds.schedule import Schedule, StepSoFar, Synchronous, check_several_steps
from fedzero.rounds.tally import Admitted, RoundInProgress
from fedzero.rounds.timing import Timing, timed
from fedzero.rounds.tracker import ClientTracker

NOT_NEEDED = "was not waited for"
"""The refusal of a client whose synchronous step was made without it."""
CHECKPOINT_EVERY = 10
"""Rounds between rolling checkpoints of a run with dense updates."""


@dataclass
class Responses:
    """The responses of an exchange so far. asked: by client that may answer, the round of its question; awaited: the
    part of `asked` that has neither arrived nor left. sent: by client, bytes of its message in this round."""

    asked: dict[int, int] = field(default_factory=dict)
    awaited: dict[int, int] = field(default_factory=dict)
    replies: dict[int, Admitted] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    sent: dict[int, int] = field(default_factory=dict)
    undelivered: set[int] = field(default_factory=set)

    def expect(self, round: int, sending: Sending) -> None:
        """Note the clients that are asked now."""
        self.asked |= dict.fromkeys(sending.which, round)
        self.awaited |= dict.fromkeys(sending.which, round)
        self.sent |= {client: sending.size(client) for client in sending.which}

    def refuse(self, client: int, why: str) -> None:
        self.awaited.pop(client, None)
        self.refused[client] = why


class Server:
    """Plays rounds.

    replica: None on a server without a model. view: the ledger so far; None: it is new. meter: the log and budget of
    the clients' queries, if these are logged. schedule: who is asked at a step, and when the step is made. models: by
    round whose question may still be answered, the digest of its model. reserve: is told a round before anybody is
    asked.
    """

    def __init__(
        self,
        plan: Plan,
        replica: Replica | None,
        ledger: Ledger,
        view: LedgerView | None = None,
        meter: Meter | None = None,
        schedule: Schedule | None = None,
        models: Mapping[int, bytes] | None = None,
        reserve: Callable[[int], None] = ignore,
    ):
        self.plan, self.algorithm, self.federation, self.keys = plan, plan.algorithm, plan.federation, plan.keys
        self.replica, self.ledger, self.meter, self.chain = replica, ledger, meter, plan.chain
        self._reserve = reserve
        turns, done = (Turns.of(plan.federation.clients), 0) if view is None else (view.turns, view.outline.done)
        follow = plan.chain.hides_clients and not isinstance(schedule, Present)
        self.tracker = ClientTracker(plan.federation, turns, done, ledger.rounds, follow)
        self.saved = view.outline.saved.round if view is not None and view.outline.saved is not None else 0
        """the round of the last checkpoint"""
        private = PrivateCohorts(ledger.path.parent, plan) if plan.private_sampling else None
        self.schedule: Schedule = schedule or Synchronous(private or plan.cohort)
        if self.schedule.oldest:
            check_several_steps(plan, replica is not None, meter is not None)
        self.admission, self.aggregation = Admission(plan, self.tracker, models), Aggregation(plan, replica)
        self.delivery = Delivery(plan, replica, self.tracker, self.admission.remembering)
        self.timing = Timing()

    def cost(self, round: int) -> Cost:
        return self.plan.cost(round)

    def limit(self, round: int, exchange: int) -> int:
        """The most bytes that a reply may have."""
        return self.admission.limit(round, exchange)

    def play(
        self, round: int, clients: Clients, seconds: float, stopped: Callable[[Round], str] = lambda record: ""
    ) -> Round:
        """One round; returns when its record is durable and the model has moved on.

        stopped: is told the record before it is written; the reason to end the run after it, or nothing. It is part of
        the record: whoever reads the round knows that it is the last.
        """
        self._reserve(round)
        self.admission.begin(round, self.replica, self.schedule.oldest)
        tally = self._exchanges(round, clients)
        update = self.aggregation.update(round, tally, tally.weights)
        replies, ended, drawn = tally.replies, tally.ended, sorted(tally.drawn)
        as_drawn = ended == set(drawn)
        asked = UNSET if as_drawn else tuple(sorted(set(drawn)))
        encoded = None if update is None else encode_update(update)
        closings = (
            {} if encoded is None or not self.federation.sync else dict.fromkeys(replies, encode_close(round, encoded))
        )
        losses = {client: tally.losses[client] for client in sorted(replies) if client in tally.losses}
        strange = beyond_others(losses) if self.federation.bound else []
        dense = isinstance(update, Dense)
        record = Round(
            round=round,
            cohort=tuple(drawn if as_drawn else sorted(ended)),
            update=hashlib.sha256(encoded).digest() if encoded is not None and dense else encoded,
            dense=dense,
            bytes_up=tally.bytes_up,
            bytes_down=tally.bytes_down + sum(map(len, closings.values())),
            queries=tally.queries,
            loss=self._mean_loss(tally, [loss for c, loss in losses.items() if c not in strange]),
            refused=tuple(sorted((tally.stale_refused | tally.refused).items())),
            remembered=tuple((c, replies[c].memory) for c in sorted(replies) if replies[c].memory),
            queried=() if self.meter is None else self.meter.log.queried(round),
            bounded=tuple(sorted((tally.bounded & replies.keys()) | set(strange))) or UNSET,
            asked=asked,
        )
        if isinstance(clients, Timed):
            record = timed(record, clients.now, self.timing.since)
        if self.chain.hides_clients:
            last = self.delivery.instructions(round, [0], [max(round - 1, 0)]).size(0)
            record = without_clients(record, self.plan, last)
        if reason := stopped(record):
            record = structs.replace(record, stopped=reason)
        kept = {c: tally.memories[c] for c, _ in record.remembered if c in tally.memories}
        self.ledger.append([record], seconds, (round, encoded) if encoded is not None and dense else None, None, kept)
        clients.settle(round, update, closings, tally.diverged)  # first: replicas elsewhere fold while ours does
        if update is not None and self.replica is not None:
            self.replica.follow([update])
        self.tracker.note(record)
        self.tracker.prune(round + 1, self.federation.pull_after)
        self.save_if_due(round + 1, seconds)
        return record

    def _mean_loss(self, tally: RoundInProgress, losses: Sequence[float]) -> float | None:
        return float(np.mean(losses)) if losses else loss_of(tally, self.plan.least_loss)

    def save_if_due(self, done: int, seconds: float) -> None:
        """The rolling checkpoint of a run with dense updates; also written on resume, if the crash came before it."""
        if self.replica is None or self.plan.traits.seeded:
            return
        if done == 0 or done % CHECKPOINT_EVERY or self.saved >= done:
            return
        state = self.replica.state
        content = state.to_bytes()
        record = Saved(done, state.numbers, hashlib.sha256(content).digest())
        self.ledger.append([record], seconds, checkpoint=content)
        self.saved = done

    def _exchanges(self, round: int, clients: Clients) -> RoundInProgress:
        """All exchanges of a round; a client that drops out of one is out of the round."""
        tally, found = RoundInProgress(asked=self.tracker.turns.open()), Responses()
        found.asked, found.awaited = dict(tally.asked), dict(tally.asked)
        self.timing.begin(clients, tally.asked)
        self._ask(round, clients, found, tally)
        for exchange in range(len(self.cost(round).replies)):
            if exchange:
                tally.shared.append(self.aggregation.contributions(tally))
                shared = self.algorithm.share(self.aggregation.step_inputs(round, tally, tally.weights))
                message = encode(Continue(round, exchange, pack(shared.values), shared.clients))
                sending, found = Sending.to_all(tally.replies, message), Responses()
                found.expect(round, sending)
                clients.send(round, exchange, sending.messages, sending.which)
            tally.replies = self._gather(round, exchange, clients, found, tally)
            gather(self.plan, round, exchange, clients, tally, tally.weights)
            self.aggregation.through_links(round, tally, tally.weights)
            if not tally.replies:
                break
        return tally

    def _ask(self, round: int, clients: Clients, found: Responses, tally: RoundInProgress) -> None:
        """Send the question of a round to the clients that the schedule wants to ask now."""
        chosen = self.schedule.ask(self._so_far(round, clients, found, tally))
        if not chosen:
            return
        if again := tally.asked.keys() & set(chosen):
            raise FedzeroError(f"client {min(again)} is asked in round {round}, and has a question already")
        unable = self.unable(round, dict.fromkeys(chosen))
        tally.refused |= unable
        tally.drawn += chosen
        tally.asked |= dict.fromkeys(chosen, round)
        if isinstance(self.schedule, Present):
            self.schedule.question(round, chosen, self.tracker)
        sending = self.delivery.instructions(round, sorted(set(chosen) - unable.keys()))
        found.expect(round, sending)
        self.timing.asked(clients, chosen)
        clients.send(round, 0, sending.messages, sending.which)

    def ask_again(self, round: int, clients: Clients, asked: Iterable[int]) -> None:
        """Send the question of an earlier round once more: of a run that is resumed, whose model stands where it stood
        in that round. The message has the same bytes: a client with an open question is told nothing else."""
        which = list(asked)
        sending = self.delivery.instructions(round, which)
        self.timing.asked(clients, which)
        clients.send(round, 0, sending.messages, sending.which)

    def _so_far(self, round: int, clients: Clients, found: Responses, tally: RoundInProgress) -> StepSoFar:
        place = self.timing.now(clients), self.timing.began, self.timing.since
        return StepSoFar(round, tally.asked, found.awaited, found.replies, *place)

    def unable(self, round: int, clients: Iterable[int]) -> Mapping[int, str]:
        """By client that cannot pay for the queries of a turn: the reason."""
        if self.meter is None:
            return {}
        return self.meter.unable(round, {client: self.admission.queries(round, client) for client in clients})

    def _gather(
        self, round: int, exchange: int, clients: Clients, found: Responses, tally: RoundInProgress
    ) -> dict[int, Admitted]:
        """The replies that count; costs, and the reasons why other replies do not count, go into the tally."""
        made = self._listen(round, exchange, clients, found, tally)
        for client, asked in found.awaited.items():
            if asked + self.schedule.oldest <= round:
                found.refused.setdefault(client, NOT_NEEDED if made and not self.schedule.oldest else "did not answer")
        tally.bytes_down += sum(size for client, size in found.sent.items() if client not in found.undelivered)
        ages = {client: round - found.asked[client] for client in found.replies}
        earlier = {client: self.admission.models[round - age] for client, age in ages.items() if age}
        share = self.schedule.share(len(ages))
        discounts = {client: share * self.schedule.discount(age) for client, age in ages.items()}
        tally.discounts |= {client: weight for client, weight in discounts.items() if ages[client] or share != 1}
        place = round, self.replica, tally.hosts
        try:
            tally.diverged |= set(refuse_diverged(*place, found.replies, found.refused, earlier))
        except Tied:
            clients.settle(round, None, {}, found.replies.keys())
            raise
        tally.refused = found.refused | tally.refused
        for client, reply in found.replies.items():
            tally.queries += reply.queries
            if reply.loss is not None:
                tally.losses.setdefault(client, reply.loss)
        return found.replies

    def _listen(self, round: int, exchange: int, clients: Clients, found: Responses, tally: RoundInProgress) -> bool:
        """Receive events until the step is made; False: no more events can come. Of clients in simulated time a step
        has no more replies than it needs: what arrives in the same moment is given back."""
        while not self.schedule.made(now := self._so_far(round, clients, found, tally)):
            until = self.schedule.until(now)
            events = self.timing.receive(clients, until)
            if not events and until == FOREVER:
                return False
            for place, event in enumerate(events):
                if isinstance(clients, Timed) and self.schedule.made(self._so_far(round, clients, found, tally)):
                    clients.give_back(events[place:])
                    break
                self._happened(exchange, event, found, tally)
            if not exchange:
                self._ask(round, clients, found, tally)
        return True

    def _happened(self, exchange: int, event: Event, found: Responses, tally: RoundInProgress) -> None:
        if isinstance(event, Arrival):
            self._arrived(exchange, event, found, tally)
        elif isinstance(event, Rows):
            assert self.meter is not None, "queries of a run that has no log of them"
            self.meter.log.write(event.rows)
        elif isinstance(event, Left):
            for client in found.awaited.keys() & set(event.clients):
                found.refuse(client, f"failed: {event.why}")

    def _arrived(self, exchange: int, arrival: Arrival, found: Responses, tally: RoundInProgress) -> None:
        client, data = arrival.client, arrival.data
        if isinstance(data, bytes):
            tally.bytes_up += len(data)
        open = found.asked.get(client)
        if arrival.asked != open and (why := self.admission.closed(arrival.asked, open)):
            tally.stale[client] = why
            return
        try:
            if open is None:
                raise Refused("was not asked")
            if isinstance(data, Exception):
                if isinstance(data, Undelivered):
                    found.undelivered.add(client)
                raise Refused(f"failed: {data}")
            if client in found.replies:
                raise Refused("answered twice; the first answer counts")
            if self.schedule.oldest and open not in self.admission.models:
                raise Refused(f"answered round {open}, whose model is not known here any more")
            found.replies[client] = self.admission.admit(open, exchange, client, data)
        except Refused as reason:
            if client not in found.replies:
                found.refuse(client, printable(str(reason), LONGEST_SAID))
            return
        found.awaited.pop(client, None)
        found.refused.pop(client, None)  # an earlier refused message (say, an answer to another round) did no harm
        tally.hosts[client] = arrival.host
        if arrival.memory is not None:
            tally.memories[client] = arrival.memory
