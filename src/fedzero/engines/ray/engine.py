"""The clients of a simulation on the workers of a cluster.

A worker gets client numbers and, for every round, the update: scalars, or for a dense method one object in the
cluster's store. The driver has its own replica, which it evaluates; only the server writes the ledger.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice

from msgspec import structs

from fedzero.callbacks import ignore
from fedzero.engines.gathering import hosted
from fedzero.engines.local import KEPT, attacked
from fedzero.engines.ray import Ray
from fedzero.engines.ray.on_ray import Ref, WorkerPool, inlined, workers
from fedzero.engines.ray.slices import Scheduler, Slice, Step
from fedzero.engines.ray.worker import Blueprint, CatchUp, Replies, Turn
from fedzero.errors import FedzeroError
from fedzero.model.identity import Identity
from fedzero.model.updates import Dense, Update
from fedzero.oracles import Metrics
from fedzero.protocol.engine import FOREVER, Arrival, Clients, Event, Rows
from fedzero.protocol.messages import Close, Continue, decode_instruction, encode_work
from fedzero.protocol.outstanding import Outstanding, may_count
from fedzero.recipe import recipe as recipes
from fedzero.recipe.engines import recorded
from fedzero.recipe.sampling import batches_in
from fedzero.recipe.setup import Setup
from fedzero.recipe.view import RunView

_NONE: Iterator[Sequence[Event]] = iter(())
PART = 10_000
"""Updates in one message to a worker that is behind."""
SEED = 32
"""Bytes."""


def seed_of(round: int, client: int) -> bytes:
    """Of what a client's links draw in private in a round."""
    return os.urandom(SEED)


@contextmanager
def on_cluster(how: Ray, run: RunView) -> Iterator[Clients]:
    setup, _ = run.built()
    _check_private(setup, run)
    run.phase("connecting to Ray")
    with workers(how) as actors:
        clients = ClusterClients(run, WorkerPool(actors, _blueprint(run, how, actors.device)), how.slices)
        yield attacked(setup, hosted(setup, clients, run.environment.folder, run.oldest), run.oldest)


def _check_private(setup: Setup, run: RunView) -> None:
    """Refuse what would have to outlast a worker: workers keep nothing. Draws are the driver's, and whole replies are
    on its disk before anything of them leaves, if the run has a gathering and a folder here. At a site the host keeps
    answers, and plays its half of a gathering, by itself."""
    chain, here = setup.chain, run.environment.folder is not None and run.environment.trusted
    keeps = "workers of a cluster keep nothing that outlasts them: use the local engine, or sites"
    if chain.private and (chain.gathering is None or setup.plan.traits.remembers or len(run.plan.cost(0).replies) > 1):
        raise FedzeroError(f"a filter draws in private, and it would be drawn again: {keeps}")
    if setup.recipe.privacy and setup.recipe.privacy.hosts:
        raise FedzeroError(f"hosts draw their own units (privacy.hosts), and {keeps}")
    if run.plan.private_sampling and not here:
        raise FedzeroError(f"private sampling keeps what was drawn, and {keeps}")
    if chain.gathering is not None and not here:
        raise FedzeroError(f"gathering {chain.gathering.name!r} keeps what it answered, and {keeps}")


def _blueprint(run: RunView, how: Ray, device: str) -> Blueprint:
    recipe = recipes.as_recorded(run.recipe)
    recipe = structs.replace(recipe, engine=structs.replace(recorded(how), device=device))
    for part in (recipe.algorithm, recipe.task, *recipe.filters):
        if type(part).__module__ == "__main__":
            raise FedzeroError(
                f"{type(part).__name__} is defined in the program itself, which workers cannot import: move it to a "
                "module or a package of its own"
            )
    threads = max(1, int(how.cpus)) if how.merge else 1
    return Blueprint(recipe, replace(run.environment, replaying=ignore), run.plan.keys, threads)


