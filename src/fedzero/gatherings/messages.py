"""The messages of a secure sum, as msgpack arrays (docs/secure-sum.md has them byte by byte).

phase     to a host                   from a host
opening   Opening                     Commit: it has no roster yet | Shares
(round in which the roster is made)
reveal    Entries                     the nonce
roster    nonces, in order            Shares
(every round)
set       Set, to members alone       Σ_{i∈U} f_i(j), 8 bytes a number
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from fedzero.gatherings.roster import Entries, Entry
from fedzero.model.decoding import decoded
from fedzero.model.numbers import Natural

SALT = 16
"""Bytes."""
encode = msgspec.msgpack.encode
T = TypeVar("T")
Bytes16 = Annotated[bytes, Meta(min_length=16, max_length=16)]
Bytes32 = Annotated[bytes, Meta(min_length=32, max_length=32)]


class Opening(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """name: of the host, as the server calls it; clients: those of it that count in this exchange."""

    name: str
    clients: tuple[Natural, ...]


class Commit(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=0):
    entry: Entry


class Header(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What is in clear of an input. index: the host's place in the roster; last: 1 + the last earlier round in which it
    gave an input, 0: none; count: how many clients are in it."""

    index: Natural
    last: Natural
    count: Natural
    salt: Bytes16


class Shares(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1):
    """roster: its hash; seat: of the sender in the committee, 0: none; sealed: for members 1…c, empty for itself."""

    roster: Bytes32
    seat: Natural
    header: Header
    sealed: tuple[bytes, ...]


class Input(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An input as a member is sent it."""

    header: Header
    sealed: bytes


class Set(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The inputs U that are summed, in the order of the roster."""

    roster: Bytes32
    inputs: tuple[Input, ...]


_decoders = {
    kind: msgspec.msgpack.Decoder(kind) for kind in (Opening, Commit | Shares, Entries, tuple[bytes, ...], Set)
}


def opening_of(data: bytes) -> Opening:
    found: Opening = decoded(_decoders[Opening].decode, data, "an opening of a secure sum")
    return found


def answer_of(data: bytes) -> Commit | Shares:
    found: Commit | Shares = decoded(_decoders[Commit | Shares].decode, data, "an answer to an opening")
    return found


def entries_of(data: bytes) -> Entries:
    found: Entries = decoded(_decoders[Entries].decode, data, "a roster")
    return found


def nonces_of(data: bytes) -> tuple[bytes, ...]:
    found: tuple[bytes, ...] = decoded(_decoders[tuple[bytes, ...]].decode, data, "the nonces of a roster")
    return found


def set_of(data: bytes) -> Set:
    found: Set = decoded(_decoders[Set].decode, data, "a set of inputs")
    return found
