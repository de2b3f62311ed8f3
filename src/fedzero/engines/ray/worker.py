"""A worker: a process with its own replica that plays slices of cohorts with the local clients.

It is sent client numbers and updates, and folds the updates itself. It keeps nothing that must outlast it: after a
death it begins from the base model, says that it is behind, and is sent the ledger's updates.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Thread
from typing import Any, NoReturn

import torch

from fedzero.directions import Keys
from fedzero.engines.local import Elsewhere, local_clients
from fedzero.engines.ray.query_log import SliceLog
from fedzero.errors import FedzeroError
from fedzero.ledger import replay
from fedzero.links.gathering import repeatable
from fedzero.methods.contract import Numbers
from fedzero.model.updates import Update
from fedzero.oracles.blackbox import Query
from fedzero.protocol.engine import arrivals
from fedzero.protocol.messages import MemoryChange
from fedzero.recipe.environment import Environment
from fedzero.recipe.recipe import Recipe
from fedzero.recipe.sampling import PrivateBatches
from fedzero.recipe.setup import prepare


@dataclass(frozen=True)
class Blueprint:
    """Everything from which a worker builds its replica and clients."""

    recipe: Recipe
    environment: Environment
    keys: Keys
    threads: int


@dataclass(frozen=True)
class WorkerInfo:
    """The process of a worker, and the digest of the base model that it built."""

    pid: int
    host: str
    base: bytes


@dataclass(frozen=True)
class Turn:
    """One exchange of a round, for a slice of its cohort. at: the round for which the replica must be ready. messages:
    by client, the index of its message among those of the same call. memories: the pieces of clients' memories that
    this process does not have. spare: clients whose memory need not be kept longer. spent, tried: for clients with
    black boxes, number of queries in the run, and the queries of the round (see `SliceLog`). roots, seeds: by
    client, of its private batch, and of what its links draw in private; the driver has drawn them.
    """

    round: int
    exchange: int
    at: int
    messages: Mapping[int, int]
    memories: Mapping[int, Sequence[bytes]] = field(default_factory=dict)
    spare: Sequence[int] = ()
    spent: Mapping[int, int] = field(default_factory=dict)
    tried: Sequence[Query] = ()
    roots: Mapping[int, bytes] = field(default_factory=dict)
    seeds: Mapping[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class CatchUp:
    """A part of the catch-up that brings a replica from the base model to the run's current round: updates, and in the
    first part a checkpoint, if there is one."""

    checkpoint: tuple[bytes, int, Numbers] | None
    updates: Sequence[Update]


@dataclass(frozen=True)
class Replies:
    """By client: its reply, or the reason why there is none; and the change of its memory to record if the round
    counts."""

    replies: dict[int, bytes]
    failed: dict[int, str]
    memories: dict[int, MemoryChange]


@dataclass(frozen=True)
class NeedsCatchUp:
    """The replica is ready for this round, not for the one that was asked; None: there is no replica."""

    round: int | None


@dataclass(frozen=True)
class PendingQueries:
    """Queries that must be durable before the slice continues."""

    rows: Sequence[Query]


Answer = Replies | NeedsCatchUp | PendingQueries


class Worker:
    """Called by one driver, one call at a time. A restarted process has nothing yet."""

    def __init__(self) -> None:
        self._run = ""
        self._player: Player | None = None

    def about(self, run: str, blueprint: Blueprint) -> WorkerInfo:
        """Get ready for a run."""
        if self._player is None or self._run != run:
            self._run, self._player = run, None
            self._player = Player(blueprint)
        return WorkerInfo(os.getpid(), socket.gethostname(), self._player.base)

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the player; `NeedsCatchUp(None)` if there is no player."""
        return NeedsCatchUp(None) if self._player is None else getattr(self._player, method)(*arguments)


