"""A site (docs/wire.md) whose clients train the packaged digits by DeComFL: orders in, answers out."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from recompute.decomfl import DeComFL, parts_of
from recompute.digits import Digits, first_model
from recompute.stream import digest, root_of, sha256

PREPARE, RECOVER, EXCHANGE, DELIVER, MEASURE, FINISH = range(1, 7)
EXTENDED = 8
PREPARED, DONE, REPLIES, MEASURED, FAILED = range(1, 6)

encode, decode = msgspec.msgpack.encode, msgspec.msgpack.decode


class Site:
    """data: the file of the digits."""

    def __init__(self, data: Path):
        self.path = data
        self.obeyed = list[int]()

    def answer(self, order: bytes) -> bytes:
        tag, *fields = decode(order, strict=False)
        self.obeyed.append(tag)
        obeys: Mapping[int, Callable[..., list[Any]]] = {
            PREPARE: self.prepare,
            EXTENDED: lambda *fields: self.prepare(*fields[:5]),
            RECOVER: self.recover,
            EXCHANGE: self.exchange,
            DELIVER: self.deliver,
            MEASURE: self.measure,
            FINISH: lambda rounds: [DONE],
        }
        return encode(obeys[tag](*fields) if tag in obeys else [FAILED, f"order {tag} is not known here"])

    def prepare(
        self, run: str, recipe: bytes, clients: Sequence[int], needs: Mapping[str, str], secret: str | None
    ) -> list[Any]:
        self.recipe = json.loads(recipe)
        self.root = root_of(self.recipe["seed"])
        self.data = Digits(self.path, self.recipe, self.root)
        self.begin()
        model = self.method.model
        size = sum(tensor.size for tensor in model.values())
        return [PREPARED, digest(model), size, {}, None, self.round, sha256(model)]

    def begin(self) -> None:
        first = first_model(self.root, self.recipe["task"]["model"])
        self.method, self.round = DeComFL(self.recipe, self.root, first), 0

    def follow(self, updates: Sequence[Sequence[Any]]) -> None:
        for update in updates:
            if (round := update[1]) >= self.round:
                self.method.apply(round, parts_of(update))
                self.round = round + 1

    def recover(self, fresh: bool, updates: Sequence[bytes]) -> list[Any]:
        if fresh:
            self.begin()
        self.follow([decode(update) for update in updates])
        return [DONE]

    def exchange(self, round: int, exchange: int, instructions: Mapping[int, bytes]) -> list[Any]:
        replies, failed = {}, {}
        for client, instruction in instructions.items():
            tag, asked, _, *rest = decode(instruction)
            if (tag, asked) != (1, round):
                failed[client] = "was asked what this site does not do"
                continue
            self.follow(rest[0])
            scalars, loss, queries = self.method.client(round, client, self.data.loss)
            at = digest(self.method.model)
            replies[client] = encode([round, exchange, at, scalars.tobytes(), struct.pack("<f", loss), queries])
        return [REPLIES, replies, failed]

    def deliver(self, closings: Mapping[int, bytes]) -> list[Any]:
        self.follow([decode(closing)[2] for closing in closings.values()])
        return [DONE]

    def measure(self, updates: Sequence[bytes], after: int) -> list[Any]:
        self.follow([decode(update) for update in updates])
        loss, accuracy = self.data.tested(self.method.model)
        metrics = {"loss": loss, "accuracy": accuracy, "others": {}}
        return [MEASURED, digest(self.method.model), metrics, False, sha256(self.method.model)]
