"""Frames between the supervisor, which listens, and the server's job process, which connects.

A frame is four bytes of length and a msgpack array. End of file from either side ends the epoch.

    job → supervisor   ["hello", token, job, [site, …], pid]
                       ["got", ask, site, ok, bytes]   ["done", ask]   ["pong", site]
    supervisor → job   ["ask", ask, {site: bytes}, seconds, limit, [site to ping, …]]     ["stop"]
"""

from __future__ import annotations

import socket
import struct
from typing import Any

import msgspec

LARGEST = 1 << 31
NUMBER = 8
"""Bytes in front of an order: its number, so that a site knows which is the latest."""
BRIDGE_FILE = "fedzero_bridge.json"
"""In the server kit's local/: where the supervisor listens, and the word to say."""


def send(to: socket.socket, *frame: Any) -> None:
    body = msgspec.msgpack.encode(frame)
    to.sendall(struct.pack(">I", len(body)) + body)


def receive(source: socket.socket) -> list[Any] | None:
    """The next frame; None at the end."""
    head = _exactly(source, 4)
    if head is None:
        return None
    (size,) = struct.unpack(">I", head)
    if size > LARGEST:
        raise ValueError(f"a frame of {size} bytes")
    body = _exactly(source, size)
    return None if body is None else msgspec.msgpack.decode(body, type=list)


def _exactly(source: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        piece = source.recv(min(size - len(parts), 1 << 20))
        if not piece:
            return None
        parts += piece
    return bytes(parts)
