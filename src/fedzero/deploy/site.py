"""A site: one or more clients in a process of their own. Orders in, answers out; what carries them is not known here.

The model is loaded when a run is prepared and stays; all clients of a site share one replica. What must outlast the
process is kept in the site's own folder: what clients remember, before a reply leaves, and the replica now and then. A
site that has lost its folder rebuilds its replica from base model and ledger.
"""

from __future__ import annotations

import hashlib
import os
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import torch
from msgspec import Meta, Struct

from fedzero.algorithms.contract import Numbers
from fedzero.deploy import messages, site_tasks
from fedzero.errors import FedzeroError, Refused
from fedzero.ledger.query_log import LedgerLog
from fedzero.ledger.store import Claimed, Ledger
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
from fedzero.runs.session import Environment, Setup

SAVE_EVERY = 60.0
"""Seconds between two copies of the replica on disk."""
CLAIMED = 60.0
"""Seconds to wait for a process that still writes the log of queries."""
QUERIES = "queries.db"
"""Of a run at this site: the log of queries, where its functions have one."""
PRIVATE = "facts.json"
"""Of a run at this site: what is known of its data and stays here."""


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a site decides for itself, in a file that never leaves it."""

    data: str | None = None
    """Folder with this site's data."""
    model: str | None = None
    """Where this site has the model that the recipe names."""
    secret: str | None = None
    """File with the secret that clients share and the server has not (or set FEDZERO_SECRET)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: Annotated[int, Meta(ge=1)] | None = None
    """Of a CPU; default: all. The last bits of a loss depend on it: with 1 a run equals that of the local engine."""
    tasks: dict[str, str] = {}
    """Tasks of this site's own, by name: module:attribute; "*" stands for any name."""
    keep: str | None = None
    """Folder for what outlasts a restart; default: beside the settings."""

    @staticmethod
    def read(path: Path) -> Settings:
        return files.decoded(path, Settings) if path.exists() else Settings()

    def with_values(self, **given: Any) -> Settings:
        try:
            return msgspec.convert(msgspec.to_builtins(self) | given, Settings)
        except msgspec.ValidationError as error:
            raise FedzeroError(f"settings of the site: {error}") from error

    def environment(self) -> Environment:
        secret = os.environ.get("FEDZERO_SECRET", "").encode() or None
        if self.secret is not None:
            try:
                secret = Path(self.secret).read_bytes().strip()
            except OSError as error:
                raise FedzeroError(f"the secret {self.secret} cannot be read: {error.strerror}") from error
        functions = site_tasks.loaded(self.tasks)
        return Environment(session.data_folder(self.data), session.secret_of(secret), functions, trusted=False)


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

    def answer(self, data: bytes) -> bytes:
        problem = ""
        try:
            order = messages.decode_order(data)
            self.state = _begun(order, self.state)
            return messages.encode(self._obey(order))
        except FedzeroError as error:
            problem = str(error)
            return messages.encode(messages.Failed(problem))
        except Exception as error:  # of the site's own code: what it says may be private
            traceback.print_exc()
            problem = f"{type(error).__name__} in the site's own code: see its console.txt"
            return messages.encode(messages.Failed(problem))
        finally:
            if self.state is not None:
                unable = problem if self.run is None else ""
                self.state = msgspec.structs.replace(self.state, busy=False, problem=unable)

    def _obey(self, order: messages.Order) -> messages.Answer:
        if isinstance(order, messages.Prepare):
            if self.settings.threads is not None:
                torch.set_num_threads(self.settings.threads)
            self.leave()
            self.run = None
            self.run = SiteRun(order, self.settings, self.keep)
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
            return msgspec.json.decode(order.recipe, type=SiteState)  # name and rounds of the recipe
    if before is None:
        return None
    if isinstance(order, messages.Finish):
        return msgspec.structs.replace(before, round=order.rounds, finished=True)
    round = order.round + 1 if isinstance(order, messages.Exchange) else before.round
    return msgspec.structs.replace(before, round=round, busy=True)


