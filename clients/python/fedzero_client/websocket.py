"""A web socket to a gateway (RFC 6455), with the standard library alone."""

from __future__ import annotations

import base64
import os
import socket
import ssl
import struct
from hashlib import sha1
from urllib.parse import urlsplit

from fedzero_client.errors import Broken

PATH = "/fedzero/1/socket"
MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
BINARY, CLOSE, PING, PONG = 2, 8, 9, 10
LARGEST = 1 << 24
"""Bytes of a frame of a gateway."""
CONNECTING = 10.0


class WebSocket:
    """url: of the gateway, http or https. silence: seconds without a message or a ping after which it is broken."""

    def __init__(self, url: str, silence: float = 90.0):
        split = urlsplit(url)
        secure, host = split.scheme == "https", split.hostname or ""
        port = split.port or (443 if secure else 80)
        try:
            plain = socket.create_connection((host, port), CONNECTING)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            wrap = ssl.create_default_context().wrap_socket
            self._socket = wrap(plain, server_hostname=host) if secure else plain
            self._buffer = b""
            self.sent = self.received = 0
            """bytes"""
            self._shake_hands(split.netloc)
            self._socket.settimeout(silence)
        except OSError as error:
            raise Broken(f"{url} cannot be reached: {error}") from error

    def _shake_hands(self, host: str) -> None:
        key = base64.b64encode(os.urandom(16))
        lines = [f"GET {PATH} HTTP/1.1", f"Host: {host}", "Upgrade: websocket", "Connection: Upgrade"]
        lines += [f"Sec-WebSocket-Key: {key.decode()}", "Sec-WebSocket-Version: 13", "", ""]
        self._write("\r\n".join(lines).encode())
        while b"\r\n\r\n" not in self._buffer:
            if len(self._buffer) > 1 << 14:
                raise Broken("the answer to the handshake is too long")
            self._more()
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        status, *fields = head.split(b"\r\n")
        accept = base64.b64encode(sha1(key + MAGIC).digest())
        found = {name.strip().lower(): value.strip() for name, _, value in (f.partition(b":") for f in fields)}
        if b" 101" not in status or found.get(b"sec-websocket-accept") != accept:
            raise Broken(f"the gateway opens no web socket: {status.decode(errors='replace')}")

    def _write(self, data: bytes) -> None:
        self._socket.sendall(data)
        self.sent += len(data)

    def _more(self) -> None:
        data = self._socket.recv(1 << 16)
        if not data:
            raise Broken("the gateway closed the connection")
        self.received += len(data)
        self._buffer += data

    def _take(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._more()
        found, self._buffer = self._buffer[:count], self._buffer[count:]
        return found

    def send(self, data: bytes, kind: int = BINARY) -> None:
        length, mask = len(data), os.urandom(4)
        if length < 126:
            head = struct.pack(">BB", 0x80 | kind, 0x80 | length)
        elif length < 1 << 16:
            head = struct.pack(">BBH", 0x80 | kind, 0x80 | 126, length)
        else:
            head = struct.pack(">BBQ", 0x80 | kind, 0x80 | 127, length)
        number = int.from_bytes(mask * (length // 4 + 1), "big") >> 8 * (4 - length % 4)
        masked = (int.from_bytes(data, "big") ^ number).to_bytes(length, "big") if length else b""
        try:
            self._write(head + mask + masked)
        except OSError as error:
            raise Broken(f"the connection broke: {error}") from error

    def receive(self) -> bytes:
        """The next binary message; pings are answered."""
        whole = b""
        try:
            while True:
                first, second = self._take(2)
                length = second & 127
                if length > 125:
                    length = int.from_bytes(self._take(2 if length == 126 else 8), "big")
                if second & 128 or first & 0x70 or len(whole) + length > LARGEST:
                    raise Broken("a message that is masked, extended or too long")
                kind, data = first & 15, self._take(length)
                if kind == PING:
                    self.send(data, PONG)
                elif kind == CLOSE:
                    raise Broken("the gateway closed the connection")
                elif kind in (0, BINARY):
                    whole += data
                    if first & 128:
                        return whole
        except OSError as error:
            raise Broken(f"the connection broke: {error}") from error

    def close(self) -> None:
        self._socket.close()
