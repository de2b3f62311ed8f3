"""Bytes of a query of a black box over HTTP, as JSON and as float32: `python -m bench.blackbox.traffic`.

A service of this machine answers the sum of the point. Heads and bodies are counted as `fedzero.ledger.traffic` does.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

from fedzero.oracles.blackbox.attempts import Cancellation
from fedzero.oracles.blackbox.service import FLOAT32, READS, Service

QUERIES = 20


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        x = given["x"] if "x" in given else np.frombuffer(base64.b64decode(given["x32"]), "<f4").astype(float).tolist()
        body = json.dumps({"value": sum(x)}).encode()
        self.send_response(200)
        self.send_header(READS, FLOAT32)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@contextmanager
def serving() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def bytes_of(url: str, size: int, float32: bool) -> tuple[float, float]:
    """Sent and received by a query, without the first, which is JSON in any case."""
    draw, service, all_of = np.random.default_rng(0), Service(url, float32), Cancellation()
    service(draw.uniform(-5, 5, (1, size)), None, Cancellation())
    for _ in range(QUERIES):
        service(draw.uniform(-5, 5, (1, size)), None, all_of)
    return all_of.sent / QUERIES, all_of.received / QUERIES


if __name__ == "__main__":
    with serving() as url:
        for size in (20, 2410):
            for float32 in (False, True):
                sent, received = bytes_of(url, size, float32)
                print(f"d = {size:,}, {'float32' if float32 else 'JSON'}: {sent:,.0f} up, {received:,.0f} down")
