"""msgpack, as far as fedzero-device/1 needs it: nil, bool, integers, float64, text, bytes and arrays."""

from __future__ import annotations

import struct
from typing import Any

from fedzero_client.errors import Broken

DEEPEST = 16


def pack(value: Any) -> bytes:
    """Integers, texts, bytes and arrays are in their shortest form."""
    if value is None:
        return b"\xc0"
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, str):
        data = value.encode()
        return _header(len(data), (0xA0, 32), 0xD9) + data
    if isinstance(value, bytes):
        return _header(len(value), None, 0xC4) + value
    head = _header(len(value), (0x90, 16), 0xDB)
    return head + b"".join(map(pack, value))


def _integer(value: int) -> bytes:
    if value < 0:
        raise ValueError("the protocol has no negative integers")
    for tag, size, kind in ((None, 7, "B"), (0xCC, 8, "B"), (0xCD, 16, "H"), (0xCE, 32, "I"), (0xCF, 64, "Q")):
        if value < 1 << size:
            return (b"" if tag is None else bytes([tag])) + struct.pack(f">{kind}", value)
    raise ValueError(f"{value} has more than 64 bits")


def _header(length: int, short: tuple[int, int] | None, tag: int) -> bytes:
    """tag: of a length in one byte; arrays have none, so theirs is the one before that of two bytes."""
    if short is not None and length < short[1]:
        return bytes([short[0] | length])
    if length < 1 << 8 and tag != 0xDB:
        return bytes([tag, length])
    if length < 1 << 16:
        return bytes([tag + 1]) + struct.pack(">H", length)
    return bytes([tag + 2]) + struct.pack(">I", length)


def unpack(data: bytes) -> Any:
    """The value of all bytes; raises `Broken` if they are not exactly one."""
    value, end = _value(data, 0, 0)
    if end != len(data):
        raise Broken("bytes behind a message")
    return value


def _value(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    if at >= len(data) or depth > DEEPEST:
        raise Broken("a message is cut short, or nested too deeply")
    tag = data[at]
    if tag < 0x80:
        return tag, at + 1
    if tag in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[tag], at + 1
    if tag == 0xCB:
        return struct.unpack(">d", _slice(data, at + 1, 8))[0], at + 9
    if 0xCC <= tag <= 0xCF:
        size = 1 << (tag - 0xCC)
        return int.from_bytes(_slice(data, at + 1, size), "big"), at + 1 + size
    if 0x90 <= tag <= 0x9F:
        return _array(data, at + 1, tag & 15, depth)
    if 0xA0 <= tag <= 0xBF:
        return _text(_slice(data, at + 1, tag & 31)), at + 1 + (tag & 31)
    for first, make in ((0xC4, bytes), (0xD9, _text)):
        if first <= tag <= first + 2:
            length, start = _length(data, at, 1 << (tag - first))
            return make(_slice(data, start, length)), start + length
    if tag in (0xDC, 0xDD):
        length, start = _length(data, at, 2 if tag == 0xDC else 4)
        return _array(data, start, length, depth)
    raise Broken(f"a message has the byte {tag:02x}, which begins nothing of this protocol")


def _length(data: bytes, at: int, size: int) -> tuple[int, int]:
    return int.from_bytes(_slice(data, at + 1, size), "big"), at + 1 + size


def _array(data: bytes, at: int, length: int, depth: int) -> tuple[list[Any], int]:
    if length > len(data) - at:  # every element has a byte at least
        raise Broken("a message is cut short")
    found = []
    for _ in range(length):
        value, at = _value(data, at, depth + 1)
        found.append(value)
    return found, at


def _slice(data: bytes, at: int, length: int) -> bytes:
    if length > len(data) - at:
        raise Broken("a message is cut short")
    return data[at : at + length]


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Broken("a text is not UTF-8") from None
