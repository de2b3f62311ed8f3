"""What signatures of `fedzero-device/1` are about, as bytes. No clock is part of any of them, and none enters a head.

"fedzero-device/1 " ‖ kind ‖ 00 ‖ run (16) ‖ place (u32) ‖ payload        integers are little-endian
"""

from __future__ import annotations

import hashlib
import struct

DOMAIN = b"fedzero-device/1 "


def statement(kind: str, run: bytes, place: int, payload: bytes) -> bytes:
    return DOMAIN + kind.encode("ascii") + b"\0" + run + struct.pack("<I", place) + payload


def enrol(run: bytes, ticket: bytes, gateway: bytes, algorithm: int, key: bytes) -> bytes:
    """By the device that enrols; its place is not known yet. gateway: the fingerprint of the gateway's keys."""
    return statement("enrol", run, 0, ticket + gateway + bytes([algorithm]) + key)


def enrolled(run: bytes, place: int, ticket: bytes, key: bytes) -> bytes:
    return statement("enrolled", run, place, ticket + key)


def proof(run: bytes, place: int, challenge: bytes, nonce: bytes, ready: int | None) -> bytes:
    """By the device. ready: as in its Hello; nil counts as 2⁶⁴ − 1."""
    number = (1 << 64) - 1 if ready is None else ready
    return statement("proof", run, place, challenge + nonce + struct.pack("<Q", number))


def welcome(run: bytes, place: int, nonce: bytes, plan: bytes) -> bytes:
    """nonce: of the device's Hello; plan: the whole plan, also where it is not sent."""
    return statement("welcome", run, place, nonce + hashlib.sha256(plan).digest())


def order(run: bytes, place: int, round: int, exchange: int, attempt: int, body: bytes) -> bytes:
    return statement("order", run, place, struct.pack("<QII", round, exchange, attempt) + body)


def answer(run: bytes, place: int, round: int, exchange: int, attempt: int, order: bytes, body: bytes) -> bytes:
    """By the device. order: the body of the order that it answers."""
    numbers = struct.pack("<QII", round, exchange, attempt)
    return statement("answer", run, place, numbers + hashlib.sha256(order).digest() + body)


def updates(run: bytes, place: int, body: bytes) -> bytes:
    return statement("updates", run, place, body)


def checkpoint(run: bytes, place: int, body: bytes) -> bytes:
    return statement("checkpoint", run, place, body)


def finish(run: bytes, place: int, rounds: int, reason: str) -> bytes:
    return statement("finish", run, place, struct.pack("<Q", rounds) + reason.encode())
