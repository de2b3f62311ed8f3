"""A site: one or more clients in a process of their own. Orders in, answers out; what carries them is not known here.

The model is loaded when a run is prepared and stays; all clients of a site share one replica. What must outlast the
process is kept in the site's own folder: what clients remember, before a reply leaves, and the replica now and then. A
site that has lost its folder rebuilds its replica from base model and ledger.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import torch
from msgspec import Struct

from fedzero.algorithms.contract import Numbers
from fedzero.deploy import messages, reasons, site_tasks
from fedzero.deploy.reasons import Reason
from fedzero.deploy.settings import Settings as Settings
from fedzero.deploy.terms import Allowance
from fedzero.errors import FedzeroError, Refused, Sendable
from fedzero.ledger.query_log import LedgerLog
from fedzero.ledger.store import Claimed, Ledger
from fedzero.lines import printable
from fedzero.model import files
from fedzero.model.decoding import MALFORMED, decoded
from fedzero.model.updates import decode_update
from fedzero.oracles import GradientOracle, Oracle
from fedzero.oracles.blackbox import QueryFailed, Unmeasured
from fedzero.protocol.client import Client, ClientMemory
from fedzero.protocol.messages import Close, Continue, decode_instruction
from fedzero.runs import recipe as recipes
from fedzero.runs import session
from fedzero.runs.recipe import Recipe
from fedzero.runs.session import Setup

SAVE_EVERY = 60.0
"""Seconds between two copies of the replica on disk."""
CLAIMED = 60.0
"""Seconds to wait for a process that still writes the log of queries."""
QUERIES = "queries.db"
"""Of a run at this site: the log of queries, where its functions have one."""
PRIVATE = "facts.json"
"""Of a run at this site: what is known of its data and stays here."""
LOGGED = 1000
"""Errors that a process prints at most."""
KINDS: dict[type[messages.Order], Reason] = {
    messages.Prepare: Reason.TASK,
    messages.Recover: Reason.REBUILD,
    messages.Deliver: Reason.REBUILD,
    messages.Exchange: Reason.TURN,
    messages.Measure: Reason.MEASURE,
}
"""What is said of an order that could not be obeyed, where the error itself is not to be sent."""


class SiteState(Struct, frozen=True, rename={"run": "name"}):
    """What a site is doing. round: the one being worked on or the last, from 1 on; 0 while the run is prepared.
    finished: the run has ended. problem: why the site cannot take part."""

    run: str
    rounds: int
    round: int = 0
    busy: bool = True
    finished: bool = False
    problem: str = ""


class Site:
    """`answer` is all there is to it; `state` is for the people at the site."""

    def __init__(self, settings: Settings, keep: Path):
        self.settings, self.keep = settings, keep
        self.run: SiteRun | None = None
        self.state: SiteState | None = None
        self._logged = "", 0
        """the last error, and how many there were"""

    def answer(self, data: bytes) -> bytes:
        """Whatever comes is answered: what cannot be done, by a sentence that says nothing of what is here."""
        problem, kind = "", Reason.ORDER
        try:
            order = messages.decode_order(data)
            self.state, kind = _begun(order, self.state), KINDS.get(type(order), kind)
            return messages.encode(self._obey(order))
        except (Exception, SystemExit) as error:  # also of the site's own code, which may raise anything
            problem = reasons.kept(error)
            self.log(error)
            return messages.encode(messages.Failed(reasons.sent(error, kind)))
        finally:
            if self.state is not None:
                unable = problem if self.run is None else ""
                self.state = msgspec.structs.replace(self.state, busy=False, problem=unable)

    def log(self, error: BaseException) -> None:
        """Once, where the same happens again and again, and not without end: orders must not fill the disk."""
        text, (last, count) = reasons.kept(error), self._logged
        if text != last and count < LOGGED:
            self._logged = text, count + 1
            reasons.log(error)

    def _obey(self, order: messages.Order) -> messages.Answer:
        if isinstance(order, messages.Prepare):
            if self.settings.threads is not None:
                torch.set_num_threads(self.settings.threads)
            self.leave()
            self.run = None
            self.run = SiteRun(order, self.settings, self.keep, self.log)
            return self.run.prepared()
        if self.run is None:
            raise Refused("was given work before it was prepared for a run")
        match order:
            case messages.Recover():
                return self.run.recover(order)
            case messages.Exchange():
                return self.run.exchange(order)
            case messages.Deliver():
                return self.run.deliver(order)
            case messages.Measure():
                return self.run.measure(order)
            case messages.Finish():
                return messages.Done()

    def leave(self) -> None:
        """The process ends, or another run begins."""
        if self.run is not None:
            self.run.close()


def _begun(order: messages.Order, before: SiteState | None) -> SiteState | None:
    """The state of a site that begins to obey an order."""
    if isinstance(order, messages.Prepare):
        with suppress(*MALFORMED):
            found = msgspec.json.decode(order.recipe, type=SiteState)  # name and rounds of the recipe
            return msgspec.structs.replace(found, run=printable(found.run, reasons.LONGEST))
    if before is None:
        return None
    if isinstance(order, messages.Finish):
        return msgspec.structs.replace(before, round=order.rounds, finished=True)
    round = order.round + 1 if isinstance(order, messages.Exchange) else before.round
    return msgspec.structs.replace(before, round=round, busy=True)


class SiteRun:
    """A run at this site. Recipe and terms are checked before anything that the site has is touched."""

    def __init__(self, order: messages.Prepare, settings: Settings, keep: Path, log: Callable[[BaseException], None]):
        recipe, secret = recipes.received(order.recipe, order.needs), settings.secret_bytes()
        settings.terms.check(recipe, secret is not None)
        _check_clients(order.clients, recipe.federation.clients)
        self.recipe, self.settings, self.log = _localized(recipe, settings), settings, log
        self._keys = session.keys_of(recipe, session.secret_of(secret), order.secret, order.recipe)
        self._allowance = Allowance(settings.terms.queries_per_day, keep)
        self.setup = self._fresh()
        self.base = self.setup.problem.params.identity
        self.folder = keep / hashlib.sha256(order.run.encode() + order.recipe + self.base.digest).hexdigest()[:24]
        keep.mkdir(0o700, parents=True, exist_ok=True)  # what clients remember is nobody else's
        self.folder.mkdir(0o700, exist_ok=True)
        _keep_private(self.folder / PRIVATE, self.setup.problem.private_facts)
        self._saved, self._cache = time.monotonic(), dict[Any, Any]()
        self.replica = self.setup.replica()
        self._queries = self._log_of_queries()
        self.clients = {number: self._client(number) for number in order.clients}
        self._recall()

    def _fresh(self) -> Setup:
        environment = site_tasks.named_for(self.recipe, self.settings.environment())
        return session.prepare(self.recipe, environment, keys=self._keys)

    def _client(self, number: int) -> Client:
        setup, replica = self.setup, self.replica
        kind = GradientOracle if replica.wire.first_order else Oracle
        oracle = kind(setup.problem.objective, setup.problem.shards, setup.keys, number)
        return Client(number, replica, oracle, setup.chain, self._cache)

    def prepared(self) -> messages.Prepared:
        problem, secret = self.setup.problem, self.setup.keys.secret
        facts, (base, sha256) = dict(problem.facts), (self.base.digest, self.base.sha256)
        return messages.Prepared(base, problem.params.size, facts, secret, self.replica.round, sha256)

    # ---- work

    def exchange(self, order: messages.Exchange) -> messages.Replies:
        """One client after the other, as the local engine without merging does."""
        replies, failed = {}, {}
        for number, instruction in order.instructions.items():
            try:
                if number not in self.clients:
                    raise Refused("is not at this site")
                replies[number] = self._turn(self.clients[number], order, instruction)
            except QueryFailed:  # what a function of the site's own says may be private
                failed[number] = f"{Reason.BOX}: the site has the reason in {QUERIES}"
            except Exception as error:  # of one client: the others go on
                self.log(error)
                failed[number] = reasons.sent(error, Reason.TURN)
        if time.monotonic() - self._saved > SAVE_EVERY:
            self.save()
        return messages.Replies(replies, failed)

    def _turn(self, client: Client, order: messages.Exchange, instruction: bytes) -> bytes:
        answer: Any = None
        if order.exchange:
            answer = client.proceed(instruction)
        else:
            message = decode_instruction(instruction)
            counted = None if isinstance(message, Close | Continue) else message.counted
            if client.keeps_memory and not client.remembers(counted):
                raise Refused(f"has lost what it remembered of round {counted}: restore its folder")
            self._expect_paid(client, order.round)
            client.begin(order.round, instruction, True)
        asked = client.step(answer)
        while not isinstance(asked, bytes):
            asked = client.step(client.oracle.answer(order.round, asked))
        if client.keeps_memory:
            self._save_memory(client, order.round)
        return asked

    def deliver(self, order: messages.Deliver) -> messages.Done:
        for number, closing in order.closings.items():
            message = decode_instruction(closing)
            if not isinstance(message, Close):
                raise Refused("was sent something else than the outcome of a round")
            self.replica.obey(message, number)
        return messages.Done()

    def recover(self, order: messages.Recover) -> messages.Done:
        replica = self.replica
        if order.fresh:
            replica.state.params.load(self._fresh().problem.params.tensors)
            replica.state = replica.algorithm.init(replica.state.params, self.recipe.federation.clients)
        replica.follow([decode_update(update) for update in order.updates])
        return messages.Done()

    def measure(self, order: messages.Measure) -> messages.Measured:
        self._allowance.spend(1)
        self.replica.follow([decode_update(update) for update in order.updates])
        params, metrics = self.replica.state.params, None
        with suppress(Unmeasured):
            metrics = self.setup.problem.objective.evaluate(params)
        problem = self.setup.problem
        own = problem.private_facts is not None or problem.metered is not None
        return messages.Measured(params.digest(), metrics, own, params.sha256())

    # ---- functions whose queries are logged and may be limited

    def _log_of_queries(self) -> Ledger | None:
        """The log is a ledger of its own in the site's folder: its budget must outlast the process."""
        metered, path = self.setup.problem.metered, self.folder / QUERIES
        if metered is None:
            return None
        metered.ready()
        end = time.monotonic() + CLAIMED
        while True:
            try:
                ledger = Ledger.open(path, True) if path.exists() else Ledger.create(path, self.setup.start)
                break
            except Claimed:  # by a process of an earlier epoch, which is about to end
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)
        metered.attach(LedgerLog(ledger, self.recipe.federation.clients))
        return ledger

    def _expect_paid(self, client: Client, round: int) -> None:
        """Before a turn: its queries are within the budget of its box, and are taken from those of the day."""
        metered, wire = self.setup.problem.metered, self.setup.plan.wire(round)
        if metered is not None:
            unable = metered.unable(round, {client.number: wire.queries + wire.first_queries})
            if client.number in unable:
                raise Refused(unable[client.number])
        self._allowance.spend(wire.queries + (wire.first_queries if client.kept.memory is None else 0))

    # ---- what outlasts the process

    def close(self) -> None:
        self.save()
        if self._queries is not None:
            self._queries.close()
            self._queries = None

    def save(self) -> None:
        """The replica, unless it is sent with every instruction anyway."""
        self._saved = time.monotonic()
        state = self.replica.state
        if state.round and self.replica.wire.delivery != "snapshot":
            content = state.to_bytes()
            header = msgspec.msgpack.encode((state.round, state.numbers, hashlib.sha256(content).digest()))
            files.write(self.folder / "replica", len(header).to_bytes(4, "little") + header + content, durable=True)

    def _save_memory(self, client: Client, round: int) -> None:
        """A process that was suspended must not overwrite what its successor wrote meanwhile."""
        path = self._memory_file(client)
        if path.exists() and (written := _round_of(files.read(path, files.memory()))) > round:
            raise Refused(f"a newer process already wrote round {written}")
        files.write(path, _packed(client), durable=True)

    def _memory_file(self, client: Client) -> Path:
        return self.folder / f"client-{client.number}.notes"

    def _recall(self) -> None:
        for client in self.clients.values():
            if client.keeps_memory and self._memory_file(client).exists():
                _unpack(client, files.read(self._memory_file(client), files.memory()))
        path = self.folder / "replica"
        if path.exists():
            content = files.read(path, files.memory())
            size = int.from_bytes(content[:4], "little")
            with suppress(*MALFORMED):
                round, numbers, digest = msgspec.msgpack.decode(content[4 : 4 + size], type=tuple[int, Numbers, bytes])
                if hashlib.sha256(content[4 + size :]).digest() == digest:  # else from base model and ledger
                    self.replica.state = self.replica.state.restored(content[4 + size :], round, numbers)


