"""A service that is asked over HTTP: one POST for each point. What goes over the connection is counted.

    POST url, {"x": [x_1, …, x_d]}              JSON, the default
    POST url, {"x32": "base64"}                 d float32 numbers, little-endian

The second form needs both sides: a box with `float32`, and a service whose answers have the header `Fedzero-Point:
float32`. Such a box rounds x to float32 in both forms, so no value depends on the form that a point was sent in.
"""

from __future__ import annotations

import base64
import http.client
import json
import urllib.error
import urllib.request
from typing import Any

import numpy as np

from fedzero.oracles.blackbox.attempts import Cancellation, Unusable
from fedzero.oracles.contract import F64

LARGEST_ANSWER = 1 << 20
"""Bytes of an answer; a number needs fewer."""
READS, FLOAT32 = "Fedzero-Point", "float32"


class Service:
    """float32: x is rounded to float32, and sent so where the service reads it."""

    def __init__(self, url: str, float32: bool = False):
        self.url, self._rounds, self._packs = url, float32, False

    def __call__(self, points: F64, timeout: float | None, cancellation: Cancellation) -> str:
        """The text of the answer. `timeout` is of each wait on the socket; that of the whole attempt is the
        caller's."""
        request = urllib.request.Request(self.url, self._body(points[0]), {"Content-Type": "application/json"})
        try:
            with _opener(cancellation).open(request, timeout=timeout) as response:
                cancellation.received += _head(response)
                data = response.read(LARGEST_ANSWER + 1)
                self._packs = self._rounds and response.headers.get(READS, "").strip() == FLOAT32
        except urllib.error.HTTPError as error:
            cancellation.received += _head(error)
            self._packs = False
            raise Unusable(f"it answered with HTTP status {error.code}") from None
        except urllib.error.URLError as error:
            raise Unusable(f"it could not be reached ({error.reason})") from None
        cancellation.received += len(data)
        if len(data) > LARGEST_ANSWER:
            raise Unusable(f"it answered with more than {LARGEST_ANSWER} bytes")
        text: str = data.decode(errors="replace")
        return text

    def _body(self, x: F64) -> bytes:
        if not self._rounds:
            return json.dumps({"x": x.tolist()}).encode()
        short = x.astype("<f4")
        if self._packs:
            return json.dumps({"x32": base64.b64encode(short.tobytes()).decode()}).encode()
        return json.dumps({"x": short.astype(np.float64).tolist()}).encode()


def _head(response: Any) -> int:
    """Bytes of the status line and of the fields of an answer."""
    status = len(f"HTTP/1.1 {response.status} {response.reason}\r\n")
    return status + sum(len(f"{name}: {value}\r\n".encode()) for name, value in response.headers.items()) + 2


def _opener(cancellation: Cancellation) -> urllib.request.OpenerDirector:
    """Opens connections that count what is sent over them, before TLS."""

    class Plain(http.client.HTTPConnection):
        def send(self, data: Any) -> None:
            cancellation.sent += len(data)
            super().send(data)

    class Secure(http.client.HTTPSConnection):
        def send(self, data: Any) -> None:
            cancellation.sent += len(data)
            super().send(data)

    class PlainHandler(urllib.request.HTTPHandler):
        def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(Plain, req)

    class SecureHandler(urllib.request.HTTPSHandler):
        def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(Secure, req)

    return urllib.request.build_opener(PlainHandler, SecureHandler)
