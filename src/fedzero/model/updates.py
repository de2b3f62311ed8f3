"""What a round does to the model: `Seeded`, coefficients of directions everybody can make, or `Dense`, the numbers."""

from __future__ import annotations

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


Update = Seeded | Dense

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Update)


def encode_update(update: Update) -> bytes:
    """As small as it goes: empty lists at the end are left out."""
    fields: list[object] = [getattr(update, name) for name in update.__struct_fields__]
    while fields[-1] == ():
        fields.pop()
    return _encoder.encode([update.__struct_config__.tag, *fields])


def decode_update(data: bytes) -> Update:
    update: Update = decoded(_decoder.decode, data, "an update")
    return update
