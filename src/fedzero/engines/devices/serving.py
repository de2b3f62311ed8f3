"""The web server of a gateway: uvicorn in a thread of its own, with limits on connections that say nothing."""

from __future__ import annotations

import asyncio
import http
import logging
import resource
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedzero.engines.devices.application import Gateway, address_of
from fedzero.engines.devices.door import SPARE, Door, Listening
from fedzero.engines.devices.framing import accepted
from fedzero.engines.devices.hub import HANDSHAKE, SWEEP, Hub
from fedzero.engines.devices.sockets import STALLED, DeviceSocket, Pulse
from fedzero.errors import FedzeroError

SOCKET = "/fedzero/1/socket"
STARTING = 10.0
GRACE = 3
"""Seconds for last frames to reach their devices."""
OWN_FILES = 64
"""Files that the process of a run has open beside connections."""


class Guarded(H11Protocol):
    """A connection, which the door lets go when its request is complete; web sockets of devices are served here."""

    gateway: Gateway
    door: Door
    pulse: Pulse
    _own: socket.socket | None = None
    """the connection, once it has left the door"""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._socket = transport.get_extra_info("socket")
        self._number = self._socket.fileno()

    def handle_events(self) -> None:
        super().handle_events()
        begun = self.cycle is not None and not self.cycle.response_complete
        if begun or self.transport.get_protocol() is not self:
            self._own = self.door.spoke(self._number) or self._own

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._own is not None and not self.transport.is_closing():
            self.door.quiet(self._number, self._own, time.monotonic() + self.timeout_keep_alive)

    def pause_writing(self) -> None:
        """Whoever does not read what was asked for is silent, too."""
        super().pause_writing()
        if self._own is not None:
            self.door.quiet(self._number, self._own, time.monotonic() + STALLED)

    def resume_writing(self) -> None:
        super().resume_writing()
        self.door.spoke(self._number)

    def connection_lost(self, exc: Exception | None) -> None:
        self.door.spoke(self._number)
        super().connection_lost(exc)

    def handle_websocket_upgrade(self, event: Any) -> None:
        """Read by h11 so far; from here on the connection is a device's."""
        headers, target = dict(self.headers), self.scope["path"]
        response = accepted(headers) if target == SOCKET and event.method == b"GET" else None
        if response is None or not self.gateway.welcome(_text(headers, b"origin"), _text(headers, b"host")):
            self._answer_upgrade(403 if response else 404)
            return
        if len(self.connections) > (self.limit_concurrency or 0):
            self._answer_upgrade(503)
            return
        self.connections.discard(self)
        self.transport.write(response)
        forwarded = _text(headers, b"x-forwarded-for")
        address, largest = address_of(self.client[0] if self.client else "", forwarded), self.gateway.largest
        found = DeviceSocket(self.gateway.hub, self.transport, address, largest, self.connections.discard)
        self.connections.add(found)  # type: ignore[arg-type]  # it has what a server asks of one
        self.pulse.add(found)
        self.transport.set_protocol(found)
        if rest := self.conn.trailing_data[0]:
            found.data_received(rest)

    def _answer_upgrade(self, status: int) -> None:
        phrase = http.HTTPStatus(status).phrase
        self.transport.write(f"HTTP/1.1 {status} {phrase}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n".encode())
        self.transport.close()


def _text(headers: Mapping[bytes, bytes], name: bytes) -> str | None:
    return headers[name].decode("latin-1") if name in headers else None


async def _sweep(door: Door) -> None:
    while True:
        await asyncio.sleep(SWEEP)
        door.sweep(time.monotonic())


def listening(host: str, port: int) -> Listening:
    """A socket that listens; raises `FedzeroError` if it cannot."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = Listening(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
        found.listen()
    except OSError as error:
        found.close()
        raise FedzeroError(f"engine.listen = '{host}:{port}' cannot be used: {error.strerror}") from error
    return found


def room(wanted: int) -> tuple[int, int]:
    """How many connections the process may have, and the highest number of their files: its limit of files is raised as
    far as it may be. Files that are open already are not those of connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = max(int(each.name) for each in Path("/dev/fd").iterdir())
    needed = before + wanted + OWN_FILES
    most = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
    if most > soft:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
    found = max(4, min(wanted, soft - OWN_FILES - before))
    return found, before + found


@contextmanager
def served(gateway: Gateway, at: Listening, settings: dict[str, Any]) -> Iterator[None]:
    """Serve until the block ends. settings: of TLS, for uvicorn."""
    hub, (most, number) = gateway.hub, room(gateway.hub.most)
    door, pulse = Door(number, HANDSHAKE), Pulse(hub.beat)
    at.door = door
    guarded = type("Connection", (Guarded,), {"gateway": gateway, "door": door, "pulse": pulse})
    config = uvicorn.Config(
        gateway.application(),
        http=guarded,
        ws=guarded,  # that there is one: `Guarded` serves it
        proxy_headers=False,  # `address_of` reads them
        limit_concurrency=most,
        backlog=SPARE,
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
    thread = threading.Thread(
        target=_thread,
        args=(
            server,
            [hub.sweep_for_ever, hub.write_for_ever, partial(_sweep, door), pulse.for_ever],
            hub,
            at,
            failed.append,
        ),
        name="gateway",
        daemon=True,
    )
    thread.start()
    end = time.monotonic() + STARTING
    while not server.started and not failed and time.monotonic() < end:
        time.sleep(0.01)
    if not server.started:
        at.close()
        raise FedzeroError(f"the gateway did not start: {failed[0] if failed else 'no reason given'}")
    try:
        yield
    finally:
        try:
            _last_frames(hub)
        finally:
            server.should_exit = True
            thread.join(GRACE + STARTING)
            at.close()


def _last_frames(hub: Hub) -> None:
    """Wait until they have left, but not for long."""
    end = time.monotonic() + GRACE
    while hub.connections and time.monotonic() < end:
        time.sleep(0.01)


def _thread(
    server: uvicorn.Server,
    others: Sequence[Callable[[], Coroutine[Any, Any, None]]],
    hub: Hub,
    at: socket.socket,
    failed: Callable[[BaseException], None],
) -> None:
    async def serve() -> None:
        hub.loop = asyncio.get_running_loop()
        sweeping = [asyncio.create_task(each()) for each in others]
        await server.serve(sockets=[at])
        for each in sweeping:
            each.cancel()

    try:
        asyncio.run(serve())
    except BaseException as error:  # of uvicorn, which ends by SystemExit, too
        failed(error)
