"""Your own black box: three parties, each with a scoring service, find the settings that suit them all.

A service answers POST {"x": [...]} with a number, the party's cost of running with settings x. Nobody has a gradient,
and nobody shows the others how its cost comes about. Here the services are a small web server on this machine; yours
are wherever they are.

Run it: python examples/own_function.py
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from fedzero.api import Result, http, minimise

IDEAL = {"berlin": [3.0, -1.0, 0.5, 2.0], "lyon": [2.0, -2.0, 1.5, 2.0], "oslo": [4.0, -3.0, 1.0, 2.0]}
"""What each party would choose if it were alone."""


class Service(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        x = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["x"]
        cost = sum((a - b) ** 2 for a, b in zip(x, IDEAL[self.path.strip("/")], strict=True))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"value": cost}).encode())

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def services() -> Iterator[str]:
    """The parties' services on a free port of this machine; their address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def main(rounds: int = 30, budget: int = 600, out: str | Path | None = None) -> Result:
    with services() as address:
        boxes = [http(f"{address}/{party}") for party in IDEAL]
        result = minimise(boxes, bounds=[(-5, 5)] * 4, rounds=rounds, timeout=10, budget=budget, out=out)
    print(f"settings {result.x.round(2)}, mean cost {result.value:.3f}, {result.queries} queries")
    return result


if __name__ == "__main__":
    main()
