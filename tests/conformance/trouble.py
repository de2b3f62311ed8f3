"""Engines that look on or get in the way, and clients that go wrong."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np

from fedzero.model.updates import pack
from fedzero.protocol.messages import Reply, decode_reply, encode_reply

Sent = tuple[int, bytes | Exception]
Replies = Iterator[Sent]
LIMIT = 1 << 20


class Wrapped:
    """An engine, and somebody between it and the server."""

    def __init__(self, engine: Any):
        self.engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


class Meter(Wrapped):
    """Counts what really goes over the wire."""

    up = down = 0

    def exchange(self, round: int, exchange: int, instructions: Mapping[int, bytes]) -> Replies:
        self.down += sum(map(len, instructions.values()))
        for client, data in self.engine.exchange(round, exchange, instructions):
            self.up += len(data)
            yield client, data

    def close(self, round: int, update: Any, closings: Mapping[int, bytes]) -> None:
        self.down += sum(map(len, closings.values()))
        self.engine.close(round, update, closings)


class Tampering(Wrapped):
    """Changes what the server is told, in every exchange or `at` one, in every round or `during` some.

    change(replies, round, exchange) → replies
    """

    def __init__(self, engine: Any, change: Any, at: int | None = None, during: range | None = None):
        super().__init__(engine)
        self.change, self.at, self.during = change, at, during

    def exchange(self, round: int, exchange: int, instructions: Mapping[int, bytes]) -> Replies:
        replies = list(self.engine.exchange(round, exchange, instructions))
        here = self.at in (None, exchange) and (self.during is None or round in self.during)
        yield from self.change(replies, round, exchange) if here else replies


class Absence(Wrapped):
    """The first of those who are asked in exchange `at` of the rounds `during` is not reached."""

    def __init__(self, engine: Any, at: int, during: range):
        super().__init__(engine)
        self.at, self.during = at, during

    def exchange(self, round: int, exchange: int, instructions: Mapping[int, bytes]) -> Replies:
        away = next(iter(instructions)) if exchange == self.at and round in self.during else None
        yield from self.engine.exchange(round, exchange, {c: i for c, i in instructions.items() if c != away})


def first_replaced(by: Callable[[Reply, bytes], list[bytes | Exception]]) -> Any:
    """A change for `Tampering`: what the first client sends is replaced by what is made of it."""

    def change(replies: list[Sent], round: int, exchange: int) -> list[Sent]:
        (client, data), *rest = replies
        assert isinstance(data, bytes)
        return [*((client, sent) for sent in by(decode_reply(data, LIMIT), data)), *rest]

    return change


def altered(reply: Reply, **changes: Any) -> bytes:
    return encode_reply(msgspec.structs.replace(reply, **changes))


def _with(reply: Reply, value: float) -> bytes:
    """The reply with one of its (plain) numbers replaced."""
    values = np.frombuffer(reply.values, "<f4").copy()
    values[0] = value
    return altered(reply, values=pack(values))


Bad = Callable[[Reply, bytes], list[bytes | Exception]]

# What may be wrong with any reply, whatever its numbers look like.
BAD_REPLIES: dict[str, Bad] = {
    "silent": lambda reply, data: [],
    "failed": lambda reply, data: [RuntimeError("out of memory")],
    "late": lambda reply, data: [altered(reply, round=reply.round + 1)],
    "stale": lambda reply, data: [altered(reply, round=reply.round - 1)],
    "other exchange": lambda reply, data: [altered(reply, exchange=reply.exchange + 1)],
    "empty": lambda reply, data: [altered(reply, values=b"")],
    "diverged": lambda reply, data: [altered(reply, digest=b"otherone")],
    "garbage": lambda reply, data: [b"\xff" * 40],
    "cut": lambda reply, data: [data[:-1]],
    "oversize": lambda reply, data: [data + bytes(1 << 16)],
    "nan loss": lambda reply, data: [altered(reply, loss=struct.pack("<f", np.nan))],
    "no loss": lambda reply, data: [altered(reply, loss=b"")],
    "other memory": lambda reply, data: [altered(reply, memory=b"" if reply.memory else bytes(16))],
    "part of a memory": lambda reply, data: [altered(reply, memory=bytes(7))],
    "a boast": lambda reply, data: [altered(reply, queries=2**63)],
}
# What may be wrong with plain numbers.
BAD_NUMBERS: dict[str, Bad] = {
    "nan": lambda reply, data: [_with(reply, np.nan)],
    "infinity": lambda reply, data: [_with(reply, np.inf)],
    "short": lambda reply, data: [altered(reply, values=reply.values[:-4])],
    "long": lambda reply, data: [altered(reply, values=reply.values + bytes(4))],
    "odd": lambda reply, data: [altered(reply, values=reply.values[:-1])],
}


def _coded(change: Callable[[list[bytes]], list[bytes]]) -> Bad:
    """A reply whose places, scale and codes were changed."""

    def bad(reply: Reply, data: bytes) -> list[bytes | Exception]:
        parts = msgspec.msgpack.decode(reply.values, type=list[bytes])
        return [altered(reply, values=msgspec.msgpack.encode(change(parts)))]

    return bad


# What may be wrong with the codes of a filter.
BAD_CODES: dict[str, Bad] = {
    "noise": lambda reply, data: [altered(reply, values=bytes(range(200, 200 + 40)))],
    "truncated": lambda reply, data: [altered(reply, values=reply.values[:-1])],
    "codes too short": _coded(lambda parts: [parts[0], parts[1], parts[2][:-1]]),
    "codes too long": _coded(lambda parts: [parts[0], parts[1], parts[2] + b"\0"]),
    "places too long": _coded(lambda parts: [parts[0] + bytes(400), parts[1], parts[2]]),
    "a part missing": _coded(lambda parts: parts[:-1]),
}
# Of codes that say where they belong.
BAD_PLACES: dict[str, Bad] = {
    "every place": _coded(lambda parts: [b"\xff" * len(parts[0]), parts[1], parts[2]]),
    "no place": _coded(lambda parts: [b"", parts[1], parts[2]]),
    "half a place": _coded(lambda parts: [bytes(3), parts[1], parts[2]]),
    "a place beyond the end": _coded(lambda parts: [b"\xff\0\0\0", parts[1], parts[2]]),
}
# Of codes that carry a scale.
BAD_SCALES: dict[str, Bad] = {
    name: _coded(lambda parts, scale=scale: [parts[0], scale, parts[2]])
    for name, scale in {
        "scale nan": struct.pack("<f", np.nan),
        "scale infinite": struct.pack("<f", np.inf),
        "scale negative": struct.pack("<f", -1.0),
        "no scale": b"",
        "two scales": struct.pack("<ff", 1.0, 1.0),
    }.items()
}


def troubled(honest: Any) -> Any:
    """An engine's `exchange` that is never quite well: nobody answers in rounds 3 and 9, and in other odd rounds the
    reply of the first client to one of the exchanges is of another round."""

    def exchange(self: Any, round: int, exchange: int, instructions: Mapping[int, bytes]) -> Replies:
        replies = list(honest(self, round, exchange, instructions))
        if round in (3, 9):
            return
        spoilt = round % 2 and exchange == (round // 2) % self.replica.algorithm.exchanges
        yield from first_replaced(BAD_REPLIES["late"])(replies, round, exchange) if spoilt else replies

    return exchange
