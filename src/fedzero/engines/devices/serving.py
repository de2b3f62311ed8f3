"""The web server of a gateway: uvicorn in a thread of its own, with limits on connections that say nothing."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedzero.engines.devices.application import Gateway
from fedzero.engines.devices.hub import HANDSHAKE, SWEEP, Hub
from fedzero.errors import FedzeroError

STARTING = 10.0
GRACE = 3
"""Seconds for last frames to reach their devices."""
OWN_FILES = 64
"""Files that the process of a run has open beside connections."""


class Guarded(H11Protocol):
    """A connection that must send a complete head within `HANDSHAKE` seconds."""

    silent: ClassVar[dict[Guarded, float]] = {}

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.silent[self] = time.monotonic()

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not None or self.transport.get_protocol() is not self:
            self.silent.pop(self, None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.silent.pop(self, None)
        super().connection_lost(exc)


async def _sweep() -> None:
    while True:
        await asyncio.sleep(SWEEP)
        now = time.monotonic()
        for connection in [c for c, since in Guarded.silent.items() if now - since > HANDSHAKE]:
            Guarded.silent.pop(connection, None)
            connection.transport.abort()


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens; raises `FedzeroError` if it cannot."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
        found.listen(2048)
    except OSError as error:
        found.close()
        raise FedzeroError(f"engine.listen = '{host}:{port}' cannot be used: {error.strerror}") from error
    return found


def room(wanted: int) -> int:
    """How many connections the process may have: its limit of files is raised as far as it may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted + OWN_FILES if hard == resource.RLIM_INFINITY else min(hard, wanted + OWN_FILES)
    if most > soft:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
    return max(4, min(wanted, soft - OWN_FILES))


@contextmanager
def served(gateway: Gateway, at: socket.socket, settings: dict[str, Any]) -> Iterator[None]:
    """Serve until the block ends. settings: of TLS, for uvicorn."""
    hub = gateway.hub
    config = uvicorn.Config(
        gateway.application(),
        http=Guarded,
        ws="websockets-sansio",
        ws_max_size=gateway.largest,
        ws_per_message_deflate=False,
        ws_ping_interval=hub.beat,
        ws_ping_timeout=2 * hub.beat,
        limit_concurrency=room(hub.most),
        timeout_keep_alive=3 * hub.beat,
        timeout_graceful_shutdown=GRACE,
        h11_max_incomplete_event_size=16 << 10,
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        lifespan="off",
        **settings,
    )
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
    server, failed = uvicorn.Server(config), list[BaseException]()
    thread = threading.Thread(target=_thread, args=(server, hub, at, failed.append), name="gateway", daemon=True)
    thread.start()
    end = time.monotonic() + STARTING
    while not server.started and not failed and time.monotonic() < end:
        time.sleep(0.01)
    if not server.started:
        at.close()
        raise FedzeroError(f"the gateway did not start: {failed[0] if failed else 'no reason given'}")
    try:
        yield
        end = time.monotonic() + GRACE
        while hub.connections and time.monotonic() < end:
            time.sleep(0.01)
    finally:
        server.should_exit = True
        thread.join(GRACE + STARTING)
        at.close()


def _thread(server: uvicorn.Server, hub: Hub, at: socket.socket, failed: Callable[[BaseException], None]) -> None:
    async def serve() -> None:
        hub.loop = asyncio.get_running_loop()
        sweeping = [asyncio.create_task(each) for each in (hub.sweep_for_ever(), _sweep())]
        await server.serve(sockets=[at])
        for each in sweeping:
            each.cancel()

    try:
        asyncio.run(serve())
    except BaseException as error:  # of uvicorn, which ends by SystemExit, too
        failed(error)
