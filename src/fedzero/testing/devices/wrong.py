"""What a scenario finds."""

from __future__ import annotations

import msgspec

from fedzero.engines.devices import messages as m


class Wrong(Exception):
    """What is wrong, in words, and the section of docs/device-protocol.md that says how it should be."""

    def __init__(self, what: str, section: str):
        super().__init__(what)
        self.section = section


def shortest(data: bytes, name: str) -> None:
    """Integers, texts, bytes and arrays are in their shortest form."""
    try:
        value = msgspec.msgpack.decode(data)
    except msgspec.DecodeError as error:
        raise Wrong(f"{name} cannot be read: {error}", "conventions") from None
    if (right := m.encode(value)) != data:
        at = next((i for i, (a, b) in enumerate(zip(data, right, strict=False)) if a != b), min(len(data), len(right)))
        what = f"{name} is not in the shortest form: byte {at} is {data[at]:02x} where {right[at]:02x} is the shortest"
        raise Wrong(what, "conventions")
