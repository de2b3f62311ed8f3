"""The gateway's half of web sockets (RFC 6455), without input or output: no extensions, no text, no subprotocols.

accepted(headers)          the answer to an opening handshake, or None
Frames(largest).read(data) (kind, payload) of each frame that is whole, binary messages put together
framed(payload, kind)      the bytes of a message
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from hashlib import sha1

MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
CONTINUED, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
KINDS = frozenset({CONTINUED, TEXT, BINARY, CLOSE, PING, PONG})
PART = 16
"""The kind that `Frames` gives to a part of a message that is not whole yet."""
LONGEST_CONTROL = 125
NORMAL, AWAY, WRONG, LARGE, LATER = 1000, 1001, 1002, 1009, 1013
"""Why a web socket is closed."""


class Unframed(Exception):
    """These bytes are no web socket's; code: of the closing frame."""

    def __init__(self, code: int, sentence: str):
        super().__init__(sentence)
        self.code = code


def accepted(headers: Mapping[bytes, bytes]) -> bytes | None:
    """The response to the request of a web socket; None: it is none of version 13."""
    key = headers.get(b"sec-websocket-key", b"")
    try:
        nonce = base64.b64decode(key, validate=True)
    except binascii.Error:
        return None
    if len(nonce) != 16 or headers.get(b"sec-websocket-version") != b"13":
        return None
    accept = base64.b64encode(sha1(key + MAGIC).digest())
    head = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    return head + b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n"


def framed(payload: bytes, kind: int = BINARY) -> bytes:
    """A message in one frame; a gateway masks nothing."""
    length = len(payload)
    if length < 126:
        return bytes((0x80 | kind, length)) + payload
    if length < 1 << 16:
        return bytes((0x80 | kind, 126)) + length.to_bytes(2, "big") + payload
    return bytes((0x80 | kind, 127)) + length.to_bytes(8, "big") + payload


def closing(code: int) -> bytes:
    return framed(code.to_bytes(2, "big"), CLOSE)


def unmasked(data: bytes, mask: bytes) -> bytes:
    length = len(data)
    key = int.from_bytes(mask * (length // 4 + 1), "big") >> 8 * (4 - length % 4)
    return (int.from_bytes(data, "big") ^ key).to_bytes(length, "big")


class Frames:
    """Reads what a device sends. largest: bytes of a message."""

    def __init__(self, largest: int):
        self.largest, self._buffer = largest, b""
        self._parts: list[bytes] | None = None
        self._size = 0
        """of the message that is not whole yet"""

    def read(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The frames that are whole now. A message that comes in parts is given with its last one; each part before it
        is (PART, b""), so that whoever counts frames counts it. Raises `Unframed`."""
        buffer = self._buffer + data if self._buffer else data
        at = 0
        try:
            while (found := self._frame(buffer, at)) is not None:
                first, payload, at = found
                yield self._message(first & 0x0F, bool(first & 0x80), payload)
        finally:
            self._buffer = buffer[at:]

    def _frame(self, buffer: bytes, start: int) -> tuple[int, bytes, int] | None:
        """(first byte, payload, where it ends) of the frame that begins there; None if it is not whole yet."""
        if len(buffer) < start + 2:
            return None
        first, second = buffer[start], buffer[start + 1]
        kind, length, at = first & 0x0F, second & 0x7F, start + 2
        if first & 0x70 or kind not in KINDS:
            raise Unframed(WRONG, "a web socket frame of an extension or of an unknown kind")
        if not second & 0x80:
            raise Unframed(WRONG, "a web socket frame without a mask")
        if kind >= CLOSE and (length > LONGEST_CONTROL or not first & 0x80):
            raise Unframed(WRONG, "a control frame that is long or in parts")
        if length > LONGEST_CONTROL:
            size = 2 if length == 126 else 8
            if len(buffer) < at + size:
                return None
            length, at = int.from_bytes(buffer[at : at + size], "big"), at + size
        if kind < CLOSE and length + self._size > self.largest:
            raise Unframed(LARGE, f"a message of more than {self.largest} bytes")
        end = at + 4 + length
        if len(buffer) < end:
            return None
        return first, unmasked(buffer[at + 4 : end], buffer[at : at + 4]) if length else b"", end

    def _message(self, kind: int, last: bool, payload: bytes) -> tuple[int, bytes]:
        if kind >= CLOSE:
            return kind, payload
        if (kind == CONTINUED) != (self._parts is not None):
            raise Unframed(WRONG, "parts of two messages")
        if kind == TEXT:
            return TEXT, b""
        if last and self._parts is None:
            return BINARY, payload
        self._parts = [*(self._parts or ()), payload] if payload or self._parts is None else self._parts
        self._size += len(payload)
        if not last:
            return PART, b""
        whole, self._parts, self._size = b"".join(self._parts), None, 0
        return BINARY, whole
