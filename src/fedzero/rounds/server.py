"""One round of a federation, start to finish, seen from the server.

cohort ← sample                     a function of the keys and the round
who cannot pay its queries sits out
messages → clients → replies        bytes out, bytes in, both counted; once for every exchange of the round
admit each reply, or refuse it by name and go on with the others; shorten those far longer than the others'
update ← aggregate, if the model stays finite       → ledger (durable) → only then does any state change
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from msgspec import UNSET

from fedzero.errors import Refused
from fedzero.ledger.query_log import Meter
from fedzero.ledger.records import Round, Saved
from fedzero.ledger.replay import LedgerView
from fedzero.ledger.store import Ledger
from fedzero.ledger.turns import Turns
from fedzero.lines import LONGEST_SAID, printable
from fedzero.methods.contract import Wire
from fedzero.model.updates import Dense, encode_update, pack
from fedzero.protocol.engine import FOREVER, Arrival, Clients, Event, Left, Rows, Tied, Undelivered
from fedzero.protocol.messages import Continue, encode, encode_close
from fedzero.protocol.replica import Replica
from fedzero.recipe.plan import Plan, cohort_of
from fedzero.recipe.sampling import PrivateCohorts
from fedzero.rounds.admission import Admission, refuse_diverged
from fedzero.rounds.aggregation import Aggregation
from fedzero.rounds.delivery import Delivery, Sending
from fedzero.rounds.gathering import gather, loss_of
from fedzero.rounds.losses import beyond as beyond_others
from fedzero.rounds.tally import Admitted, Tally
from fedzero.rounds.tracker import ClientTracker

CHECKPOINT_EVERY = 10
"""Rounds between rolling checkpoints of a run with dense updates."""


@dataclass
class Responses:
    """What has come of an exchange so far. awaited: clients that were asked and have neither arrived nor left."""

    sending: Sending
    replies: dict[int, Admitted] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    undelivered: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.awaited = set(self.sending.which)

    def refuse(self, client: int, why: str) -> None:
        self.awaited.discard(client)
        self.refused[client] = why


class Server:
    """Plays rounds.

    replica: None on a server without a model. view: what the ledger holds already, if anything. meter: where clients'
    queries are logged and paid for, if they are.
    """

    def __init__(
        self,
        plan: Plan,
        replica: Replica | None,
        ledger: Ledger,
        view: LedgerView | None = None,
        meter: Meter | None = None,
    ):
        self.plan, self.algorithm, self.federation, self.keys = plan, plan.algorithm, plan.federation, plan.keys
        self.replica, self.ledger, self.meter, self.chain = replica, ledger, meter, plan.chain
        turns, done = (Turns.of(plan.federation.clients), 0) if view is None else (view.turns, view.outline.done)
        self.tracker = ClientTracker(plan.federation, turns, done, ledger.rounds)
        self.saved = view.outline.saved.round if view is not None and view.outline.saved is not None else 0
        """the round of the last checkpoint"""
        self.admission, self.aggregation = Admission(plan, self.tracker), Aggregation(plan, replica)
        self._cohorts = PrivateCohorts(ledger.path.parent, plan.federation) if plan.private_sampling else None
        self.delivery = Delivery(plan, replica, self.tracker, self.admission.remembering)

    def wire(self, round: int) -> Wire:
        return self.plan.wire(round)

    def limit(self, round: int, exchange: int) -> int:
        """Bytes of a reply at most."""
        return self.admission.limit(round, exchange)

    def cohort(self, round: int) -> tuple[int, ...]:
        """Of private draws it is durable before it is returned."""
        return cohort_of(self.keys, round, self.federation) if self._cohorts is None else self._cohorts(round)

    def play(self, round: int, clients: Clients, seconds: float) -> Round:
        """One round; returns when its record is durable and the model has moved on."""
        cohort = self.cohort(round)
        weights = Counter(cohort)
        tally = self._exchanges(round, clients, weights)
        update = self.aggregation.update(round, tally, weights)
        replies = tally.replies
        encoded = None if update is None else encode_update(update)
        closings = (
            {} if encoded is None or not self.federation.sync else dict.fromkeys(replies, encode_close(round, encoded))
        )
        losses = {client: tally.losses[client] for client in sorted(replies) if client in tally.losses}
        strange = beyond_others(losses) if self.federation.bound else []
        dense = isinstance(update, Dense)
        record = Round(
            round=round,
            cohort=cohort,
            update=hashlib.sha256(encoded).digest() if encoded is not None and dense else encoded,
            dense=dense,
            bytes_up=tally.bytes_up,
            bytes_down=tally.bytes_down + sum(map(len, closings.values())),
            queries=tally.queries,
            loss=self._mean_loss(tally, [loss for c, loss in losses.items() if c not in strange]),
            refused=tuple(sorted(tally.refused.items())),
            remembered=tuple((c, replies[c].memory) for c in sorted(replies) if replies[c].memory),
            queried=() if self.meter is None else self.meter.log.queried(round),
            bounded=tuple(sorted((tally.bounded & replies.keys()) | set(strange))) or UNSET,
        )
        kept = {c: tally.memories[c] for c, _ in record.remembered if c in tally.memories}
        self.ledger.append([record], seconds, (round, encoded) if encoded is not None and dense else None, None, kept)
        clients.settle(round, update, closings, tally.diverged)  # first: replicas elsewhere fold while ours does
        if update is not None and self.replica is not None:
            self.replica.follow([update])
        self.tracker.note(record)
        self.tracker.prune(round + 1, self.federation.pull_after)
        self.save_if_due(round + 1, seconds)
        return record

    def _mean_loss(self, tally: Tally, losses: Sequence[float]) -> float | None:
        return float(np.mean(losses)) if losses else loss_of(tally, self.plan.least_loss)

    def save_if_due(self, done: int, seconds: float) -> None:
        """The rolling checkpoint of a run with dense updates; also written on resume, if the crash came before it."""
        if self.replica is None or self.plan.wire(done).seeded:
            return
        if done == 0 or done % CHECKPOINT_EVERY or self.saved >= done:
            return
        state = self.replica.state
        content = state.to_bytes()
        record = Saved(done, state.numbers, hashlib.sha256(content).digest())
        self.ledger.append([record], seconds, checkpoint=content)
        self.saved = done

    def _exchanges(self, round: int, clients: Clients, weights: Mapping[int, int]) -> Tally:
        """All exchanges of a round; who drops out of one is out of the round."""
        unable = self.unable(round, weights)
        tally = Tally(refused=dict(unable))
        sending = self.delivery.instructions(round, sorted(weights.keys() - unable.keys()))
        for exchange in range(len(self.wire(round).replies)):
            if exchange:
                tally.shared.append(self.aggregation.contributions(tally))
                shared = self.algorithm.share(self.aggregation.step_inputs(round, tally, weights))
                message = encode(Continue(round, exchange, pack(shared.values), shared.clients))
                sending = Sending.to_all(tally.replies, message)
            tally.replies = self._gather(round, exchange, clients, sending, tally)
            gather(self.plan, round, exchange, clients, tally, weights)
            self.aggregation.through_links(round, tally, weights)
            if not tally.replies:
                break
        return tally

    def unable(self, round: int, clients: Iterable[int]) -> Mapping[int, str]:
        """Who of these clients cannot pay the queries of a turn, and why."""
        if self.meter is None:
            return {}
        return self.meter.unable(round, {client: self.admission.queries(round, client) for client in clients})

    def _gather(
        self, round: int, exchange: int, clients: Clients, sending: Sending, tally: Tally
    ) -> dict[int, Admitted]:
        """Replies that count; the reasons why others do not, and what they cost, go into the tally."""
        found = Responses(sending)
        clients.send(round, exchange, sending.messages, sending.which)
        while found.awaited and (events := clients.receive(FOREVER)):
            for event in events:
                self._happened(round, exchange, event, found, tally)
        for client in found.awaited:
            found.refused.setdefault(client, "did not answer")
        tally.bytes_down += sum(sending.size(client) for client in sending.which if client not in found.undelivered)
        try:
            tally.diverged |= set(refuse_diverged(round, self.replica, tally.hosts, found.replies, found.refused))
        except Tied:
            clients.settle(round, None, {}, found.replies.keys())
            raise
        tally.refused = found.refused | tally.refused
        for client, reply in found.replies.items():
            tally.queries += reply.queries
            if reply.loss is not None:
                tally.losses.setdefault(client, reply.loss)
        return found.replies

    def _happened(self, round: int, exchange: int, event: Event, found: Responses, tally: Tally) -> None:
        if isinstance(event, Rows):
            assert self.meter is not None, "queries of a run that has no log of them"
            self.meter.log.write(event.rows)
        elif isinstance(event, Left):
            for client in found.awaited & set(event.clients):
                found.refuse(client, f"failed: {event.why}")
        elif isinstance(event, Arrival):
            self._arrived(round, exchange, event, found, tally)

    def _arrived(self, round: int, exchange: int, arrival: Arrival, found: Responses, tally: Tally) -> None:
        client, data = arrival.client, arrival.data
        if isinstance(data, bytes):
            tally.bytes_up += len(data)
        try:
            if client not in found.sending.which:
                raise Refused("was not asked")
            if isinstance(data, Undelivered):
                found.undelivered.add(client)
            if isinstance(data, Exception):
                raise Refused(f"failed: {data}")
            if client in found.replies:
                raise Refused("answered twice; the first answer counts")
            found.replies[client] = self.admission.admit(round, exchange, client, data)
        except Refused as reason:
            if client not in found.replies:
                found.refuse(client, printable(str(reason), LONGEST_SAID))
            return
        found.awaited.discard(client)
        found.refused.pop(client, None)  # what came before it (say, its answer to another round) did no harm
        tally.hosts[client] = arrival.host
        if arrival.memory is not None:
            tally.memories[client] = arrival.memory
