"""A real web server on this machine, whose answers a test decides."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest


@dataclass
class Web:
    """`answer(path, x)` gives (status, body); `calls` are the points that really arrived, by path. reads: what its
    answers say that it reads; raw: the bytes of requests and answers, as they were on the connection."""

    address: str = ""
    answer: Callable[[str, list[float]], tuple[int, str]] = lambda path, x: (200, json.dumps(sum(x)))
    calls: list[tuple[str, list[float]]] = field(default_factory=list)
    reads: str = ""
    bodies: list[bytes] = field(default_factory=list)
    raw: list[int] = field(default_factory=lambda: [0, 0])


class Counted:
    """A file of a connection, whose bytes are counted."""

    def __init__(self, file: Any, raw: list[int], place: int):
        self.file, self.raw, self.place = file, raw, place

    def read(self, *size: int) -> bytes:
        return self._noted(self.file.read(*size))

    def readline(self, *size: int) -> bytes:
        return self._noted(self.file.readline(*size))

    def write(self, data: bytes) -> int:
        self._noted(data)
        return int(self.file.write(data))

    def _noted(self, data: bytes) -> bytes:
        self.raw[self.place] += len(data)
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


@pytest.fixture
def web() -> Iterator[Web]:
    made = Web()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            made.bodies.append(body)
            given = json.loads(body)
            x = given["x"] if "x" in given else np.frombuffer(base64.b64decode(given["x32"]), "<f4").tolist()
            made.calls.append((self.path, x))
            status, body = made.answer(self.path, x)
            self.send_response(status)
            if made.reads:
                self.send_header("Fedzero-Point", made.reads)
            self.end_headers()
            self.wfile.write(body.encode())

        def setup(self) -> None:
            super().setup()
            self.rfile, self.wfile = Counted(self.rfile, made.raw, 0), Counted(self.wfile, made.raw, 1)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_: None  # a client that hung up
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    made.address = f"http://127.0.0.1:{server.server_port}"
    yield made
    server.shutdown()
    server.server_close()
