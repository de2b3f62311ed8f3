"""A real web server on this machine, whose answers a test decides."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


@dataclass
class Web:
    """`answer(path, x)` gives (status, body); `calls` are the points that really arrived, by path."""

    address: str = ""
    answer: Callable[[str, list[float]], tuple[int, str]] = lambda path, x: (200, json.dumps(sum(x)))
    calls: list[tuple[str, list[float]]] = field(default_factory=list)


@pytest.fixture
def web() -> Iterator[Web]:
    made = Web()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            x = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["x"]
            made.calls.append((self.path, x))
            status, body = made.answer(self.path, x)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_: None  # a client that hung up
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    made.address = f"http://127.0.0.1:{server.server_port}"
    yield made
    server.shutdown()
    server.server_close()
