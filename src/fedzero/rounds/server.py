"""One round of a federation, start to finish, seen from the server.

cohort ← sample                     a function of the keys and the round
who cannot pay its queries sits out
instructions → engine → replies     bytes out, bytes in, both counted; once for every exchange of the round
admit each reply, or refuse it by name and go on with the others; shorten those far longer than the others'
update ← aggregate, if the model stays finite       → ledger (durable) → only then does any state change
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from msgspec import UNSET, Struct
from msgspec.structs import replace

from fedzero.directions.terms import F32
from fedzero.errors import FedzeroError, Refused
from fedzero.ledger.query_log import Meter
from fedzero.ledger.records import Round, Saved
from fedzero.ledger.replay import LedgerView
from fedzero.ledger.store import Ledger
from fedzero.ledger.turns import Turns
from fedzero.lines import LONGEST_SAID, printable
from fedzero.links.bounds import beyond, bounded, norms_of
from fedzero.methods.contract import Gathered, Part, Wire
from fedzero.model.updates import Dense, Update, encode_update, pack
from fedzero.oracles.ranges import strange_loss
from fedzero.protocol.engine import Engine, Tied, Undelivered
from fedzero.protocol.messages import (
    MEMORY_DIGEST,
    Continue,
    Snapshot,
    decode_reply,
    encode,
    encode_close,
    encode_joined_work,
    loss_of,
)
from fedzero.protocol.replica import Replica
from fedzero.recipe.plan import Plan, cohort_of
from fedzero.rounds import votes
from fedzero.rounds.guard import Guard
from fedzero.rounds.losses import beyond as beyond_others
from fedzero.rounds.tracker import ClientTracker

FAR = 1000.0
"""Times the median norm of a round, beyond which a client is refused: where it cannot be shortened, because clients
keep account of what they sent; and where a round would have made the model infinite."""
CHECKPOINT_EVERY = 10
"""Rounds between rolling checkpoints of a run with dense updates."""


class Admitted(Struct, frozen=True):
    """A reply that counts, unpacked."""

    values: F32
    loss: float
    queries: int
    digest: bytes
    memory: bytes


@dataclass
class Tally:
    """What a round has cost and brought so far, over its exchanges."""

    replies: dict[int, Admitted] = field(default_factory=dict)
    """of the last exchange"""
    shared: list[dict[int, F32]] = field(default_factory=list)
    """values of the exchanges before it"""
    refused: dict[int, str] = field(default_factory=dict)
    bounded: set[int] = field(default_factory=set)
    """whose values were shortened"""
    bytes_up: int = 0
    bytes_down: int = 0
    queries: int = 0
    losses: dict[int, float] = field(default_factory=dict)
    """at the start of the round"""


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
        self.guard = Guard(plan.algorithm, plan.keys)
        self._remembering = plan.wire(0).remembers or plan.chain.feedback
        self._wire = 0, plan.wire(0)

    def wire(self, round: int) -> Wire:
        """Of the round that is being played; asked for often."""
        if self._wire[0] != round:
            self._wire = round, self.plan.wire(round)
        return self._wire[1]

    def cohort(self, round: int) -> tuple[int, ...]:
        return cohort_of(self.keys, round, self.federation)

    def play(self, round: int, engine: Engine, seconds: float) -> Round:
        """One round; returns when its record is durable and the model has moved on."""
        cohort = self.cohort(round)
        weights = Counter(cohort)
        tally = self._exchanges(round, engine, weights)
        update = self._update(round, tally, weights)
        replies = tally.replies
        encoded = None if update is None else encode_update(update)
        closings = {} if encoded is None or not self.federation.sync else self._closings(round, encoded, replies)
        losses = {client: tally.losses[client] for client in sorted(replies)}
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
            loss=float(np.mean([loss for c, loss in losses.items() if c not in strange])) if losses else None,
            refused=tuple(sorted(tally.refused.items())),
            remembered=tuple((c, replies[c].memory) for c in sorted(replies) if replies[c].memory),
            queried=() if self.meter is None else self.meter.log.queried(round),
            bounded=tuple(sorted((tally.bounded & replies.keys()) | set(strange))) or UNSET,
        )
        kept = engine.memories([client for client, _ in record.remembered]) if record.remembered else None
        self.ledger.append([record], seconds, (round, encoded) if encoded is not None and dense else None, None, kept)
        engine.close(round, update, closings)  # first: replicas elsewhere fold while ours does
        if update is not None and self.replica is not None:
            self.replica.follow([update])
        self.tracker.note(record)
        self.tracker.prune(round + 1, self.federation.pull_after)
        self.save_if_due(round + 1, seconds)
        return record

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

    def _exchanges(self, round: int, engine: Engine, weights: Mapping[int, int]) -> Tally:
        """All exchanges of a round; who drops out of one is out of the round."""
        unable = self.unable(round, weights)
        tally = Tally(refused=dict(unable))
        instructions = self._instructions(round, sorted(weights.keys() - unable.keys()))
        for exchange in range(len(self.wire(round).replies)):
            if exchange:
                tally.shared.append({client: reply.values for client, reply in tally.replies.items()})
                instructions = self._continue(round, exchange, tally, weights)
            tally.replies = self._gather(round, exchange, engine, instructions, tally)
            self._bound(round, tally)
            if not tally.replies:
                break
            if self.chain.mixers:
                mixed = self.chain.mix({client: reply.values for client, reply in tally.replies.items()}, weights)
                tally.replies = {c: replace(reply, values=mixed[c]) for c, reply in tally.replies.items()}
        return tally

    def _bound(self, round: int, tally: Tally) -> None:
        """Hold what a single client can do to the round within `federation.bound`, see `filters.bounds`.

        Clients that keep account of what they sent, and whose accounts must add up to the server's, cannot be
        shortened behind their backs: they are refused, and only where they are beyond all measure.
        """
        factor, wire = self.federation.bound, self.wire(round)
        if not factor or not tally.replies:
            return
        values = {client: reply.values for client, reply in tally.replies.items()}
        if wire.remembers and not wire.comparable:
            self._refuse_far(tally, norms_of(values), max(factor, FAR), "more than a client may send")
            return
        held, outside = bounded(values, factor)
        for client in outside:
            tally.replies[client] = replace(tally.replies[client], values=held[client])
        tally.bounded |= set(outside)

    @staticmethod
    def _refuse_far(tally: Tally, norms: Mapping[int, float], factor: float, why: str) -> bool:
        """Refuse clients whose numbers are that much longer than the round's median; False: nobody's are."""
        longest, outside = beyond(norms, factor)
        for client in outside:
            del tally.replies[client]
            tally.refused[client] = f"sent numbers of norm {norms[client]:.3g}, {why}: at most {longest:.3g} this round"
        return bool(outside)

    def _update(self, round: int, tally: Tally, weights: Mapping[int, int]) -> Update | None:
        """What comes of a round; None if nobody answered, or if it would make a number of the model infinite or NaN.

        In the latter case the round goes on without those whose numbers are far beyond the others'; if there are none,
        or that does not help, nothing of the round counts.
        """
        state = None if self.replica is None else self.replica.state
        for attempt in range(2):
            if not tally.replies:
                return None
            update = self.algorithm.aggregate(self._gathered(round, tally, weights))
            if self.guard.admits(state, update):
                return update
            norms = norms_of({client: reply.values for client, reply in tally.replies.items()})
            why = "which would have made the model infinite"
            if attempt or not self._refuse_far(tally, norms, FAR, why):
                break
        for client in tally.replies:
            tally.refused[client] = "was left out with its whole round, which would have made the model infinite"
        tally.replies = {}
        return None

    def unable(self, round: int, clients: Iterable[int]) -> Mapping[int, str]:
        """Who of these clients cannot pay the queries of a turn, and why."""
        if self.meter is None:
            return {}
        return self.meter.unable(round, {client: self._queries(round, client) for client in clients})

    def _queries(self, round: int, client: int) -> int:
        """How often a client asks its function in a round, at most."""
        wire = self.wire(round)
        first = wire.first_queries and self.tracker.turns.last(client) is None
        return wire.queries + (wire.first_queries if first else 0)

    def _gathered(self, round: int, tally: Tally, weights: Mapping[int, int]) -> Gathered:
        return Gathered(
            round=round,
            scale=self.plan.scale,
            keys=self.keys,
            contributions={client: reply.values for client, reply in tally.replies.items()},
            weights=weights,
            combine=self.chain.combine,
            state=None if self.replica is None else self.replica.state,
            shared=tuple(tally.shared),
        )

    def _continue(self, round: int, exchange: int, tally: Tally, weights: Mapping[int, int]) -> dict[int, bytes]:
        shared = self.algorithm.share(self._gathered(round, tally, weights))
        message = encode(Continue(round, exchange, pack(shared.values), shared.clients))
        return dict.fromkeys(tally.replies, message)

    def _instructions(self, round: int, cohort: Sequence[int]) -> dict[int, bytes]:
        delivery, limit = self.wire(round).delivery, self.federation.pull_after
        states: dict[Part, bytes] = {}
        works: dict[tuple[int, int | None], bytes] = {}
        instructions = {}
        known = self.tracker.known[list(cohort)].tolist()
        for client, knows in zip(cohort, known, strict=True):
            counted = self.tracker.turns.last(client) if self._remembering else None
            pulls = limit is not None and round - knows > limit
            if delivery == "snapshot" or pulls:
                instructions[client] = self._snapshot(round, client, counted, states)
                continue
            if (knows, counted) not in works:
                works[knows, counted] = encode_joined_work(round, 0, *self.tracker.missed(knows, round), counted)
            instructions[client] = works[knows, counted]
            if delivery == "fewer" and self.replica is not None:
                snapshot = self._snapshot(round, client, counted, states)
                instructions[client] = min(instructions[client], snapshot, key=len)
        return instructions

    def _snapshot(self, round: int, client: int, counted: int | None, states: dict[Part, bytes]) -> bytes:
        """The state, or what of it a client needs; `states` has the parts that were encoded before."""
        if self.replica is None:
            raise FedzeroError("the server holds no model and cannot send one: set federation.server_model = true")
        state, part = self.replica.state, self.replica.state.carry.part(client)
        if part not in states:
            states[part] = state.to_bytes(part)
        return encode(Snapshot(round, 0, state.numbers, states[part], counted))

    def _gather(
        self, round: int, exchange: int, engine: Engine, instructions: Mapping[int, bytes], tally: Tally
    ) -> dict[int, Admitted]:
        """Replies that count; the reasons why others do not, and what they cost, go into the tally."""
        replies: dict[int, Admitted] = {}
        refused: dict[int, str] = {}
        undelivered: set[int] = set()
        expected, limit = self.wire(round).replies[exchange], self.limit(round, exchange)
        for client, data in engine.exchange(round, exchange, instructions):
            if isinstance(data, bytes):
                tally.bytes_up += len(data)
            try:
                if client not in instructions:
                    raise Refused("was not asked")
                if isinstance(data, Undelivered):
                    undelivered.add(client)
                if isinstance(data, Exception):
                    raise Refused(f"failed: {data}")
                if client in replies:
                    raise Refused("answered twice; the first answer counts")
                replies[client] = self._admit(round, exchange, client, data, expected, limit)
                refused.pop(client, None)  # what came before it (say, its answer to another round) did no harm
            except Refused as reason:
                if client not in replies:
                    refused[client] = printable(str(reason), LONGEST_SAID)
        for client in instructions.keys() - replies.keys() - refused.keys():
            refused[client] = "did not answer"
        tally.bytes_down += sum(len(sent) for client, sent in instructions.items() if client not in undelivered)
        engine.rebuild(self._refuse_diverged(round, engine, replies, refused))
        tally.refused = refused | tally.refused
        for client, reply in replies.items():
            tally.queries += reply.queries
            tally.losses.setdefault(client, reply.loss)
        return replies

    def limit(self, round: int, exchange: int) -> int:
        """Bytes of a reply at most."""
        return self.chain.limit(self.wire(round).replies[exchange]) + 128

    def _admit(self, round: int, exchange: int, client: int, data: bytes, expected: int, limit: int) -> Admitted:
        reply = decode_reply(data, limit)
        if reply.round != round:
            raise Refused(f"answered round {reply.round}, not round {round}")
        if reply.exchange != exchange:
            raise Refused(f"answered exchange {reply.exchange} of the round, not {exchange}")
        values, loss = self.chain.decode(reply.values, expected), loss_of(reply.loss)
        if why := strange_loss(loss, self.plan.least_loss):
            raise Refused(f"says {why}")
        most = self._queries(round, client)
        if reply.queries > most:
            raise Refused(f"says it asked its function {reply.queries} times where the method asks {most} times")
        keeps = self._remembering and exchange + 1 == len(self.wire(round).replies)
        if len(reply.memory) != (MEMORY_DIGEST if keeps else 0):
            raise Refused("sent no digest of its memory" if keeps else "sent a digest of a memory where none is kept")
        return Admitted(values, loss, reply.queries, reply.digest, reply.memory)

    def _refuse_diverged(
        self, round: int, engine: Engine, replies: dict[int, Admitted], refused: dict[int, str]
    ) -> list[int]:
        """Values computed on another model than ours (or, without a model, than most others') do not count."""
        if not replies:
            return []
        if self.replica is not None:
            right = {client: self.replica.state.digest(client) for client in replies}
        else:
            right = dict.fromkeys(replies, self._elected(round, engine, replies))
        diverged = [c for c, reply in replies.items() if reply.digest != right[c]]
        for client in diverged:
            found = replies.pop(client).digest.hex()
            refused[client] = f"worked on model {found}, not {right[client].hex()}: must rebuild"
        return diverged

    @staticmethod
    def _elected(round: int, engine: Engine, replies: Mapping[int, Admitted]) -> bytes:
        """The model that most replicas have. Clients that share one have one vote together, or a site with many
        clients would outvote the others. On a tie everybody's replica is made anew before the round is repeated."""
        digests = {client: reply.digest for client, reply in replies.items()}
        found = set(digests.values())
        if len(found) == 1:
            return found.pop()
        ballots = votes.of_groups(digests, engine.voters(replies))
        right = votes.leading(ballots)
        if right is None:
            engine.rebuild(replies.keys())
            raise Tied(f"round {round} was worked on with different models ({votes.sides(ballots, 'model {}')})")
        return right

    @staticmethod
    def _closings(round: int, update: bytes, replies: Mapping[int, Admitted]) -> dict[int, bytes]:
        return dict.fromkeys(replies, encode_close(round, update))
