"""What supervisor and sites say to each other. A site may have several clients.

Orders wrap instructions, answers wrap replies, both untouched; what is counted and put on the ledger are those.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from fedzero.errors import Refused
from fedzero.lines import LONGEST_SAID, printable
from fedzero.model import distributions
from fedzero.model.decoding import decoded
from fedzero.model.identity import SHA256, Identity
from fedzero.model.numbers import Natural
from fedzero.oracles import Metrics
from fedzero.protocol.messages import Phase as Phase


class Prepare(Struct, frozen=True, array_like=True, tag=1):
    """Get ready for a run: what tells it from all others, its recipe (canonical JSON), the clients that are here,
    distributions, with versions, that the recipe needs beside fedzero, and the fingerprint of the clients' secret that
    the run began with."""

    run: str
    recipe: bytes
    clients: tuple[Natural, ...]
    needs: dict[str, str] = {}
    secret: str | None = None

    def __post_init__(self) -> None:
        distributions.check(self.needs)


class Recover(Struct, frozen=True, array_like=True, tag=2):
    """Bring the replica forward: encoded updates to fold, `fresh`: from the base model on."""

    fresh: bool
    updates: tuple[bytes, ...]


class Exchange(Struct, frozen=True, array_like=True, tag=3):
    """Instructions for clients of this site, one exchange of a round."""

    round: Natural
    exchange: Natural
    instructions: dict[int, bytes]


class Deliver(Struct, frozen=True, array_like=True, tag=4):
    """The outcome of a round, for those who get it at once."""

    closings: dict[int, bytes]


class Measure(Struct, frozen=True, array_like=True, tag=5):
    """How good the model is after so many rounds; updates to fold first."""

    updates: tuple[bytes, ...]
    after: Natural = 0


class Finish(Struct, frozen=True, array_like=True, tag=6):
    """The run has ended after so many rounds."""

    rounds: Natural


Order = Prepare | Recover | Exchange | Deliver | Measure | Finish | Phase


class Prepared(Struct, frozen=True, array_like=True, tag=1):
    """What a site found: base model and its size, facts, fingerprint of its secret; and the round that its replica,
    which all its clients share, is ready for."""

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
    """What was to be folded is folded, what was to be known is known."""


class Replies(Struct, frozen=True, array_like=True, tag=3):
    """Replies of clients, or why there is none."""

    replies: dict[int, bytes]
    failed: dict[int, str]


class Measured(Struct, frozen=True, array_like=True, tag=4):
    """The digest of the model, and how good it is (None where nobody can say); own: by data that only this site has."""

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
    """What a site says is kept as one line of visible text, not too long: it is shown, logged and put on the ledger."""
    answer = decoded(_answers.decode, data, "an answer")
    if isinstance(answer, Prepared | Measured) and len(answer.sha256) not in (0, SHA256):
        raise Refused(f"sent a SHA-256 of {len(answer.sha256)} bytes")
    if isinstance(answer, Failed):
        return Failed(printable(answer.reason, LONGEST_SAID))
    if isinstance(answer, Replies) and answer.failed:
        return Replies(answer.replies, {client: printable(why, LONGEST_SAID) for client, why in answer.failed.items()})
    return answer
