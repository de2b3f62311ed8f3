"""What a host of a secure sum keeps between rounds, in its durable store.

    SetUp     its private keys and nonce, until the roster is made; then they are erased
    Joined    the roster, and its own place there; nothing secret
    Chain     a key for every pair with a member of the committee, at one round

A key of a pair moves forward, K ← HKDF(K), before it is used in a later round, and the earlier one is overwritten: who
takes the disk afterwards opens nothing of rounds before. What is written leaves the process together with the answer of
the phase, so a host that was killed repeats its phases from the same state.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fedzero.errors import FedzeroError, Refused
from fedzero.gatherings.sealing import derived
from fedzero.model.decoding import decoded

Place = tuple[int, int]
"""Round and exchange."""
Store = MutableMapping[str, bytes]
T = TypeVar("T")


class SetUp(Struct, frozen=True, array_like=True):
    """identity, ephemeral: private keys; revealed: whether the nonce has left, where it draws a committee."""

    place: Place
    identity: bytes
    ephemeral: bytes
    nonce: bytes
    revealed: bool = False


class Attempts(Struct, frozen=True, array_like=True):
    """In how many set-ups that draw a committee this host revealed a nonce; outlasts the run's end."""

    count: int = 0


class Joined(Struct, frozen=True, array_like=True):
    """place: where the roster was made; commit, nonce: what the host sent then; entries: the roster, encoded; members:
    their places in the roster."""

    place: Place
    name: str
    commit: bytes
    nonce: bytes
    entries: bytes
    roster: bytes
    index: int
    members: tuple[int, ...]

    @property
    def seat(self) -> int:
        """1…c; 0: not in the committee."""
        return self.members.index(self.index) + 1 if self.index in self.members else 0


class Chain(Struct, frozen=True, array_like=True):
    """round: of the keys; begun: the exchange in which the host last gave an input; last: 1 + the round before in which
    it did, 0: none; keys: by place in the roster of the other host; seen: by place in the roster, 1 + the round of the
    last input that was in a set; given: how many inputs were ever given, whatever became of them."""

    round: int
    begun: Place
    last: int
    keys: dict[int, bytes]
    seen: dict[int, int]
    given: int = 0

    def at(self, place: Place) -> Chain:
        """The chain when an input is given in an exchange; refused if a later one has begun."""
        if place == self.begun:
            return self
        if place < self.begun:
            raise Refused(f"was asked for an input of round {place[0]}, and gave one in round {self.begun[0]}")
        keys, round = self.keys, place[0]
        if (round - self.round) * len(keys) > MOST_DERIVED:
            raise Refused(f"was asked for an input of round {round}, too far behind that of round {self.round}")
        for _ in range(round - self.round):
            keys = {other: derived(key, b"next") for other, key in keys.items()}
        last = self.last if self.begun[0] == round else self.begun[0] + 1
        return replace(self, round=round, begun=place, last=last, keys=keys, given=self.given + 1)


MOST_DERIVED = 1 << 22
"""Keys that are made at once: about a minute. A server names rounds as it likes."""
BEFORE: Place = (-1, 0)
"""`Chain.begun` of a host that gave no input yet."""


def read(store: Store, kind: type[T]) -> T | None:
    data = store.get(kind.__name__)
    if data is None:
        return None
    found: T = decoded(msgspec.msgpack.Decoder(kind).decode, data, "what a host of a secure sum keeps", FedzeroError)
    return found


def write(store: Store, value: SetUp | Attempts | Joined | Chain) -> None:
    store[type(value).__name__] = msgspec.msgpack.encode(value)


def erase(store: Store) -> None:
    """The run has ended: erase its keys."""
    for kind in (SetUp, Joined, Chain):
        store.pop(kind.__name__, None)
