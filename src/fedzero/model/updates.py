"""What a round does to the model: `Seeded`, coefficients of directions everybody can make; `Stepped`, the same from
replies of several rounds; or `Dense`, the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np
from msgspec import Struct

from fedzero.directions.terms import F32
from fedzero.errors import Refused
from fedzero.model.decoding import decoded
from fedzero.model.numbers import Natural


def pack(values: F32) -> bytes:
    """Numbers as they travel: float32, little-endian, 4 bytes each and nothing else."""
    return values.astype("<f4", copy=False).tobytes()


def unpack(data: bytes) -> F32:
    """The numbers of `pack`; refuses a length that is no whole number of them, NaN and infinity."""
    if len(data) % 4:
        raise Refused(f"{len(data)} bytes are not a whole number of float32 values")
    values = np.frombuffer(data, "<f4")
    if not np.isfinite(values).all():
        raise Refused("a value is NaN or infinite")
    return values


class Seeded(Struct, frozen=True, array_like=True, tag=1):
    """Scalars of the round's directions; their keys follow from the round number.

    scalars: float32, (steps × directions) if the cohort shares directions, else (clients × steps × directions).
    clients: whose, each as often as it was drawn (its scalars come once).
    others: clients who took part in an earlier exchange only, where a method needs to know.
    """

    round: Natural
    scalars: bytes
    clients: tuple[Natural, ...] = ()
    others: tuple[Natural, ...] = ()


class Dense(Struct, frozen=True, array_like=True, tag=2):
    """x ← x + values; float32, d of them (or what else the method adds to; `clients` where it matters whose)."""

    round: Natural
    values: bytes
    clients: tuple[Natural, ...] = ()


class Group(Struct, frozen=True, array_like=True):
    """What the replies to one question come to in a step: scalars of the directions of the round `asked`.

    scalars: float32, weighted and divided already, so that a step is the sum of its groups; for methods whose clients
    share directions one row (steps × directions), else one for each of `clients`.
    clients: whose, in order, each once, where the method needs to know. weights: float32, what the scalars of each of
    them were multiplied with, where somebody needs to undo it. others: as in `Seeded`.
    """

    asked: Natural
    scalars: bytes
    clients: tuple[Natural, ...] = ()
    weights: bytes = b""
    others: tuple[Natural, ...] = ()

    def __post_init__(self) -> None:
        where = f"the group of round {self.asked}"
        if not self.scalars:
            raise ValueError(f"{where} has no scalars")
        for what, data in (("scalars", self.scalars), ("weights", self.weights)):
            if data and (len(data) % 4 or not np.isfinite(np.frombuffer(data, "<f4")).all()):
                raise ValueError(f"the {what} of {where} are not finite float32 values")
        if self.weights and len(self.weights) != 4 * len(self.clients):
            raise ValueError(f"{where} has {len(self.weights) // 4} weights for {len(self.clients)} clients")
        for clients in (self.clients, self.others):
            if not _rising(clients):
                raise ValueError(f"{where} names clients twice, or not in order")


class Stepped(Struct, frozen=True, array_like=True, tag=3):
    """A step made of the replies to questions of several rounds. Keys and P follow from `asked`; everything else that
    a step has (rate, rounding, moments) from `round`."""

    round: Natural
    groups: tuple[Group, ...]

    def __post_init__(self) -> None:
        asked = [group.asked for group in self.groups]
        if not asked:
            raise ValueError(f"the step of round {self.round} has no groups")
        if not _rising(asked):
            raise ValueError(f"the step of round {self.round} has two groups of one round, or groups not in order")
        if asked[-1] > self.round:
            raise ValueError(f"the step of round {self.round} has a group of round {asked[-1]}, which comes later")


def _rising(numbers: Sequence[int]) -> bool:
    return len(numbers) < 2 or all(a < b for a, b in pairwise(numbers))


OneRound = Seeded | Dense
Update = OneRound | Stepped


class _Head(Struct, array_like=True):
    tag: int


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Update)
_heads = msgspec.msgpack.Decoder(_Head)


def encode_update(update: Update) -> bytes:
    """As small as it goes: what is empty at the end of a list of fields is left out."""
    tag = update.__struct_config__.tag
    if isinstance(update, Stepped):
        return _encoder.encode([tag, update.round, [_trimmed(group, (), b"") for group in update.groups]])
    return _encoder.encode([tag, *_trimmed(update, ())])


def _trimmed(struct: Struct, *empty: object) -> list[object]:
    fields: list[object] = [getattr(struct, name) for name in struct.__struct_fields__]
    while fields[-1] in empty:
        fields.pop()
    return fields


def is_stepped(data: bytes) -> bool:
    """Whether an encoded update is a `Stepped`, without decoding it. msgpack has many ways to write a list or a number,
    and readers accept all of them, so the tag is decoded."""
    if data[:2] in (b"\x93\x01", b"\x94\x01", b"\x95\x01", b"\x93\x03"):  # as they are written
        return data[1] == 3
    try:
        return _heads.decode(data).tag == 3
    except msgspec.DecodeError:
        return False


def clients_of(update: Update) -> tuple[int, ...]:
    """All clients that an update names."""
    if isinstance(update, Stepped):
        return tuple(c for group in update.groups for c in (*group.clients, *group.others))
    return (*update.clients, *update.others) if isinstance(update, Seeded) else update.clients


def of_one_round(update: Update) -> OneRound:
    """For methods whose steps are made of the replies to one question."""
    if isinstance(update, Stepped):
        raise Refused(f"the update of round {update.round} is made of replies of several rounds, which do not fit here")
    return update


def parts_of(update: Seeded | Stepped) -> list[tuple[int, bytes]]:
    """(round whose directions they are scalars of, the scalars) of all that a seeded update is the sum of."""
    if isinstance(update, Seeded):
        return [(update.round, update.scalars)]
    return [(group.asked, group.scalars) for group in update.groups]


def decode_update(data: bytes) -> Update:
    update: Update = decoded(_decoder.decode, data, "an update")
    return update
