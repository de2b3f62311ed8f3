"""Messages and bytes. `len(encode(message))` is the figure that is reported, in simulation as on a network.

Decoding is strict: a wrong type, a missing field, trailing bytes or an oversize message is `Refused`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Raw, Struct

from fedzero.errors import Refused
from fedzero.updates import Natural, Update


class Work(Struct, frozen=True, array_like=True, tag=1):
    """Server to client: fold what you missed, then do your part of the round."""

    round: Natural
    exchange: Natural
    updates: tuple[Update, ...]


class Snapshot(Struct, frozen=True, array_like=True, tag=2):
    """Server to client: here is the whole state (model and rule memory) as of the round's start; do your part."""

    round: Natural
    exchange: Natural
    steps: Natural
    state: bytes


class Close(Struct, frozen=True, array_like=True, tag=3):
    """Server to client: the round's outcome, to fold at once (the *sync* variant)."""

    round: Natural
    update: Update


Instruction = Work | Snapshot | Close


class Reply(Struct, frozen=True, array_like=True):
    """Client to server. The sender is known from the connection, not from the message.

    digest: of the model the values were computed on (8 bytes), so a diverged replica is found in the round it diverges.
    values: float32 numbers of the method; loss: one float32, the client's training loss before its local work.
    """

    round: Natural
    exchange: Natural
    digest: bytes
    values: bytes
    loss: bytes
    queries: Natural


_encoder = msgspec.msgpack.Encoder()
_instructions = msgspec.msgpack.Decoder(Instruction)
_replies = msgspec.msgpack.Decoder(Reply)

encode = _encoder.encode


def encode_work(round: int, exchange: int, updates: Sequence[bytes]) -> bytes:
    """`encode(Work(…))` from updates that are encoded already: one encoding serves every client that missed a round."""
    return _encoder.encode((1, round, exchange, [Raw(update) for update in updates]))


def decode_instruction(data: bytes) -> Instruction:
    try:
        instruction: Instruction = _instructions.decode(data)
    except msgspec.DecodeError as error:
        raise Refused(f"not an instruction: {error}") from error
    return instruction


def decode_reply(data: bytes, limit: int) -> Reply:
    """A reply of at most `limit` bytes."""
    if len(data) > limit:
        raise Refused(f"a reply of {len(data)} bytes where at most {limit} were expected")
    try:
        return _replies.decode(data)
    except msgspec.DecodeError as error:
        raise Refused(f"not a reply: {error}") from error