class Player:
    """A replica and the local clients; it plays the clients for which it is asked."""

    def __init__(self, blueprint: Blueprint):
        torch.set_num_threads(blueprint.threads)
        self.setup = prepare(blueprint.recipe, blueprint.environment, keys=blueprint.keys)
        self.base = self.setup.problem.params.digest()
        self.replica = self.setup.replica()
        self._sent: dict[int, Sequence[bytes]] = {}
        """memories of clients that were not here before, until these clients are made"""
        self._drawn, self._seeds = PrivateBatches(_nowhere, close=False), dict[int, bytes]()
        own = Elsewhere(self._drawn, lambda client: repeatable(self._seeds[client]) if self._seeds else os.urandom)
        self.clients = local_clients(
            self.setup, self.replica, memory=lambda client: self._sent.pop(client, ()), elsewhere=own
        )
        self.setup.problem.ready()
        self._slice: _Logged | None = None
        self._remembers = self.replica.traits.remembers or self.setup.chain.feedback
        self._round = -1

    def follow(self, at: int, update: Update) -> None:
        """Fold the update of a round; a replica that is not ready for it waits for `catch_up`."""
        if self.replica.round == at:
            self.replica.follow([update])

    def catch_up(self, missed: CatchUp) -> None:
        if missed.checkpoint is not None:
            self.replica.state = self.replica.state.restored(*missed.checkpoint)
        replay.fold(self.replica, missed.updates, len(missed.updates))

    def exchange(self, turn: Turn, *messages: bytes) -> Answer:
        self._prepare(turn)  # memories are sent once, also to a replica that is behind
        if self.replica.round != turn.at:
            return NeedsCatchUp(self.replica.round)
        metered = self.setup.problem.metered
        if metered is None:
            return self._played(turn, messages)
        self._slice = _Logged()
        metered.attach(SliceLog(turn.spent, turn.tried, self._slice.write))
        return self._slice.begin(lambda: self._played(turn, messages))

    def _prepare(self, turn: Turn) -> None:
        """Keep only the clients of this round, and the clients whose memory is kept here."""
        if turn.round != self._round and not self._remembers:
            self.clients.forget(list(self.clients.clients))
        self._round = turn.round
        self._drawn.know(turn.round, turn.roots)
        self._seeds = {**turn.seeds}
        self.clients.forget(turn.seeds)  # a slice that is repeated draws the same again
        self.clients.forget([*turn.spare, *turn.memories])
        self._sent |= turn.memories

    def proceed(self) -> Answer:
        """Continue: the rows of the last answer are durable."""
        assert self._slice is not None
        return self._slice.proceed()

    def _played(self, turn: Turn, messages: Sequence[bytes]) -> Replies:
        self.clients.send(turn.round, turn.exchange, messages, turn.messages)
        found = Replies({}, {}, {})
        for arrival in arrivals(self.clients):
            if isinstance(arrival.data, bytes):
                found.replies[arrival.client] = arrival.data
            else:
                found.failed[arrival.client] = str(arrival.data)
            if arrival.memory is not None:
                found.memories[arrival.client] = arrival.memory
        return found


def _nowhere() -> NoReturn:
    raise FedzeroError("private draws of a worker are the driver's, and this one was not sent")


class _Logged:
    """A slice in a thread; it stops at each write to its log until the driver says that the rows are durable."""

    def __init__(self) -> None:
        self._answers: SimpleQueue[Any] = SimpleQueue()
        self._written: SimpleQueue[None] = SimpleQueue()

    def begin(self, work: Any) -> Answer:
        def run() -> None:
            try:
                self._answers.put(work())
            except BaseException as error:  # raised where the driver sees it
                self._answers.put(error)

        Thread(target=run, daemon=True).start()
        return self._next()

    def write(self, rows: Sequence[Query]) -> None:
        self._answers.put(PendingQueries(rows))
        self._written.get()

    def proceed(self) -> Answer:
        self._written.put(None)
        return self._next()

    def _next(self) -> Answer:
        answer = self._answers.get()
        if isinstance(answer, BaseException):
            raise answer
        assert isinstance(answer, Replies | NeedsCatchUp | PendingQueries)
        return answer
