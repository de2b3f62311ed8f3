"""Serves the page of a run: `/` is the page, `/events` tells it of every change (server-sent events).

    with serving(folder, "127.0.0.1:8747") as address: ...

On loopback whoever is on this machine may look. Anywhere else the address has a token, without which nothing is shown;
the connection is not encrypted, so a tunnel (ssh -L) is better. Requests that name another host are refused: a page of
somebody else's that has its name resolve to this machine reads nothing.
"""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fedzero.errors import FedzeroError
from fedzero.web.following import Following

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

DEFAULT = "127.0.0.1:8747"
NEARBY = 20
"""Ports behind the wanted one that are tried if it is taken."""
ALIVE = 15.0
"""Seconds after which an idle connection is told that it still is one."""
STEP = 0.25
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
    """The application. `closing` ends the connections, each after a last update."""

    def __init__(self, following: Following, token: str | None, hosts: frozenset[str]):
        self.following, self.token, self.hosts = following, token, hosts
        self.closing = False

    def allowed(self, request: Request) -> bool:
        if self.token is not None:
            return secrets.compare_digest(request.query_params.get("token", "").encode(), self.token.encode())
        return (request.headers.get("host") or "").rpartition(":")[0] in self.hosts

    async def page(self, request: Request) -> Response:
        from starlette.responses import HTMLResponse

        await asyncio.to_thread(self.following.look)
        text = await asyncio.to_thread(self.following.page, "live")
        return HTMLResponse(WAITING if text is None else text, headers=HEADERS)

    async def events(self, request: Request) -> Response:
        from starlette.responses import StreamingResponse

        return StreamingResponse(self._news(), media_type="text/event-stream", headers=HEADERS)

    async def _news(self) -> AsyncIterator[str]:
        """The page at first, then whenever it changed; it is always whole, so that a lost connection loses nothing."""
        sent, silent = -1, 0.0
        yield "retry: 1000\n\n"
        while True:
            last = self.closing
            if last or time.monotonic() >= self.following.due:
                await asyncio.to_thread(self.following.look, last)
            if (version := self.following.version) != sent and (
                text := await asyncio.to_thread(self.following.page, "update")
            ) is not None:
                sent, silent = version, 0.0
                yield f"data: {msgspec.json.encode(text).decode()}\n\n"
            if last:
                return
            if silent >= ALIVE:
                silent = 0.0
                yield ": still here\n\n"
            await asyncio.sleep(STEP)
            silent += STEP

    def application(self) -> Starlette:
        from starlette.applications import Starlette
        from starlette.responses import PlainTextResponse
        from starlette.routing import Route

        def guarded(handler: Any) -> Any:
            async def answer(request: Request) -> Response:
                if not self.allowed(request):
                    return PlainTextResponse("not allowed\n", 403, headers=HEADERS)
                found: Response = await handler(request)
                return found

            return answer

        routes = [Route("/", guarded(self.page)), Route("/events", guarded(self.events))]
        return Starlette(routes=routes)


@contextmanager
def serving(folder: Path, at: str = DEFAULT) -> Iterator[str]:
    """Serve the page of a run, which may not have begun yet, in a thread; the value is its address."""
    try:
        import starlette  # noqa: F401
        import uvicorn
    except ImportError:
        raise FedzeroError("the page needs starlette and uvicorn: pip install 'fedzero[web]'") from None
    host, port = address_of(at)
    token = None if is_loopback(host) else secrets.token_urlsafe(24)
    listening = listen(host, port)
    port = listening.getsockname()[1]
    live = LivePage(Following(folder), token, frozenset(("localhost", "127.0.0.1", "[::1]", host, f"[{host}]")))
    config = uvicorn.Config(
        live.application(), log_level="error", access_log=False, lifespan="off", timeout_graceful_shutdown=3
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="fedzero-web", daemon=True)
    thread.start()
    shown = f"[{host}]" if ":" in host else host
    try:
        yield f"http://{shown}:{port}/" + ("" if token is None else f"?token={token}")
    finally:
        live.closing = True
        server.should_exit = True
        thread.join(5)


def address_of(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise FedzeroError(f"{text!r} is no address to serve the page at: write it as {DEFAULT}")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """A socket on the wanted port, or on one of those behind it: after a restart the page is found where it was."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    last: OSError | None = None
    for number in range(port, min(port + NEARBY, 65536)) if port else (0,):
        found = socket.socket(family, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((host, number))
            found.listen(64)
            return found
        except OSError as error:
            found.close()
            last = error
    raise FedzeroError(f"the page cannot be served at {host}:{port}: {last}")
