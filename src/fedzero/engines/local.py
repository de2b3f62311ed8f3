"""The local engine: all clients in this process. It is the default of a recipe's `[engine]`.

One model serves all simulated clients, because all replicas are equal by construction. `replicas = True` gives each
client a real replica that decodes every instruction; the tests prove the equality with it. With `merge`, one evaluation
answers a cohort's asks about the same points, and black boxes of different clients work at the same time.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from msgspec import structs

from fedzero.callbacks import ignore
from fedzero.engines.gathering import hosted
from fedzero.errors import FedzeroError
from fedzero.ledger.answers import Answers
from fedzero.links import NO_FILTERS, Chain
from fedzero.links.contract import Entropy
from fedzero.methods.contract import Observer
from fedzero.model.identity import Identity
from fedzero.model.params import Params
from fedzero.model.updates import Update, decode_update
from fedzero.oracles import Answer, Ask, GradientOracle, Metrics, Objective, Oracle, Shards, answer_together
from fedzero.protocol.altered import Altered
from fedzero.protocol.attacks import altering
from fedzero.protocol.client import Client
from fedzero.protocol.engine import Arrival, Clients, Event
from fedzero.protocol.messages import Close, decode_instruction, decode_reply, encode_reply
from fedzero.protocol.outstanding import Outstanding
from fedzero.protocol.replica import Replica
from fedzero.recipe.engines import Engine, recorded
from fedzero.recipe.sampling import HiddenTurns, PrivateBatches, batches_in, draws_batches, hidden_in
from fedzero.recipe.setup import Setup
from fedzero.recipe.view import RunView

KEPT = 4096
"""How many clients with a memory stay in the process between their turns."""
PIECE = 1 << 20
"""Bytes of replies that are handed over at once; the next replies are computed when these have been taken."""
Sent = Iterator[tuple[int, bytes | Exception]]
Recalled = Callable[[int], Sequence[bytes]]


def nothing(client: int) -> Sequence[bytes]:
    return ()


Before = Callable[[int, int, Iterable[int]], Mapping[int, bytes]]
"""(round, exchange, clients) → the replies that some of them gave already"""


@dataclass(frozen=True)
class Elsewhere:
    """Private randomness that another process has drawn. entropy: of links, by client."""

    batches: PrivateBatches
    entropy: Callable[[int], Entropy]


class Local(Engine, tag="local"):
    """All clients in this process."""

    answers_at_once: ClassVar[bool] = True
    replicas: bool = False
    """Give every client its own copy of the model (slow; to check that the copies agree)."""

    @contextmanager
    def open(self, run: RunView) -> Iterator[Clients]:
        yield attacked(run.built()[0], clients_here(run), run.oldest)


def clients_here(run: RunView) -> Clients:
    """All clients of a run in this process, with their memories and updates from the ledger, and as hosts of the run's
    gathering if it has one. Answers that must not be computed twice are kept in the run's folder."""
    (setup, replica), past, folder = run.built(), run.past, run.environment.folder

    def folded(client: int) -> Sequence[bytes]:
        return past.updates(0, past.known(client))

    clients = local_clients(setup, replica, run.observe, past.memory, folded, folder, run.oldest)
    return hosted(setup, clients, folder, run.oldest)


def local_clients(
    setup: Setup,
    replica: Replica,
    observe: Observer = ignore,
    memory: Recalled | None = None,
    folded: Recalled = nothing,
    answers: Path | None = None,
    oldest: int = 0,
    elsewhere: Elsewhere | None = None,
) -> LocalClients:
    """The clients of a set-up; attackers among them work on the data that their attack has altered. elsewhere: where
    another process draws for them, and keeps what they answer."""
    how, problem, shards = recorded(setup.recipe.engine), setup.problem, setup.problem.shards
    assert isinstance(how, Local)
    if how.attack is not None:
        shards = how.attack.data(shards, how.attack.who(setup.keys, shards.clients))
    place = replica, problem.objective, shards, how.merge, how.replicas, setup.chain
    if elsewhere is not None:
        drawn = elsewhere.batches if draws_batches(setup.recipe) else None
        return LocalClients(
            *place, observe, problem.measure, memory, folded, unanswered, drawn, oldest, None, elsewhere.entropy
        )
    drawn = batches_in(setup.recipe, answers)
    hidden = hidden_in(setup.recipe, answers)
    return LocalClients(*place, observe, problem.measure, memory, folded, answers, drawn, oldest, hidden)


