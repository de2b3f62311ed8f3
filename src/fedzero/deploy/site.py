"""A site: home of one or more clients, in a process of its own. Orders in, answers out; what carries them is not known
here.

The model is loaded when a run is made ready and stays; clients of a site share one replica where they may. What must
outlast the process is kept in the site's own folder: what clients remember, before a reply leaves, and the replica now
and then. A site that has lost its folder rebuilds its replica from base model and ledger.
"""

from __future__ import annotations

import hashlib
import os
import time
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import torch
from msgspec import Meta, Struct

from fedzero.algorithms.contract import EVERYTHING, Numbers
from fedzero.deploy.messages import (
    Answer,
    Deliver,
    Delivered,
    Exchange,
    Failed,
    Measure,
    Measured,
    Order,
    Prepare,
    Prepared,
    Recover,
    Recovered,
    Replies,
    decode_order,
    encode,
)
from fedzero.errors import FedzeroError, Refused
from fedzero.model import files
from fedzero.model.updates import decode_update
from fedzero.oracles import GradientOracle, Oracle
from fedzero.oracles.blackbox import Unmeasured
from fedzero.protocol.client import Client, ClientMemory
from fedzero.protocol.messages import Close, Continue, decode_instruction
from fedzero.protocol.replica import Replica
from fedzero.run import recipe as recipes
from fedzero.run import session
from fedzero.run.recipe import Recipe
from fedzero.run.session import Environment, Setup

SAVE_EVERY = 60.0
"""Seconds between two copies of the replica on disk."""


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
        if not path.exists():
            return Settings()
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise FedzeroError(f"{path}: {error}") from error
        return Settings.of(table, str(path))

    @staticmethod
    def of(table: dict[str, Any], where: str) -> Settings:
        try:
            return msgspec.convert(table, Settings)
        except msgspec.ValidationError as error:
            raise FedzeroError(f"{where}: {error}") from error

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
        self._home: SiteRun | None = None

    def answer(self, data: bytes) -> bytes:
        try:
            return encode(self._obey(decode_order(data)))
        except FedzeroError as error:
            return encode(Failed(str(error)))

    def _obey(self, order: Order) -> Answer:
        if isinstance(order, Prepare):
            if self.settings.threads is not None:
                torch.set_num_threads(self.settings.threads)
            self._home = SiteRun(order, self.settings, self.keep)
            return self._home.prepared()
        if self._home is None:
            raise Refused("was given work before it was made ready")
        match order:
            case Recover():
                return self._home.recover(order)
            case Exchange():
                return self._home.exchange(order)
            case Deliver():
                return self._home.deliver(order)
            case Measure():
                return self._home.measure(order)

    def leave(self) -> None:
        """The process ends."""
        if self._home is not None:
            self._home.save()


