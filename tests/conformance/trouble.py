"""Ways in which a client's reply can be wrong."""

from __future__ import annotations

import struct
from collections.abc import Callable

import msgspec
import numpy as np

from fedzero.model.updates import pack
from fedzero.protocol.messages import Reply
from fedzero.testing.methods import Bad, altered


def _with(reply: Reply, value: float) -> bytes:
    """The reply with one of its (plain) numbers replaced."""
    values = np.frombuffer(reply.values, "<f4").copy()
    values[0] = value
    return altered(reply, values=pack(values))


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
