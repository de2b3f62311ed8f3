"""A gateway reached by requests: the response to an answer carries the next order."""

from __future__ import annotations

import http.client
import struct
from collections import deque
from urllib.parse import urlsplit

from fedzero_client.errors import Broken

PATH, SESSION = "/fedzero/1/poll", "fedzero-session"
LARGEST = 1 << 24


class Polling:
    """The same two members as a web socket: `send` holds a frame until `receive` asks for one."""

    def __init__(self, url: str, silence: float = 90.0):
        split = urlsplit(url)
        kind = http.client.HTTPSConnection if split.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(split.hostname or "", split.port, timeout=silence)
        self._token = ""
        self._out, self._in = list[bytes](), deque[bytes]()

    def send(self, data: bytes) -> None:
        self._out.append(data)

    def receive(self) -> bytes:
        while not self._in:
            self._ask()
        return self._in.popleft()

    def _ask(self) -> None:
        body = b"".join(struct.pack("<I", len(frame)) + frame for frame in self._out)
        self._out.clear()
        headers = {SESSION: self._token} if self._token else {}
        try:
            self._connection.request("POST", PATH, body, headers)
            response = self._connection.getresponse()
            found = response.read(LARGEST)
        except (OSError, http.client.HTTPException) as error:
            raise Broken(f"the connection broke: {error}") from error
        if response.status != 200:
            raise Broken(f"the gateway answers {response.status} {response.reason}")
        self._token = response.headers.get(SESSION, self._token)
        while found:
            length = int.from_bytes(found[:4], "little")
            if len(found) < 4 + length:
                raise Broken("a response is cut short")
            self._in.append(found[4 : 4 + length])
            found = found[4 + length :]

    def close(self) -> None:
        self._connection.close()