def _check_clients(assigned: Sequence[int], clients: int) -> None:
    if not assigned:
        raise Sendable("no client is assigned to this site")
    if max(assigned) >= clients:
        raise Sendable(f"client {max(assigned)} is assigned to this site, but federation.clients = {clients}")


def _localized(recipe: Recipe, settings: Settings) -> Recipe:
    """The recipe with what this site decides for itself."""
    if recipe.engine.attack is not None:
        raise FedzeroError("engine.attack is for simulations: this site attacks nobody")
    engine = msgspec.structs.replace(recipe.engine, device=settings.device)
    return msgspec.structs.replace(recipe, engine=engine, task=recipe.task.at_site(settings.model))


def _keep_private(path: Path, now: Mapping[str, str] | None) -> None:
    """Facts that stay at the site must be those with which it began the run. What they are is told to nobody."""
    if now is not None and not path.exists():
        files.write(path, msgspec.json.encode(dict(now)), durable=True)
    then = files.decoded(path, dict[str, str]) if path.exists() else {}
    for name in sorted(then.keys() | (now or {}).keys()):
        if then.get(name) != (now or {}).get(name):
            raise Sendable(Reason.DATA) from FedzeroError(f"its {name} is not that which it began this run with")


_Chunks = list[bytes]
_Memory = tuple[int | None, _Chunks, tuple[int, _Chunks] | None]
"""Round and chunks of a client's memory that counted, and of one that may count."""


_memories: msgspec.msgpack.Decoder[_Memory] = msgspec.msgpack.Decoder(_Memory)


def _memory_in(data: bytes) -> _Memory:
    return decoded(_memories.decode, data, "the memory of a client: restore its folder", FedzeroError)


def _packed(client: Client) -> bytes:
    (counted, kept), tried = client.keep()
    maybe = None if tried is None else (tried[0], [chunk.body for chunk in tried[1].chunks()])
    return msgspec.msgpack.encode((counted, [chunk.body for chunk in kept.chunks()], maybe))


def _unpack(client: Client, data: bytes) -> None:
    counted, chunks, maybe = _memory_in(data)
    tried = None if maybe is None else (maybe[0], ClientMemory.of_chunks(maybe[1]))
    client.recall((counted, ClientMemory.of_chunks(chunks)), tried)


def _round_of(data: bytes) -> int:
    """The latest round that a packed memory is of."""
    counted, _, maybe = _memory_in(data)
    return max(-1 if counted is None else counted, -1 if maybe is None else maybe[0])
