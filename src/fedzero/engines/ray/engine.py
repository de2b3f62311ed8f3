"""The engine of a simulation whose clients are on the workers of a cluster.

A worker gets numbers of clients, and of every round the update: scalars, or, of a dense method, one object in the
cluster's store. The driver has a replica of its own, which it evaluates; it alone writes the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice

from fedzero.engines.local import KEPT
from fedzero.engines.ray.on_ray import Crew, Ref, inlined
from fedzero.engines.ray.slices import Dealer, Slice, Step
from fedzero.engines.ray.worker import Replies, Standing, Turn
from fedzero.errors import FedzeroError
from fedzero.ledger import checkpoints, replay
from fedzero.model.identity import Identity
from fedzero.model.params import Params
from fedzero.model.updates import Dense, Update
from fedzero.oracles import Metrics
from fedzero.oracles.blackbox import Query
from fedzero.protocol.attacks import Alter
from fedzero.protocol.messages import Close, Continue, MemoryChange, decode_instruction, encode_work
from fedzero.protocol.replica import Replica
from fedzero.rounds.server import Server

Sent = Iterator[tuple[int, bytes | Exception]]
PART = 10_000
"""Updates that are sent at a time to a worker that is behind."""


class ClusterEngine:
    """replica: the driver's own. share: slices of a cohort, for each worker. remembers: whether clients keep a memory,
    which is at the worker that has them: as many slices as workers then."""

    def __init__(
        self,
        replica: Replica,
        crew: Crew,
        share: int,
        measure: Callable[[Params, int, bool], Metrics],
        alter: Alter | None,
        remembers: bool,
        report: Callable[[str], None],
    ):
        self.replica, self.crew, self.measure, self.alter, self.remembers = replica, crew, measure, alter, remembers
        self.share = 1 if remembers else share
        self.dealer = Dealer(crew, replica.digest(), self._standing, self._write, report)
        self.slices: list[Slice] = []
        self._server: Server | None = None
        self._held: list[dict[int, None]] = [{} for _ in range(crew.size)]
        """by worker: clients whose memory it has, in the order of their last turns; each is at one worker"""
        self._since = [(0, -1)] * crew.size
        """by worker: in which of its lives that is, and the last round it was asked for"""

    @property
    def server(self) -> Server:
        assert self._server is not None, "attach comes before the first round"
        return self._server

    def attach(self, server: Server) -> None:
        """The server whose rounds are played, once it stands where its ledger ends."""
        self._server = server
        self.dealer.open()

    # ---- rounds

    def exchange(self, round: int, exchange: int, instructions: Mapping[int, bytes]) -> Sent:
        sent = self._exchange(round, exchange, instructions)
        yield from sent if self.alter is None else self.alter(round, exchange, list(sent))

    def _exchange(self, round: int, exchange: int, instructions: Mapping[int, bytes]) -> Sent:
        if not exchange:
            self.slices = self._dealt(list(instructions))
            instructions = {client: self._bare(round, sent) for client, sent in instructions.items()}
        distinct = list(dict.fromkeys(instructions.values()))
        places, messages = {message: i for i, message in enumerate(distinct)}, inlined(self.crew, distinct)
        which = {client: places[message] for client, message in instructions.items()}

        def step(slice: Slice) -> Step:
            mine = {client: which[client] for client in slice.clients if client in which}
            return lambda worker: self._call(worker, round, exchange, mine, messages)

        found: dict[int, bytes | Exception] = {}
        for answer in self.dealer.play(self.slices, step):
            assert isinstance(answer, Replies)
            found |= answer.replies
            found |= {client: FedzeroError(why) for client, why in answer.failed.items()}
        yield from ((client, found[client]) for client in instructions)

    def _dealt(self, cohort: Sequence[int]) -> list[Slice]:
        """`share` slices for every worker, or one for every client. What keeps a memory stays where that is."""
        count = min(self.share * self.crew.size, len(cohort))
        if self.remembers:
            parts = [[client for client in cohort if client % self.crew.size == i] for i in range(self.crew.size)]
        else:
            parts = [list(cohort[len(cohort) * i // count : len(cohort) * (i + 1) // count]) for i in range(count)]
        size, pinned = self.crew.size, self.remembers
        return [Slice(part, i * size // len(parts), pinned) for i, part in enumerate(parts) if part]

    def _bare(self, round: int, instruction: bytes) -> bytes:
        """An instruction without the model: the worker's replica is there already."""
        if not self.remembers:
            return b""
        message = decode_instruction(instruction)
        assert not isinstance(message, Continue | Close)
        return encode_work(round, 0, (), message.counted)

    def _call(self, worker: int, round: int, exchange: int, which: Mapping[int, int], messages: Sequence[Ref]) -> Ref:
        memories: dict[int, Sequence[bytes]] = {}
        spare: list[int] = []
        if self.remembers and not exchange:
            spare, memories = self._spare(worker, round), self._moved(worker, which)
        meter = self.server.meter
        log = None if meter is None else meter.log
        spent = {} if log is None else {client: log.spent(client) for client in which}
        tried = [] if log is None else [row for client in which for row in log.known(client, round)]
        turn = Turn(round, exchange, self.replica.round, which, memories, spare, spent, tried)
        return self.crew.call(worker, "exchange", turn, *messages)

    def close(self, round: int, update: Update | None, closings: Mapping[int, bytes]) -> None:
        """Workers fold the update while the driver does; nobody waits for them."""
        if update is None:
            return
        kept = self.crew.put(update) if isinstance(update, Dense) else update
        for worker in self.dealer.alive:
            self.crew.call(worker, "follow", self.replica.round, kept)
        self.replica.follow([update])

    def _standing(self) -> Iterator[Standing]:
        """From the last checkpoint on, in parts: a ledger may have more updates than memory holds."""
        ledger = self.server.ledger
        kept = checkpoints.own(ledger.path.parent, ledger)
        view = replay.read_from(ledger, kept)
        found, first = replay.checkpoint(ledger, view), 0
        if found is None and kept is not None and kept.state is not None:
            found, first = (kept.state, kept.outline.moved, kept.numbers), kept.outline.done
        updates = replay.updates_of(ledger, view, first=first)
        yield Standing(found, list(islice(updates, PART)))
        while part := list(islice(updates, PART)):
            yield Standing(None, part)

    def _write(self, rows: Sequence[Query]) -> None:
        assert self.server.meter is not None
        self.server.meter.log.write(rows)

    # ---- memories

    def memories(self, clients: Collection[int]) -> Mapping[int, MemoryChange]:
        def step(slice: Slice) -> Step:
            mine = [client for client in slice.clients if client in clients]
            return lambda worker: self.crew.call(worker, "memories", mine)

        changes: dict[int, MemoryChange] = {}
        for found in self.dealer.play(self.slices, step, repeatable=False):
            changes |= found
        return {client: changes[client] for client in clients if client in changes}

    def _moved(self, worker: int, clients: Collection[int]) -> dict[int, Sequence[bytes]]:
        """What clients remember that this worker does not have, from the ledger; of one that has no memory nothing."""
        missing = [client for client in clients if client not in self._held[worker]]
        for held in self._held:  # what another worker has of them is out of date after this round
            for client in clients if held is self._held[worker] else missing:
                held.pop(client, None)
        self._held[worker] |= dict.fromkeys(clients)
        return {client: self.server.ledger.memory(client, self.server.tracker.turns) for client in missing}

    def _spare(self, worker: int, round: int) -> list[int]:
        """Clients that a worker need not keep in a new round: their turn was long ago, and the ledger has their
        memory. Of one that was started again: none, it has nothing."""
        held, (life, last) = self._held[worker], self._since[worker]
        self._since[worker] = self.dealer.lives[worker], round
        if life != self.dealer.lives[worker]:
            held.clear()
        spare = list(islice(held, max(0, len(held) - KEPT))) if round != last else []
        for client in spare:
            del held[client]
        return spare

    # ---- replicas

    def voters(self, clients: Collection[int]) -> Mapping[int, str]:
        """All clients of a worker share its replica."""
        return {c: f"worker {slice.worker}" for slice in self.slices for c in slice.clients if c in clients}

    def rebuild(self, clients: Collection[int]) -> None:
        for worker in {slice.worker for slice in self.slices if any(client in clients for client in slice.clients)}:
            self.dealer.restart(worker)

    def renew(self) -> None:
        raise AssertionError("what a worker had begun is played by another: no round is interrupted")

    def identity(self, after: int) -> Identity:
        return self.replica.identity

    def evaluate(self, after: int = 0, last: bool = False) -> tuple[Identity, Metrics]:
        return self.replica.identity, self.measure(self.replica.state.params, after, last)