class SiteRun:
    """A run at this site."""

    def __init__(self, order: messages.Prepare, settings: Settings, keep: Path):
        if not order.clients:
            raise FedzeroError("no client is assigned to this site")
        self.recipe, self.settings = _localized(recipes.from_canonical(order.recipe, order.needs), settings), settings
        self.setup = self._fresh()
        self.base = self.setup.problem.params.digest()
        self.folder = keep / hashlib.sha256(order.run.encode() + order.recipe + self.base).hexdigest()[:24]
        self.folder.mkdir(parents=True, exist_ok=True)
        _keep_private(self.folder / PRIVATE, self.setup.problem.private_facts)
        self._saved, self._cache = time.monotonic(), dict[Any, Any]()
        self.replica = self.setup.replica()
        self._queries = self._log_of_queries()
        self.clients = {number: self._client(number) for number in order.clients}
        self._recall()

    def _fresh(self) -> Setup:
        return session.prepare(self.recipe, site_tasks.named_for(self.recipe, self.settings.environment()))

    def _client(self, number: int) -> Client:
        setup, replica = self.setup, self.replica
        kind = GradientOracle if replica.wire.first_order else Oracle
        oracle = kind(setup.problem.objective, setup.problem.shards, setup.keys, number)
        return Client(number, replica, oracle, setup.chain, self._cache)

    def prepared(self) -> messages.Prepared:
        problem, secret = self.setup.problem, self.setup.keys.secret
        return messages.Prepared(self.base, problem.params.size, dict(problem.facts), secret, self.replica.round)

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
                failed[number] = f"its box gave no value: the site has the reason in {QUERIES}"
            except FedzeroError as error:
                failed[number] = str(error)
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
            self._expect_paid(client.number, order.round)
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
        self.replica.follow([decode_update(update) for update in order.updates])
        params, metrics = self.replica.state.params, None
        with suppress(Unmeasured):
            metrics = self.setup.problem.objective.evaluate(params)
        problem = self.setup.problem
        own = problem.private_facts is not None or problem.metered is not None
        return messages.Measured(params.digest(), metrics, own)

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

    def _expect_paid(self, number: int, round: int) -> None:
        metered, wire = self.setup.problem.metered, self.setup.plan.wire(round)
        if metered is not None:
            unable = metered.unable(round, {number: wire.queries + wire.first_queries})
            if number in unable:
                raise Refused(unable[number])

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
        if state.round and self.replica.wire.delivery == "catch-up":
            content = state.to_bytes()
            header = msgspec.msgpack.encode((state.round, state.numbers, hashlib.sha256(content).digest()))
            files.write(self.folder / "replica", len(header).to_bytes(4, "little") + header + content, durable=True)

    def _save_memory(self, client: Client, round: int) -> None:
        """A process that was suspended must not overwrite what its successor wrote meanwhile."""
        path = self._memory_file(client)
        if path.exists() and (written := _round_of(path.read_bytes())) > round:
            raise Refused(f"a newer process already wrote round {written}")
        files.write(path, _packed(client), durable=True)

    def _memory_file(self, client: Client) -> Path:
        return self.folder / f"client-{client.number}.notes"

    def _recall(self) -> None:
        for client in self.clients.values():
            if client.keeps_memory and self._memory_file(client).exists():
                _unpack(client, self._memory_file(client).read_bytes())
        path = self.folder / "replica"
        if path.exists():
            content = path.read_bytes()
            size = int.from_bytes(content[:4], "little")
            with suppress(*MALFORMED):
                round, numbers, digest = msgspec.msgpack.decode(content[4 : 4 + size], type=tuple[int, Numbers, bytes])
                if hashlib.sha256(content[4 + size :]).digest() == digest:  # else from base model and ledger
                    self.replica.state = self.replica.state.restored(content[4 + size :], round, numbers)


def _localized(recipe: Recipe, settings: Settings) -> Recipe:
    """The recipe with what this site decides for itself."""
    engine = msgspec.structs.replace(recipe.engine, device=settings.device)
    return msgspec.structs.replace(recipe, engine=engine, task=recipe.task.at_site(settings.model))


def _keep_private(path: Path, now: Mapping[str, str] | None) -> None:
    """Facts that stay at the site must be those with which it began the run. What they are is told to nobody."""
    if now is not None and not path.exists():
        files.write(path, msgspec.json.encode(dict(now)), durable=True)
    then = files.decoded(path, dict[str, str]) if path.exists() else {}
    for name in sorted(then.keys() | (now or {}).keys()):
        if then.get(name) != (now or {}).get(name):
            raise FedzeroError(f"its {name} is not that which it began this run with")


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
