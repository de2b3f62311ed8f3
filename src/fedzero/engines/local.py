"""The local engine: all clients in this process.

One model serves all simulated clients, because all replicas are equal by construction; `replicas = True` gives each
client a real one that decodes every instruction, which is how the tests prove it. With `merge`, the asks of a cohort
about the same points are answered by one evaluation, and black boxes of different clients work at the same time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from fedzero.errors import FedzeroError
from fedzero.ledger.answers import Answers
from fedzero.links import NO_FILTERS, Chain
from fedzero.methods.contract import Observer, unobserved
from fedzero.model.identity import Identity
from fedzero.model.params import Params
from fedzero.model.updates import Update
from fedzero.oracles import Answer, Ask, GradientOracle, Metrics, Objective, Oracle, Shards, answer_together
from fedzero.protocol.attacks import Alter
from fedzero.protocol.client import Client, ClientMemory
from fedzero.protocol.messages import Close, MemoryChange, chunk_digest, decode_instruction
from fedzero.protocol.replica import Replica

KEPT = 4096
"""Clients with a memory that stay in the process between their turns."""
Sent = Iterator[tuple[int, bytes | Exception]]


class LocalEngine:
    """`replica` is the clients' model; the server, if it holds one, holds the same."""

    def __init__(
        self,
        replica: Replica,
        objective: Objective,
        shards: Shards,
        merge: bool = True,
        replicas: bool = False,
        chain: Chain = NO_FILTERS,
        observe: Observer = unobserved,
        measure: Callable[[Params, int, bool], Metrics] | None = None,
        alter: Alter | None = None,
    ):
        self.alter = alter
        self.measure = measure or (lambda params, after, last: objective.evaluate(params))
        self.replica, self.objective, self.merge, self.replicas, self.chain = replica, objective, merge, replicas, chain
        self.observe, self.cache = observe, dict[Any, Any]()
        self.shards = shards
        self.clients: dict[int, Client] = {}
        """those of the last turns: what others have to remember is on the ledger"""
        self._recall: Callable[[int], Sequence[bytes]] | None = None
        self._written: dict[int, tuple[bytes, ...]] = {}
        """digests of the pieces of each client's memory that are on the ledger"""
        self._base = replica.state.params.clone() if replicas else None
        self._answers: Path | None = None

    def _client(self, number: int) -> Client:
        """Made when it is needed: a thousand models are not cheap, nor are a million clients without one."""
        found = self.clients.pop(number, None)
        if found is None:
            found = self._made(number)
        self.clients[number] = found  # behind those that had their turn before
        return found

    def _made(self, number: int) -> Client:
        replica = self.replica
        if self._base is not None:
            own = self._base.clone()
            replica = Replica(replica.algorithm, own, replica.keys, replica.state.clients)
        kind = GradientOracle if replica.wire.first_order else Oracle
        oracle = kind(self.objective, self.shards, replica.keys, number)
        client = Client(number, replica, oracle, self.chain, self.cache, self.observe)
        if client.keeps_memory and self._recall is not None and (chunks := self._recall(number)):
            client.kept = ClientMemory.of_chunks(chunks)
            self._written[number] = tuple(map(chunk_digest, chunks))
        return client

    def _forget(self) -> None:
        """Clients whose turn was long ago, where nothing is lost: they share the model, and the ledger has their
        memory."""
        if self.replicas or (self._recall is None and self._written):
            return
        spare = len(self.clients) - (KEPT if self._written else 0)
        self.forget(list(islice(self.clients, max(0, spare))))

    def forget(self, numbers: Iterable[int]) -> None:
        """Clients that are made anew when their turn comes, with what is recalled then."""
        for number in numbers:
            self.clients.pop(number, None)
            self._written.pop(number, None)

    def rejoin(self, known: Sequence[int], updates: Sequence[Update]) -> None:
        """After a resume: bring every client's own replica to where it stood."""
        for number, round in enumerate(known) if self.replicas else ():
            self._client(number).replica.follow([update for update in updates if update.round < round])

    def recall(self, memory: Callable[[int], Sequence[bytes]]) -> None:
        """Where what a client remembers of its last turn that counted is kept, in pieces; none: it has no memory."""
        self._recall = memory

    def keep_answers(self, folder: Path) -> None:
        """Where replies are on disk before they leave, if a link draws what nobody can draw again."""
        self._answers = folder

    def exchange(self, round: int, exchange: int, instructions: Mapping[int, bytes]) -> Sent:
        once = self._once if self.chain.private else self._exchange
        sent = once(round, exchange, instructions)
        yield from sent if self.alter is None else self.alter(round, exchange, list(sent))

    def _once(self, round: int, exchange: int, instructions: Mapping[int, bytes]) -> Sent:
        """As `_exchange`; what was answered before is answered again byte for byte, and new answers are durable
        first."""
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
        """before: the replies of clients that answered already."""
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
        """All clients step by step, so that their asks can be answered together."""
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

    def memories(self, clients: Collection[int]) -> Mapping[int, MemoryChange]:
        return {number: self._change(number) for number in clients if self.clients[number].keeps_memory}

    def _change(self, number: int) -> MemoryChange:
        chunks, before = self.clients[number].tried(), self._written.get(number, ())
        self._written[number] = tuple(chunk.digest for chunk in chunks)
        fresh = [before[i : i + 1] != (chunk.digest,) for i, chunk in enumerate(chunks)]
        return MemoryChange(len(chunks), {i: chunk.body for i, chunk in enumerate(chunks) if fresh[i]})

    def close(self, round: int, update: Update | None, closings: Mapping[int, bytes]) -> None:
        if update is not None:
            self.replica.follow([update])
        for number, closing in closings.items() if self.replicas else ():
            message = decode_instruction(closing)
            assert isinstance(message, Close)
            self._client(number).replica.obey(message, number)
        self._forget()

    def voters(self, clients: Collection[int]) -> Mapping[int, str]:
        return {number: f"client {number}" for number in clients}

    def rebuild(self, clients: Collection[int]) -> None:
        """Replicas in one process differ only where somebody broke one on purpose; it stays refused."""

    def renew(self) -> None:
        raise AssertionError("nothing interrupts clients of this process")

    def identity(self, after: int) -> Identity:
        return self.replica.identity

    def evaluate(self, after: int = 0, last: bool = False) -> tuple[Identity, Metrics]:
        return self.replica.identity, self.measure(self.replica.state.params, after, last)
