"""The answers: `/` is the page, `/events` tells an open page of every change (server-sent events).

On loopback whoever is on this machine may look. Anywhere else the address has a token, without which nothing is shown;
the connection is not encrypted, so a tunnel (ssh -L) is better. Requests that name another host are refused: a page of
somebody else's that has its name resolve to this machine reads nothing.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from fedzero.web.asking import Source
from fedzero.web.channel import Settings

ALIVE = 15.0
"""Seconds after which an idle connection is told that it still is one."""
STEP = 0.25
MOST_STREAMS = 32
"""Open pages that are told of changes; more are refused, so that there is always room for a page."""
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
WAITING = (
    '<!doctype html><html lang="en" data-followed><meta charset="utf-8"><title>fedzero</title>'
    '<meta http-equiv="refresh" content="2"><p>The run has not begun yet.</p></html>'
)


class LivePage:
    """The application."""

    def __init__(self, source: Source, settings: Settings):
        self.source, self.settings = source, settings
        self.streams = 0
        self._event: tuple[int, bytes] = 0, b""
        """the last change, as all streams are told of it"""

    def allowed(self, request: Request) -> bool:
        token = self.settings.token
        if token is not None:
            return secrets.compare_digest(request.query_params.get("token", "").encode(), token.encode())
        return (request.headers.get("host") or "").rpartition(":")[0] in self.settings.hosts

    async def page(self, request: Request) -> Response:
        found = await self.source.page("live")
        if found.problem:
            return PlainTextResponse(f"the page cannot be made: {found.problem}\n", 500, headers=HEADERS)
        return HTMLResponse(WAITING if found.text is None else found.text, headers=HEADERS)

    async def events(self, request: Request) -> Response:
        if self.streams >= MOST_STREAMS:
            refused = HEADERS | {"Retry-After": "10"}
            return PlainTextResponse("too many open pages follow the run\n", 503, headers=refused)
        return StreamingResponse(self._news(), media_type="text/event-stream", headers=HEADERS)

    async def _news(self) -> AsyncIterator[bytes]:
        """The page at first, then whenever it changed; it is always whole, so that a lost connection loses nothing."""
        sent, silent = 0, 0.0
        self.streams += 1
        try:
            yield b"retry: 1000\n\n"
            while True:
                last = self.source.ending.is_set()
                found = await self.source.page("update")
                if found.version != sent and found.text is not None:
                    sent, silent = found.version, 0.0
                    yield self._told(found.version, found.text)
                if last:
                    return
                if silent >= ALIVE:
                    silent = 0.0
                    yield b": still here\n\n"
                await asyncio.sleep(STEP)
                silent += STEP
        finally:
            self.streams -= 1

    def _told(self, version: int, text: str) -> bytes:
        if self._event[0] != version:
            self._event = version, b"data: " + msgspec.json.encode(text) + b"\n\n"
        return self._event[1]

    def application(self) -> Starlette:
        def guarded(handler: Any) -> Any:
            async def answer(request: Request) -> Response:
                if not self.allowed(request):
                    return PlainTextResponse("not allowed\n", 403, headers=HEADERS)
                found: Response = await handler(request)
                return found

            return answer

        return Starlette(routes=[Route("/", guarded(self.page)), Route("/events", guarded(self.events))])