def unanswered(round: int, exchange: int, clients: Iterable[int]) -> Mapping[int, bytes]:
    """No client has answered before."""
    return {}


def attacked(setup: Setup, clients: Clients, oldest: int = 0) -> Clients:
    """With the recipe's attackers, if it names any: they change their replies once they have seen everybody's."""
    attack = setup.recipe.engine.attack
    if attack is None:
        return clients
    plan, count = setup.plan, setup.problem.shards.clients
    alter = altering(attack, lambda r: plan.cost(r).replies, setup.keys, count, setup.chain, plan.outcome)
    return Altered(clients, alter, oldest)


class LocalClients:
    """`replica` is the clients' model; the server, if it holds one, holds the same.

    memory: by client, the pieces of its memory of the last turn that counted; empty: it has no memory. folded: by
    client, the encoded updates that its own replica had folded when it was last here. answers: the folder that holds
    replies before they leave, if a link uses private randomness; or a function that gives earlier answers, where
    somebody else keeps them. drawn: the private source of batches; None: the run's keys. oldest: see `RunView`. hidden:
    whose turns nobody may see; None: everybody who is asked takes part, or says why not. entropy: by client, the source
    of what links draw in private.
    """

    def __init__(
        self,
        replica: Replica,
        objective: Objective,
        shards: Shards,
        merge: bool = True,
        replicas: bool = False,
        chain: Chain = NO_FILTERS,
        observe: Observer = ignore,
        measure: Callable[[Params, int, bool], Metrics] | None = None,
        memory: Recalled | None = None,
        folded: Recalled = nothing,
        answers: Path | Before | None = None,
        drawn: PrivateBatches | None = None,
        oldest: int = 0,
        hidden: HiddenTurns | None = None,
        entropy: Callable[[int], Entropy] = lambda client: os.urandom,
    ):
        self.measure = measure or (lambda params, after, last: objective.evaluate(params))
        self.replica, self.objective, self.merge, self.replicas, self.chain = replica, objective, merge, replicas, chain
        self.observe, self.cache = observe, dict[Any, Any]()
        self.shards, self.memory, self.folded = shards, memory, folded
        self.clients: dict[int, Client] = {}
        """the clients of the last turns; the memories of the others are on the ledger"""
        self._base = replica.state.params.clone() if replicas else None
        self._answers, self._drawn, self._hidden, self._entropy = answers, drawn, hidden, entropy
        self._open = Outstanding[Iterator[Arrival] | None](oldest)
        """questions with their replies; None: nobody has begun"""
        self._early: list[Arrival] = []
        """replies that were computed before the model moved"""

    def _client(self, number: int) -> Client:
        """A client, made when it is needed: a thousand models cost memory, and so do a million clients without one."""
        found = self.clients.pop(number, None)
        if found is None:
            found = self._made(number)
        self.clients[number] = found  # last: the order is that of the latest turns
        return found

    def _made(self, number: int) -> Client:
        replica = self.replica if self._base is None else self._own(number, self._base.clone())
        kind = GradientOracle if replica.traits.first_order else Oracle
        hides = self._hidden is not None and not self.merge
        failures = Exception if hides else FedzeroError
        oracle = kind(self.objective, self.shards, replica.keys, number, self._drawn, failures)
        client = Client(number, replica, oracle, self.chain, self.cache, self.observe, self._entropy(number))
        if client.keeps_memory and self.memory is not None and (chunks := self.memory(number)):
            client.remember(chunks)
        return client

    def _own(self, number: int, base: Params) -> Replica:
        """A client's own replica, at the round where the client left it."""
        replica = Replica(self.replica.algorithm, base, self.replica.keys, self.replica.state.clients)
        replica.follow([decode_update(update) for update in self.folded(number)])
        return replica

    @property
    def _remembers(self) -> bool:
        return self.replica.traits.remembers or self.chain.feedback

    def _forget(self) -> None:
        """Drop clients whose turn was long ago, where nothing is lost: where they share the model, and the ledger has
        their memory."""
        if self.replicas or (self.memory is None and self._remembers):
            return
        spare = len(self.clients) - (KEPT if self._remembers else 0)
        self.forget(list(islice(self.clients, max(0, spare))))

    def forget(self, numbers: Iterable[int]) -> None:
        """Drop these clients; they are made again at their next turn, with the memory that is recalled then."""
        for number in numbers:
            self.clients.pop(number, None)

    def send(self, asked: int, exchange: int, messages: Sequence[bytes], which: Mapping[int, int]) -> None:
        self._open.add(asked, exchange, {client: messages[message] for client, message in which.items()}, None)
        self._early = [each for each in self._early if each.client not in which]

    def receive(self, seconds: float) -> Sequence[Event]:
        end, found, size = time.monotonic() + seconds, list[Event](), 0
        for arrival in self._replies():
            found.append(arrival)
            size += len(arrival.data) if isinstance(arrival.data, bytes) else 0
            if size > PIECE or time.monotonic() > end:
                break
        return found

    def _replies(self) -> Iterator[Arrival]:
        """To all open questions, in the order in which these were sent."""
        while self._early:
            yield self._early.pop(0)
        while self._open.batches:
            batch = self._open.batches[0]
            if batch.work is None:
                batch.work = self._arrivals(batch.asked, batch.exchange, dict(batch.awaited))
            for arrival in batch.work:
                if (mine := batch.arrived(arrival)) is not None:
                    yield mine
            self._open.batches.remove(batch)

    def _arrivals(self, round: int, exchange: int, instructions: Mapping[int, bytes]) -> Iterator[Arrival]:
        if self._drawn is not None:
            self._drawn.begin(round, instructions)
        cost = self.replica.algorithm.cost(round, self.replica.state.scale)
        last = self._remembers and exchange + 1 == len(cost.replies)
        replies = self._once if self.chain.private else self._exchange
        for client, data in replies(round, exchange, instructions):
            memory = self.clients[client].change() if last and isinstance(data, bytes) else None
            yield Arrival(client, data, f"client {client}", memory, round)

    def _once(self, round: int, exchange: int, instructions: Mapping[int, bytes]) -> Sent:
        """As `_exchange`, but earlier answers are repeated byte for byte, and new answers are durable before they
        leave."""
        if callable(self._answers):
            yield from self._exchange(round, exchange, instructions, self._answers(round, exchange, instructions))
            return
        if self._answers is None:
            raise FedzeroError("a link draws in private, and nobody said where replies are kept before they leave")
        with contextlib.closing(Answers(self._answers)) as answers:
            before, refused = answers.all_before(round, exchange, instructions)
            asked = {number: sent for number, sent in instructions.items() if number not in refused}
            found = dict(self._exchange(round, exchange, asked, before))
            replies = {number: data for number, data in found.items() if isinstance(data, bytes)}
            answers.keep(round, exchange, instructions, replies)
        yield from {**refused, **found}.items()

    def _exchange(
        self, round: int, exchange: int, instructions: Mapping[int, bytes], before: Mapping[int, bytes] = {}
    ) -> Sent:
        """Replies as they are ready. before: the replies of clients that answered already."""
        if self._hidden is None:
            yield from self._played(round, exchange, instructions, before)
            return
        yield from before.items()
        new = {number: sent for number, sent in instructions.items() if number not in before}
        found = self._of_takers(round, {n: new[n] for n in self._hidden.taking(round, new)}, self._hidden)
        for number in new:
            yield number, found.get(number) or self._client(number).absent(round)

    def _of_takers(self, round: int, instructions: Mapping[int, bytes], hidden: HiddenTurns) -> dict[int, bytes]:
        """The replies of clients that take part and do not fail. Merged clients are those of a simulation, which has
        to say what else goes wrong; a host hides it as well."""
        found: dict[int, bytes] = {}
        hides: tuple[type[BaseException], ...] = () if self.merge else (Exception, SystemExit)
        for group in [list(instructions)] if self.merge else [[number] for number in instructions]:
            try:
                for number, data in self._played(round, 0, {number: instructions[number] for number in group}):
                    if isinstance(data, bytes):
                        found[number] = self._alike(round, data)
                    else:
                        hidden.failed(data)
            except hides as error:
                hidden.failed(error)
        return found

    def _alike(self, round: int, data: bytes) -> bytes:
        """A reply with the queries that any has, whatever was evaluated."""
        queries = self.replica.algorithm.cost(round, self.replica.state.scale).queries
        return encode_reply(structs.replace(decode_reply(data, len(data)), queries=queries))

    def _played(
        self, round: int, exchange: int, instructions: Mapping[int, bytes], before: Mapping[int, bytes] = {}
    ) -> Sent:
        answers: dict[int, Answer] = {}
        for number, instruction in instructions.items():
            client = self._client(number)
            try:
                if exchange:
                    answers[number] = client.proceed(instruction, before.get(number))
                else:
                    client.begin(round, instruction, self.replicas, before.get(number))
                    answers[number] = None
            except FedzeroError as error:
                yield number, error
        yield from self._together(round, answers) if self.merge else self._one_by_one(round, answers)

    def _one_by_one(self, round: int, answers: Mapping[int, Answer]) -> Sent:
        for number, answer in answers.items():
            client = self.clients[number]
            try:
                asked = client.step(answer)
                while not isinstance(asked, bytes):
                    asked = client.step(client.oracle.answer(round, asked))
                yield number, asked
            except FedzeroError as error:
                yield number, error

    def _together(self, round: int, answers: dict[int, Answer]) -> Sent:
        """Advance all clients step by step, so that their asks can be answered together."""
        while answers:
            asks: dict[int, Ask] = {}
            for number, answer in answers.items():
                try:
                    if isinstance(answer, FedzeroError):
                        raise answer
                    asked = self.clients[number].step(answer)
                    if isinstance(asked, bytes):
                        yield number, asked
                    else:
                        asks[number] = asked
                except FedzeroError as error:
                    yield number, error
            given = answer_together(round, [(self.clients[number].oracle, ask) for number, ask in asks.items()])
            answers = dict(zip(asks, given, strict=True))

    def settle(
        self, round: int, update: Update | None, closings: Mapping[int, bytes], diverged: Collection[int]
    ) -> None:
        """Replicas in one process differ only where somebody broke one on purpose; the broken one stays refused. A
        reply that may still count is computed at the model of its question."""
        self._open.expire(round + 1)
        self._early = [each for each in self._early if round + 1 - (each.asked or 0) <= self._open.oldest]
        if update is not None:
            self._early = list(self._replies())
            self.replica.follow([update])
        for number, closing in closings.items() if self.replicas else ():
            message = decode_instruction(closing)
            assert isinstance(message, Close)
            self._client(number).replica.obey(message, number)
        self._forget()

    def hosts(self) -> Collection[str]:
        return ()

    def phase(
        self, asked: int, exchange: int, phase: int, bodies: Mapping[str, bytes]
    ) -> Mapping[str, bytes | Exception]:
        raise FedzeroError("these clients are not hosts of a gathering: see engines.gathering.hosted")

    def identity(self, after: int) -> Identity:
        return self.replica.identity

    def evaluate(self, after: int = 0, last: bool = False) -> tuple[Identity, Metrics]:
        return self.replica.identity, self.measure(self.replica.state.params, after, last)
