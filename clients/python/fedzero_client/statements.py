"""What is signed: "fedzero-device/1 " ‖ kind ‖ 00 ‖ run ‖ place (u32) ‖ payload, integers little-endian."""

from __future__ import annotations

import struct
from hashlib import sha256


def statement(kind: str, run: bytes, place: int, payload: bytes) -> bytes:
    return b"fedzero-device/1 " + kind.encode() + b"\0" + run + struct.pack("<I", place) + payload


def numbers(round: int, exchange: int, attempt: int) -> bytes:
    return struct.pack("<QII", round, exchange, attempt)


def answer(run: bytes, place: int, numbered: bytes, order: bytes, body: bytes) -> bytes:
    return statement("answer", run, place, numbered + sha256(order).digest() + body)
