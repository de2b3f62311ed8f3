"""Messages between supervisor and sites. A site may have several clients.

Orders wrap instructions and answers wrap replies, both unchanged; bytes are counted, and the ledger is written, from
these instructions and replies.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from fedzero.errors import Refused
from fedzero.lines import LONGEST_SAID, printable
from fedzero.model import distributions
from fedzero.model.decoding import decoded
from fedzero.model.identity import SHA256, Identity
from fedzero.model.numbers import Natural, PositiveInt
from fedzero.oracles import Metrics
from fedzero.protocol.messages import Phase as Phase


class Prepare(Struct, frozen=True, array_like=True, tag=1):
    """Get ready for a run: its unique name, its recipe (canonical JSON), the clients of this site, the distributions
    with versions that the recipe needs in addition to fedzero, and the fingerprint of the clients' secret with which
    the run began."""

    run: str
    recipe: bytes
    clients: tuple[Natural, ...]
    needs: dict[str, str] = {}
    secret: str | None = None

    def __post_init__(self) -> None:
        distributions.check(self.needs)


class PrepareExtended(Prepare, frozen=True, array_like=True, tag=8):
    """As `Prepare`, for a run that was extended: `recipe` is that of its start, from which keys and folders derive; the
    recipe in force has these rounds, evaluations and early end (canonical JSON)."""

    rounds: PositiveInt = 1
    evaluate_every: PositiveInt = 1
    stop: bytes = b"{}"


class Recover(Struct, frozen=True, array_like=True, tag=2):
    """Bring the replica forward by folding encoded updates. fresh: begin from the base model."""

    fresh: bool
    updates: tuple[bytes, ...]


class Exchange(Struct, frozen=True, array_like=True, tag=3):
    """Instructions for clients of this site, one exchange of a round."""

    round: Natural
    exchange: Natural
    instructions: dict[int, bytes]


class Deliver(Struct, frozen=True, array_like=True, tag=4):
    """The outcome of a round, for clients that get it at once."""

    closings: dict[int, bytes]


class Measure(Struct, frozen=True, array_like=True, tag=5):
    """Evaluate the model after so many rounds, once the updates are folded."""

    updates: tuple[bytes, ...]
    after: Natural = 0


class Finish(Struct, frozen=True, array_like=True, tag=6):
    """The run has ended after so many rounds."""

    rounds: Natural


Order = Prepare | Recover | Exchange | Deliver | Measure | Finish | Phase | PrepareExtended


class Prepared(Struct, frozen=True, array_like=True, tag=1):
    """The start of a site: base model and its size, facts, fingerprint of its secret; and the round for which its
    replica, which all its clients share, is ready."""

    base: bytes
    parameters: Natural
    facts: dict[str, str]
    secret: str | None
    round: Natural
    sha256: bytes = b""
    """of the base model; empty at a site of 0.2.0"""

    @property
    def identity(self) -> Identity:
        return Identity(self.base, self.sha256)


class Done(Struct, frozen=True, array_like=True, tag=2):
    """The order has been carried out; there is nothing to say."""


class Replies(Struct, frozen=True, array_like=True, tag=3):
    """By client: its reply, or the reason why there is none."""

    replies: dict[int, bytes]
    failed: dict[int, str]


class Measured(Struct, frozen=True, array_like=True, tag=4):
    """The digest of the model and its metrics (None if the site cannot evaluate it). own: with data that only this site
    has."""

    model: bytes
    metrics: Metrics | None
    own: bool = False
    sha256: bytes = b""
    """of the model; empty at a site of 0.2.0"""

    @property
    def identity(self) -> Identity:
        return Identity(self.model, self.sha256)


class Failed(Struct, frozen=True, array_like=True, tag=5):
    """The site could not do it."""

    reason: str


class Phased(Struct, frozen=True, array_like=True, tag=6):
    """A host's answer to a phase of a gathering."""

    body: bytes


Answer = Prepared | Done | Replies | Measured | Failed | Phased

encode = msgspec.msgpack.Encoder().encode
_orders: msgspec.msgpack.Decoder[Order] = msgspec.msgpack.Decoder(Order)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def decode_order(data: bytes) -> Order:
    return decoded(_orders.decode, data, "an order")


def decode_answer(data: bytes) -> Answer:
    """Decode a site's answer. Its text is cut to one line of visible characters, because it is shown, logged and put on
    the ledger."""
    answer = decoded(_answers.decode, data, "an answer")
    if isinstance(answer, Prepared | Measured) and len(answer.sha256) not in (0, SHA256):
        raise Refused(f"sent a SHA-256 of {len(answer.sha256)} bytes")
    if isinstance(answer, Failed):
        return Failed(printable(answer.reason, LONGEST_SAID))
    if isinstance(answer, Replies) and answer.failed:
        return Replies(answer.replies, {client: printable(why, LONGEST_SAID) for client, why in answer.failed.items()})
    return answer
