"""What a run promises about privacy, for programs and for a data-protection officer: a value, its canonical bytes, and
a signature (Ed25519, by `cryptography`, extra `privacy`).

The canonical bytes are JSON with sorted keys, no blanks, and the shortest decimal of every float; a figure that does
not exist is null and never infinite. A signature covers `PURPOSE` and these bytes, so it is valid for nothing else.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from fedzero.errors import FedzeroError, Invalid, Refused
from fedzero.model.decoding import MALFORMED
from fedzero.model.numbers import NonNegative, Positive, PositiveFraction, PositiveInt
from fedzero.privacy.gaussian import small_enough

PURPOSE = b"fedzero privacy statement, version 1\n"
Hex32 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Hex64 = Annotated[str, Meta(pattern="^[0-9a-f]{128}$")]


class Figure(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """ε against one adversary. epsilon: None, if nothing is promised. amplified: whether it needs that the adversary
    does not know who took part. why: what the figure follows from, or why there is none."""

    adversary: str
    epsilon: NonNegative | None
    amplified: bool
    why: str


class Statement(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """units: how many there are, N; q, steps, sigma: the sampling probability, the steps that were begun, the noise
    multiplier; figures: one for each adversary, never the smallest alone; trust: what each figure assumes; simulated:
    whether all clients were in one process; sampler: of units, and of noise; accountant: with its version; public: data
    that are not protected; tuning: how settings were chosen, on which data, and what it cost."""

    version: Literal[1] = 1
    run: str
    unit: Literal["client", "example", "person"]
    adjacency: Literal["add or remove one", "replace one", "one contributes nothing"]
    units: PositiveInt
    delta: PositiveFraction
    q: PositiveFraction
    steps: Annotated[int, Meta(ge=0)]
    sigma: Positive
    clip: Positive
    noise: Literal["central", "distributed", "local"]
    figures: tuple[Figure, ...]
    trust: tuple[str, ...]
    simulated: bool
    sampler: str
    accountant: str
    public: tuple[str, ...] = ()
    tuning: str

    def __post_init__(self) -> None:
        small_enough(self.delta, self.units)
        numbers = (self.sigma, self.clip, *(each.epsilon or 0.0 for each in self.figures))
        if not all(map(math.isfinite, numbers)):
            raise Invalid("a statement has finite numbers; a figure that does not exist is None")
        if not self.figures:
            raise Invalid("a statement has a figure for every adversary")

    def encode(self) -> bytes:
        """The canonical bytes."""
        return msgspec.json.encode(msgspec.convert(msgspec.to_builtins(self), Statement), order="sorted")


class Signed(Struct, frozen=True, forbid_unknown_fields=True):
    """statement: its canonical bytes as text. key: the public key."""

    statement: str
    key: Hex32
    signature: Hex64

    def checked(self, key: str) -> Statement:
        """The statement, if it was signed with this public key; `Refused` otherwise."""
        try:
            signer = _library().Ed25519PublicKey.from_public_bytes(bytes.fromhex(key))
            if key != self.key or small_order(bytes.fromhex(key)):
                raise ValueError
            signer.verify(bytes.fromhex(self.signature), PURPOSE + self.statement.encode())
            statement = decode(self.statement.encode())
        except FedzeroError:
            raise
        except Exception:  # the library's own type, which is not imported here
            raise Refused("the signature of the privacy statement is not valid for this key") from None
        return statement


def decode(data: bytes) -> Statement:
    """A statement from its canonical bytes; other spellings of the same values are refused."""
    try:
        statement = msgspec.json.decode(data, type=Statement)
    except msgspec.ValidationError as error:
        raise Refused(f"no privacy statement: {error}") from None
    except MALFORMED:
        raise Refused("no privacy statement: it is not JSON") from None
    if statement.encode() != data:
        raise Refused("the privacy statement is not in its canonical form")
    return statement


def signed(statement: Statement, private: bytes) -> Signed:
    """private: the 32 bytes of an Ed25519 private key."""
    key = _library().Ed25519PrivateKey.from_private_bytes(private)
    text = statement.encode()
    public = key.public_key().public_bytes_raw().hex()
    return Signed(text.decode(), public, key.sign(PURPOSE + text).hex())


_PRIME = 2**255 - 19
_ORDER_8 = 2707385501144840649318225287225658788936804267575313519463743609750303402022
SMALL_ORDER = frozenset({0, 1, _ORDER_8, _PRIME - _ORDER_8, _PRIME - 1, _PRIME, _PRIME + 1})
"""y of points with an order of at most 8. As a key of Ed25519 one verifies signatures that nobody made."""


def small_order(key: bytes) -> bool:
    """Whether anybody can sign for a public key of Ed25519."""
    return int.from_bytes(key, "little") & ((1 << 255) - 1) in SMALL_ORDER


def public_key(private: bytes) -> str:
    key = _library().Ed25519PrivateKey.from_private_bytes(private)
    return str(key.public_key().public_bytes_raw().hex())


def _library() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise FedzeroError("signatures need the library `cryptography`: pip install 'fedzero[privacy]'") from None
    return ed25519
