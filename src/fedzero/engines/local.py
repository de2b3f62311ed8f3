"""The local engine: all clients in this process.

One model serves all simulated clients, because all replicas are equal by construction; `replicas = True` gives each
client a real one that decodes every instruction, which is how the tests prove it. With `merge`, the asks of a cohort
about the same points are answered by one evaluation.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence

from fedzero.algorithms.contract import Contribution, Work
from fedzero.errors import FedzeroError
from fedzero.oracles import Answer, Ask, GradientOracle, Metrics, Objective, Oracle, Shards, answer_together
from fedzero.replica import Replica
from fedzero.updates import Update, pack
from fedzero.wire import Reply, decode_instruction, encode

LARGEST = 3.4e38
"""A loss beyond float32 travels as infinity, and is refused."""


class LocalEngine:
    """`replica` is the clients' model; the server, if it holds one, holds the same."""

    def __init__(
        self, replica: Replica, objective: Objective, shards: Shards, merge: bool = True, replicas: bool = False
    ):
        self.replica, self.objective, self.merge = replica, objective, merge
        oracle = GradientOracle if replica.algorithm.first_order else Oracle
        self.oracles = [oracle(objective, shards, replica.keys, client) for client in range(shards.clients)]
        self.own: dict[int, Replica] | None = {} if replicas else None
        self._base = replica.state.params.clone() if replicas else None

    def _replica_of(self, client: int) -> Replica:
        if self.own is None or self._base is None:
            return self.replica
        if client not in self.own:
            self.own[client] = Replica(self.replica.algorithm, self._base.clone(), self.replica.keys)
        return self.own[client]

    def rejoin(self, known: Sequence[int], updates: Sequence[Update]) -> None:
        """After a resume: bring every client's own replica to where it stood."""
        for client, round in enumerate(known) if self.own is not None else ():
            self._replica_of(client).follow([update for update in updates if update.round < round])

    def exchange(self, round: int, instructions: Mapping[int, bytes]) -> Iterator[tuple[int, bytes | Exception]]:
        works: dict[int, Work] = {}
        failures: dict[int, Exception] = {}
        before = {client: self.oracles[client].queries for client in instructions}
        for client, instruction in instructions.items():
            replica = self._replica_of(client)
            try:
                if self.own is not None:
                    replica.obey(decode_instruction(instruction))
                works[client] = replica.work(round, client)
            except FedzeroError as error:
                failures[client] = error
        contributions = self._together(round, works) if self.merge else self._one_by_one(round, works)
        for client, given in contributions:
            if isinstance(given, Exception):
                failures[client] = given
                continue
            digest = self._replica_of(client).digest()
            queries = self.oracles[client].queries - before[client]
            loss = struct.pack("<f", given.loss if abs(given.loss) < LARGEST else math.inf)
            yield client, encode(Reply(round, 0, digest, pack(given.values), loss, queries))
        yield from failures.items()

    def _one_by_one(self, round: int, works: Mapping[int, Work]) -> Iterator[tuple[int, Contribution | Exception]]:
        for client, work in works.items():
            try:
                ask = next(work)
                while True:
                    ask = work.send(self.oracles[client].answer(round, ask))
            except StopIteration as done:
                yield client, done.value
            except FedzeroError as error:
                yield client, error

    def _together(self, round: int, works: Mapping[int, Work]) -> Iterator[tuple[int, Contribution | Exception]]:
        """All clients step by step, so that their asks can be answered together."""
        answers: dict[int, Answer] = dict.fromkeys(works)
        while answers:
            asks: dict[int, Ask] = {}
            for client, answer in answers.items():
                try:
                    asks[client] = works[client].send(answer)
                except StopIteration as done:
                    yield client, done.value
                except FedzeroError as error:
                    yield client, error
            given = answer_together(round, [(self.oracles[client], ask) for client, ask in asks.items()])
            answers = dict(zip(asks, given, strict=True))

    def close(self, round: int, update: Update | None, closings: Mapping[int, bytes]) -> None:
        if update is not None:
            self.replica.follow([update])
        for client, closing in closings.items() if self.own is not None else ():
            self._replica_of(client).obey(decode_instruction(closing))

    def evaluate(self) -> tuple[bytes, Metrics]:
        return self.replica.digest(), self.objective.evaluate(self.replica.state.params)
