"""A site: one or more clients in a process of their own. Orders in, answers out; what carries them is not known here.

The model is loaded when a run is prepared and stays; all clients of a site share one replica. What must outlast the
process is kept in the site's own folder: what clients remember, before a reply leaves, and the replica now and then. A
site that has lost its folder rebuilds its replica from base model and ledger.
"""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import torch
from msgspec import Meta, Struct

from fedzero.algorithms.contract import Numbers
from fedzero.deploy import messages
from fedzero.errors import FedzeroError, Refused
from fedzero.model import files
from fedzero.model.updates import decode_update
from fedzero.oracles import GradientOracle, Oracle
from fedzero.oracles.blackbox import Unmeasured
from fedzero.protocol.client import Client, ClientMemory
from fedzero.protocol.messages import Close, Continue, decode_instruction
from fedzero.run import recipe as recipes
from fedzero.run import session
from fedzero.run.recipe import Recipe
from fedzero.run.session import Environment, Setup

SAVE_EVERY = 60.0
"""Seconds between two copies of the replica on disk."""


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
        return Environment(session.data_folder(self.data), session.secret_of(secret))


class Site:
    """`answer` is all there is to it."""

    def __init__(self, settings: Settings, keep: Path):
        self.settings, self.keep = settings, keep
        self.run: SiteRun | None = None

    def answer(self, data: bytes) -> bytes:
        try:
            return messages.encode(self._obey(messages.decode_order(data)))
        except FedzeroError as error:
            return messages.encode(messages.Failed(str(error)))

    def _obey(self, order: messages.Order) -> messages.Answer:
        if isinstance(order, messages.Prepare):
            if self.settings.threads is not None:
                torch.set_num_threads(self.settings.threads)
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

    def leave(self) -> None:
        """The process ends."""
        if self.run is not None:
            self.run.save()


class SiteRun:
    """A run at this site."""

    def __init__(self, order: messages.Prepare, settings: Settings, keep: Path):
        if not order.clients:
            raise FedzeroError("no client is assigned to this site")
        self.recipe, self.settings = _localized(recipes.from_canonical(order.recipe, order.needs), settings), settings
        self.setup = self._fresh()
        if self.setup.problem.metered is not None:
            raise FedzeroError("black boxes run in one process only: use `fedzero run`")
        self.base = self.setup.problem.params.digest()
        self.folder = keep / hashlib.sha256(order.run.encode() + order.recipe + self.base).hexdigest()[:24]
        self.folder.mkdir(parents=True, exist_ok=True)
        self._saved, self._cache = time.monotonic(), dict[Any, Any]()
        self.replica = self.setup.replica()
        self.clients = {number: self._client(number) for number in order.clients}
        self._recall()

    def _fresh(self) -> Setup:
        return session.prepare(self.recipe, self.settings.environment())

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
        return messages.Measured(params.digest(), metrics)

    # ---- what outlasts the process

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
            with suppress(msgspec.DecodeError):
                round, numbers, digest = msgspec.msgpack.decode(content[4 : 4 + size], type=tuple[int, Numbers, bytes])
                if hashlib.sha256(content[4 + size :]).digest() == digest:  # else from base model and ledger
                    self.replica.state = self.replica.state.restored(content[4 + size :], round, numbers)


def _localized(recipe: Recipe, settings: Settings) -> Recipe:
    """The recipe with what this site decides for itself."""
    engine = msgspec.structs.replace(recipe.engine, device=settings.device)
    return msgspec.structs.replace(recipe, engine=engine, task=recipe.task.at_site(settings.model))


_Chunks = list[bytes]
_Memory = tuple[int | None, _Chunks, tuple[int, _Chunks] | None]
"""Round and chunks of a client's memory that counted, and of one that may count."""


def _packed(client: Client) -> bytes:
    (counted, kept), tried = client.keep()
    maybe = None if tried is None else (tried[0], [chunk.body for chunk in tried[1].chunks()])
    return msgspec.msgpack.encode((counted, [chunk.body for chunk in kept.chunks()], maybe))


def _unpack(client: Client, data: bytes) -> None:
    counted, chunks, maybe = msgspec.msgpack.decode(data, type=_Memory)
    tried = None if maybe is None else (maybe[0], ClientMemory.of_chunks(maybe[1]))
    client.recall((counted, ClientMemory.of_chunks(chunks)), tried)


def _round_of(data: bytes) -> int:
    """The latest round that a packed memory is of."""
    counted, _, maybe = msgspec.msgpack.decode(data, type=_Memory)
    return max(-1 if counted is None else counted, -1 if maybe is None else maybe[0])
