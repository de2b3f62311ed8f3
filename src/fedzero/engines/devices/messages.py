"""The frames of `fedzero-device/1`, as docs/device-protocol.md has them: what devices and a gateway say to each other.

A frame is a msgpack array; its first element is its tag. Tags below 16 come from devices, the others from a gateway.
Bodies of orders and answers are inner messages (`protocol.messages`) and keep their bytes.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from fedzero.errors import Refused
from fedzero.lines import printable
from fedzero.model.decoding import decoded

VERSION = 1
SMALL = 1024
"""The most bytes of a frame of a device, but for the body of an answer."""
LONGEST = 200
"""Characters of a text of a device that are kept."""

LONGEST_BUILD = 64
"""Characters of the name of a build that are kept."""

Number = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Half = Annotated[int, Meta(ge=0, lt=1 << 32)]
Sixteen = Annotated[bytes, Meta(min_length=16, max_length=16)]
Thirty2 = Annotated[bytes, Meta(min_length=32, max_length=32)]
Signature = Annotated[bytes, Meta(min_length=64, max_length=64)]
Digest = Annotated[bytes, Meta(min_length=8, max_length=8)]
PublicKey = Annotated[bytes, Meta(min_length=32, max_length=65)]


class Frame(Struct, frozen=True, array_like=True):
    """The common base of all frames."""


class Enrol(Frame, frozen=True, array_like=True, tag=1):
    """Exchange a ticket for a place. algorithm, key: of the device; signature: `statements.enrol`."""

    version: Number
    ticket: Sixteen
    algorithm: Number
    key: PublicKey
    signature: Signature


class Hello(Frame, frozen=True, array_like=True, tag=2):
    """A device of a place begins a session. plan: SHA-256 of the plan that it has, or empty; ready: the round that its
    model is ready for, nil: it has no model; client: which build it is, in its own words; it may be missing."""

    version: Number
    run: Sixteen
    place: Half
    nonce: Sixteen
    plan: bytes
    ready: Number | None
    client: str = ""


class Proof(Frame, frozen=True, array_like=True, tag=3):
    """The answer to a challenge: `statements.proof`."""

    signature: Signature


class Answer(Frame, frozen=True, array_like=True, tag=4):
    """The answer to an order. body: an inner reply; signature: `statements.answer`."""

    round: Number
    exchange: Half
    attempt: Half
    body: bytes
    signature: Signature


class Refusal(Frame, frozen=True, array_like=True, tag=5):
    """A device does not answer an order, and why."""

    round: Number
    exchange: Half
    attempt: Half
    code: Number
    text: str


class Ready(Frame, frozen=True, array_like=True, tag=6):
    """The model is ready for a round, and its digest."""

    round: Number
    digest: Digest


class Fetch(Frame, frozen=True, array_like=True, tag=7):
    """Send a piece of a checkpoint, from this byte on."""

    sha256: Thirty2
    offset: Number


class Beat(Frame, frozen=True, array_like=True, tag=8):
    """The device is here."""


class Leave(Frame, frozen=True, array_like=True, tag=9):
    """The device goes away."""


class Enrolled(Frame, frozen=True, array_like=True, tag=16):
    """The device's place, and the gateway's keys, which the ticket has a fingerprint of."""

    run: Sixteen
    place: Half
    ed25519: Thirty2
    p256: bytes
    signature: Signature


class Challenge(Frame, frozen=True, array_like=True, tag=17):
    version: Number
    nonce: Thirty2


class Welcome(Frame, frozen=True, array_like=True, tag=18):
    """The session has begun. plan: empty if the device has it; beat: seconds between two frames of a device that
    polls; round: the round of the run."""

    plan: bytes
    beat: Number
    round: Number
    signature: Signature


class Order(Frame, frozen=True, array_like=True, tag=19):
    """body: `OrderBody`; signature: `statements.order`."""

    round: Number
    exchange: Half
    attempt: Half
    body: bytes
    signature: Signature


class Updates(Frame, frozen=True, array_like=True, tag=20):
    """body: `UpdatesBody`: the updates that a device missed."""

    body: bytes
    signature: Signature


class Checkpoint(Frame, frozen=True, array_like=True, tag=21):
    """body: `CheckpointBody`: a model to fetch in pieces."""

    body: bytes
    signature: Signature


class Piece(Frame, frozen=True, array_like=True, tag=22):
    offset: Number
    data: bytes


class Wait(Frame, frozen=True, array_like=True, tag=23):
    """Nothing to do for so many seconds; to be asked for again after that."""

    seconds: Number
    text: str


class Error(Frame, frozen=True, array_like=True, tag=24):
    """A frame was refused. Which codes end the session: `FATAL`."""

    code: Number
    text: str


class Finish(Frame, frozen=True, array_like=True, tag=25):
    """The run has ended after so many rounds."""

    rounds: Number
    reason: str
    signature: Signature


class OrderBody(Struct, frozen=True, array_like=True):
    """work: an inner instruction; rates: the rates of its updates' rounds, see `rates`."""

    work: bytes
    rates: bytes


class UpdatesBody(Struct, frozen=True, array_like=True):
    """fresh: begin from the first model."""

    fresh: bool
    updates: tuple[bytes, ...]
    rates: bytes
    round: Number
    """the round that the model is ready for after them"""


class CheckpointBody(Struct, frozen=True, array_like=True):
    """The state before a round: the parameters, then the momentum, as raw bytes."""

    round: Number
    sha256: Thirty2
    size: Number
    digest: Digest


FromDevice = Enrol | Hello | Proof | Answer | Refusal | Ready | Fetch | Beat | Leave
FromGateway = Enrolled | Challenge | Welcome | Order | Updates | Checkpoint | Piece | Wait | Error | Finish

encode = msgspec.msgpack.Encoder().encode
_device: msgspec.msgpack.Decoder[FromDevice] = msgspec.msgpack.Decoder(FromDevice)
_gateway: msgspec.msgpack.Decoder[FromGateway] = msgspec.msgpack.Decoder(FromGateway)


def decode_device(data: bytes, limit: int = SMALL) -> FromDevice:
    """A frame of a device, of at most `limit` bytes."""
    if len(data) > limit:
        raise Refused(f"a frame of {len(data)} bytes where at most {limit} were expected")
    frame: FromDevice = decoded(_device.decode, data, "a frame")
    if isinstance(frame, Hello):
        return msgspec.structs.replace(frame, client=printable(frame.client, LONGEST_BUILD))
    if isinstance(frame, Refusal):
        return msgspec.structs.replace(frame, text=printable(frame.text, LONGEST))
    return frame


def decode_gateway(data: bytes) -> FromGateway:
    """A frame of a gateway; for tests and clients in Python."""
    return decoded(_gateway.decode, data, "a frame of a gateway")