class ClusterClients:
    """share: slices of a cohort per worker. Clients with a memory stay at the worker that has it; there are then as
    many slices as workers."""

    def __init__(self, run: RunView, pool: WorkerPool, share: int):
        setup, self.replica = run.built()
        self.run, self.pool, self.measure = run, pool, setup.problem.measure
        self.remembers = self.replica.traits.remembers or setup.chain.feedback
        self.share = 1 if self.remembers else share
        self._drawn = batches_in(run.recipe, run.environment.folder)
        self._private, self._seeds = setup.chain.private, dict[int, bytes]()
        """whether links draw in private; by client, the seed of what they draw in the last round"""
        self._hosts = setup.chain.gathering is not None
        """whether each client is a host"""
        self.scheduler = Scheduler(pool, self.replica.digest(), self._catch_up, run.warn)
        self.slices: list[Slice] = []
        """of the last question"""
        self._slice_of: dict[int, Slice] = {}
        """by client, the slice of its last turn"""
        self._open = Outstanding[Iterator[Sequence[Event]]](run.oldest)
        """with their events"""
        self._early: list[Event] = []
        """events that came before the model moved"""
        self._held: list[dict[int, None]] = [{} for _ in range(pool.size)]
        """by worker: clients whose memory it has, in the order of their last turns; a client is at one worker only"""
        self._since = [(0, -1)] * pool.size
        """by worker: the life (number of restarts) to which `_held` applies, and the last round it was asked for"""

    # ---- rounds

    def send(self, asked: int, exchange: int, messages: Sequence[bytes], which: Mapping[int, int]) -> None:
        if not self.scheduler.opened:
            self.run.phase(f"{self.pool.size} workers build the task")
            self.scheduler.open()
        batch = self._open.add(asked, exchange, {client: messages[message] for client, message in which.items()}, _NONE)
        self._early = [each for each in self._early if not (isinstance(each, Arrival) and each.client in which)]
        if not exchange:
            self.slices = self._dealt(list(which))
            if not self._open.oldest:
                self._slice_of.clear()
            self._slice_of |= {client: slice for slice in self.slices for client in slice.clients}
            messages, which = self._bare(asked, messages, which)
            self._draw(asked, list(which))
        batch.work = self._exchange(asked, exchange, self.slices, messages, which)

    def _draw(self, round: int, clients: Sequence[int]) -> None:
        """Draw for all workers what their clients draw in private in a round: a slice that is repeated has the same."""
        if self._drawn is not None:
            self._drawn.begin(round, clients)
        if self._private:
            self._seeds = {client: seed_of(round, client) for client in clients}

    def receive(self, seconds: float) -> Sequence[Event]:
        """Questions are played in the order in which they were sent; a second one begins when the first is over."""
        end, found = time.monotonic() + seconds, self._early
        self._early = []
        while not found and self._open.batches:
            self.scheduler.patience = None if seconds == FOREVER else max(0.0, end - time.monotonic())
            batch = self._open.batches[0]
            events = next(batch.work, None)
            if events is None:
                self._open.batches.remove(batch)
                continue
            for event in events:
                mine = batch.arrived(event) if isinstance(event, Arrival) else event
                found += [] if mine is None else [mine]
            if time.monotonic() >= end:
                break
        return found

    def _exchange(
        self, round: int, exchange: int, slices: Sequence[Slice], messages: Sequence[bytes], which: Mapping[int, int]
    ) -> Iterator[Sequence[Event]]:
        sent = inlined(self.pool, messages)

        def step(slice: Slice) -> Step:
            mine = {client: which[client] for client in slice.clients if client in which}
            return lambda worker: self._call(worker, round, exchange, mine, sent)

        found: dict[int, Arrival] = {}
        for slice, answer in self.scheduler.play(slices, step):
            if slice is None:
                yield [] if answer is None else [Rows(answer.rows)]
                continue
            assert isinstance(answer, Replies)
            for client, data in answer.replies.items():
                found[client] = Arrival(client, data, self._host(slice, client), answer.memories.get(client))
            for client, why in answer.failed.items():
                found[client] = Arrival(client, FedzeroError(why), self._host(slice, client))
        yield [found[client] for client in which]

    def _host(self, slice: Slice, client: int) -> str:
        """All clients of a worker share its replica; in a gathering each has its own half."""
        return f"client {client}" if self._hosts else f"worker {slice.worker}"

    def _dealt(self, cohort: Sequence[int]) -> list[Slice]:
        """`share` slices for every worker, or fewer if there are fewer clients. Clients with a memory stay with it."""
        count = min(self.share * self.pool.size, len(cohort))
        if self.remembers:
            parts = [[client for client in cohort if client % self.pool.size == i] for i in range(self.pool.size)]
        else:
            parts = [list(cohort[len(cohort) * i // count : len(cohort) * (i + 1) // count]) for i in range(count)]
        size, pinned = self.pool.size, self.remembers
        return [Slice(part, i * size // len(parts), pinned) for i, part in enumerate(parts) if part]

    def _bare(
        self, round: int, messages: Sequence[bytes], which: Mapping[int, int]
    ) -> tuple[Sequence[bytes], Mapping[int, int]]:
        """Instructions without the model, because the worker's replica has it already. They only say which memory a
        client should use."""
        if not self.remembers:
            return [b""], dict.fromkeys(which, 0)
        bare = []
        for instruction in messages:
            message = decode_instruction(instruction)
            assert not isinstance(message, Continue | Close)
            bare.append(encode_work(round, 0, (), message.counted))
        return bare, which

    def _call(self, worker: int, round: int, exchange: int, which: Mapping[int, int], messages: Sequence[Ref]) -> Ref:
        memories: dict[int, Sequence[bytes]] = {}
        spare: list[int] = []
        if self.remembers and not exchange:
            spare, memories = self._spare(worker, round), self._moved(worker, which)
        log = self.run.past.queries
        spent = {} if log is None else {client: log.spent(client) for client in which}
        tried = [] if log is None else [row for client in which for row in log.known(client, round)]
        roots = {} if self._drawn is None else self._drawn.roots(round, which)
        seeds = {client: self._seeds[client] for client in which} if self._private else {}
        turn = Turn(round, exchange, self.replica.round, which, memories, spare, spent, tried, roots, seeds)
        return self.pool.call(worker, "exchange", turn, *messages)

    def settle(
        self, round: int, update: Update | None, closings: Mapping[int, bytes], diverged: Collection[int]
    ) -> None:
        """Workers fold the update while the driver does; nobody waits for them. Replies that may still count are
        awaited first: they are computed at the model of their question."""
        self._open.expire(round + 1)
        early = [each for each in self._early if not isinstance(each, Arrival) or self._counts(each, round + 1)]
        self._early = []
        while update is not None and (events := self.receive(FOREVER)):
            early += events
        self._early = early
        if update is not None:
            kept = self.pool.put(update) if isinstance(update, Dense) else update
            for worker in self.scheduler.alive:
                self.pool.call(worker, "follow", self.replica.round, kept)
            self.replica.follow([update])
        for worker in {self._slice_of[client].worker for client in diverged}:
            self.scheduler.restart(worker)

    def _counts(self, arrival: Arrival, round: int) -> bool:
        return may_count(arrival.asked or 0, 0, round, 0, self._open.oldest)

    def _catch_up(self) -> Iterator[CatchUp]:
        for checkpoint, updates in self.run.past.catch_up(PART):
            yield CatchUp(checkpoint, updates)

    # ---- memories

    def _moved(self, worker: int, clients: Collection[int]) -> dict[int, Sequence[bytes]]:
        """The memories that this worker lacks, from the ledger; a client without a memory has an empty one."""
        missing = [client for client in clients if client not in self._held[worker]]
        for held in self._held:  # another worker's copy of these memories is out of date after this round
            for client in clients if held is self._held[worker] else missing:
                held.pop(client, None)
        self._held[worker] |= dict.fromkeys(clients)
        return {client: self.run.past.memory(client) for client in missing}

    def _spare(self, worker: int, round: int) -> list[int]:
        """Clients that a worker need not keep in a new round: their turn was long ago, and the ledger has their
        memory. A worker that was started again has none."""
        held, (life, last) = self._held[worker], self._since[worker]
        self._since[worker] = self.scheduler.lives[worker], round
        if life != self.scheduler.lives[worker]:
            held.clear()
        spare = list(islice(held, max(0, len(held) - KEPT))) if round != last else []
        for client in spare:
            del held[client]
        return spare

    def hosts(self) -> Collection[str]:
        return ()

    def phase(
        self, asked: int, exchange: int, phase: int, bodies: Mapping[str, bytes]
    ) -> Mapping[str, bytes | Exception]:
        raise FedzeroError("workers of a cluster take part in no gathering")

    def identity(self, after: int) -> Identity:
        return self.replica.identity

    def evaluate(self, after: int = 0, last: bool = False) -> tuple[Identity, Metrics]:
        return self.replica.identity, self.measure(self.replica.state.params, after, last)
