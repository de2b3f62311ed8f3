"""A host: a process with a replica that obeys seven orders, and holds the clients of any engine.

    prepare     make the host, from the run's recipe and base model
    recover     bring the replica forward, or begin from the base model
    exchange    let clients play an exchange of a round
    phase       answer a phase of a gathering
    deliver     receive the outcome of a round at once
    measure     evaluate the model
    finish      end the run

A site is a host behind the site's own conditions (`deploy.site`); the hosts of a transport for tests are nothing but a
host. This module knows neither the transport nor who checks the orders. All clients in this process share the replica;
an engine with clients elsewhere (on workers) brings their replicas to the same round.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path

from msgspec import UNSET, structs

from fedzero.callbacks import ignore
from fedzero.engines.gathering import Hosting
from fedzero.engines.local import Before, Local, LocalClients, unanswered
from fedzero.engines.memories import Forgetful, Notes, Remembered
from fedzero.errors import FedzeroError, Refused, Sendable
from fedzero.ledger.query_log import LedgerLog
from fedzero.model.params import Params
from fedzero.model.updates import Update, encode_update
from fedzero.oracles import Metrics
from fedzero.protocol.engine import FOREVER, Arrival, Clients, Left, Rows
from fedzero.protocol.messages import Close, Phase, Snapshot, Work, encode_close
from fedzero.protocol.replica import Replica
from fedzero.recipe.engines import Engine
from fedzero.recipe.environment import Environment
from fedzero.recipe.sampling import HiddenTurns, PrivateBatches
from fedzero.recipe.setup import Setup
from fedzero.recipe.view import CatchUpPart, RunView

FEW = 16
"""Clients elsewhere are sent up to so many updates one by one; if they missed more, the whole state at their turn."""


class Host:
    """setup: the run; the replica has its parameters. rebuilt: builds the base model again. engine: where the clients
    are; None: in this process, one after the other. notes: where memories outlast the process. before: answers that
    have left already, or the folder that keeps them; they are repeated without new private randomness. queries: the log
    of black boxes. drawn: the private source of batches for clients in this process; None: the run's keys. hosting: the
    host's half of the run's gathering. hidden: whose turns nobody may see. here: the clients of this host; None: it
    does not know them. warn: is told what people here should know."""

    def __init__(
        self,
        setup: Setup,
        replica: Replica,
        rebuilt: Callable[[], Params],
        engine: Engine | None = None,
        environment: Environment = Environment(),  # noqa: B008 - frozen
        notes: Notes | None = None,
        before: Before | Path = unanswered,
        queries: LedgerLog | None = None,
        drawn: PrivateBatches | None = None,
        hosting: Hosting | None = None,
        hidden: HiddenTurns | None = None,
        here: Collection[int] | None = None,
        warn: Callable[[str], None] = ignore,
    ):
        self._here_are, self._warn = here, warn
        self.setup, self.replica, self.engine = setup, replica, engine
        self._drawn, self._hosting, self._hidden = drawn, hosting, hidden
        self.remembers = replica.traits.remembers or setup.chain.feedback
        self._rebuilt, self._notes, self._queries = rebuilt, notes or Forgetful(), queries
        self._memories: dict[int, Remembered] = {}
        self._waiting: dict[int, tuple[int, int]] = {}
        """by client in the middle of a round: the round and the exchange that it waits for"""
        self._played = frozenset[int]()
        """clients of the last exchange"""
        self._folded: list[bytes] | None = [] if isinstance(engine, Local) and engine.replicas else None
        """all updates since the base model, where each client has its own replica, which begins with the base model"""
        self._open = ExitStack()
        self.clients: Clients = self._here(before)
        if engine is not None:
            self.clients = self._open.enter_context(self._opened(engine, environment))

    def _here(self, before: Before | Path) -> LocalClients:
        """Clients play one after the other: a question to one may depend on the previous answer."""
        problem, chain = self.setup.problem, self.setup.chain
        place = self.replica, problem.objective, problem.shards, False, False, chain
        return LocalClients(*place, memory=self.memory, answers=before, drawn=self._drawn, hidden=self._hidden)

    def _opened(self, engine: Engine, environment: Environment) -> AbstractContextManager[Clients]:
        # Replies reach the host whole; the host itself plays its half of the gathering.
        recipe = structs.replace(self.setup.recipe, engine=engine, gathering=UNSET)
        setup = replace(self.setup, recipe=recipe)
        carry, count = self.replica.state.carry, recipe.federation.clients
        if count > 1 and self.replica.traits.delivery != "catch-up" and carry.part(0) != carry.part(1):
            raise Sendable(f"clients of {recipe.algorithm.name} have models of their own, which no engine here holds")
        seen = recipe, setup.plan, HostPast(self), setup, self.replica, environment
        return engine.open(RunView(*seen, warn=self._warn, here=self._here_are))

    @property
    def recallable(self) -> bool:
        """Whether the host may begin with a replica that has folded updates already."""
        return self._folded is None

    # ---- orders

    def bring(self, message: Work | Snapshot | Close, client: int) -> None:
        """Bring the replica to the round that an instruction is about."""
        if isinstance(message, Work):
            self._spread(message.updates)
        elif isinstance(message, Close):
            self._spread([message.update])
        self.replica.obey(message, client)

    def recover(self, fresh: bool, updates: Sequence[Update]) -> None:
        if fresh:
            self.replica.state.params.load(self._rebuilt().tensors)
            self.begin()
            if self.engine is not None:
                self.clients.settle(self.replica.round, None, {}, self._played)
        self._spread(updates)
        self.replica.follow(updates)

    def begin(self) -> None:
        """Start over: the parameters have become the base model's again."""
        self.replica.begin()
        if self._folded is not None:
            self._folded.clear()

    def exchange(self, round: int, exchange: int, instructions: Mapping[int, bytes]) -> dict[int, bytes | Exception]:
        """Clients play an exchange at the replica's model; by client, its reply or the reason why there is none."""
        found: dict[int, bytes | Exception] = {}
        messages = {message: i for i, message in enumerate(dict.fromkeys(instructions.values()))}
        self._played = frozenset(instructions)
        for client in instructions:
            self._waiting.pop(client, None)
        try:
            which = {client: messages[message] for client, message in instructions.items()}
            self.clients.send(round, exchange, list(messages), which)
            while events := self.clients.receive(FOREVER):
                for event in events:
                    if isinstance(event, Rows) and self._queries is not None:
                        self._queries.write(event.rows)
                    elif isinstance(event, Left):
                        gone = [c for c in event.clients if c in instructions and c not in found]
                        found |= {c: FedzeroError(event.why) for c in gone}
                    elif isinstance(event, Arrival):
                        found[event.client] = self._arrived(round, exchange, event)
        except Exception as error:  # raised by somebody else's code: which client caused it is unknown
            found = {client: found.get(client, error) for client in instructions}
        return {client: found.get(client, FedzeroError("did not answer")) for client in instructions}

    def _arrived(self, round: int, exchange: int, arrival: Arrival) -> bytes | Exception:
        """A reply; the client's memory is stored beyond the process before it is returned."""
        if not isinstance(arrival.data, bytes):
            return arrival.data
        if arrival.memory is not None:
            memory = self.remembered(arrival.client).changed(round, arrival.memory)
            try:
                self._notes.write(arrival.client, round, memory)
            except Exception as error:  # only this client fails
                return error
            self._memories[arrival.client] = memory
        if exchange + 1 < len(self.setup.plan.cost(round).replies):
            self._waiting[arrival.client] = round, exchange + 1
        return arrival.data

    def phase(self, order: Phase, replies: Mapping[int, bytes]) -> bytes:
        """The answer to a phase of a gathering. replies: the whole replies of the clients here."""
        if self._hosting is None:
            raise Refused("was sent a phase of a gathering, which this recipe does not have")
        numbers = self.setup.plan.cost(order.round).replies[order.exchange]
        (answer,) = self._hosting.answers({0: order}, lambda host: replies, numbers).values()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def deliver(self, closings: Mapping[int, Close]) -> None:
        for number, close in closings.items():
            self.bring(close, number)
        if self.engine is not None and closings:
            round = max(close.round for close in closings.values())
            encoded = {n: encode_close(c.round, encode_update(c.update)) for n, c in closings.items()}
            self.clients.settle(round, None, encoded, ())

    def measure(self, updates: Sequence[Update]) -> Params:
        """The model to evaluate, after folding the updates."""
        self._spread(updates)
        self.replica.follow(updates)
        return self.replica.state.params

    def evaluate(self) -> Metrics:
        return self.setup.problem.objective.evaluate(self.replica.state.params)

    def finish(self, rounds: int) -> None:
        """The run has ended; an engine may have to tell its clients."""
        if (told := getattr(self.clients, "finish", None)) is not None:
            told(rounds)

    def close(self) -> None:
        """The run or the process ends."""
        self._open.close()

    def _spread(self, updates: Sequence[Update]) -> None:
        """Send updates to the engine's replicas elsewhere too; the replica here folds them as well."""
        missed = [update for update in updates if update.round >= self.replica.round]
        if self._folded is not None:
            self._folded += map(encode_update, missed)
        if self.engine is not None and len(missed) <= FEW:
            for update in missed:
                self.clients.settle(update.round, update, {}, ())

    # ---- clients in the middle of a round, and their memories

    def waits(self, client: int, round: int, exchange: int) -> bool:
        """Whether a client is in the middle of a round and waits for this exchange."""
        return self._waiting.get(client) == (round, exchange)

    def remembered(self, client: int) -> Remembered:
        if client not in self._memories:
            self._memories[client] = self._notes.read(client)
        return self._memories[client]

    def settle(self, client: int, counted: int | None) -> None:
        """A turn begins. counted: the round of the client's last turn that counted, as the server says."""
        if self.remembers:
            self._memories[client] = self.remembered(client).settled(counted)

    def memory(self, client: int) -> Sequence[bytes]:
        return self.remembered(client).pieces


class HostPast:
    """Past rounds as an engine at a host may ask for them. A host has no ledger, so its replica answers."""

    def __init__(self, host: Host):
        self._host = host

    def known(self, client: int) -> int:
        return self._host.replica.round

    def updates(self, first: int, last: int) -> Sequence[bytes]:
        """All updates since the base model, with which a client's replica begins."""
        folded = self._host._folded
        if folded is None:
            raise FedzeroError("a host keeps no updates for this engine")
        return folded

    def catch_up(self, part: int) -> Iterator[CatchUpPart]:
        state = self._host.replica.state
        yield (state.to_bytes(), state.round, state.numbers), ()

    def memory(self, client: int) -> Sequence[bytes]:
        return self._host.memory(client)

    def limit(self, round: int, exchange: int) -> int:
        """No limit here: the caller of the host applies its own."""
        return 1 << 62

    @property
    def queries(self) -> LedgerLog | None:
        return self._host._queries
