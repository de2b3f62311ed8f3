"""Messages and their bytes. `len(encode(message))` is the reported figure, in a simulation and on a network.

Decoding is strict: a wrong type, a missing field, trailing bytes or an oversize message is `Refused`.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct

from fedzero.errors import Refused
from fedzero.model.decoding import decoded
from fedzero.model.numbers import Natural
from fedzero.model.updates import Update

MODEL_DIGEST, MEMORY_DIGEST = 8, 16
"""Bytes of the digest of a model, and of a memory."""


LARGEST_LOSS = 3.4e38
"""A larger loss, beyond float32, is sent as infinity and refused."""


class Work(Struct, frozen=True, array_like=True, tag=1):
    """Server to client: fold the updates that you missed, then do your part of the round.

    counted: the last round in which a reply of this client counted; only if clients have a memory.
    """

    round: Natural
    exchange: Natural
    updates: tuple[Update, ...]
    counted: Natural | None = None


class Snapshot(Struct, frozen=True, array_like=True, tag=2):
    """Server to client: the state at the round's start, or your part of it; do your part of the round.

    numbers: the plain values of the state.
    """

    round: Natural
    exchange: Natural
    numbers: Natural | bytes
    state: bytes
    counted: Natural | None = None


class Close(Struct, frozen=True, array_like=True, tag=3):
    """Server to client: the round's outcome, to fold at once (the *sync* variant)."""

    round: Natural
    update: Update


class Continue(Struct, frozen=True, array_like=True, tag=4):
    """Server to client: the result of the last exchange (float32 numbers, and whose); continue the round."""

    round: Natural
    exchange: Natural
    values: bytes
    clients: tuple[Natural, ...] = ()


Instruction = Work | Snapshot | Close | Continue


class Phase(Struct, frozen=True, array_like=True, tag=7):
    """Server to host: a phase of the gathering of an exchange's replies. body: its format is the gathering's own."""

    round: Natural
    exchange: Natural
    phase: Natural
    body: bytes


class Reply(Struct, frozen=True, array_like=True):
    """Client to server. The sender is known from the connection, not from the message.

    digest: of the model on which the values were computed (8 bytes), so that a diverged replica is found at once.
    values: the numbers of the method, float32 or as a filter codes them; loss: one float32, the client's training loss
    before its local work, as the links leave it; empty if a link removes it; memory: digest of the client's memory
    after this turn, if the turn counts.
    """

    round: Natural
    exchange: Natural
    digest: Annotated[bytes, Meta(min_length=MODEL_DIGEST, max_length=MODEL_DIGEST)]
    values: bytes
    loss: bytes
    queries: Natural
    memory: bytes = b""


class MemoryChange(Struct, frozen=True):
    """The change of a client's memory since it was last written: the number of pieces now, and the new pieces."""

    count: int
    changed: dict[int, bytes]


_encoder = msgspec.msgpack.Encoder()
_instructions = msgspec.msgpack.Decoder(Instruction)
_replies = msgspec.msgpack.Decoder(Reply)

encode = _encoder.encode


def encode_work(round: int, exchange: int, updates: Sequence[bytes], counted: int | None = None) -> bytes:
    """`encode(Work(…))` from encoded updates: one encoding serves every client that missed a round."""
    return encode_joined_work(round, exchange, len(updates), b"".join(updates), counted)


def encode_joined_work(
    round: int, exchange: int, count: int, updates: bytes | memoryview, counted: int | None = None
) -> bytes:
    """The same from `count` updates back to back: in a large federation a client has missed thousands of them."""
    if count < 1 << 4:
        header = struct.pack(">B", 0x90 | count)
    elif count < 1 << 16:
        header = struct.pack(">BH", 0xDC, count)
    else:
        header = struct.pack(">BI", 0xDD, count)
    tail = b"" if counted is None else _encoder.encode(counted)
    fields = b"\x94\x01" if counted is None else b"\x95\x01"
    return b"".join((fields, _encoder.encode(round), _encoder.encode(exchange), header, updates, tail))


def encode_close(round: int, update: bytes) -> bytes:
    """`encode(Close(…))` from an encoded update."""
    return _encoder.encode((3, round, Raw(update)))


def encode_reply(reply: Reply) -> bytes:
    """`encode(reply)`, without the field for the memory if it is empty."""
    fields = (reply.round, reply.exchange, reply.digest, reply.values, reply.loss, reply.queries)
    return _encoder.encode((*fields, reply.memory) if reply.memory else fields)


def loss_bytes(loss: float | None) -> bytes:
    """A training loss as encoded in a reply; empty if it is hidden."""
    return b"" if loss is None else struct.pack("<f", loss if abs(loss) < LARGEST_LOSS else math.inf)


def loss_of(data: bytes, hidden: bool = False) -> float | None:
    """The training loss of a reply. hidden: a link may have changed or removed it."""
    if hidden and not data:
        return None
    if len(data) != 4:
        raise Refused("sent no training loss")
    (loss,) = struct.unpack("<f", data)
    if not math.isfinite(loss):
        raise Refused("a value is NaN or infinite")
    return float(loss)


def chunk_digest(chunk: bytes) -> bytes:
    """The digest of one piece of a client's memory."""
    return hashlib.sha256(chunk).digest()


def memory_digest(chunks: Sequence[bytes]) -> bytes:
    """The digest of a client's memory, in a reply and on the ledger's chain, from the digests of its pieces.

    A memory may be long and grow a little in every turn; pieces that did not change are not read again.
    """
    return hashlib.sha256(b"".join(chunks)).digest()[:MEMORY_DIGEST]


def decode_instruction(data: bytes) -> Instruction:
    instruction: Instruction = decoded(_instructions.decode, data, "an instruction")
    return instruction


def decode_reply(data: bytes, limit: int) -> Reply:
    """Decode a reply of at most `limit` bytes."""
    if len(data) > limit:
        raise Refused(f"a reply of {len(data)} bytes where at most {limit} were expected")
    return decoded(_replies.decode, data, "a reply")