class SiteRun:
    """A run at this site."""

    def __init__(self, order: Prepare, settings: Settings, keep: Path):
        if not order.clients:
            raise FedzeroError("no client lives here")
        self.recipe, self.settings = _at_home(recipes.from_canonical(order.recipe), settings), settings
        self.setup = self._fresh()
        if self.setup.problem.metered is not None:
            raise FedzeroError("black boxes are asked by the local engine only (`fedzero run`)")
        self.base, self.size = self.setup.problem.params.digest(), self.setup.problem.params.size
        self.folder = keep / hashlib.sha256(order.run.encode() + order.recipe + self.base).hexdigest()[:24]
        self.folder.mkdir(parents=True, exist_ok=True)
        self.shared, self.cache = True, dict[Any, Any]()
        self.clients: dict[int, Client] = {}
        self._saved = time.monotonic()
        for client in order.clients:
            self.clients[client] = self._client(client)
            self.shared = self.shared and self.clients[client].replica.state.carry.part(client) == EVERYTHING
        self._recall()

    def _fresh(self) -> Setup:
        return session.prepare(self.recipe, self.settings.environment())

    def _client(self, number: int) -> Client:
        setup = self.setup
        if self.shared and self.clients:
            replica = next(iter(self.clients.values())).replica
        else:
            params = setup.problem.params if not self.clients else self._fresh().problem.params
            replica = Replica(setup.algorithm, params, setup.keys, self.recipe.federation.clients)
        kind = GradientOracle if replica.wire.first_order else Oracle
        oracle = kind(setup.problem.objective, setup.problem.shards, setup.keys, number)
        return Client(number, replica, oracle, setup.chain, self.cache)

    def prepared(self) -> Prepared:
        groups: dict[int, list[int]] = {}
        for number, client in self.clients.items():
            groups.setdefault(id(client.replica), []).append(number)
        replicas = tuple((tuple(group), self.clients[group[0]].replica.round) for group in groups.values())
        return Prepared(self.base, self.size, dict(self.setup.problem.facts), self.setup.keys.secret, replicas)

    # ---- work

    def exchange(self, order: Exchange) -> Replies:
        """One client after the other, as the local engine without merging does."""
        replies, failed = {}, {}
        for number, instruction in order.instructions.items():
            client = self.clients.get(number)
            try:
                if client is None:
                    raise Refused("does not live here")
                replies[number] = self._turn(client, order, instruction)
            except FedzeroError as error:
                failed[number] = str(error)
        if time.monotonic() - self._saved > SAVE_EVERY:
            self.save()
        return Replies(replies, failed)

    def _turn(self, client: Client, order: Exchange, instruction: bytes) -> bytes:
        answer: Any = None
        if order.exchange:
            answer = client.proceed(instruction)
        else:
            message = decode_instruction(instruction)
            counted = None if isinstance(message, Close | Continue) else message.counted
            if client.keeps_memory and not client.remembers(counted):
                raise Refused(f"has lost what it remembered of round {counted}: bring back its folder")
            client.begin(order.round, instruction, True)
        asked = client.step(answer)
        while not isinstance(asked, bytes):
            asked = client.step(client.oracle.answer(order.round, asked))
        if client.keeps_memory:
            self._save_memory(client, order.round)
        return asked

    def _save_memory(self, client: Client, round: int) -> None:
        """A process that was frozen and thawed must not write over what its successor wrote."""
        path = self.folder / f"client-{client.number}.notes"
        if path.exists() and _round_of(path.read_bytes()) > round:
            raise Refused("has a successor that is further")
        files.write(path, _packed(client), durable=True)

    def deliver(self, order: Deliver) -> Delivered:
        for number, closing in order.closings.items():
            message = decode_instruction(closing)
            if not isinstance(message, Close) or number not in self.clients:
                raise Refused("was told the end of something else than a round of its own")
            self.clients[number].replica.obey(message, number)
        return Delivered()

    def recover(self, order: Recover) -> Recovered:
        client = self.clients.get(order.client)
        if client is None:
            raise Refused(f"client {order.client} does not live here")
        if order.fresh:
            replica = client.replica
            replica.state.params.load(self._fresh().problem.params.tensors)
            replica.state = replica.algorithm.init(replica.state.params, self.recipe.federation.clients)
        client.replica.follow([decode_update(update) for update in order.updates])
        return Recovered(client.replica.round)

    def measure(self, order: Measure) -> Measured:
        client = next(iter(self.clients.values()))
        client.replica.follow([decode_update(update) for update in order.updates])
        params, metrics = client.replica.state.params, None
        with suppress(Unmeasured):
            metrics = self.setup.problem.objective.evaluate(params)
        return Measured(params.digest(), metrics)

    # ---- what outlasts the process

    def save(self) -> None:
        """The replica, where all clients share it and it is not sent with every instruction anyway."""
        self._saved = time.monotonic()
        replica = next(iter(self.clients.values())).replica
        if self.shared and replica.round and replica.wire.delivery == "catch-up":
            content = replica.state.to_bytes()
            header = msgspec.msgpack.encode((replica.round, replica.state.numbers, hashlib.sha256(content).digest()))
            files.write(self.folder / "replica", len(header).to_bytes(4, "little") + header + content, durable=True)

    def _recall(self) -> None:
        for number, client in self.clients.items():
            path = self.folder / f"client-{number}.notes"
            if client.keeps_memory and path.exists():
                _unpack(client, path.read_bytes())
        path = self.folder / "replica"
        if self.shared and path.exists():
            content = path.read_bytes()
            size = int.from_bytes(content[:4], "little")
            with suppress(msgspec.DecodeError):
                round, numbers, digest = msgspec.msgpack.decode(content[4 : 4 + size], type=tuple[int, Numbers, bytes])
                replica = next(iter(self.clients.values())).replica
                if hashlib.sha256(content[4 + size :]).digest() == digest:  # else from base and ledger
                    replica.state = replica.state.restored(content[4 + size :], round, numbers)


def _at_home(recipe: Recipe, settings: Settings) -> Recipe:
    """The recipe with what this site has its own way."""
    engine = msgspec.structs.replace(recipe.engine, device=settings.device)
    return msgspec.structs.replace(recipe, engine=engine, task=recipe.task.at_site(settings.model))


_Pieces = list[bytes]
_Packed = tuple[int | None, _Pieces, tuple[int, _Pieces] | None]


def _packed(client: Client) -> bytes:
    (counted, kept), tried = client.keep()
    chunks = [chunk.body for chunk in kept.chunks()]
    maybe = None if tried is None else (tried[0], [chunk.body for chunk in tried[1].chunks()])
    return msgspec.msgpack.encode((counted, chunks, maybe))


def _unpack(client: Client, data: bytes) -> None:
    counted, chunks, maybe = msgspec.msgpack.decode(data, type=_Packed)
    tried = None if maybe is None else (maybe[0], ClientMemory.of_chunks(maybe[1]))
    client.recall((counted, ClientMemory.of_chunks(chunks)), tried)


def _round_of(data: bytes) -> int:
    """The latest round that packed notes are of."""
    counted, _, maybe = msgspec.msgpack.decode(data, type=_Packed)
    return max(-1 if counted is None else counted, -1 if maybe is None else maybe[0])
